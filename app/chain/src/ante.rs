//! What happens to a transaction before its messages run: checks, fee, signatures, sequence.
//!
//! Order and codes are the Cosmos SDK's default (cosmos-conventions 2.2, 2.3):
//!
//! | step | refuses with (codespace `sdk`) |
//! |---|---|
//! | gas limit against the block's | 41 |
//! | basic validation | 18 no message, gas limit beyond 63 bits; 14 too many signers; 15 no signature; 4 their number; 37 sign mode |
//! | timeout height | 30 |
//! | memo | 12 |
//! | gas for size | 11 |
//! | fee | 10 denomination; 13 below this node's price (check modes only); 9 no account; 5 not enough |
//! | public keys | 9 no account; 4 module account; 8 not the signer's, or never given |
//! | gas for signatures | 11 |
//! | sequence, then signature | 32, 4 |
//! | sequence incremented | – |
//!
//! Extension options (31) and more than seven signatures (14) are refused by [`DecodedTx::decode`] already. Limits and gas
//! prices are the parameters of x/auth.
//!
//! A transaction that fails here leaves no write and no event. One that passes has paid and used up its sequence,
//! whatever its messages do.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use holdfast_auth::{Account, Params};
use holdfast_proto::cosmos::tx::signing::v1beta1::SignMode;
use holdfast_store::{BranchKv, GasConfig, GasMeter, KvRead, MeteredKv};
use holdfast_types::traits::BankKeeper;
use holdfast_types::{Address, Coin, Context, Event, ModuleError, sdk};

use crate::keys::PublicKey;
use crate::signatures::{SignatureCache, SignatureCheck};
use crate::tx::{DecodedTx, MAX_GAS_LIMIT};

/// Name of the module account that fees go to.
pub const FEE_COLLECTOR: &str = "fee_collector";
/// One base unit a gas unit, in the unit of gas prices.
pub const PRICE_ONE: u128 = 1_000_000_000_000;

/// Bytes that a signature will add to a transaction simulated without one: tag, length, r‖s.
const SIMULATED_SIGNATURE_BYTES: u64 = 66;
/// Bytes that a public key will add: two lengths and tags around the type URL and the 33 bytes.
const SIMULATED_PUBKEY_BYTES: u64 = 72;
/// Stored for a key not known yet, so that writing the account costs what it will cost.
const SIMULATED_PUBKEY: [u8; 33] = [2; 33];

/// Why the steps run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnteMode {
    /// First arrival at this node: its minimum price counts.
    Check,
    /// Again after a block: as `Check`, signatures were verified before.
    Recheck,
    /// In a block, proposed or decided.
    Deliver,
    /// Gas estimate: signatures and keys may be missing. The caller drops all writes.
    Simulate,
}

/// What the steps need beside the store.
#[derive(Clone, Copy)]
pub struct AnteEnv<'a> {
    /// Moves the fee.
    pub bank: &'a dyn BankKeeper,
    /// The denomination fees are paid in.
    pub fee_denom: &'a str,
    /// Least gas price this node takes into its pool, in 10^-12 base units a gas unit. Not consensus.
    pub min_gas_price: u128,
    /// Gas limit of a block; `None` for no limit.
    pub max_block_gas: Option<u64>,
    /// Signatures known to be good.
    pub cache: &'a SignatureCache,
}

/// What the steps found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnteOutcome {
    /// Gas limit of the transaction.
    pub gas_wanted: u64,
    /// Fee for a gas unit, in 10^-12 base units, rounded down: the priority in the pool.
    pub price: u128,
    /// Fee paid.
    pub fee: Option<Coin>,
    /// Signers and the sequences they used, in the order of the messages; the first paid.
    pub signers: Vec<(Address, u64)>,
}

/// Runs the steps on a branch of `ctx.store` and keeps its writes only when all passed.
///
/// Charges `meter` for size, signatures and store accesses, so `ctx.store` itself must not be metered by the same meter.
/// Give the meter the transaction's gas limit; in a simulation, the block's.
///
/// # Errors
/// See the table of this module; 1 when stored accounts are corrupt.
pub fn ante(
    ctx: &mut Context<'_>,
    mode: AnteMode,
    tx: &DecodedTx,
    env: &AnteEnv<'_>,
    meter: &GasMeter,
) -> Result<AnteOutcome, ModuleError> {
    // Writes are applied outside the meter: running out of gas between two of them would keep the first.
    let mut branch = BranchKv::new(&*ctx.store);
    let mut events = Vec::new();
    // Read outside the meter, as consensus parameters are: every transaction meets them.
    let params = holdfast_auth::Keeper.params(ctx.store)?;
    let outcome = {
        let mut metered = MeteredKv::new(&mut branch, meter, GasConfig::SDK);
        let mut inner = Context::new(ctx.block, &mut metered, &mut events);
        steps(&mut inner, mode, tx, env, &params, meter)?
    };
    let writes = branch.into_writes();
    BranchKv::apply(writes, ctx.store)?;
    ctx.events.append(&mut events);
    Ok(outcome)
}

