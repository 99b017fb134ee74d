//! What stands for files that a kernel uses without having opened them.

use std::collections::{HashMap, VecDeque};

use atoll_vfs::{Handle, Ino};

/// What stands for the files of a session, by the client's numbers.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    pub handles: HashMap<Ino, (Handle, bool)>,
    /// The oldest first. What does not stand any more is passed over.
    pub order: VecDeque<Ino>,
}
