//! What an epoch would have been under other parameters of the breaker (breaker.md 5): for voters.
//!
//! A [`Log`] writes down what the breaker hears and does, block by block, two epochs long, beside the chain's state and never
//! part of it. The query [`PATH`] replays an epoch twice with x/breaker itself: under the parameters that were in force, which
//! must give every recorded transition and no other, and under those to try. Work stays given as recorded and ends as
//! recorded; the verdict of a probe is the outcome of the first work given to it.
//!
//! ```text
//! finalize_block ─ events, state before and after ─► BlockRecord ─ commit ─► Log ─ WhatIf ─► Replay × 2 ─► Tracks
//! ```

mod log;
mod proposal;
mod record;
mod replay;
mod tracks;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use holdfast_proto::cosmos::base::query::v1beta1::{PageRequest, PageResponse};
use holdfast_proto::holdfast::breaker::v1 as pb;
use holdfast_types::traits::{EpochInfo, EpochsRead, ParticipantsRead};
use holdfast_types::{Address, Height, Paging, QueryError, QueryKind};

pub use log::{AT_A_TIME, Blocks, EPOCH_BYTES_MAX, Extent, Head, Log, MEMORY_BYTES_MAX};
pub(crate) use record::Executed;
pub use record::{
    BlockRecord, Checkpoint, EpochStart, GroupRows, Input, Item, OverrideRows, Place, Transition, Verdict,
};

use crate::composition::Composition;
use crate::views::QueryView;
use proposal::{Proposal, differing, is_replayed, replayed};
use replay::Replay;
use tracks::{Pair, Tracks};

/// Path of the query. It replays an epoch: a backend runs it where it may block.
pub const PATH: &str = "/holdfast.breaker.v1.Query/WhatIf";
/// Longest time of one answer.
pub const TIME_MAX: Duration = Duration::from_secs(20);

fn internal(e: impl ToString) -> QueryError {
    QueryError::new(QueryKind::Internal, e.to_string())
}

/// Answers a what-if query from `log`, up to the height of `view`.
///
/// # Errors
/// `InvalidArgument` for parameters that governance would refuse, an address that is none or a page that is too large;
/// `NotFound` for an unknown model or an epoch without record; `Unavailable` without a log or a free turn;
/// `FailedPrecondition` when the replay takes longer than [`TIME_MAX`].
pub fn answer(
    log: Option<&Log>,
    view: &QueryView,
    composition: &Composition,
    request: &pb::QueryWhatIfRequest,
) -> Result<pb::QueryWhatIfResponse, QueryError> {
    let q = view.query();
    let proposal = Proposal::of(request)?;
    let tried = proposal.over(&q.block.params).map_err(QueryError::invalid)?;
    let longest = tried.health_cb_max_cooldown_blocks;
    if longest != q.block.params.health_cb_max_cooldown_blocks {
        let length = holdfast_epochs::Keeper.current(q.store).map_err(internal)?.length;
        if longest > length {
            let rule = format!("must be at most the epoch's length of {length} blocks");
            return Err(QueryError::invalid(format!("health_cb_max_cooldown_blocks: {rule}")));
        }
    }
    let participant = match request.participant.as_str() {
        "" => None,
        text => Some(q.address("participant", text)?),
    };
    if !request.model.is_empty() && !composition.participants().has_model(q.store, &request.model)? {
        return Err(QueryError::not_found(format!("model: {:?} is not registered", request.model)));
    }
    let page = Page::of(request.pagination.as_ref())?;
    let log = log.ok_or_else(|| {
        QueryError::new(QueryKind::Unavailable, "this node keeps no what-if record; ask one that does")
    })?;
    let epoch = request.epoch.unwrap_or(q.block.epoch);
    let schedule = holdfast_epochs::Keeper.epoch(q.store, epoch)?;
    let _turn = log.turn()?;
    let found = log.read(epoch, q.block.height).map_err(internal)?;
    let Some((head, extent, blocks)) = found else { return Err(no_record(log, epoch)) };

    let played = play(&head, blocks, &proposal, view, &request.model)?;
    let lacks = lacks(log, &extent, &played, schedule.as_ref(), q.block.height);
    let to = if played.to == 0 { head.height } else { played.to };
    let wanted = |pair: &Pair| {
        (request.model.is_empty() || pair.0 == request.model) && participant.is_none_or(|who| who == pair.1)
    };
    let (rows, pagination) = page.rows(&played, wanted, q.block);
    Ok(pb::QueryWhatIfResponse {
        epoch,
        from_height: played.from,
        to_height: played.to,
        in_force: played.changed.is_empty(),
        changed: played.changed.iter().map(|field| (*field).to_owned()).collect(),
        not_replayed: played
            .changed
            .iter()
            .filter(|field| !is_replayed(field))
            .map(|field| (*field).to_owned())
            .collect(),
        agrees: played.disagreement.is_none(),
        lacks,
        notes: played.notes,
        happened: Some(played.happened.totals(wanted, to)),
        would_be: Some(played.would_be.totals(wanted, to)),
        rows,
        pagination: Some(pagination),
    })
}

