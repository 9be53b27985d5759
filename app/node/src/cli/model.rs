//! `holdfastd worker make-model`: a small model from a seed.

use std::path::PathBuf;

use anyhow::Result;

#[cfg(feature = "candle")]
use super::files;
use super::output::Io;

/// Writes a small Llama with weights from a seed as a GGUF file, for tests of the candle backend without a download
#[derive(Debug, clap::Args)]
pub(crate) struct MakeModelArgs {
    /// The file
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Seed of the weights; one seed gives one file
    #[arg(long, value_name = "N", default_value_t = 13)]
    seed: u64,
    /// Layers
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    layers: u32,
    /// How the weights are kept
    #[arg(long, value_enum, default_value_t = Dtype::F32)]
    dtype: Dtype,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Dtype {
    F32,
    #[value(name = "q8_0")]
    Q8_0,
    #[value(name = "q4_0")]
    Q4_0,
}

#[cfg(feature = "candle")]
pub(crate) fn run(args: &MakeModelArgs, io: &mut Io<'_>) -> Result<()> {
    use holdfast_runner::backends::candle::{Synthetic, Weights};
    use serde_json::json;
    use sha2::{Digest as _, Sha256};

    use super::error::fail;
    use super::output::Format;

    let weights = match args.dtype {
        Dtype::F32 => Weights::F32,
        Dtype::Q8_0 => Weights::Q8_0,
        Dtype::Q4_0 => Weights::Q4_0,
    };
    let model = Synthetic { seed: args.seed, layers: args.layers as usize, weights };
    let bytes = model.bytes().map_err(|error| fail(12, "worker make-model", error.to_string()))?;
    files::write_whole(&args.out, &bytes, false)?;
    let (file, sha256) = (args.out.display().to_string(), hex::encode(Sha256::digest(&bytes)));
    io.print(&json!({ "file": file, "bytes": bytes.len(), "sha256": sha256 }), Format::Json)
}

#[cfg(not(feature = "candle"))]
pub(crate) fn run(args: &MakeModelArgs, _: &mut Io<'_>) -> Result<()> {
    let MakeModelArgs { out: _, seed: _, layers: _, dtype: _ } = args;
    let text = "this holdfastd was built without candle; build it with `--features candle`";
    Err(super::error::fail(91, "worker make-model", text))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: MakeModelArgs,
    }

    fn made(words: &[&str]) -> Result<String> {
        let args = Line::try_parse_from([&["make-model"], words].concat())?.args;
        let mut out = Vec::new();
        let mut io =
            Io { out: &mut out, err: &mut std::io::sink(), input: &mut std::io::empty(), terminal: false };
        run(&args, &mut io)?;
        Ok(String::from_utf8(out)?)
    }

    #[test]
    fn layers_and_kinds_of_weights_outside_the_list_are_refused() {
        for words in [["--layers", "0"], ["--layers", "65"], ["--dtype", "q2"], ["--seed", "-1"]] {
            assert!(made(&["--out", "never", words[0], words[1]]).is_err(), "{words:?}");
        }
        assert!(made(&[]).is_err(), "a file must be named");
    }

    #[cfg(not(feature = "candle"))]
    #[test]
    fn a_binary_without_candle_says_what_to_build() {
        let error = made(&["--out", "never"]).unwrap_err().to_string();
        assert!(error.contains("--features candle"), "{error}");
    }

    #[cfg(feature = "candle")]
    #[test]
    fn a_model_is_written_and_its_hash_told() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model.gguf");
        let file = file.to_str().unwrap();
        let told = made(&["--out", file, "--dtype", "q8_0"]).unwrap();
        assert!(told.contains("3d6da5998b261145a98357123f1a65e25f865520d47159f577725cea46f78e66"), "{told}");
        assert_eq!(&std::fs::read(file).unwrap()[..4], b"GGUF");
    }
}
