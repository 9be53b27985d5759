//! What a binary is: its modules and the upgrades it can carry out. `holdfastd` is one such program, an embedder's node
//! another; both run the same command line.

use std::sync::OnceLock;

use holdfast_app::composition::Composition;
use holdfast_app::upgrades::{Upgrade, Upgrades};

static PROGRAM: OnceLock<Program> = OnceLock::new();

/// A node's modules and upgrades.
#[derive(Clone)]
pub struct Program {
    /// The modules.
    pub composition: Composition,
    /// Every upgrade that this binary, or one before it on the same chain, carries out.
    pub upgrades: Upgrades,
}

impl Default for Program {
    /// `holdfastd`.
    fn default() -> Self {
        // x/participants went to version 2 with its validators; x/gov and x/escrow came.
        let upgrades = Upgrades::new(vec![Upgrade::new("v2").adding(&["gov", "escrow"])]);
        Self { composition: Composition::default(), upgrades }
    }
}

impl Program {
    /// Makes this the program of the process. The first one stays: a process is one binary.
    pub(crate) fn set(self) {
        let _ = PROGRAM.set(self);
    }

    /// The program of this process.
    pub(crate) fn get() -> &'static Self {
        PROGRAM.get_or_init(Self::default)
    }
}
