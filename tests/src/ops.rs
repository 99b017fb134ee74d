//! Random operations over a small universe, so that they meet often.
//!
//! An operation names inodes, handles and directory streams by *slots* of a [`World`], which each
//! file system under test has one of: the same operations then mean the same to all of them,
//! whatever numbers they give out. Slots outlive the inodes put into them, so that operations also
//! use stale inodes.

mod world;

use std::collections::{BTreeMap, HashMap};

use atoll_vfs::*;
use proptest::prelude::*;

use crate::rng::Rng;
use crate::subject::pattern;

pub use world::{Outcome, Seen, World};

/// Slots for inodes. 0 is the root for ever.
pub const NODES: u8 = 20;
/// The first slot for inodes that are no directories.
const FIRST_FILE: u8 = 8;
/// Slots for open files.
pub const FILES: u8 = 6;
/// Slots for open directories.
pub const STREAMS: u8 = 3;

/// One call, or a few that belong together.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // The fields are slots, and arguments of the verbs by the same name.
pub enum Op {
    Lookup {
        parent: u8,
        name: u8,
        into: u8,
    },
    Getattr {
        node: u8,
    },
    Setattr {
        node: u8,
        file: Option<u8>,
        set: SetAttr,
    },
    Readlink {
        node: u8,
    },
    Mknod {
        parent: u8,
        name: u8,
        into: u8,
        mode: u32,
    },
    Mkdir {
        parent: u8,
        name: u8,
        into: u8,
        mode: u32,
    },
    Symlink {
        parent: u8,
        name: u8,
        into: u8,
        len: u16,
    },
    Unlink {
        parent: u8,
        name: u8,
    },
    Rmdir {
        parent: u8,
        name: u8,
    },
    Rename {
        parent: u8,
        name: u8,
        new_parent: u8,
        new_name: u8,
        flags: RenameFlags,
    },
    Link {
        node: u8,
        parent: u8,
        name: u8,
    },
    Open {
        node: u8,
        file: u8,
        flags: OpenFlags,
    },
    Create {
        parent: u8,
        name: u8,
        into: u8,
        file: u8,
        mode: u32,
        flags: OpenFlags,
    },
    Tmpfile {
        parent: u8,
        into: u8,
        file: u8,
        mode: u32,
        flags: OpenFlags,
    },
    Read {
        file: u8,
        offset: u64,
        len: u32,
    },
    Write {
        file: u8,
        offset: u64,
        len: u32,
        fill: u32,
    },
    Copy {
        file: u8,
        offset: u64,
        to: u8,
        to_offset: u64,
        len: u64,
    },
    Fallocate {
        file: u8,
        offset: u64,
        len: u64,
        mode: FallocateMode,
    },
    Seek {
        file: u8,
        offset: u64,
        to: SeekTo,
    },
    Fsync {
        file: u8,
        data_only: bool,
    },
    Release {
        file: u8,
    },
    /// Opens a directory and lists all of it.
    List {
        node: u8,
    },
    Opendir {
        node: u8,
        stream: u8,
    },
    /// Lists on from where the stream is.
    Readdir {
        stream: u8,
        count: u8,
    },
    Fsyncdir {
        stream: u8,
    },
    Releasedir {
        stream: u8,
    },
    Syncfs,
    Statfs,
    Setxattr {
        node: u8,
        name: u8,
        len: u32,
        fill: u32,
        flags: XattrFlags,
    },
    Getxattr {
        node: u8,
        name: u8,
    },
    Listxattr {
        node: u8,
    },
    Removexattr {
        node: u8,
        name: u8,
    },
}

/// How likely the kinds of operations are.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// Offsets reach this far.
    pub max_offset: u64,
    /// Writes are this long at most.
    pub max_write: u64,
    /// Of a hundred operations, how many sync something.
    pub syncs: u64,
    /// Of a hundred operations, how many ask and change nothing.
    pub queries: u64,
    /// Values of extended attributes are this long at most.
    pub max_xattr: u64,
    /// Of a hundred operations, how many write up to the longest, all lengths alike, beside those
    /// that write little mostly.
    pub long_writes: u64,
}