/// The signatures of a transaction as they would be checked on top of `store`, for [`SignatureCache::warm`]. Gives none
/// for a signer whose account or key is not there, or when numbers do not match: [`ante`] says what is wrong.
pub fn signature_checks(store: &dyn KvRead, chain_id: &str, tx: &DecodedTx) -> Vec<SignatureCheck> {
    if tx.signer_infos().len() != tx.signers().len() || tx.signatures().len() != tx.signers().len() {
        return Vec::new();
    }
    let parts = tx.signers().iter().zip(tx.signer_infos()).zip(tx.signatures());
    parts
        .filter_map(|((signer, info), signature)| {
            let account = holdfast_auth::Keeper.account(store, signer).ok()??;
            let stored = || account.pub_key.and_then(|bytes| PublicKey::from_bytes(&bytes).ok());
            let key = info.public_key.or_else(stored).filter(|key| key.address() == *signer)?;
            Some(SignatureCheck::new(&tx.sign_bytes(chain_id, account.number), key, signature))
        })
        .collect()
}

fn steps(
    ctx: &mut Context<'_>,
    mode: AnteMode,
    tx: &DecodedTx,
    env: &AnteEnv<'_>,
    params: &Params,
    meter: &GasMeter,
) -> Result<AnteOutcome, ModuleError> {
    let gas_wanted = tx.gas_limit();
    if let Some(max) = env.max_block_gas
        && gas_wanted > max
    {
        let text = format!("fee.gas_limit: tx gas limit {gas_wanted} exceeds block max gas {max}");
        return Err(ModuleError::sdk(sdk::INVALID_GAS_LIMIT, text));
    }
    validate_basic(mode, tx, params)?;
    check_timeout(ctx, tx)?;
    let most = params.max_memo_characters;
    if u64::try_from(tx.memo().len()).is_ok_and(|bytes| bytes > most) {
        let text = format!("memo: maximum number of bytes is {most} but received {}", tx.memo().len());
        return Err(ModuleError::sdk(sdk::MEMO_TOO_LARGE, text));
    }
    let size = u64::try_from(tx.size()).unwrap_or(u64::MAX);
    meter.consume(size.saturating_mul(params.tx_size_cost_per_byte))?;

    let fee = check_fee(mode, tx, env)?;
    deduct_fee(ctx, tx, env, fee)?;
    let accounts = signer_accounts(ctx, mode, tx, params, meter)?;
    for _ in &accounts {
        meter.consume(params.sig_verify_cost_secp256k1)?;
    }
    let mut signers = Vec::with_capacity(accounts.len());
    for (i, SignerAccount { address, account, key }) in accounts.into_iter().enumerate() {
        let signed = tx.signer_infos().get(i).map(|info| info.sequence);
        if let Some(got) = signed
            && got != account.sequence
        {
            let text = format!("account sequence mismatch, expected {}, got {got}", account.sequence);
            return Err(ModuleError::sdk(sdk::WRONG_SEQUENCE, text));
        }
        if matches!(mode, AnteMode::Check | AnteMode::Deliver) {
            verify(ctx, tx, env.cache, i, &account, key)?;
        }
        signers.push((address, account.sequence));
        let sequence = account
            .sequence
            .checked_add(1)
            .ok_or_else(|| ModuleError::sdk(sdk::LOGIC, "sequence: this account has used up all numbers"))?;
        holdfast_auth::Keeper.set_account(ctx.store, &address, &Account { sequence, ..account })?;
    }
    emit(ctx, tx, fee, &signers);
    Ok(AnteOutcome { gas_wanted, price: gas_price(fee, gas_wanted), fee: fee.cloned(), signers })
}

