//! `holdfastd tx`: every message of the chain, and signing and broadcasting of prepared transactions.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use holdfast_app::keys::SecretKey;
use holdfast_app::tx::{MAX_GAS_LIMIT, TxBuilder};
use holdfast_proto::cosmos::auth::v1beta1::{BaseAccount, QueryAccountRequest, QueryAccountResponse};
use holdfast_proto::cosmos::base::abci::v1beta1::TxResponse;
use holdfast_proto::cosmos::base::tendermint::v1beta1::{GetNodeInfoRequest, GetNodeInfoResponse};
use holdfast_proto::cosmos::tx::v1beta1::{
    AuthInfo, BroadcastMode, BroadcastTxRequest, BroadcastTxResponse, Fee, GetTxRequest, GetTxResponse,
    SimulateRequest, SimulateResponse, Tx, TxBody, TxRaw,
};
use holdfast_proto::{Any, Message, Name, decode_strict, from_json, to_json};
use holdfast_types::{Address, Coin, Hrp};
use serde_json::Value;

use super::catalog::{self, Method};
use super::error::fail;
use super::files::{Home, HomeArgs};
use super::keys::{Keyring, PrefixArgs};
use super::node::{Connect, NOT_FOUND, Node, call, try_call};
use super::output::{Format, Io};
use super::query::{GET_TX, NodeArgs, SubcommandPair};
use super::{fields, values, wiring};

const ACCOUNT: &str = "/cosmos.auth.v1beta1.Query/Account";
const NODE_INFO: &str = "/cosmos.base.tendermint.v1beta1.Service/GetNodeInfo";
const SIMULATE: &str = "/cosmos.tx.v1beta1.Service/Simulate";
const BROADCAST: &str = "/cosmos.tx.v1beta1.Service/BroadcastTx";

/// Gas asked for unless set, as in the Cosmos SDK.
const DEFAULT_GAS: u64 = 200_000;
/// Longest memo the chain takes, in bytes.
const MAX_MEMO_BYTES: usize = 256;
/// Pause between two looks for a transaction.
const POLL: Duration = Duration::from_millis(300);

const SIGN: &str = "sign";
const BROADCAST_FILE: &str = "broadcast";
const JSON: &str = "json";
const JSON_FILE: &str = "json-file";

/// Gas: a number, or what a simulation uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gas {
    Auto,
    Units(u64),
}

fn gas(text: &str) -> Result<Gas, String> {
    match text {
        "auto" => Ok(Gas::Auto),
        _ => match values::within(text, 1, MAX_GAS_LIMIT) {
            Ok(units) => Ok(Gas::Units(units)),
            Err(rule) => Err(format!("{rule}, or auto")),
        },
    }
}

/// Hundredths.
fn adjustment(text: &str) -> Result<u64, String> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    let ok =
        !whole.is_empty() && whole.len() <= 2 && fraction.len() <= 2 && digits(whole) && digits(fraction);
    let hundredths = ok.then(|| format!("{whole}{fraction:0<2}").parse::<u64>().ok()).flatten();
    hundredths
        .filter(|h| (100..=1000).contains(h))
        .ok_or_else(|| "give a factor from 1 to 10 with at most 2 digits after the point".into())
}

/// The fee: one coin or nothing.
fn fee(text: &str) -> Result<Coin, String> {
    values::coin(text)
}

fn memo(text: &str) -> Result<String, String> {
    if text.len() <= MAX_MEMO_BYTES {
        Ok(text.to_owned())
    } else {
        Err(format!("give at most {MAX_MEMO_BYTES} bytes"))
    }
}

fn count(text: &str) -> Result<u64, String> {
    values::within(text, 0, u64::MAX)
}

fn wait_seconds(text: &str) -> Result<u64, String> {
    values::within(text, 1, 86_400)
}

