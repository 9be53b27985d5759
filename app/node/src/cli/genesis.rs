//! `holdfastd genesis`: checking and filling the genesis file before the first block.

use anyhow::Result;
use holdfast_app::genesis::GenesisDoc;
use holdfast_app::keys::PublicKey;
use holdfast_proto::cosmos::base::v1beta1::Coin as PbCoin;
use holdfast_proto::holdfast::auth::v1 as auth;
use holdfast_proto::holdfast::bank::v1 as bank;
use holdfast_proto::holdfast::participants::v1 as participants;
use holdfast_proto::{Message, Name, decode_strict};
use holdfast_types::{Address, Coin, Hrp};
use serde_json::json;

use super::error::fail;
use super::files::{Home, HomeArgs};
use super::keys::Keyring;
use super::output::{Format, Io};
use super::{values, wiring};

/// Checks and fills the genesis file
#[derive(Debug, clap::Args)]
pub(crate) struct GenesisArgs {
    #[command(subcommand)]
    command: GenesisCommand,
}

#[derive(Debug, clap::Subcommand)]
enum GenesisCommand {
    /// Checks the whole file, every module
    Validate(ValidateArgs),
    /// Gives an account coins at genesis
    AddAccount(AddAccountArgs),
    /// Registers a model at genesis
    AddModel(AddModelArgs),
    /// Registers an executor that serves from the first block, with collateral on top of what its account has
    AddParticipant(AddParticipantArgs),
}

#[derive(Debug, clap::Args)]
struct ValidateArgs {
    #[command(flatten)]
    home: HomeArgs,
    /// Form of the result
    #[arg(long, short, env = "HOLDFASTD_OUTPUT", value_name = "FORM", default_value = "json")]
    output: Format,
}

#[derive(Debug, clap::Args)]
struct AddAccountArgs {
    /// Address, or name of a key in the keyring
    account: String,
    /// Coins such as 1000000uhold, several with commas
    #[arg(value_parser = coin_list)]
    coins: Coins,
    #[command(flatten)]
    home: HomeArgs,
}

#[derive(Debug, clap::Args)]
struct AddModelArgs {
    /// Id of the model, 1 to 64 letters, digits or . _ - / :
    model: String,
    #[command(flatten)]
    home: HomeArgs,
}

#[derive(Debug, clap::Args)]
struct AddParticipantArgs {
    /// Name of a key in the keyring, or an address together with --validator-key
    account: String,
    /// Models it serves, with commas; new ones are registered
    #[arg(long, value_name = "MODELS", required = true, value_delimiter = ',')]
    models: Vec<String>,
    /// Collateral such as 1000uhold; the weight is collateral / collateral_per_weight
    #[arg(long, value_name = "COIN", value_parser = values::coin)]
    collateral: Coin,
    /// Key that CometBFT signs with, in hex: ed25519, 32 bytes, as in priv_validator_key.json, or compressed secp256k1 [default:
    /// the account's own]
    #[arg(long, value_name = "HEX", value_parser = validator_key)]
    validator_key: Option<ValidatorKey>,
    /// URL under which it serves
    #[arg(long, value_name = "URL", default_value = "")]
    host_url: String,
    #[command(flatten)]
    home: HomeArgs,
}

/// Bytes of a key that validates.
#[derive(Debug, Clone)]
struct ValidatorKey(Vec<u8>);

fn validator_key(text: &str) -> Result<ValidatorKey, String> {
    let bytes = hex::decode(text.strip_prefix("0x").unwrap_or(text));
    let rule = "give the 32 bytes of an ed25519 key, or the 33 of a compressed secp256k1 key, in hex";
    let bytes = bytes.map_err(|_| rule.to_owned())?;
    match bytes.len() {
        32 => {}
        33 => PublicKey::from_bytes(&bytes).map(drop).map_err(|e| e.to_string())?,
        _ => return Err(rule.to_owned()),
    }
    Ok(ValidatorKey(bytes))
}

#[derive(Debug, Clone)]
struct Coins(Vec<Coin>);

fn coin_list(text: &str) -> Result<Coins, String> {
    let coins = values::coins(text)?;
    if coins.is_empty() {
        Err("give at least one coin, such as 1000000uhold".into())
    } else {
        Ok(Coins(coins))
    }
}

