// Verifies proofs with github.com/cosmos/ics23/go, as a chain written in Go does.
//
// Standard input has one case per line, JSON, bytes as hex:
//
//	{"app_hash": "..", "module": "bank", "key": "..", "value": "..", "ops": [{"type": "ics23:jmt", "key": "..", "data": ".."}, ..]}
//
// Without "value" the key is to be absent. Standard output has one line per case: "ok", or "no: " and the reason.
package main

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	ics23 "github.com/cosmos/ics23/go"
)

// Bytes in hex.
type hexBytes []byte

func (b *hexBytes) UnmarshalJSON(text []byte) error {
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	decoded, err := hex.DecodeString(s)
	*b = decoded
	return err
}

type op struct {
	Type string   `json:"type"`
	Key  hexBytes `json:"key"`
	Data hexBytes `json:"data"`
}

type claim struct {
	AppHash hexBytes  `json:"app_hash"`
	Module  string    `json:"module"`
	Key     hexBytes  `json:"key"`
	Value   *hexBytes `json:"value"`
	Ops     []op      `json:"ops"`
}

// The Jellyfish Merkle tree: keys are compared by their hashes.
func jmtSpec() *ics23.ProofSpec {
	return &ics23.ProofSpec{
		LeafSpec: &ics23.LeafOp{
			Hash:         ics23.HashOp_SHA256,
			PrehashKey:   ics23.HashOp_SHA256,
			PrehashValue: ics23.HashOp_SHA256,
			Length:       ics23.LengthOp_NO_PREFIX,
			Prefix:       []byte("JMT::LeafNode"),
		},
		InnerSpec: &ics23.InnerSpec{
			ChildOrder:      []int32{0, 1},
			ChildSize:       32,
			MinPrefixLength: 16,
			MaxPrefixLength: 16,
			EmptyChild:      []byte("SPARSE_MERKLE_PLACEHOLDER_HASH__"),
			Hash:            ics23.HashOp_SHA256,
		},
		MaxDepth:                   64,
		PrehashKeyBeforeComparison: true,
	}
}

func decode(o op, kind string, key []byte) (*ics23.CommitmentProof, error) {
	if o.Type != kind || !bytes.Equal(o.Key, key) {
		return nil, fmt.Errorf("operation %q of key %x is out of place", o.Type, []byte(o.Key))
	}
	proof := &ics23.CommitmentProof{}
	return proof, proof.Unmarshal(o.Data)
}

func verify(c claim) error {
	if len(c.Ops) != 2 {
		return fmt.Errorf("%d operations", len(c.Ops))
	}
	tree, err := decode(c.Ops[0], "ics23:jmt", c.Key)
	if err != nil {
		return err
	}
	root, err := decode(c.Ops[1], "ics23:simple", []byte(c.Module))
	if err != nil {
		return err
	}
	exist := root.GetExist()
	if exist == nil {
		return errors.New("the second operation is no proof of existence")
	}
	if !ics23.VerifyMembership(ics23.TendermintSpec, ics23.CommitmentRoot(c.AppHash), root, []byte(c.Module), exist.Value) {
		return errors.New("the module's root is not in the app hash")
	}
	moduleRoot := ics23.CommitmentRoot(exist.Value)
	if c.Value != nil {
		if !ics23.VerifyMembership(jmtSpec(), moduleRoot, tree, c.Key, *c.Value) {
			return errors.New("the value is not in the module's root")
		}
	} else if !ics23.VerifyNonMembership(jmtSpec(), moduleRoot, tree, c.Key) {
		return errors.New("absence is not proven by the module's root")
	}
	return nil
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 1<<20), 1<<24)
	for lines.Scan() {
		var c claim
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if err := verify(c); err != nil {
			fmt.Println("no:", err)
		} else {
			fmt.Println("ok")
		}
	}
	if err := lines.Err(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
