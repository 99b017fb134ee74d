//! How much of the server one client may use.

use crate::rights::rates::Rates;

/// The most that one session may hold at a time. Every figure bounds memory of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Open files and directories; one more is `EMFILE`.
    pub open_files: usize,
    /// Inode numbers that the server remembers to have given out. Beyond it the least recently
    /// given are forgotten: a file that is not open has to be looked up again (`ESTALE` before).
    /// Unlimited for clients that may name every inode anyway. Never taken as less than twice
    /// `open_files`, since open inodes are not forgotten.
    pub inodes: usize,
    /// Locks held and waited for, ranges of fcntl(2) and flock(2) together; one more is `ENOLCK`.
    pub locks: usize,
    /// Bytes that one read or write moves; more is cut short, as read(2) and write(2) may.
    pub transfer: usize,
    /// Bytes of files that its mappings have brought into memory; more is `ENOMEM`.
    pub mapped: u64,
    /// Files that it has mapped and that are mapped still; one more is `ENOMEM`.
    pub mapped_files: usize,
    /// Bytes of the View of a session that is served through a ring; 0 for none.
    pub view: usize,
    /// Files that the session closes when it ends before others have their turn: some 100 us.
    pub closed_at_once: usize,
    /// Requests and bytes in a second, which all sessions of an account share; without an account
    /// there is no bound.
    pub rates: Rates,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            open_files: 65_536,
            inodes: 65_536,
            locks: 4096,
            transfer: 16 << 20,
            mapped: 1 << 30,
            mapped_files: 256,
            view: 16 << 20,
            closed_at_once: 64,
            rates: Rates::default(),
        }
    }
}