impl Profile {
    /// For comparisons of every answer.
    pub const DIFFERENTIAL: Profile = Profile {
        max_offset: 1 << 43,
        max_write: 150_000,
        syncs: 2,
        queries: 35,
        max_xattr: 300,
        long_writes: 0,
    };
    /// For crashes: few queries, since a crash cannot lose them, and a small device.
    pub const CRASH: Profile = Profile {
        max_offset: 90_000,
        max_write: 20_000,
        syncs: 8,
        queries: 3,
        max_xattr: 300,
        long_writes: 0,
    };
    /// For crashes of a volume that is to fill up.
    pub const LARGE: Profile = Profile {
        max_offset: 400_000,
        max_write: 400_000,
        syncs: 5,
        queries: 3,
        max_xattr: 3000,
        long_writes: 0,
    };
}

/// The name that an operation's number stands for.
pub fn name_bytes(name: u8) -> Vec<u8> {
    match name {
        0..=9 => vec![b'a' + name],
        10 => vec![b'L'; 255],
        11 => vec![b'M'; 140],
        12 => b".".to_vec(),
        13 => b"..".to_vec(),
        // Long names, for callers that need more than random operations do.
        _ => [format!("{name}").as_bytes(), &[b'N'; 150]].concat(),
    }
}

fn xattr_name(name: u8) -> Vec<u8> {
    match name {
        0..=4 => format!("user.{name}").into_bytes(),
        5 => [b"user.".to_vec(), vec![b'n'; 250]].concat(),
        6 => [b"user.".to_vec(), vec![b'n'; 251]].concat(),
        _ => Vec::new(),
    }
}

/// The bytes that a write with `fill` at `offset` writes: different at every place and for every
/// fill, so that a stray byte tells where it came from, and none of them zero.
pub fn fill_bytes(fill: u32, offset: u64, len: usize) -> Vec<u8> {
    pattern(u64::from(fill) << 32 ^ offset, len)
}

impl Op {
    fn write(rng: &mut Rng, profile: &Profile, len: u64) -> Op {
        let offset = offset(rng, profile);
        Op::Write { file: file(rng), offset, len: len as u32, fill: rng.number() as u32 }
    }

    /// A random operation.
    pub fn random(rng: &mut Rng, profile: &Profile) -> Op {
        if rng.chance(profile.syncs) {
            return match rng.within(0..10) {
                0..5 => Op::Fsync { file: file(rng), data_only: rng.chance(40) },
                5..8 => Op::Syncfs,
                _ => Op::Fsyncdir { stream: stream(rng) },
            };
        }
        if rng.chance(profile.queries) {
            return Op::query(rng, profile);
        }
        if profile.long_writes > 0 && rng.chance(profile.long_writes) {
            let len = rng.within(1..profile.max_write.max(2));
            return Op::write(rng, profile, len);
        }
        match rng.within(0..100) {
            0..22 => {
                let len = length(rng, profile.max_write);
                Op::write(rng, profile, len)
            }
            22..34 => Op::Create {
                parent: directory(rng),
                name: name(rng),
                into: into(rng),
                file: file(rng),
                mode: mode(rng),
                flags: open_flags(rng, true),
            },
            34..38 => Op::Open { node: node(rng), file: file(rng), flags: open_flags(rng, false) },
            38..42 => Op::Release { file: file(rng) },
            42..49 => Op::Mkdir {
                parent: directory(rng),
                name: name(rng),
                into: into(rng),
                mode: mode(rng) & 0o1777,
            },
            49..53 => {
                let mode = match rng.within(0..10) {
                    0..6 => FileType::Regular.mode_bits(),
                    6..8 => FileType::Fifo.mode_bits(),
                    8 => FileType::CharDevice.mode_bits(),
                    _ => FileType::Socket.mode_bits(),
                } | mode(rng);
                Op::Mknod { parent: directory(rng), name: name(rng), into: into(rng), mode }
            }
            53..56 => {
                let len = rng.pick(&[1, 30, 59, 60, 61, 200, 1000, 4095, 0, 4096]);
                Op::Symlink { parent: directory(rng), name: name(rng), into: into(rng), len }
            }
            56..62 => Op::Unlink { parent: directory(rng), name: name(rng) },
            62..66 => Op::Rmdir { parent: directory(rng), name: name(rng) },
            66..75 => Op::Rename {
                parent: directory(rng),
                name: name(rng),
                new_parent: directory(rng),
                new_name: name(rng),
                flags: match rng.within(0..20) {
                    0..11 => RenameFlags::empty(),
                    11..13 => RenameFlags::NOREPLACE,
                    13..17 => RenameFlags::EXCHANGE,
                    17 => RenameFlags::WHITEOUT,
                    18 => RenameFlags::WHITEOUT | RenameFlags::NOREPLACE,
                    _ => RenameFlags::all(),
                },
            },
            75..79 => Op::Link { node: node(rng), parent: directory(rng), name: name(rng) },
            79..87 => Op::Setattr {
                node: node(rng),
                file: rng.chance(20).then(|| file(rng)),
                set: set_attr(rng, profile),
            },
            87..89 => Op::Copy {
                file: file(rng),
                offset: offset(rng, profile),
                to: file(rng),
                to_offset: offset(rng, profile),
                len: length(rng, profile.max_write * 2),
            },
            89..92 => {
                let len = if rng.chance(3) { 0 } else { length(rng, profile.max_write * 2) };
                let mode = match rng.within(0..20) {
                    0..6 => FallocateMode::empty(),
                    6..9 => FallocateMode::KEEP_SIZE,
                    9..15 => FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE,
                    15..17 => FallocateMode::ZERO_RANGE,
                    17..19 => FallocateMode::ZERO_RANGE | FallocateMode::KEEP_SIZE,
                    _ => FallocateMode::PUNCH_HOLE,
                };
                Op::Fallocate { file: file(rng), offset: offset(rng, profile), len, mode }
            }
            92..94 => Op::Tmpfile {
                parent: directory(rng),
                into: into(rng),
                file: file(rng),
                mode: mode(rng),
                flags: open_flags(rng, false) | OpenFlags::WRITE,
            },
            94..97 => Op::Setxattr {
                node: node(rng),
                name: xattr(rng),
                len: rng.within(0..profile.max_xattr) as u32,
                fill: rng.number() as u32,
                flags: rng.pick(&[
                    XattrFlags::empty(),
                    XattrFlags::empty(),
                    XattrFlags::CREATE,
                    XattrFlags::REPLACE,
                ]),
            },
            97 => Op::Removexattr { node: node(rng), name: xattr(rng) },
            98 => Op::Opendir { node: directory(rng), stream: stream(rng) },
            _ => Op::Releasedir { stream: stream(rng) },
        }
    }

