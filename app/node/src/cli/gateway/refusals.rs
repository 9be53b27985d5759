//! What is added to refusals: the flag that they are about, and what helps.

use std::path::Path;

use holdfast_app::grpc::ChainError;

use super::super::error::fail;

/// What helps against a refusal of the chain: which flag it is about, and what to do.
pub(super) fn creation_remedy<'a>(field: &'a str, error: &ChainError) -> (&'a str, &'static str) {
    let ChainError::Refused { codespace, code, log } = error else { return (field, "") };
    // In a simulation the node's status carries the chain's code in its text.
    let few = (codespace.as_str(), *code) == ("escrow", 5) || log.contains("[escrow 5]");
    if few {
        let remedy = "; from 4 slots on one owner holds at most a third of them, so a group needs more hosts: start more, or \
                      give --slots a smaller number";
        return ("--slots", remedy);
    }
    if log.contains("account") && log.contains("not found") {
        return ("--from", "; it has no coins: send it some, and start again");
    }
    (field, "")
}

/// A file of a flag that cannot be read.
pub(super) fn unreadable(flag: &str, path: &Path, error: &std::io::Error) -> anyhow::Error {
    fail(21, flag, format!("{}: {error}; check the path and its permissions", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_creation_names_the_flag_and_what_helps() {
        let refused = |codespace: &str, code, log: &str| ChainError::Refused {
            codespace: codespace.into(),
            code,
            log: log.into(),
        };
        let few =
            refused("escrow", 5, "slots: 4 with at most 1 for one owner need more healthy members than 3");
        let simulated = refused("grpc", 3, "message 0: slots: 4 need more healthy members than 3 [escrow 5]");
        for few in [few, simulated] {
            let (field, remedy) = creation_remedy("--create", &few);
            assert!(field == "--slots" && remedy.contains("smaller number"), "{field}{remedy}");
        }
        let (field, remedy) = creation_remedy("--create", &refused("grpc", 5, "account hold1x not found"));
        assert!(field == "--from" && remedy.contains("send it some"), "{field}{remedy}");
        let poor = refused("escrow", 6, "the balance is too low");
        assert_eq!(creation_remedy("--create", &poor), ("--create", ""));
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named_with_its_flag() {
        let path = Path::new("/nonexistent");
        let error = std::fs::read(path).unwrap_err();
        let told = format!("{:#}", unreadable("--api-keys", path, &error));
        assert!(told.contains("--api-keys") && told.contains("/nonexistent"), "{told}");
    }
}
