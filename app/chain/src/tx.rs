//! Transactions as bytes: strict decoding, what is signed, and the builder that clients use.
//!
//! ```text
//! TxRaw ─ body_bytes      ─ TxBody   ─ messages (Any), memo, timeout_height
//!       ├ auth_info_bytes ─ AuthInfo ─ signer_infos (key, mode, sequence), fee, gas limit
//!       └ signatures      ─ one for each signer, over SignDoc{body_bytes, auth_info_bytes, chain_id, account_number}
//! ```
//!
//! Each level takes one encoding only (cosmos-conventions 2.1), and signatures are checked over the bytes received,
//! never over bytes encoded again.

use holdfast_proto::cosmos::base::v1beta1::Coin as PbCoin;
use holdfast_proto::cosmos::crypto::secp256k1::PubKey;
use holdfast_proto::cosmos::tx::signing::v1beta1::SignMode;
use holdfast_proto::cosmos::tx::v1beta1::{
    AuthInfo, Fee, ModeInfo, SignDoc, SignerInfo as PbSignerInfo, TxBody, TxRaw, mode_info,
};
use holdfast_proto::{Any, Message, Name, decode_strict, type_url};
use holdfast_types::{Address, Coin, Hrp, ModuleError, sdk};
use sha2::{Digest, Sha256};

use crate::keys::{PublicKey, SecretKey};

/// Most bytes of a transaction.
pub const MAX_TX_BYTES: usize = 1 << 20;

/// Refuses a transaction that is too large to be looked at.
///
/// # Errors
/// Codespace `sdk`: 21 above [`MAX_TX_BYTES`].
pub fn check_size(raw: &[u8]) -> Result<(), ModuleError> {
    if raw.len() > MAX_TX_BYTES {
        let text = format!("tx too large: {} bytes, at most {MAX_TX_BYTES}", raw.len());
        return Err(ModuleError::sdk(sdk::TX_TOO_LARGE, text));
    }
    Ok(())
}
/// Most messages in a transaction.
pub const MAX_TX_MESSAGES: usize = 256;
/// Most signatures on a transaction; the Cosmos SDK's default.
pub const MAX_TX_SIGNATURES: usize = 7;
/// Most gas a transaction can ask for: the amount has to fit the engine's signed 64 bits.
pub const MAX_GAS_LIMIT: u64 = i64::MAX.unsigned_abs();

/// Type URL of the one kind of key accounts have here.
pub const PUBKEY_TYPE_URL: &str = "/cosmos.crypto.secp256k1.PubKey";
const MULTISIG_TYPE_URL: &str = "/cosmos.crypto.multisig.LegacyAminoPubKey";

/// SHA-256 of a transaction's bytes.
pub type TxHash = [u8; 32];

/// Hash of a transaction.
pub fn tx_hash(raw: &[u8]) -> TxHash {
    Sha256::digest(raw).into()
}

/// A hash as clients write it: upper-case hex.
pub fn hash_hex(hash: &TxHash) -> String {
    hex::encode_upper(hash)
}

/// What a signer says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignerInfo {
    /// Public key; may be left out once the chain knows it.
    pub public_key: Option<PublicKey>,
    /// Number of the sign mode; `None` when it was left out.
    pub mode: Option<i32>,
    /// Sequence signed for.
    pub sequence: u64,
}

/// A decoded transaction beside the bytes it came from. A value of this type is well-formed; whether its signers may do
/// what it asks is for [`crate::ante::ante`] to say.
#[derive(Debug, Clone, PartialEq)]
pub struct DecodedTx {
    size: usize,
    hash: TxHash,
    body_bytes: Vec<u8>,
    auth_info_bytes: Vec<u8>,
    signatures: Vec<Vec<u8>>,
    messages: Vec<Any>,
    signers: Vec<Address>,
    signer_infos: Vec<SignerInfo>,
    fee: Vec<Coin>,
    gas_limit: u64,
    memo: String,
    timeout_height: u64,
}

