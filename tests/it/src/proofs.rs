//! Proofs of the state, verified by implementations of ICS 23 that know nothing of this workspace: Go's and JavaScript's.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use holdfast_app::proofs::{KeyAnswer, KeyRequest, query};
use holdfast_app::state::{CommitStore, DiskStore, StateOptions, StateView};
use holdfast_store::WriteSet;
use serde_json::{Value, json};

const MODULES: [&str; 5] = ["auth", "bank", "breaker", "gov", "participants"];

/// A verifier as `cargo xtask tools` installs it: what the variable names, or the file below the target folder.
fn tool(variable: &str, below: &str) -> PathBuf {
    let named = std::env::var_os(variable).map(PathBuf::from);
    let path = named.unwrap_or_else(|| {
        let program = std::env::current_exe().expect("the test program has a path");
        program.ancestors().nth(3).expect("it lies in target/PROFILE/deps").join("tools").join(below)
    });
    assert!(path.is_file(), "{} is missing: run `cargo xtask tools`", path.display());
    path
}

/// What a verifier is given, and what it has to say.
struct Claim {
    line: Value,
    holds: bool,
}

fn claim(answer: &KeyAnswer, module: &str, value: Option<&[u8]>, app_hash: [u8; 32], holds: bool) -> Claim {
    let ops: Vec<Value> = answer
        .ops
        .iter()
        .map(|op| json!({"type": op.op_type, "key": hex::encode(&op.key), "data": hex::encode(&op.data)}))
        .collect();
    let mut line = json!({
        "app_hash": hex::encode(app_hash),
        "module": module,
        "key": hex::encode(&answer.key),
        "ops": ops,
    });
    if let Some(value) = value {
        line["value"] = hex::encode(value).into();
    }
    Claim { line, holds }
}

/// Keys of all shapes over a few heights, asked at each; true claims, and lies about the same proofs.
fn claims() -> Vec<Claim> {
    let dir = tempfile::tempdir().expect("a folder");
    let store = DiskStore::open(dir.path(), &MODULES, StateOptions::default()).expect("a database");
    let mut out = Vec::new();
    for height in 1..=6i64 {
        let mut block = WriteSet::new();
        for n in 0..40 * height as u64 {
            let module = MODULES[1 + (n % 3) as usize];
            let key = [module.as_bytes(), b"/\x01", &n.to_be_bytes()[8 - (n % 8) as usize..]].concat();
            let value = match (n + height as u64) % 5 {
                0 => None,
                1 => Some(vec![]),
                more => Some(vec![height as u8; more as usize * 30]),
            };
            block.insert(key, value);
        }
        store.commit(store.prepare(height, &block).expect("prepares")).expect("commits");
        let app_hash = store.snapshot_at(height).expect("kept").app_hash();
        for n in 0..70u64 {
            let module = MODULES[(n % 5) as usize];
            let key = [b"\x01", &n.to_be_bytes()[8 - (n % 8) as usize..]].concat();
            let request =
                KeyRequest { path: &format!("/store/{module}/key"), key: &key, height, prove: true };
            let answer = query(&store, &request).expect("an answer");
            let value = answer.proven_value();
            let value = value.as_deref();
            out.push(claim(&answer, module, value, app_hash, true));
            let mut other = app_hash;
            other[(n % 32) as usize] ^= 1;
            out.push(claim(&answer, module, value, other, false));
            let opposite = if value.is_some() { None } else { Some(&b"lie"[..]) };
            out.push(claim(&answer, module, opposite, app_hash, false));
            out.push(claim(&answer, module, Some(b"lie"), app_hash, false));
        }
    }
    out
}

/// Gives the claims to a program line by line and compares its verdicts.
fn judge(mut program: Command, claims: &[Claim]) {
    let mut input = String::new();
    for claim in claims {
        input.push_str(&claim.line.to_string());
        input.push('\n');
    }
    program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = program.spawn().expect("starts");
    let mut stdin = child.stdin.take().expect("piped");
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let done = child.wait_with_output().expect("ends");
    writer.join().expect("no panic").expect("the program reads all");
    let said = String::from_utf8(done.stdout).expect("text");
    assert!(done.status.success(), "{}\n{said}\n{}", done.status, String::from_utf8_lossy(&done.stderr));
    let verdicts: Vec<&str> = said.lines().collect();
    assert_eq!(verdicts.len(), claims.len());
    for (verdict, claim) in verdicts.iter().zip(claims) {
        assert_eq!(*verdict == "ok", claim.holds, "{verdict}: {}", claim.line);
        assert!(*verdict == "ok" || verdict.starts_with("no: "), "{verdict}");
    }
}

/// How many claims hold, by whether they are of presence.
fn counted(claims: &[Claim]) -> (usize, usize) {
    let true_ones = claims.iter().filter(|claim| claim.holds);
    let (present, absent): (Vec<_>, Vec<_>) = true_ones.partition(|claim| claim.line["value"].is_string());
    (present.len(), absent.len())
}

#[test]
fn the_go_implementation_verifies_presence_and_absence_and_no_lie() {
    let claims = claims();
    let (present, absent) = counted(&claims);
    assert!(present > 60 && absent > 60, "{present} present, {absent} absent");
    judge(Command::new(tool("ICS23_GO", "ics23-go/ics23")), &claims);
}

#[test]
fn the_javascript_implementation_verifies_presence_and_no_lie() {
    let mut claims = claims();
    claims.retain(|claim| claim.line["value"].is_string());
    let (present, _) = counted(&claims);
    assert!(present > 60, "{present} present");
    let mut node = Command::new("node");
    node.arg(tool("ICS23_JS", "ics23-js/verify.js"));
    judge(node, &claims);
}
