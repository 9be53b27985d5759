//! The dependency rule of the workspace, and the shape of a module.
//!
//! ```text
//! x/store <- x/types <- x/<module> <- app/<part> <- app/node <- tests/<any>
//!                 \______ proto (also known to every one on the right)
//! ```
//!
//! Modules do not know each other: what one offers another is a trait in `x/types`. Consensus code names no runtime,
//! clock, random source or thread pool, and only `proto` names the protobuf code generators and prost.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Crates that a folder of `x/` may not name: what they bring is not the same on every node.
const NOT_DETERMINISTIC: [(&str, &str); 28] = [
    ("tokio", "async runtime"),
    ("tokio-stream", "async runtime"),
    ("async-std", "async runtime"),
    ("async-trait", "async code"),
    ("smol", "async runtime"),
    ("futures", "async code"),
    ("futures-util", "async code"),
    ("tonic", "network"),
    ("tonic-health", "network"),
    ("tonic-reflection", "network"),
    ("axum", "network"),
    ("hyper", "network"),
    ("http", "network"),
    ("reqwest", "network"),
    ("tower", "network"),
    ("rand", "randomness"),
    ("rand_core", "randomness"),
    ("rand_chacha", "randomness"),
    ("getrandom", "randomness"),
    ("fastrand", "randomness"),
    ("uuid", "randomness"),
    ("ahash", "randomly seeded maps"),
    ("hashbrown", "maps without an order"),
    ("chrono", "clock"),
    ("time", "clock"),
    ("rayon", "threads"),
    ("crossbeam", "threads"),
    ("parking_lot", "threads"),
];

/// Crates that only `proto` names; the others take what they need from its re-exports.
const PROTO_ONLY: [&str; 6] =
    ["prost", "prost-build", "tonic-build", "tonic-prost-build", "protox", "cosmos-sdk-proto"];

/// Modules that keep state, and the files that each of them has at least.
const MODULES: [&str; 8] =
    ["auth", "bank", "epochs", "participants", "inference", "breaker", "escrow", "gov"];
const MODULE_FILES: [&str; 6] =
    ["README.md", "src/lib.rs", "src/keys.rs", "src/state.rs", "src/errors.rs", "src/module.rs"];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Normal,
    Dev,
    Build,
}

#[derive(Debug)]
struct Package {
    name: String,
    /// From the root, with `/`: `x/bank`.
    folder: String,
    dependencies: Vec<(String, Kind)>,
}

/// Every breach of the dependency rule in what `cargo metadata --no-deps` printed, a sentence each.
pub(crate) fn dependency_violations(metadata: &Value) -> Result<Vec<String>> {
    Ok(violations(&packages(metadata)?))
}

/// Every file that a module lacks.
pub(crate) fn missing_module_files(root: &Path) -> Vec<String> {
    let mut missing = Vec::new();
    for module in MODULES {
        for file in MODULE_FILES {
            let path = format!("x/{module}/{file}");
            if !root.join(&path).is_file() {
                missing.push(format!("{path} is missing: every module has one"));
            }
        }
    }
    missing
}

fn packages(metadata: &Value) -> Result<Vec<Package>> {
    let root = Path::new(metadata["workspace_root"].as_str().context("cargo metadata: no workspace_root")?);
    let mut packages = Vec::new();
    for package in metadata["packages"].as_array().context("cargo metadata: no packages")? {
        let name = package["name"].as_str().context("cargo metadata: a package without a name")?;
        let manifest =
            Path::new(package["manifest_path"].as_str().context("cargo metadata: no manifest_path")?);
        let folder = manifest.parent().and_then(|dir| dir.strip_prefix(root).ok());
        let folder = folder.with_context(|| format!("{name} lies outside the workspace"))?;
        let mut dependencies = Vec::new();
        for dependency in package["dependencies"].as_array().context("cargo metadata: no dependencies")? {
            let kind = match dependency["kind"].as_str() {
                None => Kind::Normal,
                Some("dev") => Kind::Dev,
                Some("build") => Kind::Build,
                Some(other) => bail!("cargo metadata: unknown kind of dependency `{other}`"),
            };
            let on = dependency["name"].as_str().context("cargo metadata: a dependency without a name")?;
            dependencies.push((on.to_string(), kind));
        }
        let folder = folder.to_string_lossy().replace('\\', "/");
        packages.push(Package { name: name.to_string(), folder, dependencies });
    }
    Ok(packages)
}

fn violations(packages: &[Package]) -> Vec<String> {
    let folders: BTreeMap<&str, &str> =
        packages.iter().map(|p| (p.name.as_str(), p.folder.as_str())).collect();
    let mut found = Vec::new();
    for package in packages {
        let from = package.folder.as_str();
        for (on, kind) in &package.dependencies {
            let reason = match folders.get(on.as_str()) {
                Some(to) => refuse_ours(from, to, *kind),
                None => refuse_foreign(from, on, *kind),
            };
            if let Some(reason) = reason {
                let kind = match kind {
                    Kind::Normal => "depends",
                    Kind::Dev => "dev-depends",
                    Kind::Build => "build-depends",
                };
                found.push(format!("{} ({from}) {kind} on {on}: {reason}", package.name));
            }
        }
    }
    found.sort();
    found
}

