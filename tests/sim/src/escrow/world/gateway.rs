//! The gateway: its process, what it hears, what it does.

use super::*;

impl World<'_> {
    pub(super) fn start_gateway(&mut self) -> Check {
        if self.gateway.core.is_some() {
            return Ok(());
        }
        self.gateway.boot += 1;
        let mut drawn = Rng::new(self.cast.seed ^ self.gateway.boot.rotate_left(32), "escrow challenges");
        let entropy = move || -> [u8; 32] { Sha256::digest(drawn.bytes(32)).into() };
        self.permits = PermitPool::new(8);
        let opened = GatewayCore::open(
            Box::new(self.gateway.db.clone()),
            self.cast.gateway.clone(),
            (*self.cast.terms).clone(),
            Box::new(self.cast.gateway_key.clone()),
            Box::new(entropy),
            self.permits.clone(),
            self.now(),
        );
        let (core, effects) = match opened {
            Ok(opened) => opened,
            Err(_) if self.gateway.damaged => {
                self.end(Over::Lost);
                return Ok(());
            }
            Err(_) if self.fault_due().is_some() => {
                self.crash_by_fault();
                return Ok(());
            }
            Err(error) => return breach(Law::GatewayOpens, error.to_string()),
        };
        self.say(|| format!("gateway starts at nonce {}", core.state().nonce()));
        if let Some(nonce) = core.corrupt_at() {
            // It keeps its log for a dispute and signs nothing more.
            if self.gateway.damaged {
                self.end(Over::Lost);
                return Ok(());
            }
            return breach(Law::GatewayOpens, format!("it finds itself corrupt at nonce {nonce}"));
        }
        let first = self.gateway.boot == 1;
        let flags = by_address(core.flags());
        let log = core.diffs(1, usize::MAX);
        self.gateway.core = Some(core);
        if !first {
            self.watch.reopened(&flags, &log, self.gateway.paid)?;
        }
        if self.crash_by_fault() {
            return Ok(());
        }
        self.look(effects)?;
        // What it missed, its driver reads from the chain.
        if self.gateway.paid {
            return self.tell(Event::Chain(ChainNews::Settled));
        }
        if self.gateway.expired {
            self.tell(Event::Chain(ChainNews::Expired))?;
        }
        if !self.gateway.absent.is_empty() {
            self.tell(Event::Chain(ChainNews::Absent(self.gateway.absent.clone())))?;
        }
        Ok(())
    }

    pub(super) fn fault_due(&self) -> Option<(Commit, bool, u64)> {
        let (at, how, power_cut, down_ms) = self.gateway.fault?;
        (self.gateway.db.commits() >= at).then_some((how, power_cut, down_ms))
    }

    /// Whether a planned commit has killed the process.
    pub(super) fn crash_by_fault(&mut self) -> bool {
        let Some((how, power_cut, down_ms)) = self.fault_due() else { return false };
        self.gateway.fault = None;
        self.watch.totals.faults += 1;
        self.say(|| format!("gateway: a commit {how:?}"));
        if matches!(how, Commit::DiesBefore | Commit::DiesAfter) {
            self.kill_gateway(power_cut, down_ms);
            return true;
        }
        // The process lives, its store takes nothing more; somebody restarts it.
        self.gateway.broken = true;
        self.items
            .insert(usize::MAX, Item { at_ms: self.since(), what: What::Kill { power_cut: false, down_ms } });
        self.after(700, Do::Item(usize::MAX));
        false
    }

    pub(super) fn kill_gateway(&mut self, power_cut: bool, down_ms: u64) {
        if self.gateway.core.take().is_none() {
            return;
        }
        self.say(|| format!("gateway is killed, power cut {power_cut}"));
        self.gateway.db = self.gateway.db.reopen(power_cut);
        self.gateway.broken = false;
        self.gateway.calls.clear();
        self.gateway.wake += 1;
        self.watch.rebooted();
        for node in &mut self.nodes {
            node.streams.clear();
        }
        self.after(down_ms, Do::GatewayStart);
    }

    /// Copies the gateway's store, if it is in order.
    pub(in crate::escrow) fn copy_gateway(&mut self) {
        if self.gateway.core.is_some() && !self.gateway.broken {
            self.gateway.copy = Some((self.gateway.db.copy(), self.watch.mark()));
        }
    }

    /// The gateway's next process finds the copy in place of its store.
    pub(super) fn older_gateway(&mut self, down_ms: u64) {
        let Some((db, mark)) = self.gateway.copy.clone() else { return };
        self.kill_gateway(false, down_ms);
        self.say(|| "gateway: its store is an older one".into());
        self.gateway.db = db.copy();
        self.gateway.fault = None;
        self.watch.older(mark);
    }

    /// The gateway hears of something.
    pub(in crate::escrow) fn tell(&mut self, event: Event) -> Check {
        let now = self.now();
        let Some(core) = &mut self.gateway.core else { return Ok(()) };
        match &event {
            Event::CallDone { call_id, result } => self.watch.reply(*call_id, result),
            Event::StreamItem { call_id, event } => self.watch.piece(*call_id, event),
            Event::StreamEnded { call_id, result } => self.watch.stream_end(*call_id, result),
            _ => {}
        }
        if self.trace && !matches!(event, Event::Tick) {
            println!("{:>10.3}  -> {}", (self.now_ms - BEGIN_MS) as f64 / 1000.0, words::brief(&event));
        }
        let effects = core.handle(now, event);
        if self.crash_by_fault() {
            return Ok(());
        }
        self.look(effects)
    }

    /// What a step of the gateway did.
    pub(super) fn look(&mut self, effects: Vec<Effect>) -> Check {
        let Some(core) = &self.gateway.core else { return Ok(()) };
        let flags = by_address(core.flags());
        let state = core.state();
        if state.nonce() != self.watch.ledger.nonce {
            for bytes in core.diffs(self.watch.ledger.nonce + 1, usize::MAX) {
                self.watch.diff(&bytes, &flags)?;
            }
            self.watch.books(&Books {
                nonce: state.nonce(),
                balance: state.balance(),
                fees: state.fees(),
                reserved: state.reserved(),
                stats: state.stats(),
            })?;
            if let Err(why) = state.check_conservation() {
                return breach(Law::CoinsConserved, why);
            }
        }
        for effect in &effects {
            if let Effect::Call { call_id, participant, call, .. } = effect {
                self.watch.call(*call_id, *participant, call, &flags)?;
            }
        }
        if !self.gateway.broken {
            self.watch.step(flags)?;
        }
        effects.into_iter().try_for_each(|effect| self.perform(effect))
    }

    pub(super) fn perform(&mut self, effect: Effect) -> Check {
        match effect {
            Effect::Call { call_id, participant, call, timeout_ms, .. } => {
                let Some(host) = self.cast.index(&participant) else { return Ok(()) };
                self.say(|| format!("<- host{host} #{call_id} {}", words::brief_call(&call)));
                let infer = matches!(call, HostCall::Infer(_));
                self.gateway.calls.insert(call_id, OpenCall { host, infer, last_ms: self.now_ms });
                let gateway_boot = self.gateway.boot;
                self.after(timeout_ms, Do::CallTimeout { gateway_boot, call_id });
                let call = Rc::new(call);
                #[cfg(test)]
                self.seen.push(Seen { at_ms: self.now_ms - BEGIN_MS, host, call: call.clone() });
                self.send(host, call_id, call);
                Ok(())
            }
            Effect::AbortCall { call_id } => {
                self.gateway.calls.remove(&call_id);
                Ok(())
            }
            Effect::ToClient { request_id, event } => {
                self.say(|| format!("<- client {request_id}: {event:?}"));
                if matches!(event, ClientEvent::Failed(_)) {
                    *self.stages.entry("client failed").or_default() += 1;
                }
                #[cfg(test)]
                self.told.push((request_id, event.clone()));
                self.watch.client(request_id, &event)
            }
            Effect::WakeAt { mono_ms } => {
                self.gateway.wake += 1;
                let (gateway_boot, number) = (self.gateway.boot, self.gateway.wake);
                self.at(mono_ms, Do::Wake { gateway_boot, number });
                Ok(())
            }
            Effect::SettlementReady(settlement) => {
                self.say(|| "<- chain: settlement".into());
                self.watch.settlement(&settlement)?;
                self.after(1_500, Do::Settled);
                Ok(())
            }
            Effect::Retired { reason } => {
                self.say(|| format!("retired: {reason:?}"));
                match reason {
                    RetireReason::Settled => self.end(Over::Settled),
                    RetireReason::SelfCorrupt { .. } if self.gateway.damaged => self.end(Over::Lost),
                    RetireReason::SelfCorrupt { nonce } => {
                        return breach(
                            Law::GatewayOpens,
                            format!("it finds itself corrupt at nonce {nonce}"),
                        );
                    }
                    RetireReason::Stopped => {}
                }
                Ok(())
            }
            Effect::Log(line) => {
                *self.stages.entry(line.stage).or_default() += 1;
                if line.stage.contains("self_suspect") && line.alarm {
                    self.watch.totals.self_suspects += 1;
                }
                self.say(|| {
                    let whom = line.participant.map_or_else(String::new, |p| self.cast.name(&p));
                    format!("   log {} {whom} {:?}", line.stage, line.fields)
                });
                Ok(())
            }
            Effect::DisputeReady(settlement) => {
                self.say(|| "<- chain: dispute".into());
                self.watch.dispute(&settlement)?;
                if self.gateway.expired {
                    self.after(DISPUTE_MS, Do::Settled);
                }
                Ok(())
            }
            Effect::OperatorDone { .. } | Effect::Metric(_) | Effect::FlagChanged { .. } => Ok(()),
        }
    }
}
