//! Events with the kinds and attributes of the Cosmos SDK's bank, which indexers read.

use holdfast_types::{Address, Coin, Context, Event};

/// Coins as the SDK writes them: `5uabc,10uhold`.
pub(crate) fn amount(coins: &[Coin]) -> String {
    let coins: Vec<_> = coins.iter().map(|c| format!("{}{}", c.amount, c.denom)).collect();
    coins.join(",")
}

pub(crate) fn spent(ctx: &mut Context<'_>, spender: &Address, coins: &[Coin]) {
    let event = Event::new("coin_spent").with("spender", ctx.bech32(spender)).with("amount", amount(coins));
    ctx.emit(event);
}

pub(crate) fn received(ctx: &mut Context<'_>, receiver: &Address, coins: &[Coin]) {
    let event =
        Event::new("coin_received").with("receiver", ctx.bech32(receiver)).with("amount", amount(coins));
    ctx.emit(event);
}

pub(crate) fn transfer(ctx: &mut Context<'_>, from: &Address, to: &Address, coins: &[Coin]) {
    let event = Event::new("transfer")
        .with("recipient", ctx.bech32(to))
        .with("sender", ctx.bech32(from))
        .with("amount", amount(coins));
    ctx.emit(event);
}

pub(crate) fn minted(ctx: &mut Context<'_>, minter: &Address, coins: &[Coin]) {
    let event = Event::new("coinbase").with("minter", ctx.bech32(minter)).with("amount", amount(coins));
    ctx.emit(event);
}

pub(crate) fn burned(ctx: &mut Context<'_>, burner: &Address, coins: &[Coin]) {
    let event = Event::new("burn").with("burner", ctx.bech32(burner)).with("amount", amount(coins));
    ctx.emit(event);
}