impl DecodedTx {
    /// Decodes a transaction of the chain with bech32 prefix `hrp`.
    ///
    /// # Errors
    /// Codespace `sdk`: 21 above [`MAX_TX_BYTES`]; 2 for anything that is not the one encoding; 31 extension options;
    /// 18 too many messages; 7 a message whose first field is no address; 14 too many signatures; 8 a bad public key;
    /// 10 malformed fee; 37 multisignatures, tips, fee payers and granters.
    pub fn decode(raw: &[u8], hrp: &Hrp) -> Result<Self, ModuleError> {
        check_size(raw)?;
        if raw.is_empty() {
            return Err(tx_decode("the transaction is empty"));
        }
        let TxRaw { body_bytes, auth_info_bytes, signatures } = strict(raw)?;
        let TxBody { messages, memo, timeout_height, extension_options, non_critical_extension_options } =
            strict(&body_bytes)?;
        let AuthInfo { signer_infos, fee, tip } = strict(&auth_info_bytes)?;

        if !extension_options.is_empty() || !non_critical_extension_options.is_empty() {
            return Err(ModuleError::sdk(
                sdk::UNKNOWN_EXTENSION_OPTIONS,
                "body.extension_options: this chain has none; leave both lists empty",
            ));
        }
        if messages.len() > MAX_TX_MESSAGES {
            let text = format!("body.messages: {} messages, at most {MAX_TX_MESSAGES}", messages.len());
            return Err(ModuleError::sdk(sdk::INVALID_REQUEST, text));
        }
        if tip.is_some() {
            return Err(not_supported("auth_info.tip: tips are not supported; leave it out"));
        }
        // Before any key is decompressed: that work is not paid for yet.
        let count = signatures.len().max(signer_infos.len());
        if count > MAX_TX_SIGNATURES {
            let text = format!("signatures: {count}, limit: {MAX_TX_SIGNATURES}");
            return Err(ModuleError::sdk(sdk::TOO_MANY_SIGNATURES, text));
        }

        let mut signers = Vec::new();
        for (i, message) in messages.iter().enumerate() {
            let signer = message_signer(message, hrp).map_err(|mut e| {
                e.message = format!("body.messages[{i}]: {}", e.message);
                e
            })?;
            if !signers.contains(&signer) {
                signers.push(signer);
            }
        }
        let Fee { amount, gas_limit, payer, granter } = fee.unwrap_or_default();
        let payer_is_signer = signers.first().is_some_and(|first| payer == first.to_bech32(hrp));
        if !payer.is_empty() && !payer_is_signer {
            return Err(not_supported("auth_info.fee.payer: the first signer pays; leave it empty"));
        }
        if !granter.is_empty() {
            return Err(not_supported("auth_info.fee.granter: fee grants are not supported; leave it empty"));
        }
        let signer_infos = signer_infos.into_iter().enumerate().map(|(i, info)| signer_info(i, info));
        Ok(Self {
            size: raw.len(),
            hash: tx_hash(raw),
            signer_infos: signer_infos.collect::<Result<_, _>>()?,
            fee: fee_coins(&amount)?,
            body_bytes,
            auth_info_bytes,
            signatures,
            messages,
            signers,
            gas_limit,
            memo,
            timeout_height,
        })
    }

    /// Number of bytes received.
    pub fn size(&self) -> usize {
        self.size
    }

    /// SHA-256 of the bytes received.
    pub fn hash(&self) -> &TxHash {
        &self.hash
    }

    /// Messages, in order; not decoded further.
    pub fn messages(&self) -> &[Any] {
        &self.messages
    }

    /// Distinct signers, in the order in which messages name them. The first pays the fee.
    pub fn signers(&self) -> &[Address] {
        &self.signers
    }

    /// What each signer says about itself.
    pub fn signer_infos(&self) -> &[SignerInfo] {
        &self.signer_infos
    }

    /// Signatures, in the order of the signers; any bytes.
    pub fn signatures(&self) -> &[Vec<u8>] {
        &self.signatures
    }

    /// Coins offered as fee: ascending denominations, none zero.
    pub fn fee(&self) -> &[Coin] {
        &self.fee
    }

    /// Gas limit.
    pub fn gas_limit(&self) -> u64 {
        self.gas_limit
    }

    /// Memo.
    pub fn memo(&self) -> &str {
        &self.memo
    }

    /// Last height at which the transaction is good; 0 for no limit.
    pub fn timeout_height(&self) -> u64 {
        self.timeout_height
    }

    /// The bytes a signer with this account number signs, over the parts as received.
    pub fn sign_bytes(&self, chain_id: &str, account_number: u64) -> Vec<u8> {
        sign_bytes(&self.body_bytes, &self.auth_info_bytes, chain_id, account_number)
    }
}

/// `SignDoc` of the given parts, encoded.
fn sign_bytes(body_bytes: &[u8], auth_info_bytes: &[u8], chain_id: &str, account_number: u64) -> Vec<u8> {
    SignDoc {
        body_bytes: body_bytes.to_vec(),
        auth_info_bytes: auth_info_bytes.to_vec(),
        chain_id: chain_id.to_owned(),
        account_number,
    }
    .encode_to_vec()
}

