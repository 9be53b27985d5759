//! `holdfastd infer`: asks an executor.

use std::io::Read as _;
use std::path::Path;

use anyhow::Result;
use holdfast_app::keys::SecretKey;
use holdfast_host::body::BODY_MAX;
use holdfast_host::client;
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_proto::holdfast::host::v1::serve_response::Event;
use holdfast_proto::holdfast::runner::v1::FailureKind as PbKind;
use holdfast_runner::{Clock, SystemClock};
use serde_json::json;
use tonic::Code;

use crate::cli::error::{fail, io_failure};
use crate::cli::files::HomeArgs;
use crate::cli::keys::{Keyring, PrefixArgs};
use crate::cli::output::{Format, Io};
use crate::cli::{values, wiring};

/// Brings the body of a started inference to its executor and prints the answer as it comes
#[derive(Debug, clap::Args)]
pub(crate) struct InferArgs {
    /// Host and port of the executor
    #[arg(long, env = "HOLDFASTD_HOST", value_name = "ADDR", default_value = "127.0.0.1:9200", value_parser = values::grpc_addr)]
    host: String,
    /// Name or address of the requester's key
    #[arg(long, env = "HOLDFASTD_FROM", value_name = "KEY")]
    from: String,
    #[command(flatten)]
    home: HomeArgs,
    #[command(flatten)]
    prefix: PrefixArgs,
    /// Id of the chain [default: that of the genesis file]
    #[arg(long, env = "HOLDFASTD_CHAIN_ID", value_name = "ID", value_parser = values::chain_id)]
    chain_id: Option<String>,
    /// Id of the inference, as it was started
    #[arg(long, value_name = "ID")]
    inference_id: String,
    /// The body, byte by byte the one whose SHA-256 was started: JSON such as '{"prompt":"Hi"}', @FILE, or - for standard input
    #[arg(long, value_name = "JSON|@FILE|-")]
    body: String,
    /// How long to wait for the whole answer, milliseconds; the executor goes on without this call [default: its own limit]
    #[arg(long, value_name = "MS", default_value = "0", value_parser = deadline)]
    deadline_ms: u64,
    /// Form of the answer; json prints it at its end
    #[arg(long, short, env = "HOLDFASTD_OUTPUT", value_name = "FORM", default_value = "text")]
    output: Format,
}

fn deadline(text: &str) -> Result<u64, String> {
    values::within(text, 0, u64::MAX)
}

pub(crate) fn infer(args: &InferArgs, io: &mut Io<'_>) -> Result<()> {
    let home = args.home.home()?;
    let hrp = args.prefix.hrp(&home)?;
    let key = Keyring::new(&home).find(&args.from, &hrp)?;
    let chain_id = match &args.chain_id {
        Some(id) => id.clone(),
        None if home.genesis().exists() => wiring::read_genesis(&home)?.chain_id,
        None => return Err(fail(14, "--chain-id", "give it; there is no genesis file in the home folder")),
    };
    let body = body(&args.body, io)?;
    let request =
        pb::ServeRequest { inference_id: args.inference_id.clone(), body, deadline_ms: args.deadline_ms };
    wiring::children(ask(args, &key, &chain_id, request, io))
}

fn body(text: &str, io: &mut Io<'_>) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let most = BODY_MAX as u64 + 1;
    match text.strip_prefix('@') {
        Some(file) => {
            let path = Path::new(file);
            let open = std::fs::File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes));
            open.map_err(|e| io_failure(path, &e))?;
        }
        None if text == "-" => drop(io.input.take(most).read_to_end(&mut bytes)?),
        None => bytes.extend(text.bytes()),
    }
    if bytes.len() > BODY_MAX {
        return Err(fail(12, "--body", format!("longer than {BODY_MAX} bytes")));
    }
    Ok(bytes)
}

async fn ask(
    args: &InferArgs,
    key: &SecretKey,
    chain_id: &str,
    request: pb::ServeRequest,
    io: &mut Io<'_>,
) -> Result<()> {
    let refused = |status: tonic::Status| {
        let text = format!("{} (gRPC status {:?})", status.message(), status.code());
        match status.code() {
            Code::Unavailable => fail(41, "--host", text),
            _ => fail(42, "holdfast.host.v1.Host/Serve", text),
        }
    };
    let now_ms = SystemClock::new().unix_ms();
    let mut events = client::serve(&args.host, key, chain_id, request, now_ms).await.map_err(refused)?;
    let (mut text, mut tokens) = (String::new(), Vec::new());
    while let Some(response) = events.message().await.map_err(refused)? {
        match response.event {
            Some(Event::Delta(delta)) => {
                if args.output == Format::Text {
                    write!(io.out, "{}", delta.text)?;
                    io.out.flush()?;
                }
                text.push_str(&delta.text);
                tokens.extend(delta.token_ids);
            }
            Some(Event::Beat(_)) | None => {}
            Some(Event::Finished(finished)) => {
                let usage = finished.usage.unwrap_or_default();
                match args.output {
                    Format::Text => {
                        writeln!(io.out)?;
                        let (prompt, completion) = (usage.prompt_tokens, usage.completion_tokens);
                        writeln!(io.err, "{prompt} + {completion} tokens, {}", finished.finish_reason)?;
                    }
                    Format::Json => {
                        let value = json!({
                            "text": text,
                            "token_ids": tokens,
                            "finish_reason": finished.finish_reason,
                            "prompt_tokens": usage.prompt_tokens,
                            "completion_tokens": usage.completion_tokens,
                        });
                        io.print(&value, Format::Json)?;
                    }
                }
                return Ok(());
            }
            Some(Event::Failed(failed)) => {
                if args.output == Format::Text && !text.is_empty() {
                    writeln!(io.out)?;
                }
                let kind = PbKind::try_from(failed.kind).unwrap_or(PbKind::Internal).as_str_name();
                let kind = kind.trim_start_matches("FAILURE_KIND_").to_lowercase().replace('_', "-");
                let text = match failed.kind() {
                    // The client's own, or the node's: in both cases the host goes on as long as the chain wants it.
                    PbKind::DeadlineExceeded => format!(
                        "no whole answer in time ({kind}); unless the chain says otherwise the host goes on, so ask again"
                    ),
                    _ => format!("the inference failed: {kind}"),
                };
                return Err(fail(94, "infer", text));
            }
        }
    }
    Err(fail(94, "infer", "the stream ended before the answer did; ask again"))
}