fn no_record(log: &Log, epoch: u64) -> QueryError {
    let kept: Vec<String> = log
        .extents()
        .iter()
        .map(|extent| format!("{} (blocks {} to {})", extent.epoch, extent.from, extent.to))
        .collect();
    let kept = if kept.is_empty() { "none".to_owned() } else { kept.join(", ") };
    let stopped =
        log.stopped().map(|reason| format!("; recording has stopped: {reason}")).unwrap_or_default();
    QueryError::not_found(format!("epoch: no record of epoch {epoch}; kept are: {kept}{stopped}"))
}

/// Both ways through an epoch.
struct Played {
    happened: Tracks,
    would_be: Tracks,
    from: Height,
    to: Height,
    changed: BTreeSet<&'static str>,
    disagreement: Option<String>,
    notes: Vec<String>,
}

fn play(
    head: &Head,
    blocks: Blocks,
    proposal: &Proposal,
    view: &QueryView,
    model: &str,
) -> Result<Played, QueryError> {
    let deadline = Instant::now().checked_add(TIME_MAX);
    let hrp = &view.block.hrp;
    let mut in_force = Replay::new(head, hrp, model)?;
    let mut would_be = Replay::new(head, hrp, model)?;
    let mut happened = Tracks::new(hrp.clone());
    if let Some(checkpoint) = &head.checkpoint {
        happened.begin_with(checkpoint, model);
    }
    let mut params = head.params.clone();
    let mut tried = None;
    let mut out = Played {
        happened,
        would_be: Tracks::new(hrp.clone()),
        from: 0,
        to: 0,
        changed: BTreeSet::new(),
        disagreement: None,
        notes: Vec::new(),
    };
    let (mut shadow, mut disabled) = (false, false);
    for block in blocks {
        let block = block.map_err(internal)?;
        if deadline.is_none_or(|at| Instant::now() > at) {
            let text = format!("the replay takes longer than {TIME_MAX:?}; ask for one model");
            return Err(QueryError::new(QueryKind::FailedPrecondition, text));
        }
        if let Some(new) = &block.params {
            params.clone_from(new);
            tried = None;
        }
        let tried = match &mut tried {
            Some(tried) => tried,
            none => {
                let at =
                    |e| QueryError::invalid(format!("over the parameters of block {}: {e}", block.height));
                let new = proposal.over(&params).map_err(at)?;
                out.changed.extend(differing(&new, &params));
                shadow |= new.health_cb_shadow;
                disabled |= !new.health_cb_enabled;
                none.insert(replayed(&new, &params))
            }
        };
        let failed = |e: holdfast_types::ModuleError| internal(format!("block {}: {e}", block.height));
        let made = in_force.step(&block, params.clone()).map_err(failed)?;
        would_be.step(&block, tried.clone()).map_err(failed)?;
        follow(&mut out, &block, model, &made);
        if out.from == 0 {
            out.from = block.height;
        }
        out.to = block.height;
        if out.happened.too_many() || would_be.tracks.too_many() {
            let text = "more exclusions than an answer can hold; ask for one model";
            return Err(QueryError::new(QueryKind::FailedPrecondition, text));
        }
    }
    out.would_be = would_be.tracks;
    out.happened.finish();
    out.would_be.finish();
    if shadow {
        out.notes.push("in shadow mode an exclusion is reported and keeps no work away".into());
    }
    if disabled {
        out.notes.push("while health_cb_enabled is false nobody is judged".into());
    }
    if out.changed.iter().any(|field| !is_replayed(field)) {
        out.notes
            .push("work was drawn, expired and was stopped by the slow breaker as recorded, whatever not_replayed says".into());
    }
    Ok(out)
}

/// What happened in a block, and whether the replay under the parameters in force made the same of it.
fn follow(out: &mut Played, block: &BlockRecord, model: &str, made: &[Transition]) {
    let wanted = |of: &str| model.is_empty() || of == model;
    let mut recorded = Vec::new();
    for item in &block.items {
        match item {
            Item::Heard(input) | Item::HeardAfter(input) if wanted(input.model()) => {
                out.happened.heard(input)
            }
            Item::Made(transition) if transition.get("model").is_none_or(wanted) => {
                out.happened.made(block.height, transition);
                recorded.push(transition);
            }
            _ => {}
        }
    }
    if out.disagreement.is_some() || made.iter().eq(recorded.iter().copied()) {
        return;
    }
    let at = made.iter().zip(&recorded).take_while(|(a, b)| *a == **b).count();
    let told = |transition: Option<&Transition>| match transition {
        None => "nothing".to_owned(),
        Some(transition) => {
            let attributes = transition.attributes.iter().map(|(name, value)| format!("{name} {value}"));
            format!("{} ({})", transition.name, attributes.collect::<Vec<_>>().join(", "))
        }
    };
    let (replayed, recorded) = (told(made.get(at)), told(recorded.get(at).copied()));
    out.disagreement = Some(format!("block {}: recorded {recorded}, replayed {replayed}", block.height));
}

