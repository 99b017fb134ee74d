//! The operations that are enumerated, by name, and the tree that they find.

use atoll_vfs::*;

use crate::ops::Op;

/// The node slots of the inodes that [`prepared`] makes: directories from 1 on, the rest from 8 on.
const ROOT: u8 = 0;
const FULL: u8 = 1;
const EMPTY: u8 = 2;
const MADE: u8 = 3;
const SMALL: u8 = 8;
const MIDDLE: u8 = 9;
const HOLES: u8 = 10;
const LARGE: u8 = 12;
const FILLER: u8 = 13;
const NEW: u8 = 14;

/// The names of the root directory.
const FULL_NAME: u8 = 0;
const EMPTY_NAME: u8 = 1;
const SMALL_NAME: u8 = 2;
const MIDDLE_NAME: u8 = 3;
const HOLES_NAME: u8 = 4;
const LINK_NAME: u8 = 5;
const LARGE_NAME: u8 = 6;
const FILLER_NAME: u8 = 7;
const NEW_NAME: u8 = 8;
const OTHER_NAME: u8 = 9;

/// The long names of the files in the full directory.
const OLD_FILES: std::ops::Range<u8> = 20..36;
/// Those of the files that one operation adds.
const MORE_FILES: std::ops::Range<u8> = 40..64;

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// The names of the operations.
pub const OPERATIONS: [&str; 54] = [
    "create",
    "create-many",
    "mkdir",
    "mknod",
    "symlink",
    "symlink-longest",
    "link",
    "unlink",
    "unlink-large",
    "unlink-many",
    "unlink-linked",
    "rmdir",
    "rename",
    "rename-over",
    "rename-directory",
    "rename-over-directory",
    "exchange",
    "exchange-directory",
    "whiteout",
    "whiteout-over",
    "replace",
    "write-byte",
    "write-4k",
    "write-64k",
    "write-300k",
    "overwrite",
    "overwrite-part",
    "overwrite-large",
    "append",
    "write-beyond",
    "truncate-down",
    "truncate-up",
    "truncate-zero",
    "truncate-write",
    "extend",
    "copy",
    "allocate",
    "allocate-beyond",
    "punch",
    "zero",
    "chmod-chown",
    "utimens",
    "setxattr",
    "setxattr-largest",
    "setxattr-again",
    "setxattr-many",
    "removexattr",
    "removexattr-largest",
    "temporary",
    "temporary-large",
    "unlink-open",
    "unlink-open-close",
    "tmpfile",
    "tmpfile-link",
];

/// The operations that make everything before them durable.
pub const SYNCS: [&str; 3] = ["syncfs", "fsync", "fdatasync"];

/// Sequences of three that meet in the same blocks: each one of the first, then one of the second,
/// then one of the third.
pub const FAMILIES: [[&[&str]; 3]; 5] = [
    // File data is given up soon after it was written, and its blocks are taken by others.
    [
        &["write-300k", "write-64k", "append", "overwrite", "allocate-beyond", "replace"],
        &["truncate-write", "rename-over", "punch", "unlink-large", "truncate-down", "replace"],
        &["write-64k", "write-300k", "temporary-large", "tmpfile-link", "append", "setxattr-many"],
    ],
    // Blocks of metadata are given up and become file data, or the other way round.
    [
        &["setxattr-largest", "setxattr-many", "create-many", "setxattr-again", "temporary-large"],
        &["removexattr-largest", "unlink", "rename-over", "unlink-many", "setxattr-again"],
        &["write-64k", "write-300k", "extend", "tmpfile-link", "setxattr-largest", "append"],
    ],
    // Files become shorter and longer again.
    [
        &["truncate-down", "truncate-write", "truncate-zero", "punch", "zero"],
        &["extend", "truncate-write", "truncate-up", "append", "write-beyond", "chmod-chown"],
        &["extend", "truncate-down", "append", "truncate-write", "write-300k", "create"],
    ],
    // More data than goes to the journal with the mark, and operations that come before it is
    // durable.
    [
        &["write-300k", "write-64k"],
        &["append", "write-64k", "tmpfile-link", "extend", "replace", "unlink-open-close"],
        &["truncate-write", "write-beyond", "overwrite", "unlink-large", "rename", "temporary"],
    ],
    // Data that went to the journal with the mark is overwritten where it lies, without a record.
    [
        &["overwrite-part", "overwrite", "write-4k"],
        &["overwrite-large", "overwrite-part", "overwrite"],
        &["mkdir", "chmod-chown", "create", "overwrite-part"],
    ],
];

