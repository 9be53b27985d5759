//! What reaches a repair from outside, and what is told of it: operators, hosts that start anew, logs and metrics.

use holdfast_escrow::divergence::{DivergenceError, FlagChange};
use holdfast_escrow::repair::{Effect as RepairEffect, LogStage, RepairError, RepairEvent};
use holdfast_types::Address;

use super::GatewayCore;
use super::api::{Effect, Metric, Verb, VerbError};
use super::members::Bound;
use super::repair::Brought;

impl GatewayCore {
    /// A host started anew.
    pub(super) fn announced(&mut self, participant: &Address, boot_id: String) {
        let now = self.now.mono_ms;
        let Some(member) = self.members.get_mut(participant) else { return };
        if boot_id.is_empty() || boot_id.len() > 128 || member.boot_id == boot_id {
            return;
        }
        member.boot_id = boot_id;
        member.dirty = true;
        member.bound = Bound::Unknown;
        if self.flagged(participant) {
            let since = self.workers.get(participant).and_then(|worker| worker.reopened_ms);
            let since_reopen_ms = now.saturating_sub(since.unwrap_or(self.opened_ms));
            let generation = self.flags.get(participant).map(|flag| flag.generation);
            self.repair_event(participant, RepairEvent::Announced { since_reopen_ms }, Brought::default());
            if self.flags.get(participant).map(|flag| flag.generation) != generation {
                self.workers.entry(*participant).or_default().reopened_ms = Some(now);
            }
        } else {
            self.bind(participant);
        }
    }

    /// A verb of an operator.
    pub(super) fn operator(&mut self, op_id: u64, participant: &Address, verb: Verb) {
        let event = match verb {
            Verb::ForceTeach => RepairEvent::ForceTeach,
            Verb::GiveUp => RepairEvent::GiveUp,
            Verb::Release => RepairEvent::Release,
        };
        let result = match self.repair_step(participant, &event, &Brought::default()) {
            Ok(effects) => {
                let ignored = effects.contains(&RepairEffect::Ignored);
                if let Some((event, brought)) = self.carry_out(participant, effects) {
                    self.repair_event(participant, event, brought);
                }
                match self.flag(participant) {
                    Some(flag) if !ignored => Ok(Box::new(flag)),
                    Some(_) => Err(VerbError::WrongPhase),
                    None => Err(VerbError::NotFlagged),
                }
            }
            Err(DivergenceError::Repair(error)) => Err(match error {
                RepairError::NotFlagged => VerbError::NotFlagged,
                RepairError::Stopped => VerbError::WrongPhase,
            }),
            Err(_) => Err(VerbError::Storage),
        };
        self.emit(Effect::OperatorDone { op_id, result });
    }

    pub(super) fn announce_change(&mut self, change: FlagChange) {
        let participant = change.flag.subject.participant;
        let stage = change.stage.as_str();
        let flag = &change.flag;
        let mut fields = vec![
            ("generation", flag.generation.to_string()),
            ("diverged_nonce", flag.diverged_nonce.to_string()),
            ("phase", flag.repair.phase.as_str().to_owned()),
            ("attempt", flag.repair.attempt.to_string()),
            ("elapsed_ms", flag.repair.elapsed_ms.to_string()),
        ];
        if change.stage == LogStage::RepairAttempt {
            let cursor = self.members.get(&participant).map_or(0, |member| member.cursor);
            fields.push(("catch_up", format!("{cursor} of {}", flag.repair.target)));
            fields.push(("verify", flag.repair.last_verdict.as_str().to_owned()));
        }
        let alarm = matches!(change.stage, LogStage::Blocked | LogStage::GaveUp);
        self.log(stage, alarm, Some(participant), fields);
        let blocked = change.at_ms.saturating_sub(flag.flagged_at_ms);
        match change.stage {
            LogStage::Unblocked => {
                let name = "gateway_repair_time_to_unblock_ms";
                self.emit(Effect::Metric(Metric::Time { name, participant: Some(participant), ms: blocked }));
                self.gauge("gateway_participant_blocked", Some(participant), 0);
            }
            LogStage::Blocked => self.gauge("gateway_participant_blocked", Some(participant), 1),
            LogStage::GaveUp => self.metric_count("gateway_repair_give_ups_total", Some(participant), 1),
            LogStage::RepairStarted | LogStage::RepairAttempt => {}
        }
        let at = change.at_ms / 1000;
        let view = Box::new(self.view(flag));
        self.emit(Effect::FlagChanged { stage, at, flag: view, change: Box::new(change) });
    }

    /// Says when settlement begins or ceases to need a repair.
    pub(super) fn note_quorum(&mut self, before: bool) {
        let at_risk = self.quorum_at_risk();
        if at_risk != before {
            let stage = if at_risk { "escrow_quorum_at_risk" } else { "escrow_quorum_safe" };
            self.log(stage, at_risk, None, vec![("flagged", self.flags.len().to_string())]);
            self.gauge("gateway_quorum_at_risk", None, u64::from(at_risk));
        }
    }
}