    fn query(rng: &mut Rng, profile: &Profile) -> Op {
        match rng.within(0..100) {
            0..30 => {
                let (offset, len) = (offset(rng, profile), length(rng, profile.max_write));
                Op::Read { file: file(rng), offset, len: len as u32 }
            }
            30..50 => {
                let to = if rng.chance(50) { SeekTo::Data } else { SeekTo::Hole };
                Op::Seek { file: file(rng), offset: offset(rng, profile), to }
            }
            50..65 => Op::Lookup { parent: directory(rng), name: name(rng), into: into(rng) },
            65..72 => Op::Getattr { node: node(rng) },
            72..76 => Op::Readlink { node: node(rng) },
            76..82 => Op::List { node: directory(rng) },
            82..90 => Op::Readdir { stream: stream(rng), count: rng.within(1..8) as u8 },
            90..95 => Op::Getxattr { node: node(rng), name: xattr(rng) },
            95..98 => Op::Listxattr { node: node(rng) },
            _ => Op::Statfs,
        }
    }

    /// Whether the operation, when it succeeds, makes everything before it durable.
    pub fn syncs(&self) -> bool {
        matches!(self, Op::Fsync { .. } | Op::Fsyncdir { .. } | Op::Syncfs)
    }

    /// Whether the operation may be there in part after a crash: a front part of a long write or
    /// allocation.
    pub fn has_parts(&self) -> bool {
        matches!(self, Op::Write { .. } | Op::Copy { .. } | Op::Fallocate { .. })
    }

    /// Whether the operation may need space, and so fail with `ENOSPC` on a file system that has
    /// less of it than another.
    pub fn may_need_space(&self) -> bool {
        match self {
            Op::Setattr { set, .. } => set.size.is_some(),
            Op::Mknod { .. }
            | Op::Mkdir { .. }
            | Op::Symlink { .. }
            | Op::Rename { .. }
            | Op::Link { .. }
            | Op::Create { .. }
            | Op::Tmpfile { .. }
            | Op::Write { .. }
            | Op::Copy { .. }
            | Op::Fallocate { .. }
            | Op::Setxattr { .. } => true,
            _ => false,
        }
    }
}