fn validate_basic(mode: AnteMode, tx: &DecodedTx, params: &Params) -> Result<(), ModuleError> {
    let invalid = |text: &str| Err(ModuleError::sdk(sdk::INVALID_REQUEST, text));
    let unauthorized = |text: String| Err(ModuleError::sdk(sdk::UNAUTHORIZED, text));
    if tx.messages().is_empty() {
        return invalid("body.messages: must contain at least one message");
    }
    if tx.gas_limit() > MAX_GAS_LIMIT {
        return invalid("fee.gas_limit: at most 9223372036854775807");
    }
    let limit = usize::try_from(params.tx_sig_limit).unwrap_or(usize::MAX);
    if tx.signers().len() > limit {
        let text = format!("signatures: {}, limit: {limit}", tx.signers().len());
        return Err(ModuleError::sdk(sdk::TOO_MANY_SIGNATURES, text));
    }
    let (expected, signatures, infos) = (tx.signers().len(), tx.signatures().len(), tx.signer_infos().len());
    if mode == AnteMode::Simulate {
        if signatures > expected || infos > expected {
            let got = signatures.max(infos);
            return unauthorized(format!("wrong number of signers; expected at most {expected}, got {got}"));
        }
        return Ok(());
    }
    if signatures == 0 {
        return Err(ModuleError::sdk(
            sdk::NO_SIGNATURES,
            "signatures: no signatures supplied; sign the transaction",
        ));
    }
    if signatures != expected {
        return unauthorized(format!(
            "signatures: wrong number of signers; expected {expected}, got {signatures}"
        ));
    }
    if infos != expected {
        return unauthorized(format!(
            "signer_infos: wrong number of signers; expected {expected}, got {infos}"
        ));
    }
    for (i, info) in tx.signer_infos().iter().enumerate() {
        if info.mode != Some(SignMode::Direct.into()) {
            let name = match info.mode.map(SignMode::try_from) {
                Some(Ok(mode)) => mode.as_str_name(),
                Some(Err(_)) => "an unknown mode",
                None => "no mode",
            };
            let text = format!("signer_infos[{i}].mode_info: {name} is not supported; use SIGN_MODE_DIRECT");
            return Err(ModuleError::sdk(sdk::NOT_SUPPORTED, text));
        }
    }
    Ok(())
}

fn check_timeout(ctx: &Context<'_>, tx: &DecodedTx) -> Result<(), ModuleError> {
    let (timeout, height) = (tx.timeout_height(), u64::try_from(ctx.block.height).unwrap_or(0));
    if timeout != 0 && height > timeout {
        let text = format!("timeout_height: tx timeout height {timeout} is over, block height is {height}");
        return Err(ModuleError::sdk(sdk::TX_TIMEOUT_HEIGHT, text));
    }
    Ok(())
}

/// The fee offered, in the one denomination taken.
fn check_fee<'t>(
    mode: AnteMode,
    tx: &'t DecodedTx,
    env: &AnteEnv<'_>,
) -> Result<Option<&'t Coin>, ModuleError> {
    if let Some(other) = tx.fee().iter().find(|coin| coin.denom != env.fee_denom) {
        let text = format!("fee.amount: fees are paid in {}, not in {}", env.fee_denom, other.denom);
        return Err(ModuleError::sdk(sdk::INVALID_COINS, text));
    }
    let fee = tx.fee().first();
    if matches!(mode, AnteMode::Check | AnteMode::Recheck) {
        let required = required_fee(env.min_gas_price, tx.gas_limit());
        let got = fee.map_or(0, |coin| coin.amount);
        if got < required {
            let denom = env.fee_denom;
            let text = format!("insufficient fees; got: {got}{denom} required: {required}{denom}");
            return Err(ModuleError::sdk(sdk::INSUFFICIENT_FEE, text));
        }
    }
    Ok(fee)
}

/// Least fee for `gas` at `price` (10^-12 base units a gas unit), rounded up.
pub fn required_fee(price: u128, gas: u64) -> u128 {
    price.saturating_mul(gas.into()).div_ceil(PRICE_ONE)
}

/// Fee for a gas unit, in 10^-12 base units, rounded down. A gas limit of 0 counts as 1.
pub(crate) fn gas_price(fee: Option<&Coin>, gas: u64) -> u128 {
    let (amount, gas) = (fee.map_or(0, |coin| coin.amount), u128::from(gas.max(1)));
    // In two parts, so that only prices beyond 128 bits saturate; the rest is below 2^64 · 10^12.
    let (whole, rest) = (amount / gas, amount % gas);
    whole.saturating_mul(PRICE_ONE).saturating_add(rest.saturating_mul(PRICE_ONE) / gas)
}

fn deduct_fee(
    ctx: &mut Context<'_>,
    tx: &DecodedTx,
    env: &AnteEnv<'_>,
    fee: Option<&Coin>,
) -> Result<(), ModuleError> {
    // There is a first signer: a transaction has messages, and each of them a signer.
    let payer =
        tx.signers().first().ok_or_else(|| ModuleError::sdk(sdk::LOGIC, "the transaction has no signer"))?;
    load_account(ctx, payer, "fee payer")?;
    match fee {
        Some(fee) => env.bank.send(ctx, payer, &Address::module(FEE_COLLECTOR), fee),
        None => Ok(()),
    }
}

