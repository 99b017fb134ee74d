//! The on-disk file system: a [`FileSystem`](atoll_vfs::FileSystem) over
//! [`Addressable`](atoll_block::Addressable).
//!
//! Read in this order:
//!
//! - [`layout`]: every offset on disk; `superblock`: its fields, parsed; `key`: how the items of
//!   the tree are named; `hash`: where names go
//! - `journal`: the ring of redo records; `cache`: metadata blocks in memory; `space`: free blocks
//! - `store`: transactions over those three; `allocation`: free blocks within them; `discard`:
//!   freed space goes back to the host; `commit`, `checkpoint`: make operations durable, and keep
//!   the journal short
//! - `node`, `tree`: the B+tree; `bounds`: how long the record of an operation can be
//! - `inode`, `extent`, `file`, `dir`, `xattr`: the items by kind; `table`: the inodes in memory;
//!   `cookie`: the place of a name as a listing shows it
//! - `project`: what the inodes of a directory's project take, and its quota; `quotas`: makes and
//!   ends projects
//! - `opening`: the beginning of every use of a volume; `volume`: mount; `recovery`: the journal
//!   replayed, `overlay`: the same for a mount that must not write; `fs`: a mounted volume; `grow`:
//!   a larger device
//! - `namespace`, `content`, `copying`, `verbs`: the verbs of the file seam
//! - `check`: every rule of the format, checked and restored; `dump`: everything in words
//!
//! docs/FORMAT.md has every bit, docs/RELIABILITY.md the argument for the crash contract.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod allocation;
mod bounds;
mod cache;
mod check;
mod checkpoint;
mod commit;
mod content;
mod cookie;
mod copying;
mod dir;
mod discard;
mod dump;
mod error;
mod extent;
mod file;
mod format;
mod fs;
mod grow;
mod hash;
mod inode;
mod journal;
mod key;
pub mod layout;
mod namespace;
mod node;
mod opening;
mod overlay;
mod pair;
mod project;
mod quotas;
mod recovery;
mod report;
mod space;
mod steps;
mod store;
mod superblock;
mod superblocks;
mod table;
#[doc(hidden)]
pub mod testing;
mod tree;
mod verbs;
mod volume;
mod xattr;

pub use check::{
    CheckOptions, Counter, FINDINGS_MAX, Finding, ItemFault, ItemKey, NodeFault, Report, check,
};
pub use dump::{DumpOptions, Element, ItemValue, dump, visit};
pub use error::{Corruption, FsError, Result};
pub use format::{BLOCK_COUNT_MIN, FormatOptions, format};
pub use fs::{Fs, VolumeInfo};
pub use grow::{GrowError, Grown, grow};
pub use inode::InodeRecord;
pub use journal::Header as JournalHeader;
pub use project::{Project, Quota, Usage};
pub use report::{Listener, MountNote};
pub use superblocks::read_superblock;
pub use volume::{MountOptions, owner};
