//! ICS 23 proofs of single keys, and the simple Merkle map over the module roots.

use holdfast_proto::Message;
use ics23::{
    CommitmentProof, ExistenceProof, HashOp, HostFunctionsManager, InnerOp, InnerSpec, LeafOp, LengthOp,
    NonExistenceProof, ProofSpec, commitment_proof::Proof,
};
use sha2::{Digest, Sha256};

use super::tree::{self, Found, Hash, PageSource, Step};
use super::{Modules, StateError, TreeRoot, committed_value};

/// One operation of a proof, as ABCI carries it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProofOp {
    /// `ics23:jmt` or `ics23:simple`.
    pub op_type: &'static str,
    /// Key inside the module, or the module's name.
    pub key: Vec<u8>,
    /// Encoded `cosmos.ics23.v1.CommitmentProof`.
    pub data: Vec<u8>,
}

/// Proof that a key has a value, or none, at a height.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateProof {
    /// Height of the state.
    pub height: i64,
    /// Key inside the module.
    pub key: Vec<u8>,
    /// Its value; `None` when absent.
    pub value: Option<Vec<u8>>,
    /// `ics23:jmt` (key in the module's tree), then `ics23:simple` (tree root in the app hash).
    pub ops: [ProofOp; 2],
}

impl StateProof {
    /// Operation type of the first operation.
    pub const JMT: &'static str = "ics23:jmt";
    /// Operation type of the second operation.
    pub const SIMPLE: &'static str = "ics23:simple";

    /// Checks the proof against `app_hash`, as a light client does. The first thing to compare is
    /// `app_hash` with a header that the client trusts: the one of height + 1.
    ///
    /// Fails with `Proof`.
    pub fn verify(&self, app_hash: &Hash) -> Result<(), StateError> {
        let refuse = |text: &str| Err(StateError::Proof(text.into()));
        let decode = |op: &ProofOp| {
            CommitmentProof::decode(op.data.as_slice())
                .map_err(|e| StateError::Proof(format!("operation {}: {e}", op.op_type)))
        };
        let [tree_op, map_op] = &self.ops;
        let (tree_proof, map_proof) = (decode(tree_op)?, decode(map_op)?);
        let Some(Proof::Exist(of_root)) = &map_proof.proof else {
            return refuse("operation ics23:simple holds no existence proof");
        };
        let root = &of_root.value;
        if !ics23::verify_membership::<HostFunctionsManager>(
            &map_proof,
            &ics23::tendermint_spec(),
            &app_hash.to_vec(),
            &map_op.key,
            root,
        ) {
            return refuse("the module's root is not in the app hash");
        }
        let held = match &self.value {
            Some(value) => ics23::verify_membership::<HostFunctionsManager>(
                &tree_proof,
                &jmt_spec(),
                root,
                &self.key,
                &committed_value(value),
            ),
            None => ics23::verify_non_membership::<HostFunctionsManager>(
                &tree_proof,
                &jmt_spec(),
                root,
                &self.key,
            ),
        };
        if held { Ok(()) } else { refuse("the key's value is not in the module's root") }
    }
}

/// ICS 23 specification of the module trees: the one of the Jellyfish Merkle tree.
pub fn jmt_spec() -> ProofSpec {
    ProofSpec {
        leaf_spec: Some(leaf_op()),
        inner_spec: Some(InnerSpec {
            child_order: vec![0, 1],
            child_size: 32,
            min_prefix_length: 16,
            max_prefix_length: 16,
            empty_child: tree::PLACEHOLDER.to_vec(),
            hash: HashOp::Sha256.into(),
        }),
        max_depth: 64,
        min_depth: 0,
        prehash_key_before_comparison: true,
    }
}

fn leaf_op() -> LeafOp {
    LeafOp {
        hash: HashOp::Sha256.into(),
        prehash_key: HashOp::Sha256.into(),
        prehash_value: HashOp::Sha256.into(),
        length: LengthOp::NoPrefix.into(),
        prefix: tree::LEAF_DOMAIN.to_vec(),
    }
}