/// The calls that `name` stands for, as the step number `step` of a sequence; `None` if there is no
/// such operation. Different steps write different bytes.
pub fn calls(name: &str, step: u32) -> Option<Vec<Op>> {
    let write = |offset: u64, len: u32| Op::Write { file: 0, offset, len, fill: 100 + step };
    let open = |node: u8| Op::Open { node, file: 0, flags: RW };
    let close = Op::Release { file: 0 };
    let on = |node: u8, op: Op| vec![open(node), op, close.clone()];
    let truncate = |size: u64| SetAttr { size: Some(size), ..SetAttr::default() };
    let set = |node: u8, set: SetAttr| Op::Setattr { node, file: None, set };
    let allocate = |offset: u64, len: u64, mode| Op::Fallocate { file: 0, offset, len, mode };
    let new = |name: u8| create(ROOT, name, NEW, 0);
    let unlink = |name: u8| Op::Unlink { parent: ROOT, name };
    let rename = |name: u8, new_name: u8, flags| Op::Rename {
        parent: ROOT,
        name,
        new_parent: ROOT,
        new_name,
        flags,
    };
    let plain = RenameFlags::empty();
    let setxattr = |node: u8, len: u32| {
        let flags = XattrFlags::empty();
        Op::Setxattr { node, name: 1, len, fill: 100 + step, flags }
    };
    let sync = |data_only| vec![open(MIDDLE), Op::Fsync { file: 0, data_only }, close.clone()];
    let tmpfile = Op::Tmpfile { parent: ROOT, into: NEW - 8, file: 1, mode: 0o600, flags: RW };
    let write_other = |len: u32| Op::Write { file: 1, offset: 0, len, fill: 100 + step };
    Some(match name {
        "create" => vec![new(NEW_NAME), close],
        "create-many" => MORE_FILES
            .flat_map(|name| [create(FULL, name, NEW, 0), Op::Release { file: 0 }])
            .collect(),
        "mkdir" => {
            vec![Op::Mkdir { parent: ROOT, name: OTHER_NAME, into: MADE - 1, mode: 0o755 }]
        }
        "mknod" => {
            let mode = FileType::Fifo.mode_bits() | 0o600;
            vec![Op::Mknod { parent: EMPTY, name: NEW_NAME, into: NEW - 8, mode }]
        }
        "symlink" => vec![Op::Symlink { parent: ROOT, name: NEW_NAME, into: NEW - 8, len: 30 }],
        "symlink-longest" => {
            vec![Op::Symlink { parent: ROOT, name: OTHER_NAME, into: NEW - 8, len: 4095 }]
        }
        "link" => vec![Op::Link { node: SMALL, parent: EMPTY, name: SMALL_NAME }],
        "unlink" => vec![unlink(SMALL_NAME)],
        "unlink-large" => vec![unlink(LARGE_NAME)],
        "unlink-many" => OLD_FILES.map(|name| Op::Unlink { parent: FULL, name }).collect(),
        "unlink-linked" => vec![Op::Unlink { parent: FULL, name: MIDDLE_NAME }],
        "rmdir" => vec![Op::Rmdir { parent: ROOT, name: EMPTY_NAME }],
        "rename" => vec![rename(MIDDLE_NAME, NEW_NAME, plain)],
        "rename-over" => vec![rename(HOLES_NAME, SMALL_NAME, plain)],
        "rename-directory" => vec![Op::Rename {
            parent: ROOT,
            name: FULL_NAME,
            new_parent: EMPTY,
            new_name: OTHER_NAME,
            flags: plain,
        }],
        "rename-over-directory" => vec![rename(FULL_NAME, EMPTY_NAME, plain)],
        "exchange" => vec![rename(SMALL_NAME, LARGE_NAME, RenameFlags::EXCHANGE)],
        "exchange-directory" => vec![rename(FULL_NAME, SMALL_NAME, RenameFlags::EXCHANGE)],
        "whiteout" => vec![rename(MIDDLE_NAME, NEW_NAME, RenameFlags::WHITEOUT)],
        "whiteout-over" => vec![rename(HOLES_NAME, SMALL_NAME, RenameFlags::WHITEOUT)],
        "replace" => vec![
            new(NEW_NAME),
            write(0, 6000),
            Op::Fsync { file: 0, data_only: false },
            close,
            rename(NEW_NAME, MIDDLE_NAME, plain),
        ],
        "write-byte" => on(SMALL, write(3, 1)),
        "write-4k" => on(SMALL, write(0, 4096)),
        "write-64k" => on(HOLES, write(8192, 65536)),
        "write-300k" => on(MIDDLE, write(1000, 300 << 10)),
        "overwrite" => on(MIDDLE, write(0, 20_000)),
        // The same blocks: little enough for the journal, and too much.
        "overwrite-part" => on(LARGE, write(10_000, 5000)),
        "overwrite-large" => on(LARGE, write(0, 66_000)),
        "append" => {
            let flags = RW | OpenFlags::APPEND;
            vec![Op::Open { node: MIDDLE, file: 0, flags }, write(0, 3000), close]
        }
        "write-beyond" => on(SMALL, write(200_000, 10)),
        "truncate-down" => vec![set(LARGE, truncate(5000))],
        "truncate-up" => vec![set(SMALL, truncate(70_000))],
        "truncate-zero" => vec![set(LARGE, truncate(0))],
        "truncate-write" => {
            vec![set(MIDDLE, truncate(100)), open(MIDDLE), write(9000, 2000), close]
        }
        "extend" => on(LARGE, write(70_000 + 9000 * u64::from(step), 500)),
        "copy" => vec![
            open(LARGE),
            Op::Open { node: MIDDLE, file: 1, flags: RW },
            Op::Copy { file: 0, offset: 3000, to: 1, to_offset: 18_000, len: 40_000 },
            Op::Release { file: 1 },
            close,
        ],
        "allocate" => on(SMALL, allocate(0, 50_000, FallocateMode::empty())),
        "allocate-beyond" => on(MIDDLE, allocate(20_000, 60_000, FallocateMode::KEEP_SIZE)),
        "punch" => {
            let mode = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
            on(LARGE, allocate(4096, 56_000, mode))
        }
        "zero" => on(LARGE, allocate(5000, 45_000, FallocateMode::ZERO_RANGE)),
        "chmod-chown" => {
            let (mode, uid, gid) = (Some(0o640), Some(7), Some(8));
            vec![set(SMALL, SetAttr { mode, uid, gid, ..SetAttr::default() })]
        }
        "utimens" => {
            let to = |sec| Some(SetTime::To(Timespec { sec, nsec: 9 }));
            let step = i64::from(step);
            let (atime, mtime) = (to(1000 + step), to(2000 + step));
            vec![set(MIDDLE, SetAttr { atime, mtime, ..SetAttr::default() })]
        }
        "setxattr" => vec![setxattr(MIDDLE, 300)],
        "setxattr-largest" => vec![setxattr(MIDDLE, XATTR_SIZE_MAX as u32)],
        "setxattr-again" => vec![setxattr(HOLES, 5000), setxattr(HOLES, 40_000)],
        // More nodes than the smallest cache keeps changed.
        "setxattr-many" => (0..10)
            .map(|number| Op::Setxattr {
                node: [SMALL, HOLES, FULL, EMPTY][number % 4],
                name: 2 + number as u8 / 4,
                len: 14_000,
                fill: 100 + step,
                flags: XattrFlags::empty(),
            })
            .collect(),
        "removexattr" => vec![Op::Removexattr { node: LARGE, name: 1 }],
        "removexattr-largest" => vec![Op::Removexattr { node: MIDDLE, name: 1 }],
        "temporary" => vec![new(NEW_NAME), write(0, 9), close, unlink(NEW_NAME)],
        "temporary-large" => vec![new(NEW_NAME), write(0, 50_000), close, unlink(NEW_NAME)],
        "unlink-open" => vec![
            create(ROOT, OTHER_NAME, NEW, 2),
            Op::Write { file: 2, offset: 0, len: 9000, fill: 100 + step },
            unlink(OTHER_NAME),
        ],
        "unlink-open-close" => vec![open(LARGE), unlink(LARGE_NAME), write(0, 9000), close],
        "tmpfile" => vec![tmpfile, write_other(30_000)],
        "tmpfile-link" => vec![
            tmpfile,
            write_other(8192),
            Op::Link { node: NEW, parent: EMPTY, name: NEW_NAME },
            Op::Release { file: 1 },
        ],
        "syncfs" => vec![Op::Syncfs],
        "fsync" => sync(false),
        "fdatasync" => sync(true),
        _ => return None,
    })
}

