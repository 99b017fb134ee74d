//! The memory of this machine that clients may take, a user and all users together.

use std::sync::{Arc, OnceLock};

use atoll_server::Credentials;
use atoll_server::rights::accounts::{Account, Accounts, Shares};

use super::line::descriptors;
use super::rules::Rules;
use crate::memory;

/// The part of the memory that this process may have that its clients may take, all together.
const PART: u64 = 2;
/// The most of it, whatever the machine has.
const MOST: u64 = 8 << 30;
/// The part of that that one user may take.
const USERS_PART: u64 = 2;
/// The part of this process's descriptors that one session's files of the host may take.
const HOST_PART: u64 = 16;
/// The most sessions of one user. The superuser and the server's own user may have all.
const CONNECTIONS: u64 = 64;
/// The most open files of one user; each takes memory too.
const OPEN_FILES: u64 = 1 << 18;

/// The memory that all users together may take: found out before the process is confined.
pub(super) fn memory() -> u64 {
    static MEMORY: OnceLock<u64> = OnceLock::new();
    *MEMORY.get_or_init(|| (memory::most() / PART).min(MOST))
}

/// The most files of a directory of the host that one session has open, each of which takes a
/// descriptor: so that others have some too. Found out before the process is confined.
pub(super) fn files_of_host() -> usize {
    static FILES: OnceLock<usize> = OnceLock::new();
    *FILES.get_or_init(|| usize::try_from(descriptors() / HOST_PART).unwrap_or(usize::MAX))
}

/// The shares of all users together. The superuser and the server's own user do not count: they
/// could use the volume without a server.
pub(super) fn of_all() -> Shares {
    Shares { memory: memory(), open_files: 4 * OPEN_FILES, ..Shares::UNLIMITED }
}

/// The shares of one user.
fn of_user() -> Shares {
    Shares { connections: CONNECTIONS, memory: memory() / USERS_PART, open_files: OPEN_FILES }
}

/// The account of `peer`, with the shares that `rules` say, or else the usual ones.
pub(super) fn account(accounts: &Accounts, rules: &Rules, peer: &Credentials) -> Arc<Account> {
    let most = rules.limits(peer, of_user()).unwrap_or(Shares::UNLIMITED);
    accounts.open(peer.uid, most)
}

/// The less of each.
pub(super) fn least(a: Shares, b: Shares) -> Shares {
    Shares {
        connections: a.connections.min(b.connections),
        memory: a.memory.min(b.memory),
        open_files: a.open_files.min(b.open_files),
    }
}
