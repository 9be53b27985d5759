//! Values that flags and configuration keys share: chain ids, monikers, prefixes, coins, prices, times.

use std::net::SocketAddr;
use std::time::Duration;

use holdfast_types::{Coin, Hrp};

/// Digits after the point of a gas price.
const PRICE_DIGITS: usize = 12;

/// Shortest time between two blocks.
const MIN_BLOCK_TIME: Duration = Duration::from_millis(10);
/// Longest time between two blocks.
const MAX_BLOCK_TIME: Duration = Duration::from_secs(3600);

/// A chain id: 3 to 50 ASCII letters, digits and `-`.
pub(crate) fn chain_id(text: &str) -> Result<String, String> {
    let ok = (3..=50).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    if ok { Ok(text.to_owned()) } else { Err("give 3 to 50 letters, digits or '-'".into()) }
}

/// A node's name: 1 to 70 bytes without control characters and without spaces at its ends.
pub(crate) fn moniker(text: &str) -> Result<String, String> {
    let ok = (1..=70).contains(&text.len()) && !text.chars().any(char::is_control) && text.trim() == text;
    if ok {
        Ok(text.to_owned())
    } else {
        Err("give 1 to 70 bytes, without control characters and without spaces at the ends".into())
    }
}

/// A bech32 prefix.
pub(crate) fn hrp(text: &str) -> Result<Hrp, String> {
    Hrp::new(text).map_err(|e| e.to_string())
}

/// A coin as `10uhold`; a coin without amount is refused.
pub(crate) fn coin(text: &str) -> Result<Coin, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (amount, denom) = text.split_at(digits);
    if amount.is_empty() || denom.is_empty() {
        return Err("give an amount of base units and a denomination, such as 10uhold".into());
    }
    Coin::parse(denom, amount).map_err(|e| e.to_string())
}

/// Coins as `10uhold,5uatom`: sorted by denomination, none twice, none 0. An empty text gives none.
pub(crate) fn coins(text: &str) -> Result<Vec<Coin>, String> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let mut coins = text.split(',').map(|part| coin(part.trim())).collect::<Result<Vec<_>, _>>()?;
    coins.sort();
    if let Some(zero) = coins.iter().find(|coin| coin.amount == 0) {
        return Err(format!("the amount of {} is 0; leave the coin out", zero.denom));
    }
    if let Some(pair) = coins.windows(2).find(|pair| pair[0].denom == pair[1].denom) {
        return Err(format!("{} comes twice; add the amounts", pair[0].denom));
    }
    Ok(coins)
}

/// A price as `0.025uhold`: 10^-12 base units a gas unit, and the denomination.
pub(crate) fn gas_price(text: &str) -> Result<(u128, String), String> {
    let malformed = || {
        format!(
            "give a decimal number with at most {PRICE_DIGITS} digits after the point and a denomination, such as 0.025uhold or 0uhold"
        )
    };
    let length = text.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
    let (number, denom) = text.split_at(length);
    let price = decimal(number, PRICE_DIGITS).ok_or_else(malformed)?;
    let coin = Coin::new(denom, price).map_err(|_| malformed())?;
    Ok((coin.amount, coin.denom))
}

/// A time between blocks in seconds, to the millisecond.
pub(crate) fn block_time(text: &str) -> Result<Duration, String> {
    let millis = decimal(text, 3).and_then(|millis| u64::try_from(millis).ok()).map(Duration::from_millis);
    millis
        .filter(|time| (MIN_BLOCK_TIME..=MAX_BLOCK_TIME).contains(time))
        .ok_or_else(|| "give seconds from 0.01 to 3600, with at most 3 digits after the point".into())
}

/// A non-negative decimal number in units of its last allowed digit.
fn decimal(text: &str, digits: usize) -> Option<u128> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let all_digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    let dangling = text.contains('.') && fraction.is_empty();
    if whole.is_empty() || dangling || fraction.len() > digits || !all_digits(whole) || !all_digits(fraction)
    {
        return None;
    }
    format!("{whole}{fraction:0<digits$}").parse().ok()
}

/// Address and port to listen on.
pub(crate) fn listen(text: &str) -> Result<SocketAddr, String> {
    let text = text.strip_prefix("tcp://").unwrap_or(text);
    // The one host name that is everybody's own.
    let numeric = text.replacen("localhost:", "127.0.0.1:", 1);
    numeric.parse().map_err(|_| "give IP:PORT, such as 127.0.0.1:9090; port 0 takes a free one".into())
}

/// Host and port of a node, without scheme.
pub(crate) fn grpc_addr(text: &str) -> Result<String, String> {
    let bare = text.strip_prefix("http://").or_else(|| text.strip_prefix("tcp://")).unwrap_or(text);
    let bare = bare.strip_suffix('/').unwrap_or(bare);
    let ok = bare.rsplit_once(':').is_some_and(|(host, port)| {
        let host_ok =
            !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_:[]".contains(&b));
        host_ok && port.parse::<u16>().is_ok_and(|port| port != 0)
    });
    if ok { Ok(bare.to_owned()) } else { Err("give HOST:PORT, such as 127.0.0.1:9090".into()) }
}

/// A whole number within limits.
pub(crate) fn within(text: &str, least: u64, most: u64) -> Result<u64, String> {
    let number = text.parse().ok().filter(|n| (least..=most).contains(n));
    number.ok_or_else(|| format!("give a whole number from {least} to {most}"))
}

/// The same for numbers of 32 bits.
pub(crate) fn within_u32(text: &str, least: u32, most: u32) -> Result<u32, String> {
    within(text, least.into(), most.into()).map(|number| u32::try_from(number).unwrap_or(most))
}

/// Tokens of an answer.
pub(crate) fn max_tokens(text: &str) -> Result<u32, String> {
    within_u32(text, 1, 1 << 20)
}