/// Flags that say who signs.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Signing")]
struct SignArgs {
    /// Name of the key that signs, or its address
    #[arg(long, env = "HOLDFASTD_FROM", value_name = "KEY")]
    from: String,
    #[command(flatten)]
    home: HomeArgs,
    #[command(flatten)]
    prefix: PrefixArgs,
    /// Id of the chain [default: that of the genesis file, or the node's]
    #[arg(long, env = "HOLDFASTD_CHAIN_ID", value_name = "ID", value_parser = values::chain_id)]
    chain_id: Option<String>,
    /// Number of the account [default: asked from the node]
    #[arg(long, value_name = "N", value_parser = count)]
    account_number: Option<u64>,
    /// Sequence of the account [default: asked from the node]
    #[arg(long, value_name = "N", value_parser = count)]
    sequence: Option<u64>,
}

/// Flags of every message.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Transaction")]
struct TxArgs {
    /// Fee such as 10uhold [default: none]
    #[arg(long, env = "HOLDFASTD_FEES", value_name = "COIN", value_parser = fee)]
    fees: Option<Coin>,
    /// Gas limit, or auto: what a simulation uses, times --gas-adjustment
    #[arg(long, env = "HOLDFASTD_GAS", value_name = "N|auto", value_parser = gas, default_value = "200000")]
    gas: Gas,
    /// Factor on simulated gas
    #[arg(long, value_name = "FACTOR", value_parser = adjustment, default_value = "1.3")]
    gas_adjustment: u64,
    /// Note, at most 256 bytes
    #[arg(long, value_name = "TEXT", value_parser = memo)]
    memo: Option<String>,
    /// Last height at which the transaction may enter a block; 0: no limit
    #[arg(long, value_name = "H", value_parser = count, default_value = "0")]
    timeout_height: u64,
    /// Print the unsigned transaction, for `tx sign`; asks no node unless --gas is auto
    #[arg(long)]
    generate_only: bool,
    /// Sign without a node and print the result, for `tx broadcast`; needs --chain-id, --account-number and --sequence
    #[arg(long, conflicts_with = "generate_only")]
    offline: bool,
    /// Do not ask before broadcasting
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    send: SendArgs,
}

/// Flags of what is broadcast.
#[derive(Debug, Clone, Args)]
struct SendArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// Wait until a block holds the transaction, at most SECONDS, and print its result
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "60", value_parser = wait_seconds)]
    wait: Option<u64>,
    /// Form of the result
    #[arg(long, short, env = "HOLDFASTD_OUTPUT", value_name = "FORM", default_value = "json")]
    output: Format,
}

/// The whole tree.
pub(crate) fn command() -> Result<Command> {
    let mut root = Command::new("tx")
        .about("Signs and broadcasts; one command for each message of each module")
        .subcommand_required(true)
        .arg_required_else_help(true);
    for (module, methods) in super::by_module(catalog::messages()?) {
        let mut group = Command::new(module.clone())
            .about(format!("Messages of {module}"))
            .subcommand_required(true)
            .arg_required_else_help(true);
        for method in methods {
            group = group.subcommand(leaf(&method)?);
        }
        root = root.subcommand(group);
    }
    let file = || {
        Arg::new("file").value_name("FILE").required(true).help("Transaction as JSON; - for standard input")
    };
    let sign = SignArgs::augment_args(Command::new(SIGN).arg(file()));
    let sign = sign.about("Signs what --generate-only printed, and prints it").arg(
        Arg::new("grpc-addr")
            .long("grpc-addr")
            .env("HOLDFASTD_GRPC_ADDR")
            .value_name("ADDR")
            .default_value("127.0.0.1:9090")
            .value_parser(values::grpc_addr)
            .help(
                "Host and port of the node's gRPC server; not asked when id, number and sequence are given",
            ),
    );
    let broadcast = SendArgs::augment_args(Command::new(BROADCAST_FILE).arg(file()));
    let broadcast = broadcast.about("Broadcasts what `tx sign` or --offline printed");
    Ok(root.subcommand(sign).subcommand(broadcast))
}

/// Name of the field that holds the signer.
fn signer_field(method: &Method) -> Result<String> {
    let name = method.input.full_name();
    let number = u32::try_from(holdfast_app::tx::signer_field(&format!("/{name}"))).unwrap_or(u32::MAX);
    let field = method.input.get_field(number).with_context(|| format!("{name} has no signer"))?;
    Ok(field.name().to_owned())
}

