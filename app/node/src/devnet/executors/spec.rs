//! The executors of a run, and the limits of a list of them.

use super::profile::{At, Profile};

/// The models an executor serves if its entry names none.
pub const DEFAULT_MODELS: [&str; 2] = ["model-a", "model-b"];

/// The default executors in the short form.
pub const DEFAULT_SPEC: &str = "11*healthy,degraded(20),dying(40%),dying(50%),dying(60%),flapping(80,30),\
                                recovering(30%..45%),late(25),refusing,liar";

/// Most executors in one devnet.
pub const MAX_EXECUTORS: usize = 10_000;

/// Largest weight of one executor; [`MAX_EXECUTORS`] of them stay far inside a `u64`.
pub const MAX_WEIGHT: u64 = 1_000_000_000_000;

/// Most models one executor serves.
pub const MAX_MODELS: usize = 16;

/// Longest model name, in bytes.
pub const MAX_MODEL_BYTES: usize = 64;

/// One executor of the devnet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutorSpec {
    /// How it behaves.
    pub profile: Profile,
    /// Its weight in every epoch group.
    pub weight: u64,
    /// The models it serves, in the order written.
    pub models: Vec<String>,
}

/// The weight of executor `index` (from 0) whose entry gives none: 80 + 10·(7·index mod 5).
pub fn default_weight(index: usize) -> u64 {
    80 + 10 * (index as u64 % 5 * 7 % 5)
}

/// The 20 executors of a run without `--executors`: 11 healthy and 9 with a fault, 46 % of the weight.
pub fn default_executors() -> Vec<ExecutorSpec> {
    use At::Share;
    let faulty = [
        Profile::Degraded { miss_bp: 2_000 },
        Profile::Dying { at: Share(4_000) },
        Profile::Dying { at: Share(5_000) },
        Profile::Dying { at: Share(6_000) },
        Profile::Flapping { up: 80, down: 30 },
        Profile::Recovering { from: Share(3_000), to: Share(4_500) },
        Profile::Late { blocks: 25 },
        Profile::Refusing,
        Profile::Liar,
    ];
    [Profile::Healthy; 11]
        .into_iter()
        .chain(faulty)
        .enumerate()
        .map(|(index, profile)| ExecutorSpec {
            profile,
            weight: default_weight(index),
            models: DEFAULT_MODELS.map(str::to_owned).to_vec(),
        })
        .collect()
}

/// Every model that some executor serves, in order of first appearance. Requests ask for these.
pub fn models_served(executors: &[ExecutorSpec]) -> Vec<String> {
    let mut models: Vec<String> = Vec::new();
    for model in executors.iter().flat_map(|executor| &executor.models) {
        if !models.contains(model) {
            models.push(model.clone());
        }
    }
    models
}