pub(crate) fn run(args: &GenesisArgs, io: &mut Io<'_>) -> Result<()> {
    match &args.command {
        GenesisCommand::Validate(args) => {
            let home = args.home.home()?;
            let doc = wiring::read_genesis(&home)?;
            wiring::validate_genesis(&doc, &home)?;
            let modules: Vec<&String> = doc.app_state.keys().collect();
            let value = json!({ "valid": true, "chain_id": doc.chain_id, "modules": modules });
            io.print(&value, args.output)
        }
        GenesisCommand::AddAccount(args) => add_account(args),
        GenesisCommand::AddModel(args) => {
            let mut file = File::open(&args.home)?;
            let mut state: participants::GenesisState = file.module("participants")?;
            add_model(&mut state, &args.model);
            file.set("participants", &state)?;
            file.save()
        }
        GenesisCommand::AddParticipant(args) => add_participant(args),
    }
}

/// The genesis file of a home while it is being changed.
struct File {
    home: Home,
    doc: GenesisDoc,
    hrp: Hrp,
}

impl File {
    fn open(home: &HomeArgs) -> Result<Self> {
        let home = home.home()?;
        let (doc, hrp) = (wiring::read_genesis(&home)?, wiring::genesis_hrp(&home)?);
        Ok(Self { home, doc, hrp })
    }

    fn bad(&self, module: &str, text: impl std::fmt::Display) -> anyhow::Error {
        fail(27, format!("{}: app_state.{module}", self.home.genesis().display()), text.to_string())
    }

    fn module<M: Message + Name + Default>(&self, module: &str) -> Result<M> {
        let bytes = self.doc.module(module).map_err(|e| self.bad(module, e))?;
        decode_strict(&bytes).map_err(|e| self.bad(module, e))
    }

    fn set(&mut self, module: &str, state: &impl Message) -> Result<()> {
        let set = self.doc.set_module(module, &state.encode_to_vec());
        set.map_err(|e| self.bad(module, e))
    }

    /// A file that was bad before, or would be now, is left as it was.
    fn save(&self) -> Result<()> {
        wiring::validate_genesis(&self.doc, &self.home)?;
        wiring::write_genesis(&self.home, &self.doc)
    }

    /// An address, or the name of a key with its public key.
    fn account(&self, text: &str) -> Result<(Address, Option<PublicKey>)> {
        match Address::parse(text, &self.hrp) {
            Ok(address) => Ok((address, None)),
            // A text with the separator of bech32 is meant as an address; its own error says more.
            Err(e) if text.starts_with(&format!("{}1", self.hrp.as_str())) => {
                Err(fail(12, "ACCOUNT", format!("{text:?}: {e}")))
            }
            Err(_) => {
                let key = Keyring::new(&self.home).get(text)?;
                Ok((key.address(), Some(key.public_key())))
            }
        }
    }

    /// Gives the address coins, and an account if `signs`.
    fn credit(&mut self, address: Address, coins: &[Coin], signs: bool) -> Result<()> {
        if signs {
            let mut state: auth::GenesisState = self.module("auth")?;
            add_to_auth(&mut state, address, &self.hrp).map_err(|text| self.bad("auth", text))?;
            self.set("auth", &state)?;
        }
        let mut state: bank::GenesisState = self.module("bank")?;
        add_to_bank(&mut state, address, coins, &self.hrp).map_err(|text| self.bad("bank", text))?;
        self.set("bank", &state)
    }
}

fn add_account(args: &AddAccountArgs) -> Result<()> {
    let mut file = File::open(&args.home)?;
    let (address, _) = file.account(&args.account)?;
    file.credit(address, &args.coins.0, true)?;
    file.save()
}