/// Why the crate in folder `from` may not depend on our crate in folder `to`.
fn refuse_ours(from: &str, to: &str, kind: Kind) -> Option<String> {
    if to == "app/node" && !from.starts_with("tests/") {
        return Some("only tests/ may depend on the node".into());
    }
    // The one exception that dev-dependencies make: test tools, everywhere but in the reference model.
    if kind == Kind::Dev && ["x/testkit", "tests/model"].contains(&to) && from != "tests/model" {
        return None;
    }
    let (room, name) = from.split_once('/').unwrap_or((from, ""));
    let allowed: (bool, &str) = match (room, name) {
        ("proto", _) => (false, "proto stands alone"),
        ("x", "store") => (false, "the store knows nothing of ours"),
        ("x", "types") => (["x/store", "proto"].contains(&to), "x/types may use x/store and proto"),
        ("x", _) => (
            ["x/store", "x/types", "proto"].contains(&to),
            "a folder of x/ may use x/store, x/types and proto; what modules offer each other is a trait in x/types",
        ),
        ("app", "node") => (
            (to.starts_with("x/") && to != "x/testkit") || to == "proto" || to.starts_with("app/"),
            "app/node may use x/ (not x/testkit), proto and the other folders of app/",
        ),
        ("app", "host") => (
            (to.starts_with("x/") && to != "x/testkit") || ["proto", "app/chain", "app/runner"].contains(&to),
            "app/host may use x/ (not x/testkit), proto, the chain's client and the runner",
        ),
        ("app", "gateway") => (
            (to.starts_with("x/") && to != "x/testkit") || ["proto", "app/chain", "app/host"].contains(&to),
            "app/gateway may use x/ (not x/testkit), proto, the chain's client and the host's client",
        ),
        ("app", _) => (
            (to.starts_with("x/") && to != "x/testkit") || to == "proto",
            "a folder of app/ may use x/ (not x/testkit) and proto",
        ),
        ("tests", "model") => (
            ["x/store", "x/types", "proto"].contains(&to),
            "the reference model shares no code with what it judges",
        ),
        ("tests", "xtask") => (false, "tasks must run when nothing else builds"),
        ("tests", _) => (true, ""),
        _ => (false, "crates live in proto/, x/, app/ or tests/"),
    };
    (!allowed.0).then(|| allowed.1.to_string())
}

