//! Exclusions and the work inside them, followed from what was heard and made, in order. The same for what happened and
//! for what would have been.

use std::collections::BTreeMap;

use holdfast_breaker::State;
use holdfast_proto::holdfast::breaker::v1 as pb;
use holdfast_types::{Address, Height, Hrp};

use super::record::{Checkpoint, Input, Transition, Verdict};

/// Most exclusions that one answer follows.
pub(super) const EXCLUSIONS_MAX: usize = 200_000;

/// Model and participant.
pub(super) type Pair = (String, Address);

/// One pair.
#[derive(Debug, Default)]
pub(super) struct Track {
    pub(super) given: u64,
    pub(super) finished: u64,
    pub(super) missed: u64,
    pub(super) released: u64,
    refused: u64,
    pub(super) exclusions: Vec<pb::WhatIfExclusion>,
    /// Whether the last exclusion lasts.
    out: bool,
    claim: Option<String>,
}

impl Track {
    fn current(&mut self) -> Option<&mut pb::WhatIfExclusion> {
        if self.out { self.exclusions.last_mut() } else { None }
    }

    fn close(&mut self, height: Height, by: &str) {
        if let Some(exclusion) = self.current() {
            exclusion.until = height;
            by.clone_into(&mut exclusion.ended_by);
        }
        self.out = false;
        self.claim = None;
    }
}

/// All pairs.
pub(super) struct Tracks {
    hrp: Hrp,
    pub(super) pairs: BTreeMap<Pair, Track>,
    /// Open work that was given inside an exclusion: whose, and which.
    inside: BTreeMap<String, (Pair, usize)>,
    count: usize,
}

fn number<N: std::str::FromStr + Default>(transition: &Transition, name: &str) -> N {
    transition.get(name).and_then(|text| text.parse().ok()).unwrap_or_default()
}

impl Tracks {
    pub(super) fn new(hrp: Hrp) -> Self {
        Self { hrp, pairs: BTreeMap::new(), inside: BTreeMap::new(), count: 0 }
    }

    /// Whether there are more exclusions than an answer follows.
    pub(super) fn too_many(&self) -> bool {
        self.count > EXCLUSIONS_MAX
    }

    /// Exclusions that last from before the record.
    pub(super) fn begin_with(&mut self, checkpoint: &Checkpoint, of_model: &str) {
        for (pair, entry) in &checkpoint.entries {
            if entry.state == State::Healthy || (!of_model.is_empty() && pair.0 != of_model) {
                continue;
            }
            let track = self.pairs.entry(pair.clone()).or_default();
            track.out = true;
            track.claim = entry.probe.as_ref().map(|claim| claim.inference_id.clone());
            track.exclusions.push(pb::WhatIfExclusion {
                from: entry.excluded_at,
                probe_from: if entry.state == State::Probe { entry.ready_since } else { 0 },
                rule: "before".into(),
                level: entry.backoff_level,
                cooldown_blocks: entry.cooldown_blocks,
                ..pb::WhatIfExclusion::default()
            });
        }
    }

    pub(super) fn heard(&mut self, input: &Input) {
        match input {
            Input::Override { .. } | Input::Stamped { .. } => {}
            Input::Counts { model, participant, ok, missed, .. } => {
                let track = self.pairs.entry((model.clone(), *participant)).or_default();
                track.given = track.given.saturating_add(*ok).saturating_add(*missed);
                track.finished = track.finished.saturating_add(*ok);
                track.missed = track.missed.saturating_add(*missed);
            }
            Input::Start { id, model, executor, .. } => {
                let pair = (model.clone(), *executor);
                let track = self.pairs.entry(pair.clone()).or_default();
                track.given = track.given.saturating_add(1);
                let at = track.exclusions.len();
                if let (Some(exclusion), Some(at)) = (track.current(), at.checked_sub(1)) {
                    exclusion.given = exclusion.given.saturating_add(1);
                    self.inside.insert(id.clone(), (pair, at));
                }
            }
            Input::Outcome { id, model, executor, verdict, .. } => {
                let track = self.pairs.entry((model.clone(), *executor)).or_default();
                let of_probe = track.claim.as_deref() == Some(id);
                let total = match verdict {
                    Verdict::Finished => &mut track.finished,
                    Verdict::Missed => &mut track.missed,
                    Verdict::Released => &mut track.released,
                };
                *total = total.saturating_add(1);
                if let Some(exclusion) = track.current() {
                    match verdict {
                        Verdict::Missed if of_probe => exclusion.probe_missed = true,
                        Verdict::Missed => exclusion.missed = exclusion.missed.saturating_add(1),
                        Verdict::Finished if !of_probe => {
                            exclusion.finished = exclusion.finished.saturating_add(1);
                        }
                        _ => {}
                    }
                }
                if let Some((pair, at)) = self.inside.remove(id)
                    && *verdict == Verdict::Missed
                    && let Some(exclusion) =
                        self.pairs.get_mut(&pair).and_then(|track| track.exclusions.get_mut(at))
                {
                    exclusion.given_missed = exclusion.given_missed.saturating_add(1);
                }
            }
        }
    }

