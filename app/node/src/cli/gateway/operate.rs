//! Verbs of an operator, against a running gateway.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use holdfast_gateway::service::OperatorToken;
use holdfast_proto::holdfast::gateway::v1 as pb;
use holdfast_proto::holdfast::gateway::v1::gateway_client::GatewayClient;
use holdfast_proto::{Message, Name, to_json};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use super::super::error::fail;
use super::super::output::{Format, Io};
use super::super::{values, wiring};

/// Longest wait for an answer.
const CALL: Duration = Duration::from_secs(30);

#[derive(Debug, clap::Subcommand)]
pub(super) enum GatewayVerb {
    /// Lists the sessions of a running gateway
    Escrows(LookArgs),
    /// Lists hosts whose state differs, which get no traffic, and where their repairs stand
    Divergences(DivergencesArgs),
    /// Prints changes of divergence flags as they happen, one JSON object a line, from a number on
    WatchDivergence(WatchArgs),
    /// Teaches a host now, also one that was given up
    ForceTeach(HostArgs),
    /// Stops teaching a host; what it does not serve is charged again
    GiveUp(HostArgs),
    /// Charges a host nothing while it is flagged; the flag stays until proof
    Release(HostArgs),
    /// Takes no more requests for an escrow, ends its session and settles it
    Finalize(FinalizeArgs),
}

#[derive(Debug, clap::Args)]
pub(super) struct ReachArgs {
    /// Host and port of the gateway's gRPC server
    #[arg(long, env = "HOLDFASTD_GATEWAY_ADDR", value_name = "ADDR", default_value = "127.0.0.1:9300", value_parser = values::grpc_addr)]
    gateway: String,
    /// Form of the result
    #[arg(long, short, env = "HOLDFASTD_OUTPUT", value_name = "FORM", default_value = "json")]
    output: Format,
}

#[derive(Debug, clap::Args)]
pub(super) struct LookArgs {
    #[command(flatten)]
    reach: ReachArgs,
    /// Only this escrow
    #[arg(value_name = "ESCROW", value_parser = super::id)]
    escrow_id: Option<u64>,
}

#[derive(Debug, clap::Args)]
pub(super) struct DivergencesArgs {
    #[command(flatten)]
    reach: ReachArgs,
    /// Only of this escrow
    #[arg(value_name = "ESCROW", value_parser = super::id)]
    escrow_id: Option<u64>,
}

#[derive(Debug, clap::Args)]
pub(super) struct WatchArgs {
    #[command(flatten)]
    reach: ReachArgs,
    /// First number; 0 for the oldest kept
    #[arg(long, value_name = "NUMBER", default_value = "0", value_parser = number)]
    from_seq: u64,
}

#[derive(Debug, clap::Args)]
pub(super) struct AuditArgs {
    /// File with the operator's token
    #[arg(long, env = "HOLDFASTD_OPERATOR_TOKEN_FILE", value_name = "FILE")]
    operator_token_file: PathBuf,
    /// Who asks, for the audit log
    #[arg(long, env = "HOLDFASTD_OPERATOR", value_name = "NAME", value_parser = operator)]
    operator: String,
    /// Why, for the audit log
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    reason: String,
}

#[derive(Debug, clap::Args)]
pub(super) struct HostArgs {
    #[command(flatten)]
    reach: ReachArgs,
    #[command(flatten)]
    audit: AuditArgs,
    /// Id of the escrow
    #[arg(value_name = "ESCROW", value_parser = super::id)]
    escrow_id: u64,
    /// Address of the host, as `escrows` shows it
    #[arg(value_name = "ADDRESS")]
    participant: String,
}

#[derive(Debug, clap::Args)]
pub(super) struct FinalizeArgs {
    #[command(flatten)]
    reach: ReachArgs,
    #[command(flatten)]
    audit: AuditArgs,
    /// Id of the escrow
    #[arg(value_name = "ESCROW", value_parser = super::id)]
    escrow_id: u64,
}

fn number(text: &str) -> Result<u64, String> {
    values::within(text, 0, u64::MAX)
}

fn sized(text: &str, most: usize) -> Result<String, String> {
    let ok = (1..=most).contains(&text.len()) && !text.chars().any(char::is_control);
    if ok { Ok(text.to_owned()) } else { Err(format!("give 1 to {most} bytes without control characters")) }
}

fn operator(text: &str) -> Result<String, String> {
    sized(text, 128)
}

fn reason(text: &str) -> Result<String, String> {
    sized(text, 512)
}

/// The token in a file, for the gateway.
pub(super) fn token(path: &Path) -> Result<OperatorToken> {
    super::operator_token(path, &read(path)?)
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|e| super::unreadable("--operator-token-file", path, &e))
}

/// The header of a verb.
fn bearer(path: &Path) -> Result<MetadataValue<Ascii>> {
    let text = read(path)?;
    super::operator_token(path, &text)?;
    let value = MetadataValue::try_from(format!("Bearer {}", text.trim()));
    value.map_err(|_| fail(12, "--operator-token-file", format!("{}: no header can hold it", path.display())))
}

