//! `--fault`: which hosts go wrong, how, and from which nonce on.

use std::fmt;

/// What a host does from a nonce on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// It computes another state, and keeps it.
    Fork,
    /// The same, but once it has signed its refusal it is killed and starts again with an empty store.
    RestartEmpty,
    /// Each of its calls takes longer.
    Slow,
    /// It refuses live traffic as if its state were another, and signs ours when it is asked for a proof.
    Lie,
    /// As [`FaultKind::RestartEmpty`], but the process that starts with the empty store answers no challenge until it is
    /// killed: its repair stays at verifying.
    Mute,
}

impl FaultKind {
    const ALL: [Self; 5] = [Self::Fork, Self::RestartEmpty, Self::Slow, Self::Lie, Self::Mute];

    /// As written in `--fault`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fork => "fork",
            Self::RestartEmpty => "restart-empty",
            Self::Slow => "slow",
            Self::Lie => "lie",
            Self::Mute => "mute",
        }
    }

    /// Whether nothing that the host is taught brings it back.
    #[must_use]
    pub const fn is_lasting(self) -> bool {
        matches!(self, Self::Fork | Self::Lie | Self::Mute)
    }

    /// Whether the host is killed once it has signed its refusal, and starts again with an empty store.
    #[must_use]
    pub const fn is_emptied(self) -> bool {
        matches!(self, Self::RestartEmpty | Self::Mute)
    }
}

/// A host that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// How.
    pub kind: FaultKind,
    /// Which: `host0` is 0.
    pub host: usize,
    /// From which nonce on; of a slow one how much longer a call takes, milliseconds.
    pub number: u64,
}

impl Fault {
    /// As `holdfastd host --drill` takes it.
    #[must_use]
    pub fn of_host(&self) -> String {
        match self.kind {
            FaultKind::Slow => format!("slow@{}", self.number),
            FaultKind::Mute => format!("fork@nonce{}", self.number),
            kind => format!("{}@nonce{}", kind.name(), self.number),
        }
    }

    /// The same for its process that starts with an empty store; none: it is as any other.
    #[must_use]
    pub fn of_emptied_host(&self) -> Option<String> {
        (self.kind == FaultKind::Mute).then(|| "mute".to_owned())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, host, number) = (self.kind.name(), self.host, self.number);
        match self.kind {
            FaultKind::Slow => write!(f, "{kind}:host{host}@{number}ms"),
            _ => write!(f, "{kind}:host{host}@nonce{number}"),
        }
    }
}

/// Faults with commas between them: `fork:host2@nonce40,slow:host0@200ms`.
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
    let form = || format!("{part:?}: write KIND:hostI@nonceN, as fork:host2@nonce40, or slow:hostI@Nms");
    let (kind, rest) = part.split_once(':').ok_or_else(form)?;
    let (host, at) = rest.split_once('@').ok_or_else(form)?;
    let kind = FaultKind::ALL.into_iter().find(|known| known.name() == kind).ok_or_else(|| {
        let known = FaultKind::ALL.map(FaultKind::name).join(", ");
        format!("{part:?}: there is no fault {kind:?}; there are {known}")
    })?;
    let host = host.strip_prefix("host").and_then(number).and_then(|host| usize::try_from(host).ok());
    let host = host.ok_or_else(|| format!("{part:?}: name a host by its number, as host0"))?;
    let number = match kind {
        FaultKind::Slow => at
            .strip_suffix("ms")
            .and_then(number)
            .filter(|ms| (1..=60_000).contains(ms))
            .ok_or_else(|| format!("{part:?}: give a time from 1ms to 60000ms"))?,
        _ => at
            .strip_prefix("nonce")
            .and_then(number)
            .filter(|nonce| (1..=10_000_000).contains(nonce))
            .ok_or_else(|| format!("{part:?}: give a nonce from nonce1 to nonce10000000"))?,
    };
    Ok(Fault { kind, host, number })
}

/// A number without a sign.
fn number(digits: &str) -> Option<u64> {
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
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
        let text = "fork:host2@nonce40, restart-empty:host3@nonce60,slow:host0@250ms,lie:host10@nonce9,mute:host4@nonce5";
        let faults = parse(text).unwrap();
        assert_eq!(faults[1], Fault { kind: FaultKind::RestartEmpty, host: 3, number: 60 });
        let shown: Vec<String> = faults.iter().map(ToString::to_string).collect();
        assert_eq!(shown.join(","), text.replace(' ', ""));
        let given: Vec<String> = faults.iter().map(Fault::of_host).collect();
        assert_eq!(given, ["fork@nonce40", "restart-empty@nonce60", "slow@250", "lie@nonce9", "fork@nonce5"]);
        let emptied: Vec<Option<String>> = faults.iter().map(Fault::of_emptied_host).collect();
        assert_eq!(emptied, [None, None, None, None, Some("mute".to_owned())]);
        assert!(check(&faults, 11).is_ok());
        assert!(check(&faults, 10).unwrap_err().contains("there are host0 to host9"));
    }

    #[test]
    fn what_is_wrong_with_a_fault_is_said() {
        for (text, part) in [
            ("", "KIND:hostI@nonceN"),
            ("fork", "KIND:hostI@nonceN"),
            ("fork:host2", "KIND:hostI@nonceN"),
            ("spoon:host2@nonce4", "fork, restart-empty, slow, lie, mute"),
            ("fork:2@nonce4", "as host0"),
            ("fork:host@nonce4", "as host0"),
            ("fork:host+1@nonce4", "as host0"),
            ("fork:host1@4", "from nonce1"),
            ("fork:host1@nonce0", "from nonce1"),
            ("fork:host1@nonce10000001", "from nonce1"),
            ("fork:host1@nonce99999999999999999999999", "from nonce1"),
            ("fork:host1@nonce4,", "KIND:hostI@nonceN"),
            ("slow:host1@nonce4", "from 1ms to"),
            ("slow:host1@60001ms", "from 1ms to"),
            ("fork:host1@nonce4,slow:host1@9ms", "one fault"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