    pub(super) fn made(&mut self, height: Height, transition: &Transition) {
        let (Some(model), Some(Ok(who))) = (
            transition.get("model"),
            transition.get("participant").map(|text| Address::parse(text, &self.hrp)),
        ) else {
            return;
        };
        let track = self.pairs.entry((model.to_owned(), who)).or_default();
        match transition.name.as_str() {
            "EventExecutorExcluded" => {
                let rule = transition.get("rule").unwrap_or_default();
                track.close(height, if rule == "probe" { "probe_failed" } else { rule });
                track.out = true;
                track.exclusions.push(pb::WhatIfExclusion {
                    from: height,
                    rule: rule.to_owned(),
                    level: number(transition, "level"),
                    cooldown_blocks: number(transition, "cooldown_blocks"),
                    ..pb::WhatIfExclusion::default()
                });
                self.count = self.count.saturating_add(1);
            }
            "EventProbeOpened" => {
                track.claim = None;
                if let Some(exclusion) = track.current().filter(|exclusion| exclusion.probe_from == 0) {
                    exclusion.probe_from = height;
                }
            }
            "EventProbeClaimed" => {
                let id = transition.get("inference_id").unwrap_or_default();
                track.claim = Some(id.to_owned());
                // The probe is what an exclusion gives, not what it keeps away.
                if self.inside.remove(id).is_some()
                    && let Some(exclusion) = track.current()
                {
                    exclusion.given = exclusion.given.saturating_sub(1);
                }
            }
            "EventExclusionRefused" => track.refused = track.refused.saturating_add(1),
            "EventExecutorRestored" => track.close(height, transition.get("cause").unwrap_or_default()),
            _ => {}
        }
    }

    /// Marks the false ones. Exclusions by governance are nobody's mistake.
    pub(super) fn finish(&mut self) {
        for exclusion in self.pairs.values_mut().flat_map(|track| &mut track.exclusions) {
            exclusion.false_exclusion =
                exclusion.rule != "override" && exclusion.missed == 0 && !exclusion.probe_missed;
        }
    }

    /// Sums over the pairs that `wanted` takes, after [`Self::finish`]; `to` is the last block.
    pub(super) fn totals(&self, wanted: impl Fn(&Pair) -> bool, to: Height) -> pb::WhatIfTotals {
        let mut out = pb::WhatIfTotals::default();
        for (_, track) in self.pairs.iter().filter(|(pair, _)| wanted(pair)) {
            let mut any = false;
            out.refused = out.refused.saturating_add(track.refused);
            for e in track.exclusions.iter().filter(|e| e.rule != "override") {
                any = true;
                out.exclusions = out.exclusions.saturating_add(1);
                out.work_saved = out.work_saved.saturating_add(e.missed);
                out.finished = out.finished.saturating_add(e.finished);
                out.given_missed = out.given_missed.saturating_add(e.given_missed);
                out.false_exclusions = out.false_exclusions.saturating_add(u64::from(e.false_exclusion));
                let nothing = e.given == 0 && e.finished == 0;
                let silent = e.false_exclusion && nothing;
                out.without_work = out.without_work.saturating_add(u64::from(silent));
                let until = if e.until == 0 { to.saturating_add(1) } else { e.until };
                let blocks = u64::try_from(until.saturating_sub(e.from)).unwrap_or(0);
                out.blocks = out.blocks.saturating_add(blocks);
            }
            out.pairs = out.pairs.saturating_add(u32::from(any));
        }
        out
    }
}
