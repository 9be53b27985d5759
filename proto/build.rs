//! Compiles the `.proto` files with protox, so no `protoc` is needed.
//!
//! Writes three things to `OUT_DIR`: `descriptor.bin`, the whole file descriptor set with its custom options; one
//! Rust file for each package; and `modules.rs`, which nests them by package name. With the feature `client` the
//! packages also hold gRPC clients, with the feature `server` the runner's, the host's and the gateway's hold servers too. The chain's
//! own services are routed by name at run time and need none.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Import roots below this crate, each with the folder whose `.proto` files are compiled.
const ROOTS: [(&str, &str); 2] = [("", "holdfast"), ("third_party", "third_party")];

fn main() -> Result<(), Box<dyn Error>> {
    let crate_dir = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let out_dir = PathBuf::from(env::var("OUT_DIR")?);

    let mut includes = Vec::new();
    let mut files = Vec::new();
    for (root, folder) in ROOTS {
        includes.push(crate_dir.join(root));
        let root = crate_dir.join(root);
        let folder = crate_dir.join(folder);
        println!("cargo:rerun-if-changed={}", folder.display());
        collect(&root, &folder, &mut files)?;
    }
    // Directory order is the file system's; the descriptor's order must not be.
    files.sort();

    let mut compiler = protox::Compiler::new(&includes)?;
    compiler.include_imports(true).include_source_info(true);
    compiler.open_files(&files)?;

    // The compiler's own encoding keeps custom options such as `cosmos.msg.v1.signer`; the typed set does not.
    fs::write(out_dir.join("descriptor.bin"), compiler.encode_file_descriptor_set())?;

    let mut config = prost_build::Config::new();
    // Cosmos type URLs have no host: "/pkg.Name".
    config.enable_type_names().type_name_domain(["."], "").include_file("modules.rs");
    let descriptors = compiler.file_descriptor_set();
    #[cfg(feature = "client")]
    config.service_generator(Box::new(Services {
        clients: tonic_build::configure().build_server(false).service_generator(),
        both: tonic_build::configure().build_server(cfg!(feature = "server")).service_generator(),
    }));
    config.compile_fds(descriptors)?;
    Ok(())
}

/// Packages whose services this workspace serves with generated code.
#[cfg(feature = "client")]
const SERVED: [&str; 3] = ["holdfast.runner.v1", "holdfast.host.v1", "holdfast.gateway.v1"];

/// Clients for every service, servers for those of [`SERVED`].
#[cfg(feature = "client")]
struct Services {
    clients: Box<dyn prost_build::ServiceGenerator>,
    both: Box<dyn prost_build::ServiceGenerator>,
}

#[cfg(feature = "client")]
impl prost_build::ServiceGenerator for Services {
    fn generate(&mut self, service: prost_build::Service, code: &mut String) {
        let served = SERVED.contains(&service.package.as_str());
        if served { &mut self.both } else { &mut self.clients }.generate(service, code);
    }

    fn finalize(&mut self, code: &mut String) {
        self.clients.finalize(code);
        self.both.finalize(code);
    }

    fn finalize_package(&mut self, package: &str, code: &mut String) {
        let served = SERVED.contains(&package);
        if served { &mut self.both } else { &mut self.clients }.finalize_package(package, code);
    }
}

/// Adds every `.proto` file below `folder`, named as imports name it: relative to `root`.
fn collect(root: &Path, folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), Box<dyn Error>> {
    for item in fs::read_dir(folder)? {
        let path = item?.path();
        if path.is_dir() {
            collect(root, &path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "proto") {
            files.push(path.strip_prefix(root)?.to_owned());
        }
    }
    Ok(())
}
