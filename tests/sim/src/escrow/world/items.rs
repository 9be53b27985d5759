//! What the schedule says.

use super::*;

impl World<'_> {
    pub(in crate::escrow) fn ask(
        &mut self,
        name: u64,
        filling: usize,
        limits: (u32, u32),
        work: Work,
        patience_ms: u64,
    ) -> Check {
        if self.gateway.core.is_none() {
            return Ok(());
        }
        let body = work.body(name, filling);
        if work.fate != Fate::Done {
            self.asked_to_fail.insert(Sha256::digest(&body).into());
        }
        let deadline_ms = self.now_ms + patience_ms;
        self.watch.request(name, deadline_ms);
        self.tell(Event::Request(UserRequest {
            request_id: name,
            label: format!("request-{name}"),
            body,
            input_limit: limits.0,
            output_limit: limits.1,
            deadline_ms,
        }))
    }

    pub(in crate::escrow) fn crash_host(&mut self, host: usize, store: Store, power_cut: bool, down_ms: u64) {
        if self.nodes[host].replica.is_none() {
            return;
        }
        self.say(|| format!("host{host} dies, store {store:?}"));
        let node = &mut self.nodes[host];
        node.stop(power_cut);
        match store {
            Store::Kept => {}
            Store::Empty => node.wipe(),
            Store::Older => node.restore(),
        }
        // A true fork lives in the state: with it gone the host is sound, unless it forks again.
        if store == Store::Empty && node.mask.fork.is_some_and(|fork| fork.heal != Heal::Never) {
            node.mask.fork = None;
        }
        let open: Vec<CallId> =
            self.gateway.calls.iter().filter(|(_, call)| call.host == host).map(|(id, _)| *id).collect();
        for call_id in open {
            let ms = self.net.unsigned(1, 50);
            self.fail(host, call_id, ms, CallError::Transport);
        }
        self.after(down_ms, Do::HostStart { host });
    }

    pub(in crate::escrow) fn operator(&mut self, host: usize, verb: Verb) -> Check {
        self.op_id += 1;
        let participant = self.nodes[host].member.address;
        self.tell(Event::Operator { op_id: self.op_id, participant, verb })
    }

    pub(super) fn item(&mut self, number: usize) -> Check {
        let Some(Item { what, .. }) = self.items.get(&number).cloned() else { return Ok(()) };
        let now_ms = self.now_ms;
        if !matches!(what, What::Request { .. } | What::Leave(_) | What::Finalize) {
            self.watch.totals.faults += 1;
        }
        match what {
            What::Request { filling, limits, work, patience_ms } => {
                self.ask(number as u64 + 1, filling, limits, work, patience_ms)
            }
            What::Leave(of) => {
                let request_id = of as u64 + 1;
                if self.gateway.core.is_none() || !self.watch.waits(request_id) {
                    return Ok(());
                }
                self.watch.left(request_id);
                self.tell(Event::ClientLeft { request_id })
            }
            What::Line { host, lost_pct, twice_pct, delay_ms, for_ms } => {
                let node = &mut self.nodes[host];
                node.blameless = false;
                let cut_until_ms = node.line.cut_until_ms;
                node.line = crate::escrow::node::Line {
                    until_ms: now_ms + for_ms,
                    lost_pct,
                    twice_pct,
                    delay_ms,
                    cut_until_ms,
                };
                Ok(())
            }
            What::Cut { host, for_ms } => {
                self.cut_off(host, for_ms);
                Ok(())
            }
            What::Crash { host, store, power_cut, down_ms } => {
                self.nodes[host].blameless = false;
                self.crash_host(host, store, power_cut, down_ms);
                Ok(())
            }
            What::Fork { host, after, how, heal } => {
                let node = &mut self.nodes[host];
                node.blameless = false;
                let have = node.replica.as_mut().and_then(|replica| replica.nonce()).unwrap_or(0);
                node.mask.fork = Some(Forked { from: have + 1 + after, how, heal });
                Ok(())
            }
            What::Mood { host, mood, for_ms } => {
                let node = &mut self.nodes[host];
                node.blameless = false;
                node.mask.moods.push((mood, now_ms + for_ms));
                Ok(())
            }
            What::Stop { down_ms } => {
                self.tell(Event::Stop)?;
                self.kill_gateway(false, down_ms);
                Ok(())
            }
            What::Kill { power_cut, down_ms } => {
                self.kill_gateway(power_cut, down_ms);
                Ok(())
            }
            What::CommitFault { nth, how, power_cut, down_ms } => {
                let fault = match how {
                    Commit::DiesBefore => Fault::CrashBefore,
                    Commit::DiesAfter => Fault::CrashAfter,
                    Commit::Fails => Fault::Fail,
                    Commit::Full => Fault::Full,
                };
                if self.gateway.fault.is_none() && self.gateway.core.is_some() {
                    self.gateway.db.fault(nth, fault);
                    self.gateway.fault = Some((self.gateway.db.commits() + nth, how, power_cut, down_ms));
                }
                Ok(())
            }
            What::Damage(damage) => {
                self.damage(damage);
                Ok(())
            }
            What::Older { down_ms, away_ms } => {
                let ahead = (0..self.nodes.len()).max_by_key(|host| {
                    self.nodes[*host].replica.as_mut().and_then(|replica| replica.nonce())
                });
                if let Some(host) = ahead.filter(|_| away_ms > 0) {
                    self.cut_off(host, away_ms);
                }
                self.older_gateway(down_ms);
                Ok(())
            }
            What::Expires => {
                self.gateway.expired = true;
                self.tell(Event::Chain(ChainNews::Expired))
            }
            What::GatewayClock { by_ms } => {
                self.clocks_moved = true;
                self.gateway.clock_ms += by_ms;
                Ok(())
            }
            What::HostClock { host, by_ms } => {
                self.clocks_moved = true;
                self.nodes[host].clock_ms += by_ms;
                Ok(())
            }
            What::Operator { host, verb } => {
                let verb = match verb {
                    0 => Verb::ForceTeach,
                    1 => Verb::GiveUp,
                    _ => Verb::Release,
                };
                self.operator(host, verb)
            }
            What::Absent { host, for_ms } => {
                let list = vec![self.nodes[host].member.address];
                self.after(for_ms, Do::Excused(Vec::new()));
                self.gateway.absent.clone_from(&list);
                self.tell(Event::Chain(ChainNews::Absent(list)))
            }
            What::Finalize if self.gateway.core.is_none() => {
                self.after(1_000, Do::Item(number));
                Ok(())
            }
            What::Finalize => {
                self.calm.finalized = true;
                self.tell(Event::Finalize)
            }
        }
    }

    fn cut_off(&mut self, host: usize, for_ms: u64) {
        self.nodes[host].blameless = false;
        self.nodes[host].line.cut_until_ms = self.now_ms + for_ms;
        self.after(for_ms, Do::CutEnds);
    }

    /// Alters a row on the gateway's disk; the process starts again over it.
    pub(super) fn damage(&mut self, damage: Damage) {
        let rows = self.gateway.db.rows();
        let space = match damage {
            Damage::Diff | Damage::Gap => &b"diffs"[..],
            Damage::Snapshot => b"snapshots",
        };
        let found: Vec<_> =
            rows.iter().filter(|(key, _)| key.windows(space.len()).any(|w| w == space)).collect();
        let Some((key, value)) = self.net.maybe(&found).copied() else { return };
        let mut value = value.clone();
        let at = self.net.below(value.len());
        match damage {
            Damage::Gap => self.gateway.db.damage(key, None),
            _ => {
                if let Some(byte) = value.get_mut(at) {
                    *byte ^= 0x40;
                }
                self.gateway.db.damage(key, Some(&value));
            }
        }
        self.gateway.damaged = true;
        self.watch.damaged = true;
        self.kill_gateway(false, 1_000);
    }
}