fn tx_decode(text: impl Into<String>) -> ModuleError {
    ModuleError::sdk(sdk::TX_DECODE, text)
}

fn not_supported(text: impl Into<String>) -> ModuleError {
    ModuleError::sdk(sdk::NOT_SUPPORTED, text)
}

fn strict<M: Message + Name + Default>(bytes: &[u8]) -> Result<M, ModuleError> {
    decode_strict(bytes).map_err(|e| tx_decode(e.to_string()))
}

fn fee_coins(amount: &[PbCoin]) -> Result<Vec<Coin>, ModuleError> {
    let invalid =
        |text: String| ModuleError::sdk(sdk::INVALID_COINS, format!("auth_info.fee.amount: {text}"));
    let mut coins: Vec<Coin> = Vec::new();
    for coin in amount {
        let coin = Coin::try_from(coin).map_err(|e| invalid(e.to_string()))?;
        if coin.amount == 0 {
            return Err(invalid(format!("amount of {} is 0; leave the coin out", coin.denom)));
        }
        if coins.last().is_some_and(|last| last.denom >= coin.denom) {
            return Err(invalid("name each denomination once, in ascending order".to_owned()));
        }
        coins.push(coin);
    }
    Ok(coins)
}

fn signer_info(index: usize, info: PbSignerInfo) -> Result<SignerInfo, ModuleError> {
    let at = format!("auth_info.signer_infos[{index}]");
    let mode = match info.mode_info.and_then(|mode| mode.sum) {
        None => None,
        Some(mode_info::Sum::Single(single)) => Some(single.mode),
        Some(mode_info::Sum::Multi(_)) => {
            return Err(not_supported(format!(
                "{at}.mode_info: multisignatures are not supported; sign with one key"
            )));
        }
    };
    let public_key = match info.public_key {
        None => None,
        Some(any) if any.type_url == PUBKEY_TYPE_URL => {
            let PubKey { key } = strict(&any.value)?;
            let bad = |e: crate::keys::KeyError| {
                ModuleError::sdk(sdk::INVALID_PUBKEY, format!("{at}.public_key: {e}"))
            };
            Some(PublicKey::from_bytes(&key).map_err(bad)?)
        }
        Some(any) if any.type_url == MULTISIG_TYPE_URL => {
            return Err(not_supported(format!(
                "{at}.public_key: multisig keys are not supported; sign with one key"
            )));
        }
        Some(any) => {
            let found: String = any.type_url.chars().take(100).collect();
            let text = format!("{at}.public_key: type {found:?} is not supported; use {PUBKEY_TYPE_URL}");
            return Err(ModuleError::sdk(sdk::INVALID_PUBKEY, text));
        }
    };
    Ok(SignerInfo { public_key, mode, sequence: info.sequence })
}

/// Number of the field that holds the signer of messages of type `url`: 1, unless x/gov says otherwise.
pub fn signer_field(url: &str) -> u64 {
    let known = holdfast_gov::SIGNERS.iter().find(|(known, ..)| *known == url);
    known.map_or(1, |(_, number, _)| (*number).into())
}

/// The signer of a packed message: the address in its field 1, where nearly every message of this chain has it; the
/// others are those of cosmos.gov.v1.
///
/// # Errors
/// Codespace `sdk`: 2 when the value is no protobuf or has that field twice, 7 when it holds no address of this chain.
pub fn message_signer(message: &Any, hrp: &Hrp) -> Result<Address, ModuleError> {
    let number = signer_field(&message.type_url);
    let url: String = message.type_url.chars().take(100).collect();
    let field = single_bytes_field(&message.value, number)
        .ok_or_else(|| tx_decode(format!("{url}: the value is no canonical protobuf message")))?;
    let bad = |text: String| {
        ModuleError::sdk(sdk::INVALID_ADDRESS, format!("{url}: signer (field {number}): {text}"))
    };
    let text = std::str::from_utf8(field).map_err(|_| bad("not UTF-8".to_owned()))?;
    Address::parse(text, hrp).map_err(|e| bad(e.to_string()))
}

/// Walks the top-level fields: `None` when they do not parse or field `wanted` comes twice or not as bytes; an empty slice
/// when it is absent. The whole value is walked so that no later field can be a second one to another reader.
fn single_bytes_field(mut value: &[u8], wanted: u64) -> Option<&[u8]> {
    let mut found = None;
    while !value.is_empty() {
        let tag = varint(&mut value)?;
        let (field, wire_type) = (tag >> 3, tag & 7);
        let body = match wire_type {
            0 => {
                varint(&mut value)?;
                None
            }
            1 => {
                value = value.get(8..)?;
                None
            }
            2 => {
                let length = usize::try_from(varint(&mut value)?).ok()?;
                let (body, rest) = value.split_at_checked(length)?;
                value = rest;
                Some(body)
            }
            5 => {
                value = value.get(4..)?;
                None
            }
            _ => return None,
        };
        match field {
            0 => return None,
            n if n == wanted && found.is_some() => return None,
            n if n == wanted => found = Some(body?),
            _ => {}
        }
    }
    Some(found.unwrap_or_default())
}