fn create(parent: u8, name: u8, into: u8, file: u8) -> Op {
    Op::Create { parent, name, into: into - 8, file, mode: 0o644, flags: RW }
}

/// The calls that make the tree which every sequence begins with.
pub fn prepared() -> Vec<Op> {
    let close = || Op::Release { file: 0 };
    let write = |offset: u64, len: u32| Op::Write { file: 0, offset, len, fill: 1 };
    let xattr = |node: u8, len: u32| Op::Setxattr {
        node,
        name: 1,
        len,
        fill: 2,
        flags: XattrFlags::empty(),
    };
    let mut ops = vec![
        Op::Mkdir { parent: ROOT, name: FULL_NAME, into: FULL - 1, mode: 0o755 },
        Op::Mkdir { parent: ROOT, name: EMPTY_NAME, into: EMPTY - 1, mode: 0o755 },
    ];
    for name in OLD_FILES {
        ops.extend([create(FULL, name, NEW, 0), write(0, u32::from(name) % 3 * 50), close()]);
    }
    ops.extend([create(ROOT, SMALL_NAME, SMALL, 0), write(0, 5), close()]);
    ops.extend([create(ROOT, MIDDLE_NAME, MIDDLE, 0), write(0, 20_000), close()]);
    ops.push(Op::Link { node: MIDDLE, parent: FULL, name: MIDDLE_NAME });
    ops.extend([create(ROOT, HOLES_NAME, HOLES, 0), write(0, 100), write(40_000, 4096), close()]);
    ops.push(Op::Symlink { parent: ROOT, name: LINK_NAME, into: 3, len: 1000 });
    ops.extend([create(ROOT, LARGE_NAME, LARGE, 0), write(0, 66_000), close()]);
    ops.extend([xattr(SMALL, 200), xattr(LARGE, 3000)]);
    ops
}