fn leaf(method: &Method) -> Result<Command> {
    let signer = signer_field(method)?;
    let json = Arg::new(JSON).long(JSON).value_name("JSON").conflicts_with(JSON_FILE).action(ArgAction::Set);
    let file = Arg::new(JSON_FILE).long(JSON_FILE).value_name("FILE").action(ArgAction::Set);
    let leaf = Command::new(method.name.clone())
        .after_help(format!("Field {signer} is filled in from --from."))
        .args(fields::args(&method.input, Some(&signer)))
        .arg(json.help("All fields as one proto3 JSON object, instead of flags").help_heading("Fields"))
        .arg(file.help("The same from a file; - for standard input").help_heading("Fields"));
    // Last, because the groups of flags bring a text of their own.
    Ok(TxArgs::augment_args(SignArgs::augment_args(leaf)).about(method.about.clone()))
}

pub(crate) fn run(matches: &ArgMatches, io: &mut Io<'_>, connect: Connect<'_>) -> Result<()> {
    let (module, matches) = matches.subcommand().named()?;
    match module {
        SIGN => return sign_file(matches, io, connect),
        BROADCAST_FILE => return broadcast_file(matches, io, connect),
        _ => {}
    }
    let (name, matches) = matches.subcommand().named()?;
    let methods = catalog::messages()?;
    let method = super::find(&methods, module, name)?;
    let signer = SignArgs::from_arg_matches(matches)?;
    let args = TxArgs::from_arg_matches(matches)?;
    let home = signer.home.home()?;
    let hrp = signer.prefix.hrp(&home)?;
    let author = Author::new(&signer, &home, &hrp, args.generate_only)?;
    let message = packed(method, matches, &author.address.to_bech32(&hrp), io)?;

    let offline = args.offline || (args.generate_only && args.gas != Gas::Auto);
    let mut link = Link { connect, addr: &args.send.node.grpc_addr, offline, node: None };
    let mut tx = TxBuilder {
        chain_id: String::new(),
        account_number: 0,
        sequence: 0,
        fee: args.fees.clone().unwrap_or(Coin { denom: "none".into(), amount: 0 }),
        gas_limit: DEFAULT_GAS,
        memo: args.memo.clone().unwrap_or_default(),
        timeout_height: args.timeout_height,
        msgs: vec![message],
    };
    if !offline || args.offline {
        fill_in(&mut tx, &signer, &home, &hrp, author.address, &mut link)?;
    }
    tx.gas_limit = match args.gas {
        Gas::Units(units) => units,
        Gas::Auto if args.offline => {
            return Err(fail(15, "--gas", "auto needs a node; give a number with --offline"));
        }
        Gas::Auto => simulate(&tx, author.key.as_ref(), args.gas_adjustment, link.node()?)?,
    };
    if args.generate_only {
        return io.print(&unsigned_json(&tx)?, args.send.output);
    }
    let key = author.key.context("the key was looked up above")?;
    if args.offline {
        return io.print(&tx_json(&tx.sign(&key))?, args.send.output);
    }
    if !args.yes {
        confirm(&tx, io)?;
    }
    let raw = tx.sign(&key);
    send(raw, args.send.wait, args.send.output, link.node()?, io)
}

/// Who signs; without a key only where nothing is signed.
struct Author {
    address: Address,
    key: Option<SecretKey>,
}

impl Author {
    fn new(args: &SignArgs, home: &Home, hrp: &Hrp, address_is_enough: bool) -> Result<Self> {
        if address_is_enough && let Ok(address) = Address::parse(&args.from, hrp) {
            return Ok(Self { address, key: None });
        }
        let key = Keyring::new(home).find(&args.from, hrp)?;
        Ok(Self { address: key.address(), key: Some(key) })
    }
}

/// The node, connected to when it is first needed.
struct Link<'a> {
    connect: Connect<'a>,
    addr: &'a str,
    offline: bool,
    node: Option<Box<dyn Node>>,
}