/// What the record lacks of an epoch that lasts, as far as it has come, until `height`.
fn lacks(
    log: &Log,
    extent: &Extent,
    played: &Played,
    schedule: Option<&EpochInfo>,
    height: Height,
) -> Vec<String> {
    let mut out = Vec::new();
    if let Some(info) = schedule {
        if extent.from > info.start_height {
            out.push(format!(
                "blocks {} to {}: the record begins with block {}, from the state that the breaker was in before it",
                info.start_height,
                extent.from.saturating_sub(1),
                extent.from
            ));
        }
        let end = info.end().saturating_sub(1).min(height);
        let last = played.to.max(extent.from.saturating_sub(1));
        if last < end {
            let why = if extent.full { ": the record has reached its largest size" } else { "" };
            out.push(format!("blocks {} to {end}{why}", last.saturating_add(1)));
        }
    }
    if let Some(reason) = log.stopped() {
        out.push(format!("recording has stopped: {reason}"));
    }
    if let Some(disagreement) = &played.disagreement {
        out.push(format!("something that the breaker heard: {disagreement}"));
    }
    out
}

/// A page over rows in key order; its keys are `model ‖ 0 ‖ address`.
struct Page<'a> {
    from: Option<Pair>,
    paging: Paging<'a>,
}

impl<'a> Page<'a> {
    fn of(request: Option<&'a PageRequest>) -> Result<Self, QueryError> {
        let paging = Paging::of(request)?;
        let from = if paging.key.is_empty() { None } else { Some(pair_of(paging.key)?) };
        Ok(Self { from, paging })
    }

    fn rows(
        &self,
        played: &Played,
        wanted: impl Fn(&Pair) -> bool,
        block: &holdfast_types::BlockContext,
    ) -> (Vec<pb::WhatIfRow>, PageResponse) {
        let excluded = |tracks: &Tracks, pair: &Pair| {
            tracks.pairs.get(pair).is_some_and(|track| !track.exclusions.is_empty())
        };
        let pairs: BTreeSet<&Pair> = played
            .happened
            .pairs
            .keys()
            .chain(played.would_be.pairs.keys())
            .filter(|pair| wanted(pair))
            .filter(|pair| excluded(&played.happened, pair) || excluded(&played.would_be, pair))
            .collect();
        let total = if self.paging.count_total { u64::try_from(pairs.len()).unwrap_or(u64::MAX) } else { 0 };
        let mut pairs: Vec<&Pair> = pairs.into_iter().collect();
        if self.paging.reverse {
            pairs.reverse();
        }
        let before = |pair: &&&Pair| match &self.from {
            None => false,
            Some(from) if self.paging.reverse => **pair > from,
            Some(from) => **pair < from,
        };
        let offset = usize::try_from(self.paging.offset).unwrap_or(usize::MAX);
        let limit = usize::try_from(self.paging.limit).unwrap_or(usize::MAX);
        let mut rest = pairs.iter().skip_while(before).skip(offset);
        let page: Vec<&Pair> = rest.by_ref().take(limit).copied().collect();
        let next_key = rest.next().map(|pair| key_of(pair)).unwrap_or_default();
        let row = |pair: &Pair| {
            let (happened, would_be) = (played.happened.pairs.get(pair), played.would_be.pairs.get(pair));
            let exclusions =
                |track: Option<&tracks::Track>| track.map(|t| t.exclusions.clone()).unwrap_or_default();
            let sums = happened.map_or((0, 0, 0, 0), |t| (t.given, t.finished, t.missed, t.released));
            pb::WhatIfRow {
                model: pair.0.clone(),
                participant: pair.1.to_bech32(&block.hrp),
                given: sums.0,
                finished: sums.1,
                missed: sums.2,
                released: sums.3,
                happened: exclusions(happened),
                would_be: exclusions(would_be),
            }
        };
        (page.into_iter().map(row).collect(), PageResponse { next_key, total })
    }
}

fn key_of((model, participant): &Pair) -> Vec<u8> {
    [model.as_bytes(), &[0], participant.0.as_slice()].concat()
}

fn pair_of(key: &[u8]) -> Result<Pair, QueryError> {
    let bad =
        || QueryError::invalid("pagination.key: is none of this query; give next_key of its last answer");
    let at = key.iter().position(|byte| *byte == 0).ok_or_else(bad)?;
    let (model, rest) = key.split_at_checked(at).ok_or_else(bad)?;
    let model = std::str::from_utf8(model).map_err(|_| bad())?.to_owned();
    let participant = rest.strip_prefix(&[0]).ok_or_else(bad)?;
    Ok((model, Address::from_slice(participant).map_err(|_| bad())?))
}