/// A varint of at most 64 bits.
fn varint(input: &mut &[u8]) -> Option<u64> {
    let mut value: u64 = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = input.split_first()?;
        *input = rest;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            return None;
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Packs a message for [`TxBuilder::msgs`].
pub fn pack<M: Message + Name>(message: &M) -> Any {
    Any { type_url: type_url::<M>(), value: message.encode_to_vec() }
}

/// One signer of a transaction being built.
#[derive(Debug, Clone, Copy)]
pub struct Signer<'a> {
    /// Key.
    pub key: &'a SecretKey,
    /// Number of its account.
    pub account_number: u64,
    /// Next sequence of its account.
    pub sequence: u64,
}

/// Builds and signs a transaction: for the command line, the devnet and tests.
#[derive(Debug, Clone)]
pub struct TxBuilder {
    /// Chain the transaction is for.
    pub chain_id: String,
    /// Account number of the signer in [`TxBuilder::sign`].
    pub account_number: u64,
    /// Sequence of the signer in [`TxBuilder::sign`].
    pub sequence: u64,
    /// Fee; an amount of 0 is left out.
    pub fee: Coin,
    /// Gas limit.
    pub gas_limit: u64,
    /// Memo, at most 256 bytes.
    pub memo: String,
    /// Last height at which the transaction is good; 0 for no limit.
    pub timeout_height: u64,
    /// Packed messages; see [`pack`].
    pub msgs: Vec<Any>,
}

impl TxBuilder {
    /// Bytes of the transaction, signed by one key.
    pub fn sign(&self, key: &SecretKey) -> Vec<u8> {
        self.sign_all(&[Signer { key, account_number: self.account_number, sequence: self.sequence }])
    }

    /// Bytes of the transaction, signed by several keys, given in the order in which the messages name them.
    pub fn sign_all(&self, signers: &[Signer<'_>]) -> Vec<u8> {
        let infos = signers.iter().map(|s| pb_signer_info(Some(&s.key.public_key()), s.sequence)).collect();
        let (body_bytes, auth_info_bytes) =
            (self.body().encode_to_vec(), self.auth_info(infos).encode_to_vec());
        let sign = |s: &Signer<'_>| {
            let bytes = sign_bytes(&body_bytes, &auth_info_bytes, &self.chain_id, s.account_number);
            s.key.sign(&bytes).to_vec()
        };
        let signatures = signers.iter().map(sign).collect();
        TxRaw { body_bytes, auth_info_bytes, signatures }.encode_to_vec()
    }

    /// Bytes for a simulation: an empty signature, and the key only if it is known.
    pub fn unsigned(&self, public_key: Option<&PublicKey>) -> Vec<u8> {
        let infos = vec![pb_signer_info(public_key, self.sequence)];
        TxRaw {
            body_bytes: self.body().encode_to_vec(),
            auth_info_bytes: self.auth_info(infos).encode_to_vec(),
            signatures: vec![Vec::new()],
        }
        .encode_to_vec()
    }

    fn body(&self) -> TxBody {
        TxBody {
            messages: self.msgs.clone(),
            memo: self.memo.clone(),
            timeout_height: self.timeout_height,
            ..TxBody::default()
        }
    }

    fn auth_info(&self, signer_infos: Vec<PbSignerInfo>) -> AuthInfo {
        let amount = if self.fee.amount == 0 { Vec::new() } else { vec![PbCoin::from(&self.fee)] };
        let fee = Fee { amount, gas_limit: self.gas_limit, payer: String::new(), granter: String::new() };
        AuthInfo { signer_infos, fee: Some(fee), tip: None }
    }
}

fn pb_signer_info(public_key: Option<&PublicKey>, sequence: u64) -> PbSignerInfo {
    let single = mode_info::Single { mode: SignMode::Direct.into() };
    PbSignerInfo {
        public_key: public_key.map(|key| pack(&PubKey { key: key.to_bytes().to_vec() })),
        mode_info: Some(ModeInfo { sum: Some(mode_info::Sum::Single(single)) }),
        sequence,
    }
}

#[cfg(test)]
mod tests;
