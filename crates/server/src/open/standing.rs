//! The table of implicit opens, of files that a kernel uses without having opened them.

use std::collections::{HashMap, VecDeque};

use atoll_vfs::{Handle, Ino};

/// The implicit opens of a session, by the client's numbers.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    pub handles: HashMap<Ino, (Handle, bool)>,
    /// The oldest first. Those that were closed since are passed over.
    pub order: VecDeque<Ino>,
}