/// The account of a signer; module accounts have no key, so nobody signs for them.
fn load_account(ctx: &Context<'_>, address: &Address, role: &str) -> Result<Account, ModuleError> {
    let account = holdfast_auth::Keeper.account(ctx.store, address)?.ok_or_else(|| {
        let text = format!("{role} address {} does not exist; send coins to it first", ctx.bech32(address));
        ModuleError::sdk(sdk::UNKNOWN_ADDRESS, text)
    })?;
    if account.module.is_some() {
        let text = format!("{role} {} is a module account; nobody can sign for it", ctx.bech32(address));
        return Err(ModuleError::sdk(sdk::UNAUTHORIZED, text));
    }
    Ok(account)
}

struct SignerAccount {
    address: Address,
    /// With the key set.
    account: Account,
    /// `None` only in a simulation.
    key: Option<PublicKey>,
}

fn signer_accounts(
    ctx: &Context<'_>,
    mode: AnteMode,
    tx: &DecodedTx,
    params: &Params,
    meter: &GasMeter,
) -> Result<Vec<SignerAccount>, ModuleError> {
    let simulate = mode == AnteMode::Simulate;
    let invalid = |text: String| ModuleError::sdk(sdk::INVALID_PUBKEY, text);
    let mut accounts = Vec::with_capacity(tx.signers().len());
    for (i, address) in tx.signers().iter().enumerate() {
        let mut account = load_account(ctx, address, "signer")?;
        let given = tx.signer_infos().get(i).and_then(|info| info.public_key);
        if given.is_some_and(|key| key.address() != *address) && !simulate {
            let text = format!(
                "pubKey does not match signer address {} with signer index: {i}",
                ctx.bech32(address)
            );
            return Err(invalid(text));
        }
        let key = match (given, account.pub_key) {
            (Some(key), _) => Some(key),
            (None, Some(bytes)) => Some(PublicKey::from_bytes(&bytes).map_err(|e| {
                ModuleError::sdk(sdk::INTERNAL, format!("account {}: {e}", ctx.bech32(address)))
            })?),
            (None, None) if simulate => {
                meter.consume(SIMULATED_PUBKEY_BYTES.saturating_mul(params.tx_size_cost_per_byte))?;
                None
            }
            (None, None) => {
                let text =
                    format!("signer_infos[{i}].public_key: pubkey on account is not set; send it along");
                return Err(invalid(text));
            }
        };
        if simulate && tx.signatures().get(i).is_none_or(Vec::is_empty) {
            meter.consume(SIMULATED_SIGNATURE_BYTES.saturating_mul(params.tx_size_cost_per_byte))?;
        }
        if account.pub_key.is_none() {
            account.pub_key = Some(key.map_or(SIMULATED_PUBKEY, |key| key.to_bytes()));
        }
        accounts.push(SignerAccount { address: *address, account, key });
    }
    Ok(accounts)
}

fn verify(
    ctx: &Context<'_>,
    tx: &DecodedTx,
    cache: &SignatureCache,
    index: usize,
    account: &Account,
    key: Option<PublicKey>,
) -> Result<(), ModuleError> {
    let chain_id = &ctx.block.chain_id;
    let (Some(key), Some(signature)) = (key, tx.signatures().get(index)) else {
        return Err(ModuleError::sdk(sdk::LOGIC, "signatures: fewer than signers"));
    };
    let check = SignatureCheck::new(&tx.sign_bytes(chain_id, account.number), key, signature);
    cache.verify(&check).map_err(|reason| {
        // Client libraries show this text; the usual cause is one of the three values in it.
        let text = format!(
            "signature verification failed; please verify account number ({}), sequence ({}) and chain-id ({chain_id}): \
             {reason}",
            account.number, account.sequence
        );
        ModuleError::sdk(sdk::UNAUTHORIZED, text)
    })
}

/// The `tx` events that indexers of Cosmos chains search by.
fn emit(ctx: &mut Context<'_>, tx: &DecodedTx, fee: Option<&Coin>, signers: &[(Address, u64)]) {
    if let Some((payer, _)) = signers.first() {
        let fee = fee.map(|coin| format!("{}{}", coin.amount, coin.denom)).unwrap_or_default();
        let payer = ctx.bech32(payer);
        ctx.emit(Event::new("tx").with("fee", fee).with("fee_payer", payer));
    }
    for (signer, sequence) in signers {
        let address = ctx.bech32(signer);
        ctx.emit(Event::new("tx").with("acc_seq", format!("{address}/{sequence}")));
    }
    for signature in tx.signatures() {
        ctx.emit(Event::new("tx").with("signature", BASE64.encode(signature)));
    }
}

#[cfg(test)]
mod tests;