pub(super) fn run(verb: &GatewayVerb, io: &mut Io<'_>) -> Result<()> {
    wiring::on_this_thread(call(verb, io))
}

async fn connect(reach: &ReachArgs) -> Result<GatewayClient<Channel>> {
    let endpoint = Endpoint::from_shared(format!("http://{}", reach.gateway))
        .map_err(|e| fail(12, "--gateway", e.to_string()))?
        .connect_timeout(CALL);
    let channel = endpoint.connect().await.map_err(|e| {
        let cause = std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string);
        fail(
            41,
            "--gateway",
            format!("{}: {cause}; start a gateway, or give its --grpc address", reach.gateway),
        )
    })?;
    Ok(GatewayClient::new(channel).max_decoding_message_size(8 << 20))
}

fn refused(status: Status) -> anyhow::Error {
    let text = format!("{} (gRPC status {:?})", status.message(), status.code());
    match status.code() {
        Code::Unavailable => fail(41, "--gateway", text),
        _ => fail(42, "holdfast.gateway.v1.Gateway", text),
    }
}

/// A refusal of a verb; a token that is another gateway's is named by its file.
fn verb_refused(status: Status, token_file: &Path) -> anyhow::Error {
    if status.code() != Code::Unauthenticated {
        return refused(status);
    }
    let text = format!(
        "{}: its token is not that of this gateway; give the file that the gateway was started with",
        token_file.display()
    );
    fail(42, "--operator-token-file", text)
}

/// A verb about one host: the messages have the same fields, each its own name.
macro_rules! host_verb {
    ($args:ident, $io:ident, $message:ident, $call:ident) => {{
        let header = bearer(&$args.audit.operator_token_file)?;
        let mut client = connect(&$args.reach).await?;
        let mut request = Request::new(pb::$message {
            escrow_id: $args.escrow_id,
            participant: $args.participant.clone(),
            operator: $args.audit.operator.clone(),
            reason: $args.audit.reason.clone(),
        });
        request.metadata_mut().insert("authorization", header);
        let answer = client.$call(request).await;
        let answer = answer.map_err(|status| verb_refused(status, &$args.audit.operator_token_file))?;
        print(&answer.into_inner(), &$args.reach, $io)
    }};
}

async fn call(verb: &GatewayVerb, io: &mut Io<'_>) -> Result<()> {
    match verb {
        GatewayVerb::Escrows(args) => {
            let mut client = connect(&args.reach).await?;
            match args.escrow_id {
                Some(escrow_id) => {
                    let answer = client.escrow(pb::EscrowRequest { escrow_id }).await.map_err(refused)?;
                    print(&answer.into_inner(), &args.reach, io)
                }
                None => {
                    let answer = client.escrows(pb::EscrowsRequest {}).await.map_err(refused)?;
                    print(&answer.into_inner(), &args.reach, io)
                }
            }
        }
        GatewayVerb::Divergences(args) => {
            let mut client = connect(&args.reach).await?;
            let mut request =
                pb::DivergencesRequest { escrow_id: args.escrow_id.unwrap_or(0), ..Default::default() };
            let mut all = pb::DivergencesResponse::default();
            loop {
                let page = client.divergences(request.clone()).await.map_err(refused)?.into_inner();
                all.flags.extend(page.flags);
                if page.next_key.is_empty() {
                    return print(&all, &args.reach, io);
                }
                request.page_key = page.next_key;
            }
        }
        GatewayVerb::WatchDivergence(args) => {
            let mut client = connect(&args.reach).await?;
            let request = pb::WatchDivergenceRequest { from_seq: args.from_seq };
            let mut rows = client.watch_divergence(request).await.map_err(refused)?.into_inner();
            while let Some(row) = rows.message().await.map_err(refused)? {
                let value = to_json(&pb::WatchDivergenceResponse::full_name(), &row.encode_to_vec())?;
                writeln!(io.out, "{value}")?;
                io.out.flush()?;
            }
            Err(fail(41, "--gateway", "the gateway closed the stream; ask again from the next number"))
        }
        GatewayVerb::ForceTeach(args) => host_verb!(args, io, ForceTeachRequest, force_teach),
        GatewayVerb::GiveUp(args) => host_verb!(args, io, GiveUpRequest, give_up),
        GatewayVerb::Release(args) => host_verb!(args, io, ReleaseRequest, release),
        GatewayVerb::Finalize(args) => {
            let header = bearer(&args.audit.operator_token_file)?;
            let mut client = connect(&args.reach).await?;
            let mut request = Request::new(pb::FinalizeRequest {
                escrow_id: args.escrow_id,
                operator: args.audit.operator.clone(),
                reason: args.audit.reason.clone(),
            });
            request.metadata_mut().insert("authorization", header);
            let answer = client.finalize(request).await;
            let answer = answer.map_err(|status| verb_refused(status, &args.audit.operator_token_file))?;
            print(&answer.into_inner(), &args.reach, io)
        }
    }
}

fn print<M: Message + Name>(answer: &M, reach: &ReachArgs, io: &mut Io<'_>) -> Result<()> {
    io.print(&to_json(&M::full_name(), &answer.encode_to_vec())?, reach.output)
}
