//! `holdfastd genesis`: checking and filling the genesis file before the first block.

use anyhow::Result;
use holdfast_proto::cosmos::base::v1beta1::Coin as PbCoin;
use holdfast_proto::holdfast::auth::v1 as auth;
use holdfast_proto::holdfast::bank::v1 as bank;
use holdfast_proto::{Message, decode_strict};
use holdfast_types::{Address, Coin, Hrp};
use serde_json::json;

use super::error::fail;
use super::files::HomeArgs;
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
    }
}

fn add_account(args: &AddAccountArgs) -> Result<()> {
    let home = args.home.home()?;
    let mut doc = wiring::read_genesis(&home)?;
    let hrp = wiring::genesis_hrp(&home)?;
    let address = match Address::parse(&args.account, &hrp) {
        Ok(address) => address,
        // A text with the separator of bech32 is meant as an address; its own error says more.
        Err(e) if args.account.starts_with(&format!("{}1", hrp.as_str())) => {
            return Err(fail(12, "ACCOUNT", format!("{:?}: {e}", args.account)));
        }
        Err(_) => Keyring::new(&home).get(&args.account)?.address(),
    };
    let bad = |module: &str, text: String| {
        fail(27, format!("{}: app_state.{module}", home.genesis().display()), text)
    };

    let state = doc.module("auth").map_err(|e| bad("auth", e.to_string()))?;
    let mut state: auth::GenesisState = decode_strict(&state)?;
    add_to_auth(&mut state, address, &hrp).map_err(|text| bad("auth", text))?;
    doc.set_module("auth", &state.encode_to_vec())?;

    let state = doc.module("bank").map_err(|e| bad("bank", e.to_string()))?;
    let mut state: bank::GenesisState = decode_strict(&state)?;
    add_to_bank(&mut state, address, &args.coins.0, &hrp).map_err(|text| bad("bank", text))?;
    doc.set_module("bank", &state.encode_to_vec())?;

    // A file that was bad before, or is now, is left as it was.
    wiring::validate_genesis(&doc, &home)?;
    wiring::write_genesis(&home, &doc)
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
