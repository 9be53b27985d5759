//! How it ends for clients, for starts, and for the coins.

use super::*;

impl Watch {
    /// A client asks; it waits until then at most.
    pub(in crate::escrow) fn request(&mut self, request_id: u64, until_ms: u64) {
        self.totals.requests += 1;
        self.clients.insert(request_id, Client::Waits { until_ms });
    }

    /// A client is gone.
    pub(in crate::escrow) fn left(&mut self, request_id: u64) {
        if let Some(client @ Client::Waits { .. }) = self.clients.get_mut(&request_id) {
            *client = Client::Left;
        }
    }

    /// Whether the client is still there.
    pub(in crate::escrow) fn waits(&self, request_id: u64) -> bool {
        matches!(self.clients.get(&request_id), Some(Client::Waits { .. }))
    }

    /// A client is told something.
    pub(in crate::escrow) fn client(&mut self, request_id: u64, event: &ClientEvent) -> Check {
        let law = Law::OneEndPerRequest;
        match self.clients.get_mut(&request_id) {
            None => breach(law, format!("request {request_id} was never made")),
            Some(Client::Left) => breach(law, format!("request {request_id} left, and is told {event:?}")),
            Some(Client::Ended | Client::Lost) => {
                breach(law, format!("request {request_id} has ended, and is told {event:?}"))
            }
            Some(client @ Client::Waits { .. }) => {
                match event {
                    ClientEvent::Finished { .. } => {
                        *client = Client::Ended;
                        self.totals.completed += 1;
                    }
                    ClientEvent::Failed(_) => {
                        *client = Client::Ended;
                        self.totals.failed += 1;
                    }
                    ClientEvent::Dispatched { .. } | ClientEvent::Delta { .. } => {}
                }
                Ok(())
            }
        }
    }

    /// Requests whose time is up by `slack_ms`.
    pub(in crate::escrow) fn overdue(&self, now_ms: u64, slack_ms: u64) -> Check {
        for (request_id, client) in &self.clients {
            if let Client::Waits { until_ms } = client
                && until_ms.saturating_add(slack_ms) < now_ms
            {
                return breach(Law::QueueDrains, format!("request {request_id} has no end at {now_ms} ms"));
            }
        }
        Ok(())
    }

    /// A settlement leaves the gateway.
    pub(in crate::escrow) fn settlement(&mut self, settlement: &Settlement) -> Check {
        let law = Law::SettlementExact;
        let payout = match verify(&self.terms, settlement, Mode::Settle) {
            Ok(payout) => payout,
            Err(error) => return breach(law, error.to_string()),
        };
        let ledger = &self.ledger;
        let mut earned: BTreeMap<Address, u128> = BTreeMap::new();
        for (row, owner) in ledger.rows.iter().zip(&self.terms.slots) {
            *earned.entry(*owner).or_default() += row.cost;
        }
        let sum = payout.earned.values().sum::<u128>() + payout.fees + payout.refund;
        if (&payout.earned, payout.fees, payout.refund, sum)
            != (&earned, ledger.fees, ledger.balance, self.terms.amount)
        {
            return breach(law, format!("paid {payout:?}, the books say {earned:?}"));
        }
        for (owner, outcomes) in &payout.outcomes {
            let rows = ledger.rows.iter().zip(&self.terms.slots).filter(|(_, held)| *held == owner);
            let ours = rows.fold([0u64; 6], |mut sum, (row, _)| {
                let counts = [row.started, row.completed, row.missed, row.errored, row.released, row.drained];
                sum.iter_mut().zip(counts).for_each(|(total, count)| *total += count);
                sum
            });
            let theirs = [
                outcomes.started,
                outcomes.completed,
                outcomes.missed,
                outcomes.errored,
                outcomes.released,
                outcomes.drained,
            ];
            if ours != theirs {
                return breach(law, format!("{owner:?}: counts {theirs:?}, the books say {ours:?}"));
            }
        }
        self.totals.settled += 1;
        Ok(())
    }

    /// A summary for a dispute leaves the gateway.
    pub(in crate::escrow) fn dispute(&mut self, settlement: &Settlement) -> Check {
        let law = Law::SettlementExact;
        let payout = match verify(&self.terms, settlement, Mode::Dispute) {
            Ok(payout) => payout,
            Err(error) => return breach(law, format!("a dispute: {error}")),
        };
        let earned = payout.earned.values().sum::<u128>();
        if earned + payout.fees + payout.refund != self.terms.amount {
            return breach(law, format!("a dispute pays {payout:?}"));
        }
        let tip = settlement.nonce == self.ledger.nonce;
        if tip && (earned, payout.fees) != (self.ledger.cost(), self.ledger.fees) {
            return breach(law, format!("a dispute pays {payout:?}, the books say otherwise"));
        }
        self.totals.disputes += 1;
        Ok(())
    }

    /// Owners who never had a fault were never charged: nothing missed, nothing failed but what the request asked for.
    pub(in crate::escrow) fn charges(
        &self,
        blameless: &BTreeSet<Address>,
        asked_to_fail: &BTreeSet<Hash>,
    ) -> Check {
        for (id, entry) in &self.ledger.entries {
            let owner = self.terms.slots[entry.slot];
            if blameless.contains(&owner)
                && matches!(entry.end, Some(End::Missed | End::Errored))
                && !asked_to_fail.contains(&entry.prompt_hash)
            {
                return breach(
                    Law::NoChargeWithoutFault,
                    format!("start {id} of {owner:?}, which had no fault, ended {:?}", entry.end),
                );
            }
        }
        Ok(())
    }

    /// All starts before `id` have ended.
    pub(in crate::escrow) fn ended(&self, from: u64, before: u64) -> Check {
        let open = self.ledger.entries.range(from..before).find(|(_, entry)| entry.end.is_none());
        match open {
            Some((id, entry)) => breach(Law::DispatchEnds, format!("start {id} is open: {entry:?}")),
            None => Ok(()),
        }
    }
}
