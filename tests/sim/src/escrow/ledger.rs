//! The simulator's own books: what the diffs say, added up without the session's code.

use std::collections::BTreeMap;

use holdfast_escrow::session::{Diff, FrozenConfig, Tx};
use holdfast_types::Address;

/// How an inference ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Finished,
    Missed,
    Errored,
    Released,
    Drained,
}

/// One start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) slot: usize,
    pub(super) limits: (u32, u32),
    pub(super) prompt_hash: [u8; 32],
    pub(super) started_at: u64,
    pub(super) confirmed: bool,
    pub(super) end: Option<End>,
}

/// Counts of a slot: started, completed, missed, errored, released, drained, and what it earned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Row {
    pub(super) started: u64,
    pub(super) completed: u64,
    pub(super) missed: u64,
    pub(super) errored: u64,
    pub(super) released: u64,
    pub(super) drained: u64,
    pub(super) cost: u128,
}

/// Coins and outcomes after the last diff.
#[derive(Debug, Clone)]
pub(super) struct Ledger {
    size: u64,
    amount: u128,
    fee: u128,
    price: u128,
    cancel_bp: u128,
    pub(super) nonce: u64,
    pub(super) balance: u128,
    pub(super) fees: u128,
    pub(super) finalize_nonce: u64,
    pub(super) frozen: bool,
    pub(super) entries: BTreeMap<u64, Entry>,
    pub(super) rows: Vec<Row>,
    /// Warm keys, by owner.
    pub(super) warm: BTreeMap<Address, Address>,
}

impl Ledger {
    pub(super) fn new(terms: &FrozenConfig) -> Self {
        Self {
            size: terms.slots.len() as u64,
            amount: terms.amount,
            fee: terms.fee_per_nonce,
            price: terms.token_price,
            cancel_bp: u128::from(terms.cancel_charge_bp),
            nonce: 0,
            balance: terms.amount - terms.create_fee,
            fees: terms.create_fee,
            finalize_nonce: 0,
            frozen: false,
            entries: BTreeMap::new(),
            rows: vec![Row::default(); terms.slots.len()],
            warm: BTreeMap::new(),
        }
    }

    /// Coins that open starts hold.
    pub(super) fn reserved(&self) -> u128 {
        let open = self.entries.values().filter(|entry| entry.end.is_none());
        open.map(|entry| self.cost_of(entry.limits)).sum()
    }

    /// What hosts earned.
    pub(super) fn cost(&self) -> u128 {
        self.rows.iter().map(|row| row.cost).sum()
    }

    fn cost_of(&self, tokens: (u32, u32)) -> u128 {
        (u128::from(tokens.0) + u128::from(tokens.1)) * self.price
    }

    /// Takes a diff into the books.
    pub(super) fn book(&mut self, diff: &Diff) -> Result<(), String> {
        if diff.nonce != self.nonce + 1 {
            return Err(format!("the books are at nonce {}, the diff is {}", self.nonce, diff.nonce));
        }
        for tx in &diff.txs {
            self.book_tx(diff.nonce, tx).map_err(|why| format!("nonce {}: {why}", diff.nonce))?;
        }
        // The diff that ends the active phase is free, as all after it.
        if self.finalize_nonce == 0 {
            self.balance = self.balance.checked_sub(self.fee).ok_or("the fee is more than the balance")?;
            self.fees += self.fee;
        }
        self.nonce = diff.nonce;
        if self.finalize_nonce > 0 && diff.nonce == self.finalize_nonce + self.size {
            let open: Vec<u64> =
                self.entries.iter().filter(|(_, e)| e.end.is_none()).map(|(id, _)| *id).collect();
            for id in open {
                let cost = self.cost_of(self.entries[&id].limits);
                self.close(id, End::Drained, cost)?;
            }
            self.frozen = true;
        }
        let sum = self.balance + self.reserved() + self.cost() + self.fees;
        if sum == self.amount {
            Ok(())
        } else {
            Err(format!("{sum} coins in the books, {} put in", self.amount))
        }
    }

    fn book_tx(&mut self, nonce: u64, tx: &Tx) -> Result<(), String> {
        match tx {
            Tx::StartInference { prompt_hash, input_limit, output_limit, started_at } => {
                if self.finalize_nonce > 0 {
                    return Err("a start after FinalizeRound".into());
                }
                let slot = usize::try_from(nonce % self.size).unwrap_or(0);
                let limits = (*input_limit, *output_limit);
                let held = self.cost_of(limits);
                self.balance = self.balance.checked_sub(held).ok_or("a start beyond the balance")?;
                self.rows[slot].started += 1;
                let entry = Entry {
                    slot,
                    limits,
                    prompt_hash: *prompt_hash,
                    started_at: *started_at,
                    confirmed: false,
                    end: None,
                };
                match self.entries.insert(nonce, entry) {
                    None => Ok(()),
                    Some(_) => Err("two starts in a diff".into()),
                }
            }
            Tx::ConfirmStart { id, .. } => {
                let entry = self.open(*id)?;
                if entry.confirmed {
                    return Err(format!("start {id} is confirmed twice"));
                }
                entry.confirmed = true;
                Ok(())
            }
            Tx::FinishInference { id, input_tokens, output_tokens, .. } => {
                if !self.open(*id)?.confirmed {
                    return Err(format!("start {id} ends without a receipt"));
                }
                self.close(*id, End::Finished, self.cost_of((*input_tokens, *output_tokens)))
            }
            Tx::TimeoutInference { id, .. } => self.close(*id, End::Missed, 0),
            Tx::ReportError { id, kind: 8, input_tokens, output_tokens, .. } => {
                let cost = self.cost_of((*input_tokens, *output_tokens)) * self.cancel_bp / 10_000;
                self.close(*id, End::Released, cost)
            }
            Tx::ReportError { id, .. } => self.close(*id, End::Errored, 0),
            Tx::BindWarmKey { owner, warm, .. } => {
                self.warm.insert(*owner, *warm);
                Ok(())
            }
            Tx::FinalizeRound => {
                if self.finalize_nonce > 0 {
                    return Err("FinalizeRound twice".into());
                }
                self.finalize_nonce = nonce;
                Ok(())
            }
        }
    }

    fn open(&mut self, id: u64) -> Result<&mut Entry, String> {
        self.entries
            .get_mut(&id)
            .filter(|entry| entry.end.is_none())
            .ok_or_else(|| format!("start {id} is not open"))
    }

    fn close(&mut self, id: u64, end: End, cost: u128) -> Result<(), String> {
        let entry = *self.open(id)?;
        let held = self.cost_of(entry.limits);
        self.balance +=
            held.checked_sub(cost).ok_or_else(|| format!("start {id} costs above its reserve"))?;
        self.open(id)?.end = Some(end);
        let row = &mut self.rows[entry.slot];
        row.cost += cost;
        match end {
            End::Finished => row.completed += 1,
            End::Missed => row.missed += 1,
            End::Errored => row.errored += 1,
            End::Released => row.released += 1,
            End::Drained => row.drained += 1,
        }
        Ok(())
    }
}