impl Link<'_> {
    fn node(&mut self) -> Result<&mut dyn Node> {
        if self.node.is_none() {
            self.node = Some((self.connect)(self.addr)?);
        }
        let node = self.node.as_mut().context("a node was just set")?;
        Ok(&mut **node)
    }

    /// The node, unless the user asked to leave it alone.
    fn unless_offline(&mut self, flag: &str) -> Result<&mut dyn Node> {
        if self.offline {
            return Err(fail(14, flag, "must be given with --offline"));
        }
        self.node()
    }
}

/// Chain id, account number and sequence from flags, files and the node, in this order.
fn fill_in(
    tx: &mut TxBuilder,
    args: &SignArgs,
    home: &Home,
    hrp: &Hrp,
    address: Address,
    link: &mut Link<'_>,
) -> Result<()> {
    tx.chain_id = match &args.chain_id {
        Some(id) => id.clone(),
        None if home.genesis().exists() => wiring::read_genesis(home)?.chain_id,
        None => {
            let info: GetNodeInfoResponse =
                call(link.unless_offline("--chain-id")?, NODE_INFO, &GetNodeInfoRequest {})?;
            info.default_node_info.unwrap_or_default().network
        }
    };
    (tx.account_number, tx.sequence) = match (args.account_number, args.sequence) {
        (Some(number), Some(sequence)) => (number, sequence),
        (number, sequence) => {
            let flag = if number.is_none() { "--account-number" } else { "--sequence" };
            let account = account(link.unless_offline(flag)?, &address.to_bech32(hrp))?;
            (number.unwrap_or(account.account_number), sequence.unwrap_or(account.sequence))
        }
    };
    Ok(())
}

fn account(node: &mut dyn Node, address: &str) -> Result<BaseAccount> {
    let answer = try_call(node, ACCOUNT, &QueryAccountRequest { address: address.to_owned() })?;
    let answer: QueryAccountResponse = answer.map_err(|failure| match failure.status {
        Some(NOT_FOUND) => {
            fail(42, "--from", format!("the chain has no account {address}; send it coins first"))
        }
        _ => failure.refusal(ACCOUNT).into(),
    })?;
    let any = answer.account.unwrap_or_default();
    if any.type_url != format!("/{}", BaseAccount::full_name()) {
        let text = format!("{address} is a {}, for which nobody signs; choose another key", any.type_url);
        return Err(fail(42, "--from", text));
    }
    decode_strict(&any.value).map_err(|e| fail(47, ACCOUNT, e.to_string()))
}

/// The message of the flags or of the JSON, with its signer.
fn packed(method: &Method, matches: &ArgMatches, signer: &str, io: &mut Io<'_>) -> Result<Any> {
    let full_name = method.input.full_name();
    let signer_field = signer_field(method)?;
    let inline = matches.get_one::<String>(JSON);
    let file = matches.get_one::<String>(JSON_FILE);
    let (flag, text) = match (inline, file) {
        (Some(text), _) => ("--json", Some(text.clone())),
        (None, Some(path)) => ("--json-file", Some(read_text(path, io)?)),
        (None, None) => ("", None),
    };
    let value = match text {
        None => {
            let mut message = fields::message(&method.input, matches)?;
            message.set_field_by_name(&signer_field, prost_reflect::Value::String(signer.to_owned()));
            message.encode_to_vec()
        }
        Some(text) => {
            if let Some(other) = fields::given(&method.input, matches).first() {
                return Err(fail(15, flag, format!("goes not with {other}; put all fields into the JSON")));
            }
            let mut value: Value = serde_json::from_str(&text)
                .map_err(|e| fail(12, flag, format!("{e}; give a JSON object")))?;
            let names: Vec<String> = method.input.fields().map(|field| field.name().to_owned()).collect();
            let Some(map) = value.as_object_mut() else {
                return Err(fail(
                    12,
                    flag,
                    format!("give a JSON object with the fields {}", names.join(", ")),
                ));
            };
            for name in map.keys() {
                if !method.input.fields().any(|field| field.name() == name || field.json_name() == name) {
                    return Err(fail(
                        13,
                        flag,
                        format!("{name}: unknown field; the fields are {}", names.join(", ")),
                    ));
                }
            }
            let stated = map.insert(signer_field.clone(), signer.into());
            if stated.is_some_and(|stated| stated != signer && stated != "") {
                return Err(fail(
                    12,
                    flag,
                    format!("{signer_field} must be {signer}, the address of --from, or left out"),
                ));
            }
            from_json(full_name, &value).map_err(|e| fail(12, flag, e.to_string()))?
        }
    };
    Ok(Any { type_url: format!("/{full_name}"), value })
}