fn existence(key: Vec<u8>, value: &[u8], steps: &[Step]) -> ExistenceProof {
    let path = steps
        .iter()
        .map(|step| {
            let mut prefix = tree::INNER_DOMAIN.to_vec();
            let mut suffix = Vec::new();
            if step.sibling_is_left { &mut prefix } else { &mut suffix }.extend_from_slice(&step.sibling);
            InnerOp { hash: HashOp::Sha256.into(), prefix, suffix }
        })
        .collect();
    ExistenceProof { key, value: committed_value(value).into_owned(), leaf: Some(leaf_op()), path }
}

/// A height's state as the prover needs it.
pub(super) trait ProofSource {
    /// Tree pages.
    fn pages(&self) -> &dyn PageSource;
    /// The key (inside the module) behind a key hash.
    fn preimage(&self, module: u16, key_hash: &Hash) -> Result<Option<Vec<u8>>, StateError>;
    /// The value of a full key at the height.
    fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StateError>;
}

/// Proves `key` of `module` against `roots`, the roots of `height`.
pub(super) fn prove(
    modules: &Modules,
    source: &dyn ProofSource,
    roots: &[TreeRoot],
    height: i64,
    name: &str,
    key: &[u8],
) -> Result<StateProof, StateError> {
    let module = modules.index(name.as_bytes()).ok_or_else(|| modules.unknown(name.to_owned()))?;
    if key.is_empty() {
        return Err(StateError::Key { key: String::new(), reason: "it is empty" });
    }
    // A module that came in later has no tree at this height.
    let root = roots
        .get(usize::from(module))
        .copied()
        .ok_or_else(|| modules.unknown(format!("{name} at height {height}")))?;

    let value_of = |rest: &[u8]| -> Result<Option<Vec<u8>>, StateError> {
        if rest == tree::SENTINEL_KEY {
            return Ok(Some(tree::SENTINEL_VALUE.to_vec()));
        }
        source.value(&modules.full_key(module, rest))
    };
    let no_value = || StateError::corrupt(format!("a leaf of module {name} has no value"));

    let (value, proof) = match tree::find(source.pages(), module, root, &tree::sha256(key))? {
        Found::Present(steps) => {
            let value = value_of(key)?.ok_or_else(no_value)?;
            let proof = existence(key.to_vec(), &value, &steps);
            (Some(value), Proof::Exist(proof))
        }
        Found::Absent { left, right } => {
            let beside = |hash: Option<Hash>| -> Result<Option<ExistenceProof>, StateError> {
                let Some(hash) = hash else { return Ok(None) };
                let rest = if hash == tree::sha256(tree::SENTINEL_KEY) {
                    tree::SENTINEL_KEY.to_vec()
                } else {
                    source
                        .preimage(module, &hash)?
                        .ok_or_else(|| StateError::corrupt(format!("a leaf of module {name} has no key")))?
                };
                let value = value_of(&rest)?.ok_or_else(no_value)?;
                match tree::find(source.pages(), module, root, &hash)? {
                    Found::Present(steps) => Ok(Some(existence(rest, &value, &steps))),
                    Found::Absent { .. } => Err(StateError::corrupt("a neighbour vanished")),
                }
            };
            (
                None,
                Proof::Nonexist(NonExistenceProof {
                    key: key.to_vec(),
                    left: beside(left)?,
                    right: beside(right)?,
                }),
            )
        }
    };
    let mut pairs: Vec<(&str, Hash)> =
        modules.numbered.iter().zip(roots).map(|(name, root)| (name.as_str(), root.hash)).collect();
    pairs.sort_unstable_by_key(|(name, _)| *name);
    let of_root = pairs
        .iter()
        .position(|(known, _)| *known == name)
        .and_then(|at| map_existence(&pairs, at))
        .ok_or_else(|| StateError::corrupt(format!("module {name} has no root")))?;
    let encode = |proof| CommitmentProof { proof: Some(proof) }.encode_to_vec();
    Ok(StateProof {
        height,
        key: key.to_vec(),
        value,
        ops: [
            ProofOp { op_type: StateProof::JMT, key: key.to_vec(), data: encode(proof) },
            ProofOp {
                op_type: StateProof::SIMPLE,
                key: name.as_bytes().to_vec(),
                data: encode(Proof::Exist(of_root)),
            },
        ],
    })
}

