//! Calls and replies between the gateway and hosts, and between hosts.

use super::*;

impl World<'_> {
    pub(super) fn cut(&self, host: usize) -> bool {
        self.nodes[host].line.cut_until_ms > self.now_ms
    }

    /// Whether a message on the line of `host` is lost, and how long it takes.
    pub(super) fn fly(&mut self, host: usize) -> Option<u64> {
        let line = self.nodes[host].line;
        let bad = line.until_ms > self.now_ms;
        if self.cut(host) || (bad && self.net.percent(line.lost_pct)) {
            self.watch.totals.lost += 1;
            return None;
        }
        let base = self.nodes[host].member.latency_ms;
        let jitter = self.net.unsigned(0, base / 2 + 1);
        let extra = if bad { self.net.unsigned(0, line.delay_ms) } else { 0 };
        let slow = self.nodes[host].mask.in_mood(self.now_ms, Mood::Slow);
        let slow = if slow { self.net.unsigned(500, 4_000) } else { 0 };
        Some(base + jitter + extra + slow)
    }

    pub(super) fn send(&mut self, host: usize, call_id: CallId, call: Rc<HostCall>) {
        let gateway_boot = self.gateway.boot;
        let Some(ms) = self.fly(host) else {
            // Half of the time the caller is told that nobody is there.
            if self.net.percent(50) {
                let ms = self.net.unsigned(1, 1_000);
                self.fail(host, call_id, ms, CallError::Transport);
            }
            return;
        };
        let line = self.nodes[host].line;
        let twice = line.until_ms > self.now_ms && self.net.percent(line.twice_pct);
        if twice && let Some(ms) = self.fly(host) {
            let call = call.clone();
            self.after(ms, Do::Arrive { host, gateway_boot, call_id, call, echo: true });
        }
        self.after(ms, Do::Arrive { host, gateway_boot, call_id, call, echo: false });
    }

    pub(super) fn fail(&mut self, _host: usize, call_id: CallId, ms: u64, error: CallError) {
        let gateway_boot = self.gateway.boot;
        let Some(call) = self.gateway.calls.get(&call_id) else { return };
        let what = if call.infer { Back::End(Err(error)) } else { Back::Done(Err(error)) };
        self.after(ms, Do::Back { gateway_boot, call_id, what });
    }

    /// Sends something back to the gateway; what belongs to one call keeps its order.
    pub(super) fn reply(&mut self, host: usize, gateway_boot: u64, call_id: CallId, what: Back) {
        let Some(ms) = self.fly(host) else { return };
        if gateway_boot != self.gateway.boot {
            return;
        }
        let Some(call) = self.gateway.calls.get_mut(&call_id) else { return };
        call.last_ms = call.last_ms.max(self.now_ms + ms);
        let at_ms = call.last_ms;
        self.at(at_ms, Do::Back { gateway_boot, call_id, what });
    }

    pub(super) fn back(&mut self, gateway_boot: u64, call_id: CallId, what: Back) -> Check {
        if gateway_boot != self.gateway.boot || !self.gateway.calls.contains_key(&call_id) {
            return Ok(());
        }
        match what {
            Back::Piece(event) => self.tell(Event::StreamItem { call_id, event }),
            Back::End(result) => {
                self.gateway.calls.remove(&call_id);
                self.tell(Event::StreamEnded { call_id, result })
            }
            Back::Done(result) => {
                self.gateway.calls.remove(&call_id);
                self.tell(Event::CallDone { call_id, result })
            }
        }
    }

    pub(super) fn arrive(
        &mut self,
        host: usize,
        gateway_boot: u64,
        call_id: CallId,
        call: &Rc<HostCall>,
        echo: bool,
    ) -> Check {
        let unix_ms = self.host_unix_ms(host);
        let now_ms = self.now_ms;
        let node = &mut self.nodes[host];
        let Some(replica) = &mut node.replica else {
            if !echo && gateway_boot == self.gateway.boot {
                self.fail(host, call_id, 5, CallError::Transport);
            }
            return Ok(());
        };
        let face = Face { key: &node.member.key, terms: &self.cast.terms };
        let outcome = node.mask.answer(replica.as_mut(), &face, &mut self.net, (now_ms, unix_ms), call);
        let dropped = matches!(&outcome, Outcome::Answer(Answer::Reply(HostReply::ResetSession(_))));
        if dropped {
            node.memory += 1;
            self.watch.totals.resets += 1;
            if node.mask.fork.is_some_and(|fork| fork.heal != Heal::Never) {
                node.mask.fork = None;
            }
        }
        self.honest(host, &outcome)?;
        self.begin_jobs(host)?;
        let infer = matches!(**call, HostCall::Infer(_));
        match outcome {
            Outcome::Error(error) if !echo => {
                let what = if infer { Back::End(Err(error)) } else { Back::Done(Err(error)) };
                self.reply(host, gateway_boot, call_id, what);
            }
            Outcome::Answer(Answer::Reply(reply)) if !echo => {
                self.reply(host, gateway_boot, call_id, Back::Done(Ok(reply)));
            }
            Outcome::Answer(Answer::Stream(pieces)) if !echo => {
                let over = pieces.iter().any(last);
                for piece in pieces {
                    self.reply(host, gateway_boot, call_id, Back::Piece(piece));
                }
                if over {
                    self.reply(host, gateway_boot, call_id, Back::End(Ok(())));
                } else if let HostCall::Infer(request) = &**call {
                    let stream = Stream { gateway_boot, call_id };
                    self.nodes[host].streams.insert(request.target_nonce, stream);
                }
            }
            Outcome::Answer(Answer::Challenge { executor, request }) if !echo => {
                self.seq += 1;
                let (boot, number) = (self.nodes[host].boot, self.seq);
                let vote = Ballot { host, boot, gateway_boot, call_id, call: call.clone(), number };
                self.after(CHALLENGE_MS, Do::Challenged { vote: vote.clone(), answer: None });
                if let Some(to) = self.cast.index(&executor)
                    && let (Some(out), Some(back)) = (self.fly(host), self.fly(to))
                {
                    let ask = Rc::new(request);
                    self.after(out + back, Do::Challenge { from: host, to, ask, vote });
                }
            }
            Outcome::Error(_) | Outcome::Answer(_) => {}
        }
        Ok(())
    }

    /// A sound host computes what we compute.
    pub(super) fn honest(&self, host: usize, outcome: &Outcome) -> Check {
        let node = &self.nodes[host];
        if !node.mask.sound(self.now_ms) || node.member.wrong_terms {
            return Ok(());
        }
        match outcome {
            Outcome::Answer(Answer::Reply(HostReply::Teach(reply))) => match &reply.applied {
                Some(applied) => self.watch.honest_root(host, applied.nonce, &applied.root),
                None => Ok(()),
            },
            Outcome::Answer(Answer::Reply(HostReply::GetSignatures(reply))) => {
                self.watch.honest_root(host, reply.nonce, &reply.root)
            }
            _ => Ok(()),
        }
    }

    pub(super) fn challenge(
        &mut self,
        from: usize,
        to: usize,
        ask: &pb::ChallengeStartRequest,
        vote: Ballot,
    ) -> Check {
        let unix_ms = self.host_unix_ms(to);
        let caller = self.nodes[from].member.address;
        let node = &self.nodes[to];
        // A host that will not work does not work for a voter either.
        let unwilling = node.mask.in_mood(self.now_ms, Mood::Refuses)
            || node.mask.fork.is_some_and(|fork| fork.how != crate::escrow::schedule::Fork::Careless);
        if unwilling {
            return Ok(());
        }
        let mut ask = ask.clone();
        let answer = loop {
            let Some(executor) = &mut self.nodes[to].replica else { return Ok(()) };
            match executor.challenge(unix_ms, &caller, &ask) {
                Ok(answer) => break Some(answer),
                Err(error) if error.code() == pb::escrow_error::Code::Behind => {
                    // The voter lends its log.
                    let voter = self.nodes[from].replica.as_mut();
                    match voter.and_then(|voter| voter.challenge_with_log(&ask, error.have_nonce)) {
                        Some(again) => ask = again,
                        None => break None,
                    }
                }
                Err(_) => break None,
            }
        };
        self.begin_jobs(to)?;
        if let (Some(answer), Some(out), Some(back)) = (answer, self.fly(to), self.fly(from)) {
            self.after(out + back, Do::Challenged { vote, answer: Some(answer) });
        }
        Ok(())
    }

    pub(super) fn challenged(&mut self, vote: &Ballot, answer: Option<pb::ChallengeStartResponse>) -> Check {
        let unix_ms = self.host_unix_ms(vote.host);
        let node = &mut self.nodes[vote.host];
        let HostCall::VoteTimeout(request) = &*vote.call else { return Ok(()) };
        if node.boot != vote.boot || !self.ballots.insert(vote.number) {
            return Ok(());
        }
        let Some(replica) = &mut node.replica else { return Ok(()) };
        let result = replica.vote(unix_ms, request, answer);
        let result = result.map(HostReply::VoteTimeout).map_err(|error| CallError::Host(Box::new(error)));
        self.reply(vote.host, vote.gateway_boot, vote.call_id, Back::Done(result));
        Ok(())
    }

    pub(super) fn announce(&mut self, host: usize, boot: u64) -> Check {
        if self.nodes[host].boot != boot || self.nodes[host].replica.is_none() {
            return Ok(());
        }
        if self.gateway.core.is_none() || self.cut(host) {
            self.after(5_000, Do::Announce { host, boot });
            return Ok(());
        }
        let participant = self.nodes[host].member.address;
        self.tell(Event::Announce { participant, boot_id: format!("boot-{boot}") })
    }
}

fn last(piece: &pb::infer_response::Event) -> bool {
    matches!(piece, pb::infer_response::Event::Finished(_) | pb::infer_response::Event::Failed(_))
}
