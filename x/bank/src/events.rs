//! Events with the kinds and attributes of the Cosmos SDK's bank, which indexers read.

use holdfast_types::{Address, Coin, Context, Event};

/// Coins as the SDK writes them: `5uabc,10uhold`.
pub(crate) fn amount(coins: &[Coin]) -> String {
    let coins: Vec<_> = coins.iter().map(|c| format!("{}{}", c.amount, c.denom)).collect();
    coins.join(",")
}

pub(crate) fn spent(ctx: &mut Context<'_>, spender: &Address, coins: &[Coin]) {
    let spender = ctx.bech32(spender);
    ctx.emit(Event::new("coin_spent").with("spender", spender).with("amount", amount(coins)));
}

pub(crate) fn received(ctx: &mut Context<'_>, receiver: &Address, coins: &[Coin]) {
    let receiver = ctx.bech32(receiver);
    ctx.emit(Event::new("coin_received").with("receiver", receiver).with("amount", amount(coins)));
}

/// The three events of a transfer; every text is written once.
pub(crate) fn moved(ctx: &mut Context<'_>, from: &Address, to: &Address, coins: &[Coin]) {
    let (from, to, amount) = (ctx.bech32(from), ctx.bech32(to), amount(coins));
    ctx.emit(Event::new("coin_spent").with("spender", &from).with("amount", &amount));
    ctx.emit(Event::new("coin_received").with("receiver", &to).with("amount", &amount));
    ctx.emit(Event::new("transfer").with("recipient", to).with("sender", from).with("amount", amount));
}

pub(crate) fn minted(ctx: &mut Context<'_>, minter: &Address, coins: &[Coin]) {
    let event = Event::new("coinbase").with("minter", ctx.bech32(minter)).with("amount", amount(coins));
    ctx.emit(event);
}

pub(crate) fn burned(ctx: &mut Context<'_>, burner: &Address, coins: &[Coin]) {
    let event = Event::new("burn").with("burner", ctx.bech32(burner)).with("amount", amount(coins));
    ctx.emit(event);
}
