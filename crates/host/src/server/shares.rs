//! The memory of this machine that clients may take, a user and all users together.

use std::sync::OnceLock;

use atoll_server::rights::accounts::Shares;

use crate::memory;

/// The part of the memory that this process may have that its clients may take, all together.
const PART: u64 = 2;
/// The most of it, whatever the machine has.
const MOST: u64 = 8 << 30;
/// The part of that that one user may take.
const USERS_PART: u64 = 2;
/// The most open files of one user; each takes memory too.
const OPEN_FILES: u64 = 1 << 18;

/// The memory that all users together may take: found out before the process is confined.
pub(super) fn memory() -> u64 {
    static MEMORY: OnceLock<u64> = OnceLock::new();
    *MEMORY.get_or_init(|| (memory::most() / PART).min(MOST))
}

/// The shares of all users together. The superuser and the server's own user do not count: they
/// could use the volume without a server.
pub(super) fn of_all() -> Shares {
    Shares { memory: memory(), open_files: 4 * OPEN_FILES, ..Shares::UNLIMITED }
}

/// The shares of one user.
pub(super) fn of_user() -> Shares {
    Shares { memory: memory() / USERS_PART, open_files: OPEN_FILES, ..Shares::UNLIMITED }
}

/// The less of each.
pub(super) fn least(a: Shares, b: Shares) -> Shares {
    Shares {
        connections: a.connections.min(b.connections),
        memory: a.memory.min(b.memory),
        open_files: a.open_files.min(b.open_files),
    }
}