/// Root of the SDK's simple Merkle map: pairs sorted by name, leaf = `sha256(0x00 ‖ len ‖ name ‖ len ‖ sha256(root))`,
/// RFC 6962 above. The hash of no pairs is SHA-256 of nothing.
pub fn module_map_root<'a>(pairs: impl IntoIterator<Item = (&'a str, Hash)>) -> Hash {
    let mut pairs: Vec<_> = pairs.into_iter().collect();
    pairs.sort_unstable_by_key(|(name, _)| *name);
    let leaves: Vec<Hash> = pairs.iter().map(|(name, root)| map_leaf(name, root)).collect();
    simple_root(&leaves)
}

pub(super) fn map_leaf(name: &str, root: &[u8]) -> Hash {
    let mut h = Sha256::new();
    h.update([0]);
    let mut length = Vec::new();
    put_varint(&mut length, name.len());
    h.update(length);
    h.update(name.as_bytes());
    h.update([32]);
    h.update(Sha256::digest(root));
    h.finalize().into()
}

/// Protobuf's variable-length integer.
fn put_varint(out: &mut Vec<u8>, mut n: usize) {
    while n >= 0x80 {
        out.push(u8::try_from(n & 0x7f).unwrap_or(0) | 0x80);
        n >>= 7;
    }
    out.push(u8::try_from(n).unwrap_or(0));
}

fn simple_inner(left: &Hash, right: &Hash) -> Hash {
    let mut h = Sha256::new();
    h.update([1]);
    h.update(left);
    h.update(right);
    h.finalize().into()
}

/// Leaves in the left half: the greatest power of two below `n`.
fn left_size(n: usize) -> usize {
    n.next_power_of_two() / 2
}

pub(super) fn simple_root(leaves: &[Hash]) -> Hash {
    match leaves {
        [] => Sha256::digest([]).into(),
        [leaf] => *leaf,
        _ => {
            let (left, right) = leaves.split_at(left_size(leaves.len()));
            simple_inner(&simple_root(left), &simple_root(right))
        }
    }
}

/// Siblings of leaf `index` from the leaf up.
fn simple_steps(leaves: &[Hash], index: usize, out: &mut Vec<Step>) {
    if leaves.len() < 2 {
        return;
    }
    let cut = left_size(leaves.len());
    let (left, right) = leaves.split_at(cut);
    match index.checked_sub(cut) {
        None => {
            simple_steps(left, index, out);
            out.push(Step { sibling: simple_root(right), sibling_is_left: false });
        }
        Some(index) => {
            simple_steps(right, index, out);
            out.push(Step { sibling: simple_root(left), sibling_is_left: true });
        }
    }
}

/// Existence proof of the `index`-th of the sorted pairs.
fn map_existence(pairs: &[(&str, Hash)], index: usize) -> Option<ExistenceProof> {
    let (name, root) = pairs.get(index)?;
    let leaves: Vec<Hash> = pairs.iter().map(|(name, root)| map_leaf(name, root)).collect();
    let mut steps = Vec::new();
    simple_steps(&leaves, index, &mut steps);
    let path = steps
        .iter()
        .map(|step| {
            let mut prefix = vec![1];
            let mut suffix = Vec::new();
            if step.sibling_is_left { &mut prefix } else { &mut suffix }.extend_from_slice(&step.sibling);
            InnerOp { hash: HashOp::Sha256.into(), prefix, suffix }
        })
        .collect();
    Some(ExistenceProof {
        key: name.as_bytes().to_vec(),
        value: root.to_vec(),
        leaf: Some(LeafOp {
            hash: HashOp::Sha256.into(),
            prehash_key: HashOp::NoHash.into(),
            prehash_value: HashOp::Sha256.into(),
            length: LengthOp::VarProto.into(),
            prefix: vec![0],
        }),
        path,
    })
}