/// The calls that add a file of `blocks` blocks, which are allocated and not written.
pub fn filler(blocks: u64) -> [Op; 3] {
    let mode = FallocateMode::KEEP_SIZE;
    [
        create(ROOT, FILLER_NAME, FILLER, 0),
        Op::Fallocate { file: 0, offset: 0, len: blocks << 12, mode },
        Op::Release { file: 0 },
    ]
}

/// The calls that add so many pieces of one block beyond the end of the large file, which takes no
/// reader long.
pub fn pieces(count: u64) -> impl Iterator<Item = Op> {
    let open = Op::Open { node: LARGE, file: 0, flags: RW };
    let piece = |at: u64| {
        let mode = FallocateMode::KEEP_SIZE;
        Op::Fallocate { file: 0, offset: (100 + 2 * at) << 12, len: 4096, mode }
    };
    let all = (0..count).map(piece);
    std::iter::once(open).chain(all).chain(std::iter::once(Op::Release { file: 0 }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_an_operation() {
        for name in OPERATIONS.iter().chain(&SYNCS) {
            assert!(calls(name, 0).is_some_and(|calls| !calls.is_empty()), "{name}");
        }
        for name in FAMILIES.iter().flatten().copied().flatten() {
            assert!(OPERATIONS.contains(name), "{name}");
        }
        assert!(calls("nothing", 0).is_none());
    }
}
