//! Messages, parsed and checked as far as no state is needed.

use holdfast_proto::cosmos::bank::v1beta1 as pb;
use holdfast_proto::cosmos::base::v1beta1::Coin as PbCoin;
use holdfast_types::{Address, Coin, Hrp, ModuleError, sdk};

/// `cosmos.bank.v1beta1.MsgSend`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Send {
    /// Signer.
    pub from: Address,
    /// Receiver.
    pub to: Address,
    /// At least one coin; positive, ascending by denomination, none twice.
    pub coins: Vec<Coin>,
}

impl Send {
    /// Parses the message. Fails with `sdk` 7 for an address, 10 for the coins.
    pub fn from_pb(msg: &pb::MsgSend, hrp: &Hrp) -> Result<Self, ModuleError> {
        let address = |field: &str, text: &str| {
            Address::parse(text, hrp)
                .map_err(|e| ModuleError::sdk(sdk::INVALID_ADDRESS, format!("{field}: {e}: invalid address")))
        };
        Ok(Self {
            from: address("from_address", &msg.from_address)?,
            to: address("to_address", &msg.to_address)?,
            coins: parse_coins("amount", &msg.amount)
                .map_err(|text| ModuleError::sdk(sdk::INVALID_COINS, text))?,
        })
    }
}

/// Coins as the SDK takes them. The error is a text that begins with `field` and the position.
pub(crate) fn parse_coins(field: &str, coins: &[PbCoin]) -> Result<Vec<Coin>, String> {
    if coins.is_empty() {
        return Err(format!("{field}: name at least one coin: invalid coins"));
    }
    let mut out: Vec<Coin> = Vec::with_capacity(coins.len());
    for (n, coin) in coins.iter().enumerate() {
        let coin = Coin::try_from(coin).map_err(|e| format!("{field}[{n}]: {e}: invalid coins"))?;
        if coin.amount == 0 {
            return Err(format!("{field}[{n}].amount: must be above 0: invalid coins"));
        }
        if out.last().is_some_and(|last| last.denom >= coin.denom) {
            return Err(format!("{field}[{n}].denom: sort coins by denom, each once: invalid coins"));
        }
        out.push(coin);
    }
    Ok(out)
}