fn add_participant(args: &AddParticipantArgs) -> Result<()> {
    let mut file = File::open(&args.home)?;
    let (address, own_key) = file.account(&args.account)?;
    let Some(key) = args.validator_key.clone().or(own_key.map(|key| ValidatorKey(key.to_bytes().to_vec())))
    else {
        return Err(fail(
            14,
            "--validator-key",
            "must be given with an address; a key of the keyring brings its own",
        ));
    };
    let mut state: participants::GenesisState = file.module("participants")?;
    let params = state.params.clone().unwrap_or_default();
    let Coin { denom, amount } = &args.collateral;
    if *denom != params.collateral_denom {
        let rule = format!("{denom:?}: collateral is paid in {}", params.collateral_denom);
        return Err(fail(12, "--collateral", rule));
    }
    let per_weight = Coin::parse_amount(&params.collateral_per_weight);
    let per_weight =
        per_weight.map_err(|e| file.bad("participants", format!("params.collateral_per_weight: {e}")))?;
    let weight = amount.checked_div(per_weight).and_then(|weight| u64::try_from(weight).ok());
    let Some(weight) = weight.filter(|weight| *weight > 0) else {
        let rule =
            format!("{amount}: give at least {per_weight}, one unit of weight, and at most 2^64 - 1 of them");
        return Err(fail(12, "--collateral", rule));
    };
    let rows = state.participants.iter().map(|row| row.address.as_str());
    let Err(at) = place(rows, address, &file.hrp).map_err(|text| file.bad("participants", text))? else {
        return Err(fail(12, "ACCOUNT", format!("{:?} is a participant already", args.account)));
    };
    let (mut models, bech32) = (args.models.clone(), address.to_bech32(&file.hrp));
    models.sort();
    models.dedup();
    state.participants.insert(
        at,
        participants::Participant {
            address: bech32.clone(),
            validator_key: key.0,
            host_url: args.host_url.clone(),
            models: models.clone(),
            collateral: amount.to_string(),
            unbonding: "0".into(),
            status: participants::ParticipantStatus::Active.into(),
            ..participants::Participant::default()
        },
    );
    for model in models {
        add_model(&mut state, &model);
        let participant = bech32.clone();
        let member = participants::GenesisMember {
            model,
            participant,
            weight,
            next_weight: weight,
            ..Default::default()
        };
        state.members.push(member);
    }
    // By model, then by raw address.
    let hrp = file.hrp.clone();
    state.members.sort_by_key(|row| (row.model.clone(), Address::parse(&row.participant, &hrp).ok()));
    file.set("participants", &state)?;
    file.credit(address, &[], true)?;
    // The module holds what participants have bonded.
    file.credit(Address::module("participants"), std::slice::from_ref(&args.collateral), false)?;
    file.save()
}

/// Registers a model, unless it is.
fn add_model(state: &mut participants::GenesisState, model: &str) {
    if let Err(at) = state.models.binary_search_by(|row| row.id.as_str().cmp(model)) {
        state.models.insert(at, participants::Model { id: model.to_owned() });
    }
}

/// Gives the address an account, unless it has one. Rows stay sorted by raw address.
fn add_to_auth(state: &mut auth::GenesisState, address: Address, hrp: &Hrp) -> Result<(), String> {
    let rows = state.accounts.iter().map(|row| row.address.as_str());
    if let Err(at) = place(rows, address, hrp)? {
        let account_number = state.next_account_number;
        state.next_account_number =
            account_number.checked_add(1).ok_or("next_account_number: no number is left")?;
        let address = address.to_bech32(hrp);
        state.accounts.insert(at, auth::Account { address, account_number, ..auth::Account::default() });
    }
    Ok(())
}

/// Adds coins to the address's balance and to the supply.
fn add_to_bank(
    state: &mut bank::GenesisState,
    address: Address,
    coins: &[Coin],
    hrp: &Hrp,
) -> Result<(), String> {
    // A row without coins is refused by the module.
    if coins.is_empty() {
        return Ok(());
    }
    let rows = state.balances.iter().map(|row| row.address.as_str());
    let at = match place(rows, address, hrp)? {
        Ok(at) => at,
        Err(at) => {
            state.balances.insert(at, bank::Balance { address: address.to_bech32(hrp), coins: Vec::new() });
            at
        }
    };
    // Without a stated supply it is computed; a stated one has to follow.
    let supply_stated = !state.supply.is_empty() || state.balances.len() == 1;
    for coin in coins {
        let row = state.balances.get_mut(at).ok_or("balances: row not found")?;
        add_coin(&mut row.coins, coin)?;
        if supply_stated {
            add_coin(&mut state.supply, coin)?;
        }
    }
    Ok(())
}

/// Where the address is among sorted rows, or where it belongs.
fn place<'r>(
    rows: impl Iterator<Item = &'r str>,
    address: Address,
    hrp: &Hrp,
) -> Result<Result<usize, usize>, String> {
    let rows =
        rows.map(|row| Address::parse(row, hrp)).collect::<Result<Vec<_>, _>>().map_err(|e| e.to_string())?;
    Ok(rows.binary_search(&address))
}

/// Adds to a list sorted by denomination.
fn add_coin(list: &mut Vec<PbCoin>, coin: &Coin) -> Result<(), String> {
    match list.binary_search_by(|row| row.denom.as_str().cmp(&coin.denom)) {
        Ok(at) => {
            let row = list.get_mut(at).ok_or("coins: row not found")?;
            let before = Coin::parse_amount(&row.amount).map_err(|e| e.to_string())?;
            let sum = before.checked_add(coin.amount);
            row.amount =
                sum.ok_or_else(|| format!("{}: the sum is above 2^128 - 1", coin.denom))?.to_string();
        }
        Err(at) => list.insert(at, PbCoin::from(coin)),
    }
    Ok(())
}