fn read_text(path: &str, io: &mut Io<'_>) -> Result<String> {
    if path == "-" {
        let mut text = String::new();
        io.input.read_to_string(&mut text)?;
        return Ok(text);
    }
    std::fs::read_to_string(path).map_err(|e| super::error::io_failure(path.as_ref(), &e))
}

/// Gas used in a simulation, times the factor in hundredths, rounded up.
fn simulate(tx: &TxBuilder, key: Option<&SecretKey>, hundredths: u64, node: &mut dyn Node) -> Result<u64> {
    let tx_bytes = tx.unsigned(key.map(SecretKey::public_key).as_ref());
    #[allow(deprecated)]
    let request = SimulateRequest { tx: None, tx_bytes };
    let answer: SimulateResponse = call(node, SIMULATE, &request)?;
    let used = u128::from(answer.gas_info.unwrap_or_default().gas_used);
    let limit = used.saturating_mul(u128::from(hundredths)).div_ceil(100).max(1);
    u64::try_from(limit).ok().filter(|gas| *gas <= MAX_GAS_LIMIT).ok_or_else(|| {
        fail(43, "--gas", format!("the simulation asks for {limit}, above {MAX_GAS_LIMIT}; give a number"))
    })
}

fn confirm(tx: &TxBuilder, io: &mut Io<'_>) -> Result<()> {
    if !io.terminal {
        return Err(fail(
            45,
            "--yes",
            "standard input is no terminal to ask at; add -y to broadcast without asking",
        ));
    }
    io.err.write_all(super::output::text(&unsigned_json(tx)?).as_bytes())?;
    write!(io.err, "Sign and broadcast this transaction on {}? [y/N]: ", tx.chain_id)?;
    io.err.flush()?;
    let mut answer = String::new();
    io.input.read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(fail(45, "--yes", "not confirmed; nothing was sent")),
    }
}

/// A transaction's bytes as the JSON of `cosmos.tx.v1beta1.Tx`, which has the same fields as `TxRaw` on the wire.
fn tx_json(raw: &[u8]) -> Result<Value> {
    to_json(&Tx::full_name(), raw).map_err(|e| fail(46, "transaction", e.to_string()))
}

fn unsigned_json(tx: &TxBuilder) -> Result<Value> {
    let raw: TxRaw = decode_strict(&tx.unsigned(None))?;
    let auth: AuthInfo = decode_strict(&raw.auth_info_bytes)?;
    let auth = AuthInfo { signer_infos: Vec::new(), ..auth };
    tx_json(&TxRaw { auth_info_bytes: auth.encode_to_vec(), signatures: Vec::new(), ..raw }.encode_to_vec())
}

