// Verifies proofs of presence with @confio/ics23, as a client in a browser does.
//
// Standard input has one case per line, JSON, bytes as hex:
//
//   {"app_hash": "..", "module": "bank", "key": "..", "value": "..", "ops": [{"type": "ics23:jmt", "key": "..", "data": ".."}, ..]}
//
// Standard output has one line per case: "ok", or "no: " and the reason. Absence cannot be verified with this library: it
// compares the keys of neighbours as they are, a Jellyfish Merkle tree orders them by hash.
"use strict";

const readline = require("node:readline");
const { ics23, tendermintSpec, verifyMembership } = require("@confio/ics23");

const { HashOp, LengthOp } = ics23;

const jmtSpec = {
  leafSpec: {
    hash: HashOp.SHA256,
    prehashKey: HashOp.SHA256,
    prehashValue: HashOp.SHA256,
    length: LengthOp.NO_PREFIX,
    prefix: Buffer.from("JMT::LeafNode"),
  },
  innerSpec: {
    childOrder: [0, 1],
    childSize: 32,
    minPrefixLength: 16,
    maxPrefixLength: 16,
    emptyChild: Buffer.from("SPARSE_MERKLE_PLACEHOLDER_HASH__"),
    hash: HashOp.SHA256,
  },
  maxDepth: 64,
};

const bytes = (hex) => Uint8Array.from(Buffer.from(hex, "hex"));

function decode(op, type, key) {
  if (op.type !== type || op.key !== key) {
    throw new Error(`operation ${op.type} of key ${op.key} is out of place`);
  }
  return ics23.CommitmentProof.decode(bytes(op.data));
}

function verify({ app_hash, module, key, value, ops }) {
  const moduleKey = Buffer.from(module);
  const tree = decode(ops[0], "ics23:jmt", key);
  const root = decode(ops[1], "ics23:simple", moduleKey.toString("hex"));
  if (!root.exist) {
    throw new Error("the second operation is no proof of existence");
  }
  const moduleRoot = root.exist.value;
  if (!verifyMembership(root, tendermintSpec, bytes(app_hash), Uint8Array.from(moduleKey), moduleRoot)) {
    throw new Error("the module's root is not in the app hash");
  }
  if (!verifyMembership(tree, jmtSpec, moduleRoot, bytes(key), bytes(value))) {
    throw new Error("the value is not in the module's root");
  }
}

readline.createInterface({ input: process.stdin }).on("line", (line) => {
  const claim = JSON.parse(line);
  try {
    verify(claim);
    console.log("ok");
  } catch (error) {
    console.log(`no: ${error.message}`);
  }
});
