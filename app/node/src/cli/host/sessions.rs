//! The escrow sessions of a host.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use holdfast_app::keys::SecretKey;
use holdfast_host::chain::GrpcChain;
use holdfast_host::driver::{RunnerAdmission, Sessions, SessionsConfig};
use holdfast_host::session::rules::{Drill, Honest, Rules};
use holdfast_host::session::{CoreConfig, HostCore};
use holdfast_host::store::FjallDb;
use holdfast_host::{Pace, owner};
use holdfast_runner::Clock;
use holdfast_runner::runner::RunnerHandle;
use holdfast_runner::text::TextCodec;
use holdfast_types::Hrp;
use sha2::{Digest as _, Sha256};

use super::HostArgs;
use crate::cli::error::fail;
use crate::cli::files::Home;

/// The replicas in their folder, and what serves them.
#[expect(clippy::too_many_arguments, reason = "everything that a host is")]
pub(super) fn open(
    args: &HostArgs,
    home: &Home,
    hrp: &Hrp,
    key: &SecretKey,
    chain: &Arc<GrpcChain>,
    runner: &RunnerHandle,
    codec: Arc<dyn TextCodec>,
    clock: Arc<dyn Clock>,
) -> Result<(PathBuf, Sessions)> {
    let folder = args.sessions.clone().unwrap_or_else(|| home.data().join("sessions"));
    let refused = |text: String| fail(95, "--sessions", format!("{}: {text}", folder.display()));
    let db = FjallDb::open(&folder, "host").map_err(|error| refused(error.to_string()))?;
    let (chain_id, owner) = (chain.chain_id(), key.address());
    owner::claim(&folder, chain_id, &owner.to_bech32(hrp))
        .map_err(|error| fail(95, "--sessions", error.to_string()))?;
    // Of this start alone.
    let start = format!("{owner:?} {} {}", std::process::id(), clock.unix_ms());
    let boot_id: String = Sha256::digest(start).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let config = CoreConfig {
        models: args.models.clone(),
        allow_reset: args.allow_reset,
        withhold: !args.no_withhold,
        mute: args.drill == Some(Drill::Mute),
        ..CoreConfig::new(chain_id, owner, boot_id)
    };
    let rules: Box<dyn Rules> = match args.drill {
        Some(drill) => drill.rules(),
        None => Box::new(Honest),
    };
    if let Some(drill) = args.drill {
        tracing::warn!(?drill, "this host goes wrong on purpose");
    }
    let admission = RunnerAdmission::new(runner.clone(), codec, args.max_tokens);
    let core = HostCore::open(Box::new(db), key.clone(), config, rules, Box::new(admission.clone()));
    let core = core.map_err(|error| refused(error.message))?;
    let config = SessionsConfig {
        hrp: hrp.clone(),
        beat: Pace::default().beat,
        delay: Duration::from_millis(args.drill.map_or(0, Drill::delay_ms)),
    };
    let sessions = Sessions::new(config, core, key.clone(), admission, clock, chain.clone());
    Ok((folder, sessions))
}
