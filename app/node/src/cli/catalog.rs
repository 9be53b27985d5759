//! Every message and every query of the chain as a command path, read off the descriptor set: a new rpc is a new
//! command without a line of code here.

use std::collections::BTreeMap;

use anyhow::Result;
use holdfast_proto::pool;
use prost_reflect::{FileDescriptor, MessageDescriptor, ServiceDescriptor};

/// One rpc.
#[derive(Debug, Clone)]
pub(crate) struct Method {
    /// First part of its path: the package's name without version, `bank` of `cosmos.bank.v1beta1`.
    pub(crate) module: String,
    /// Second part: `start-inference` of `StartInference`.
    pub(crate) name: String,
    /// Path of the gRPC call.
    pub(crate) grpc_path: String,
    /// Request.
    pub(crate) input: MessageDescriptor,
    /// Answer.
    pub(crate) output: MessageDescriptor,
    /// First sentence of its comment.
    pub(crate) about: String,
}

/// The service without a `Query` in its name that is one all the same.
const TENDERMINT: &str = "cosmos.base.tendermint.v1beta1.Service";

/// Every rpc of every `Msg` service, by module and name.
pub(crate) fn messages() -> Result<Vec<Method>> {
    methods(|service| service.name() == "Msg")
}

/// Every rpc of every `Query` service, and the node's own queries.
pub(crate) fn queries() -> Result<Vec<Method>> {
    methods(|service| service.name() == "Query" || service.full_name() == TENDERMINT)
}

fn methods(wanted: impl Fn(&ServiceDescriptor) -> bool) -> Result<Vec<Method>> {
    let mut found = Vec::new();
    for service in pool()?.services().filter(wanted) {
        let comments = Comments::of(&service.parent_file());
        let module = module_name(service.package_name());
        for method in service.methods() {
            found.push(Method {
                module: module.clone(),
                name: kebab(method.name()),
                grpc_path: format!("/{}/{}", service.full_name(), method.name()),
                input: method.input(),
                output: method.output(),
                about: comments.of_path(method.path()),
            });
        }
    }
    found.sort_by(|a, b| (&a.module, &a.name).cmp(&(&b.module, &b.name)));
    Ok(found)
}

/// Last part of a package's name that is no version.
fn module_name(package: &str) -> String {
    let is_version = |part: &str| {
        part.strip_prefix('v').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    package.split('.').rev().find(|part| !is_version(part)).unwrap_or(package).to_owned()
}

/// `GetRandomExecutor`, `ABCIQuery`, `inference_id` as words with `-`.
pub(crate) fn kebab(name: &str) -> String {
    let letters: Vec<char> = name.chars().collect();
    let mut out = String::new();
    for (i, c) in letters.iter().enumerate() {
        let before = i.checked_sub(1).and_then(|i| letters.get(i));
        let after = i.checked_add(1).and_then(|i| letters.get(i));
        // A word begins at a capital after a small letter, and at the last capital of a run before a small one.
        let begins = c.is_uppercase()
            && before.is_some_and(|b| {
                b.is_lowercase()
                    || b.is_ascii_digit()
                    || (b.is_uppercase() && after.is_some_and(|a| a.is_lowercase()))
            });
        if begins {
            out.push('-');
        }
        out.extend(if *c == '_' { vec!['-'] } else { c.to_lowercase().collect() });
    }
    out
}

/// Comments of a file's items, by descriptor path.
pub(crate) struct Comments(BTreeMap<Vec<i32>, String>);

impl Comments {
    pub(crate) fn of(file: &FileDescriptor) -> Self {
        let info = file.file_descriptor_proto().source_code_info.as_ref();
        let locations = info.map(|info| info.location.as_slice()).unwrap_or_default();
        Self(locations.iter().map(|at| (at.path.clone(), at.leading_comments().to_owned())).collect())
    }

    /// The comment of an item on one line, without its last point, as help texts are written.
    pub(crate) fn of_path(&self, path: &[i32]) -> String {
        let text = self.0.get(path).map(String::as_str).unwrap_or_default();
        let line = super::error::one_line(text);
        line.strip_suffix('.').unwrap_or(&line).to_owned()
    }
}
