//! Operations of x/inference: work is started, answered, reported and taken back.

use holdfast_app::tx::pack;
use holdfast_proto::holdfast::inference;

use super::bank::send;
use super::scene::{Draft, Scene};
use crate::memory::Open;

/// Answers, reports and further waiting for everything that is open.
pub(crate) fn answers(scene: &mut Scene<'_>) -> Vec<Draft> {
    let mut out = Vec::new();
    for open in scene.memory.open.clone() {
        // An answer in the block of the start would have to follow it there; some do, through early finishes.
        let (answered, reported) = scene.cast.mood(open.executor, scene.height);
        let roll = scene.rng.below(100);
        if roll < answered {
            out.push(finish_of(scene, &open, open.executor));
        } else if roll < answered + reported {
            out.push(report_of(scene, &open));
        } else if scene.rng.percent(2) {
            out.push(cancel_of(scene, &open));
        }
    }
    out
}

pub(super) fn start(scene: &mut Scene<'_>) -> Draft {
    let gateway = if scene.rng.percent(90) { scene.gateway() } else { scene.anybody() };
    // Mostly a model that somebody serves, and the executor that the chain's own draw gives.
    let mut model = scene.model();
    let mut drawn = None;
    for _ in 0..3 {
        drawn = scene.drawn(&model);
        if drawn.is_some() || scene.wrong() {
            break;
        }
        model = scene.model();
    }
    let mut executor = match drawn {
        Some(executor) if scene.rng.percent(90) => executor,
        None if scene.rng.percent(70) => return send(scene),
        _ => scene.executor(),
    };
    let mut inference_id = match scene.memory.early.first().cloned() {
        Some((id, answered_by)) if scene.rng.percent(60) => {
            executor = answered_by;
            id
        }
        _ => scene.memory.id(),
    };
    let mut prompt_hash = vec![7; 32];
    if scene.wrong() {
        match scene.rng.below(4) {
            0 => inference_id = "not an id".into(),
            1 => inference_id = scene.memory.open.last().map(|open| open.id.clone()).unwrap_or_default(),
            2 => prompt_hash.truncate(31),
            _ => executor = gateway,
        }
    }
    let max_tokens = if scene.rng.percent(1) { u64::MAX } else { scene.rng.unsigned(0, 200) };
    // Somebody else can pay.
    let signer = if scene.rng.percent(10) { scene.anybody() } else { gateway };
    let message = inference::v1::MsgStartInference {
        signer: scene.name(signer),
        requested_by: scene.name(gateway),
        inference_id,
        model,
        assigned_to: scene.name(executor),
        prompt_hash,
        prompt_tokens: scene.rng.unsigned(0, 100),
        max_tokens,
    };
    Draft { signer, message: pack(&message) }
}

fn finish_of(scene: &mut Scene<'_>, open: &Open, signer: usize) -> Draft {
    let completion_tokens = if scene.rng.percent(2) { u64::MAX } else { scene.rng.unsigned(0, 150) };
    let message = inference::v1::MsgFinishInference {
        executed_by: scene.name(signer),
        inference_id: open.id.clone(),
        response_hash: vec![8; if scene.rng.percent(1) { 33 } else { 32 }],
        prompt_tokens: scene.rng.unsigned(0, 120),
        completion_tokens,
    };
    Draft { signer, message: pack(&message) }
}

/// Finishes that nobody expects: of another's work, of no work yet, or once more.
pub(super) fn finish(scene: &mut Scene<'_>) -> Draft {
    let executor = scene.executor();
    let known = scene.rng.maybe(&scene.memory.open).cloned();
    match known {
        Some(open) if scene.rng.percent(40) => {
            let signer = if scene.rng.percent(50) { executor } else { open.executor };
            finish_of(scene, &open, signer)
        }
        _ => {
            let id = scene.memory.id();
            let open = Open { id, gateway: 0, executor };
            finish_of(scene, &open, executor)
        }
    }
}

fn report_of(scene: &mut Scene<'_>, open: &Open) -> Draft {
    let message = inference::v1::MsgReportFailure {
        executor: scene.name(open.executor),
        inference_id: open.id.clone(),
        kind: scene.rng.range(0, 5) as u32,
    };
    Draft { signer: open.executor, message: pack(&message) }
}

pub(super) fn report(scene: &mut Scene<'_>) -> Draft {
    let executor = scene.executor();
    let open = scene.rng.maybe(&scene.memory.open).cloned();
    let gone = || Open { id: "i-0".into(), gateway: 0, executor };
    let mut open = open.unwrap_or_else(gone);
    if scene.rng.percent(30) {
        open.executor = executor;
    }
    report_of(scene, &open)
}

fn cancel_of(scene: &mut Scene<'_>, open: &Open) -> Draft {
    let signer = if scene.wrong() { scene.anybody() } else { open.gateway };
    let message =
        inference::v1::MsgCancelInference { requested_by: scene.name(signer), inference_id: open.id.clone() };
    Draft { signer, message: pack(&message) }
}

pub(super) fn cancel_inference(scene: &mut Scene<'_>) -> Draft {
    let gateway = scene.gateway();
    let open = scene.rng.maybe(&scene.memory.open).cloned();
    let gone = || Open { id: "i-0".into(), gateway, executor: 0 };
    cancel_of(scene, &open.unwrap_or_else(gone))
}

impl Scene<'_> {
    /// A draw among the candidates for `model`.
    fn drawn(&mut self, model: &str) -> Option<usize> {
        let seed: [u8; 32] = self.rng.bytes(32).try_into().ok()?;
        let table = self.view.table(self.composition, model).ok()?;
        let draw = table.draw(seed)?;
        self.cast.index_of(&table.rows().get(draw.row)?.address.to_bech32(&self.cast.hrp))
    }
}
