//! `--fault`: which hosts go wrong, how, and from which nonce on.

use std::fmt;

/// What a host does from a nonce on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// It computes another state, and keeps it.
    Fork,
    /// The same, but once it has signed its refusal it is killed and starts again with an empty store.
    RestartEmpty,
    /// It takes its time for each token.
    Slow,
    /// It computes another state, and signs ours when it is asked for a proof.
    Lie,
}

impl FaultKind {
    const ALL: [Self; 4] = [Self::Fork, Self::RestartEmpty, Self::Slow, Self::Lie];

    /// As written in `--fault`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fork => "fork",
            Self::RestartEmpty => "restart-empty",
            Self::Slow => "slow",
            Self::Lie => "lie",
        }
    }

    /// Whether the host stays another state's until somebody resets it.
    #[must_use]
    pub const fn is_forked(self) -> bool {
        matches!(self, Self::Fork | Self::Lie)
    }
}

/// A host that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// How.
    pub kind: FaultKind,
    /// Which: `host0` is 0.
    pub host: usize,
    /// From which nonce on; at least 1.
    pub nonce: u64,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:host{}@nonce{}", self.kind.name(), self.host, self.nonce)
    }
}

/// Faults with commas between them: `fork:host2@nonce40,slow:host0@nonce10`.
///
/// # Errors
/// Names the part that is wrong and what belongs there.
pub fn parse(text: &str) -> Result<Vec<Fault>, String> {
    let mut faults: Vec<Fault> = Vec::new();
    for part in text.split(',') {
        let fault = one(part.trim())?;
        if let Some(other) = faults.iter().find(|other| other.host == fault.host) {
            return Err(format!("{fault}: host{} has {other} already; give a host one fault", fault.host));
        }
        faults.push(fault);
    }
    Ok(faults)
}

fn one(part: &str) -> Result<Fault, String> {
    let form = || format!("{part:?}: write KIND:hostI@nonceN, as fork:host2@nonce40");
    let (kind, rest) = part.split_once(':').ok_or_else(form)?;
    let (host, nonce) = rest.split_once('@').ok_or_else(form)?;
    let kind = FaultKind::ALL.into_iter().find(|known| known.name() == kind).ok_or_else(|| {
        let known = FaultKind::ALL.map(FaultKind::name).join(", ");
        format!("{part:?}: there is no fault {kind:?}; there are {known}")
    })?;
    let digits = |text: &str, prefix: &str| {
        let digits = text.strip_prefix(prefix)?;
        digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse::<u64>().ok())?
    };
    let host = digits(host, "host").and_then(|host| usize::try_from(host).ok());
    let host = host.ok_or_else(|| format!("{part:?}: name a host by its number, as host0"))?;
    let nonce = digits(nonce, "nonce").filter(|nonce| (1..=10_000_000).contains(nonce));
    let nonce = nonce.ok_or_else(|| format!("{part:?}: give a nonce from nonce1 to nonce10000000"))?;
    Ok(Fault { kind, host, nonce })
}

/// Whether a network of so many hosts has all that go wrong.
///
/// # Errors
/// Names the fault and the hosts there are.
pub fn check(faults: &[Fault], hosts: usize) -> Result<(), String> {
    match faults.iter().find(|fault| fault.host >= hosts) {
        Some(fault) => Err(format!("{fault}: there are host0 to host{}", hosts.saturating_sub(1))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_as_they_are_written() {
        let text = "fork:host2@nonce40, restart-empty:host3@nonce60,slow:host0@nonce1,lie:host10@nonce9";
        let faults = parse(text).unwrap();
        let (kind, host, nonce) = (FaultKind::RestartEmpty, 3, 60);
        assert_eq!(faults[1], Fault { kind, host, nonce });
        let shown: Vec<String> = faults.iter().map(ToString::to_string).collect();
        assert_eq!(shown.join(", "), text.replace(",slow", ", slow").replace(",lie", ", lie").replace(",restart", ", restart"));
        assert!(check(&faults, 11).is_ok());
        assert!(check(&faults, 10).unwrap_err().contains("there are host0 to host9"));
    }

    #[test]
    fn what_is_wrong_with_a_fault_is_said() {
        for (text, part) in [
            ("", "KIND:hostI@nonceN"),
            ("fork", "KIND:hostI@nonceN"),
            ("fork:host2", "KIND:hostI@nonceN"),
            ("spoon:host2@nonce4", "fork, restart-empty, slow, lie"),
            ("fork:2@nonce4", "as host0"),
            ("fork:host@nonce4", "as host0"),
            ("fork:host+1@nonce4", "as host0"),
            ("fork:host1@4", "from nonce1"),
            ("fork:host1@nonce0", "from nonce1"),
            ("fork:host1@nonce10000001", "from nonce1"),
            ("fork:host1@nonce99999999999999999999999", "from nonce1"),
            ("fork:host1@nonce4,", "KIND:hostI@nonceN"),
            ("fork:host1@nonce4,slow:host1@nonce9", "one fault"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