/// Why the crate in folder `from` may not depend on the foreign crate `on`.
fn refuse_foreign(from: &str, on: &str, kind: Kind) -> Option<String> {
    if PROTO_ONLY.contains(&on) && from != "proto" {
        return Some("only proto names it; take it from the re-exports of holdfast-proto".into());
    }
    if from.starts_with("x/") && kind != Kind::Dev {
        let (_, what) = NOT_DETERMINISTIC.iter().find(|(name, _)| *name == on)?;
        return Some(format!("{what} has no place in consensus code"));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::cargo_metadata;

    fn package(folder: &str, dependencies: &[(&str, Kind)]) -> Package {
        let name = match folder {
            "app/chain" => "holdfast-app".into(),
            "proto" => "holdfast-proto".into(),
            _ => format!("holdfast-{}", folder.split_once('/').expect("room/name").1),
        };
        Package {
            name,
            folder: folder.into(),
            dependencies: dependencies.iter().map(|(n, k)| (n.to_string(), *k)).collect(),
        }
    }

    /// The breaches when the crate in `folder` has one dependency, in a workspace that has all our crates.
    fn breaches(folder: &str, on: &str, kind: Kind) -> usize {
        let all = [
            "proto",
            "x/store",
            "x/types",
            "x/testkit",
            "x/bank",
            "x/auth",
            "x/breaker",
            "app/chain",
            "app/gateway",
            "app/runner",
            "app/node",
            "tests/it",
            "tests/model",
            "tests/xtask",
        ];
        let packages: Vec<Package> = all
            .iter()
            .map(|f| if *f == folder { package(f, &[(on, kind)]) } else { package(f, &[]) })
            .collect();
        violations(&packages).len()
    }

    #[test]
    fn the_workspace_keeps_the_dependency_rule() {
        let metadata = cargo_metadata(&crate::root()).expect("cargo metadata");
        let found = dependency_violations(&metadata).expect("readable metadata");
        assert!(found.is_empty(), "the dependency rule is broken:\n  {}", found.join("\n  "));
    }

    #[test]
    fn every_module_has_its_files() {
        let missing = missing_module_files(&crate::root());
        assert!(missing.is_empty(), "modules are incomplete:\n  {}", missing.join("\n  "));
    }

    #[test]
    fn metadata_is_read_with_folders_and_kinds() {
        let text = r#"{ "workspace_root": "/r", "packages": [ { "name": "holdfast-bank", "manifest_path": "/r/x/bank/Cargo.toml",
            "dependencies": [ { "name": "rand", "kind": null }, { "name": "tokio", "kind": "dev" }, { "name": "cc", "kind": "build" } ] } ] }"#;
        let metadata: Value = serde_json::from_str(text).expect("json");
        let read = packages(&metadata).expect("metadata");
        assert_eq!(read[0].folder, "x/bank");
        let kinds: Vec<Kind> = read[0].dependencies.iter().map(|d| d.1).collect();
        assert_eq!(kinds, [Kind::Normal, Kind::Dev, Kind::Build]);
        let found = dependency_violations(&metadata).expect("metadata");
        assert_eq!(
            found,
            ["holdfast-bank (x/bank) depends on rand: randomness has no place in consensus code"]
        );
    }

    #[test]
    fn a_module_may_use_store_types_and_proto_but_no_other_module() {
        for allowed in ["holdfast-store", "holdfast-types", "holdfast-proto"] {
            assert_eq!(breaches("x/bank", allowed, Kind::Normal), 0, "{allowed}");
        }
        for refused in
            ["holdfast-auth", "holdfast-testkit", "holdfast-model", "holdfast-app", "holdfast-node"]
        {
            assert_eq!(breaches("x/bank", refused, Kind::Normal), 1, "{refused}");
        }
    }

    #[test]
    fn tests_of_a_module_may_add_the_testkit_and_the_model_only() {
        assert_eq!(breaches("x/bank", "holdfast-testkit", Kind::Dev), 0);
        assert_eq!(breaches("x/breaker", "holdfast-model", Kind::Dev), 0);
        assert_eq!(breaches("x/bank", "holdfast-auth", Kind::Dev), 1);
        assert_eq!(breaches("x/bank", "holdfast-node", Kind::Dev), 1);
    }

    #[test]
    fn the_lower_rooms_know_nothing_of_the_upper_ones() {
        assert_eq!(breaches("x/store", "holdfast-types", Kind::Normal), 1);
        assert_eq!(breaches("x/store", "holdfast-proto", Kind::Normal), 1);
        assert_eq!(breaches("x/store", "holdfast-testkit", Kind::Dev), 0);
        assert_eq!(breaches("x/types", "holdfast-store", Kind::Normal), 0);
        assert_eq!(breaches("x/types", "holdfast-bank", Kind::Normal), 1);
        assert_eq!(breaches("x/testkit", "holdfast-bank", Kind::Normal), 1);
        assert_eq!(breaches("proto", "holdfast-types", Kind::Normal), 1);
    }

    #[test]
    fn only_the_node_may_use_the_other_folders_of_app_and_only_tests_may_use_the_node() {
        assert_eq!(breaches("app/runner", "holdfast-app", Kind::Normal), 1);
        assert_eq!(breaches("app/gateway", "holdfast-app", Kind::Normal), 0);
        assert_eq!(breaches("app/node", "holdfast-app", Kind::Normal), 0);
        assert_eq!(breaches("app/chain", "holdfast-bank", Kind::Normal), 0);
        assert_eq!(breaches("app/chain", "holdfast-testkit", Kind::Normal), 1);
        assert_eq!(breaches("app/chain", "holdfast-node", Kind::Normal), 1);
        assert_eq!(breaches("tests/it", "holdfast-node", Kind::Normal), 0);
        assert_eq!(breaches("tests/xtask", "holdfast-types", Kind::Normal), 1);
    }

    #[test]
    fn the_reference_model_does_not_see_the_module_it_judges() {
        assert_eq!(breaches("tests/model", "holdfast-breaker", Kind::Normal), 1);
        assert_eq!(breaches("tests/model", "holdfast-breaker", Kind::Dev), 1);
        assert_eq!(breaches("tests/model", "holdfast-testkit", Kind::Dev), 1);
    }

    #[test]
    fn consensus_code_names_no_runtime_clock_or_random_source() {
        for name in ["tokio", "tonic", "axum", "rand", "chrono", "time", "rayon"] {
            assert_eq!(breaches("x/bank", name, Kind::Normal), 1, "{name}");
            assert_eq!(breaches("x/store", name, Kind::Build), 1, "{name}");
            assert_eq!(breaches("app/chain", name, Kind::Normal), 0, "{name}");
        }
        assert_eq!(breaches("x/bank", "rand", Kind::Dev), 0);
        assert_eq!(breaches("x/bank", "borsh", Kind::Normal), 0);
    }

    #[test]
    fn only_proto_names_prost_and_the_generators() {
        for name in PROTO_ONLY {
            assert_eq!(breaches("proto", name, Kind::Build), 0, "{name}");
            for folder in ["x/types", "app/chain", "app/node", "tests/it"] {
                assert_eq!(breaches(folder, name, Kind::Normal), 1, "{folder} {name}");
            }
        }
    }
}
