//! `holdfastd query`: every query of the chain.

use anyhow::Result;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use holdfast_proto::cosmos::tx::v1beta1::GetTxRequest;
use holdfast_proto::{Message, to_json};

use super::catalog::{self, Method};
use super::error::fail;
use super::node::{Connect, Node};
use super::output::{Format, Io};
use super::{fields, values, what_if};

const HEIGHT: &str = "height";
/// `query tx HASH`.
const TX: &str = "tx";
pub(crate) const GET_TX: &str = "/cosmos.tx.v1beta1.Service/GetTx";
pub(crate) const GET_TX_ANSWER: &str = "cosmos.tx.v1beta1.GetTxResponse";

/// How to reach a node.
#[derive(Debug, Clone, Args)]
pub(crate) struct NodeArgs {
    /// Host and port of the node's gRPC server
    #[arg(long, env = "HOLDFASTD_GRPC_ADDR", value_name = "ADDR", default_value = "127.0.0.1:9090", value_parser = values::grpc_addr)]
    pub(crate) grpc_addr: String,
}

/// Flags of every query.
#[derive(Debug, Clone, Args)]
struct QueryArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// Form of the result
    #[arg(long, short, env = "HOLDFASTD_OUTPUT", value_name = "FORM", default_value = "json")]
    output: Format,
}

fn height(text: &str) -> Result<i64, String> {
    text.parse().ok().filter(|h| *h > 0).ok_or_else(|| "give a block height of at least 1".into())
}

/// The whole tree.
pub(crate) fn command() -> Result<Command> {
    let mut root = Command::new("query")
        .visible_alias("q")
        .about("Asks a node; one command for each query of each module")
        .subcommand_required(true)
        .arg_required_else_help(true);
    for (module, methods) in super::by_module(catalog::queries()?) {
        let mut group = Command::new(module.clone())
            .about(format!("Queries of {module}"))
            .subcommand_required(true)
            .arg_required_else_help(true);
        for method in methods {
            group = group.subcommand(leaf(&method));
        }
        root = root.subcommand(group);
    }
    let hash =
        Arg::new("hash").value_name("HASH").required(true).help("Hash of the transaction, 64 hex digits");
    let tx = QueryArgs::augment_args(Command::new(TX).arg(hash.value_parser(tx_hash)));
    Ok(root.subcommand(tx.about("A transaction of a block, by its hash")))
}

fn leaf(method: &Method) -> Command {
    let mut leaf = Command::new(method.name.clone());
    leaf = if what_if::is(method) {
        leaf.args(fields::args(&method.input, Some(what_if::PARAMS))).arg(what_if::params_arg())
    } else {
        leaf.args(fields::args(&method.input, None))
    };
    if !shadows_height(method) {
        let help = "Height of the state to ask [default: the last]";
        let arg = Arg::new(HEIGHT).long(HEIGHT).value_name("H").help(help).allow_negative_numbers(true);
        leaf = leaf.arg(arg.value_parser(height));
    }
    // Last, because the group of flags brings a text of its own.
    let leaf = QueryArgs::augment_args(leaf).about(method.about.clone());
    if what_if::is(method) { what_if::finish(leaf) } else { leaf }
}

/// Whether `--height` is a field of the request itself, which then needs no other.
fn shadows_height(method: &Method) -> bool {
    method.input.get_field_by_name(HEIGHT).is_some()
}

fn tx_hash(text: &str) -> Result<String, String> {
    let bare = text.strip_prefix("0x").unwrap_or(text);
    let ok = bare.len() == 64 && bare.bytes().all(|b| b.is_ascii_hexdigit());
    if ok { Ok(bare.to_ascii_uppercase()) } else { Err("give 64 hex digits".into()) }
}

pub(crate) fn run(matches: &ArgMatches, io: &mut Io<'_>, connect: Connect<'_>) -> Result<()> {
    let (module, matches) = matches.subcommand().named()?;
    if module == TX {
        let args = QueryArgs::from_arg_matches(matches)?;
        let hash = matches.get_one::<String>("hash").cloned().unwrap_or_default();
        let request = GetTxRequest { hash }.encode_to_vec();
        let mut node = connect(&args.node.grpc_addr)?;
        return print_answer(&mut *node, GET_TX, &request, None, GET_TX_ANSWER, args.output, io);
    }
    let (name, matches) = matches.subcommand().named()?;
    let methods = catalog::queries()?;
    let method = super::find(&methods, module, name)?;
    let args = QueryArgs::from_arg_matches(matches)?;
    let height = if shadows_height(method) { None } else { matches.get_one::<i64>(HEIGHT).copied() };
    if what_if::is(method) {
        let connect = || connect(&args.node.grpc_addr);
        return what_if::run(method, matches, &connect, height, args.output, io);
    }
    let request = fields::message(&method.input, matches)?.encode_to_vec();
    let mut node = connect(&args.node.grpc_addr)?;
    let answer = method.output.full_name();
    print_answer(&mut *node, &method.grpc_path, &request, height, answer, args.output, io)
}

fn print_answer(
    node: &mut dyn Node,
    path: &str,
    request: &[u8],
    height: Option<i64>,
    answer: &str,
    format: Format,
    io: &mut Io<'_>,
) -> Result<()> {
    let bytes = node.unary(path, request, height).map_err(|failure| failure.refusal(path))?;
    let value = to_json(answer, &bytes).map_err(|e| fail(47, path.trim_start_matches('/'), e.to_string()))?;
    io.print(&value, format)
}

/// clap requires the subcommands, so that their absence is a defect of this program.
pub(crate) trait SubcommandPair<'m> {
    fn named(self) -> Result<(&'m str, &'m ArgMatches)>;
}

impl<'m> SubcommandPair<'m> for Option<(&'m str, &'m ArgMatches)> {
    fn named(self) -> Result<(&'m str, &'m ArgMatches)> {
        self.ok_or_else(|| fail(11, "command", "a subcommand is missing; see --help"))
    }
}