/// A proptest strategy of up to `max` operations. It shrinks by leaving operations out.
pub fn ops(max: usize, profile: Profile) -> impl Strategy<Value = Vec<Op>> {
    let op =
        any::<u64>().no_shrink().prop_map(move |seed| Op::random(&mut Rng::new(seed), &profile));
    proptest::collection::vec(op, 1..=max)
}

/// `count` operations from a seed, faster than by proptest.
pub fn seeded_ops(seed: u64, count: usize, profile: &Profile) -> Vec<Op> {
    let mut rng = Rng::new(seed);
    (0..count).map(|_| Op::random(&mut rng, profile)).collect()
}

fn name(rng: &mut Rng) -> u8 {
    match rng.within(0..100) {
        0..70 => rng.within(0..4) as u8,
        70..98 => rng.within(4..12) as u8,
        98 => 12,
        _ => 13,
    }
}

fn xattr(rng: &mut Rng) -> u8 {
    if rng.chance(90) { rng.within(0..5) as u8 } else { rng.within(5..8) as u8 }
}

fn directory(rng: &mut Rng) -> u8 {
    match rng.within(0..100) {
        0..40 => 0,
        40..94 => rng.within(1..FIRST_FILE.into()) as u8,
        _ => node(rng),
    }
}

fn node(rng: &mut Rng) -> u8 {
    if rng.chance(25) {
        rng.within(0..FIRST_FILE.into()) as u8
    } else {
        rng.within(FIRST_FILE.into()..NODES.into()) as u8
    }
}

fn into(rng: &mut Rng) -> u8 {
    rng.number() as u8
}

fn file(rng: &mut Rng) -> u8 {
    rng.within(0..FILES.into()) as u8
}

fn stream(rng: &mut Rng) -> u8 {
    rng.within(0..STREAMS.into()) as u8
}

fn mode(rng: &mut Rng) -> u32 {
    rng.pick(&[0o644, 0o600, 0o755, 0o000, 0o1777, 0o4755])
}

fn open_flags(rng: &mut Rng, create: bool) -> OpenFlags {
    let mut flags = match rng.within(0..10) {
        0..7 => OpenFlags::READ | OpenFlags::WRITE,
        7 => OpenFlags::READ,
        _ => OpenFlags::WRITE,
    };
    let writes = flags.contains(OpenFlags::WRITE);
    flags.set(OpenFlags::APPEND, rng.chance(15));
    flags.set(OpenFlags::TRUNC, writes && rng.chance(10));
    flags.set(OpenFlags::EXCL, create && rng.chance(15));
    flags
}

fn offset(rng: &mut Rng, profile: &Profile) -> u64 {
    let offset = match rng.within(0..100) {
        0..40 => rng.within(0..9000),
        40..65 => (rng.within(1..40) * 4096).saturating_add_signed(rng.pick(&[-1, 0, 0, 1])),
        65..90 => rng.within(0..200_000),
        _ => (1 << rng.within(17..44)) - rng.within(0..5000),
    };
    if offset < profile.max_offset { offset } else { offset % profile.max_offset }
}

fn length(rng: &mut Rng, max: u64) -> u64 {
    let len = match rng.within(0..100) {
        0..2 => 0,
        2..50 => rng.within(1..300),
        50..65 => rng.within(1..5) * 4096,
        65..92 => rng.within(1..20_000),
        _ => rng.within(1..max.max(2)),
    };
    len.min(max)
}

fn set_attr(rng: &mut Rng, profile: &Profile) -> SetAttr {
    let mut set = SetAttr::default();
    match rng.within(0..10) {
        0..5 => set.size = Some(if rng.chance(20) { 0 } else { offset(rng, profile) }),
        5 => set.mode = Some(rng.pick(&[0o600, 0o755, 0o2775, 0o4711, 0])),
        6 => (set.uid, set.gid) = (Some(rng.within(0..3) as u32), Some(rng.within(0..3) as u32)),
        7 => set.mtime = Some(SetTime::To(Timespec { sec: rng.within(0..99) as i64, nsec: 7 })),
        8 => (set.atime, set.mtime) = (Some(SetTime::Now), Some(SetTime::Now)),
        _ => (set.mode, set.size) = (Some(0o640), Some(rng.within(0..9000))),
    }
    set
}