/// `tx sign FILE`.
fn sign_file(matches: &ArgMatches, io: &mut Io<'_>, connect: Connect<'_>) -> Result<()> {
    let args = SignArgs::from_arg_matches(matches)?;
    let addr = matches.get_one::<String>("grpc-addr").cloned().unwrap_or_default();
    let path = matches.get_one::<String>("file").cloned().unwrap_or_default();
    let Tx { body, auth_info, .. } = read_tx(&path, io)?;
    let bad = |text: &str| fail(46, format!("{path}: auth_info.fee"), text);
    let Fee { amount, gas_limit, .. } = auth_info.unwrap_or_default().fee.ok_or_else(|| bad("is missing"))?;
    let fee = match amount.as_slice() {
        [] => Coin { denom: "none".into(), amount: 0 },
        [coin] => Coin::try_from(coin).map_err(|e| bad(&e.to_string()))?,
        _ => return Err(bad("give one coin at most")),
    };
    let TxBody { messages, memo, timeout_height, extension_options, non_critical_extension_options } =
        body.unwrap_or_default();
    if !extension_options.is_empty() || !non_critical_extension_options.is_empty() {
        return Err(fail(
            46,
            format!("{path}: body.extension_options"),
            "the chain has none; leave both lists empty",
        ));
    }
    let home = args.home.home()?;
    let hrp = args.prefix.hrp(&home)?;
    let key = Keyring::new(&home).find(&args.from, &hrp)?;
    let mut tx = TxBuilder {
        chain_id: String::new(),
        account_number: 0,
        sequence: 0,
        fee,
        gas_limit,
        memo,
        timeout_height,
        msgs: messages,
    };
    let mut link = Link { connect, addr: &addr, offline: false, node: None };
    fill_in(&mut tx, &args, &home, &hrp, key.address(), &mut link)?;
    io.print(&tx_json(&tx.sign(&key))?, Format::Json)
}

/// `tx broadcast FILE`.
fn broadcast_file(matches: &ArgMatches, io: &mut Io<'_>, connect: Connect<'_>) -> Result<()> {
    let args = SendArgs::from_arg_matches(matches)?;
    let path = matches.get_one::<String>("file").cloned().unwrap_or_default();
    let raw = read_tx(&path, io)?.encode_to_vec();
    let mut node = connect(&args.node.grpc_addr)?;
    send(raw, args.wait, args.output, &mut *node, io)
}

fn read_tx(path: &str, io: &mut Io<'_>) -> Result<Tx> {
    let bad = |text: String| fail(46, path.to_owned(), text);
    let text = read_text(path, io)?;
    let value: Value = serde_json::from_str(&text).map_err(|e| bad(e.to_string()))?;
    let bytes = from_json(&Tx::full_name(), &value).map_err(|e| bad(e.to_string()))?;
    decode_strict(&bytes).map_err(|e| bad(e.to_string()))
}

/// Broadcasts, waits if asked to, prints the result, and fails when the transaction did.
fn send(raw: Vec<u8>, wait: Option<u64>, format: Format, node: &mut dyn Node, io: &mut Io<'_>) -> Result<()> {
    let request = BroadcastTxRequest { tx_bytes: raw, mode: BroadcastMode::Sync.into() };
    let answer: BroadcastTxResponse = call(node, BROADCAST, &request)?;
    let mut result = answer.tx_response.unwrap_or_default();
    if let (0, Some(seconds)) = (result.code, wait) {
        result = wait_for(&result.txhash, Duration::from_secs(seconds), node)?;
    }
    io.print(&to_json(&TxResponse::full_name(), &result.encode_to_vec())?, format)?;
    match result.code {
        0 => Ok(()),
        code => {
            let said = super::error::one_line(&result.raw_log);
            let text = format!("{said} (codespace {}, code {code})", result.codespace);
            Err(fail(43, format!("transaction {}", result.txhash), text))
        }
    }
}

fn wait_for(hash: &str, longest: Duration, node: &mut dyn Node) -> Result<TxResponse> {
    let begin = Instant::now();
    loop {
        let answer = try_call(node, GET_TX, &GetTxRequest { hash: hash.to_owned() })?;
        let answer: Result<GetTxResponse, _> = answer;
        match answer {
            Ok(answer) => return Ok(answer.tx_response.unwrap_or_default()),
            Err(failure) if failure.status == Some(NOT_FOUND) => {}
            Err(failure) => return Err(failure.refusal(GET_TX).into()),
        }
        if begin.elapsed() >= longest {
            let text =
                format!("in no block after {} s; `holdfastd query tx {hash}` asks again", longest.as_secs());
            return Err(fail(44, "--wait", text));
        }
        std::thread::sleep(POLL);
    }
}
