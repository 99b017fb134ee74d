//! The next calls of clients, by chance.

use atoll_tests::rng::Rng;
use atoll_vfs::{FallocateMode, OpenFlags, RenameFlags, SetAttr, SetTime, Timespec};

use crate::call::{Call, File, Letter, Node};

/// How the calls of a schedule are chosen.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// Bytes of a write at most.
    pub write_max: u64,
    /// Bytes of an extended attribute at most.
    pub xattr_max: u64,
    /// All want the file `a`: mounts to read it, and everybody to lock it.
    pub meets: bool,
    /// The device fails now and then.
    pub trouble: bool,
}

fn letter(rng: &mut Rng) -> Letter {
    b'a' + rng.within(0..4) as u8
}

fn mode(rng: &mut Rng) -> u32 {
    rng.pick(&[0o644, 0o600, 0o666, 0o777])
}

fn offset(rng: &mut Rng) -> u64 {
    match rng.within(0..4) {
        0 | 1 => rng.within(0..300),
        2 => rng.within(0..4) * 4096,
        _ => rng.within(0..20_000),
    }
}

fn set(rng: &mut Rng) -> SetAttr {
    let mut set = SetAttr::default();
    match rng.within(0..6) {
        0..3 => set.size = Some(if rng.chance(30) { 0 } else { offset(rng) }),
        3 => set.mode = Some(mode(rng)),
        4 => set.mtime = Some(SetTime::To(Timespec { sec: rng.within(0..99) as i64, nsec: 7 })),
        _ => (set.mode, set.size) = (Some(0o666), Some(offset(rng))),
    }
    set
}

fn flags(rng: &mut Rng) -> OpenFlags {
    let mut flags = rng.pick(&[
        OpenFlags::READ,
        OpenFlags::READ,
        OpenFlags::WRITE,
        OpenFlags::READ | OpenFlags::WRITE,
    ]);
    let writes = flags.contains(OpenFlags::WRITE);
    flags.set(OpenFlags::TRUNC, writes && rng.chance(15));
    flags.set(OpenFlags::APPEND, writes && rng.chance(15));
    flags
}

/// A call on the way to changing the file `a`.
pub fn writing(rng: &mut Rng, nodes: &[Node], files: &[File]) -> Call {
    let fill = rng.number() as u32;
    match files.last() {
        Some(&file) => Call::Write { file, offset: 0, len: 9, fill, append: false },
        None => Call::Create { parent: nodes[0], name: b'a', mode: 0o666, flags: OpenFlags::WRITE },
    }
}

/// A call on the way to reading the file `a`.
pub fn reading(rng: &mut Rng, nodes: &[Node], files: &[File]) -> Call {
    match (files.last(), nodes) {
        (Some(&file), _) if rng.chance(70) => Call::Read { file, offset: 0, len: 4096 },
        (_, [_, .., node]) if rng.chance(70) => Call::Open { node: *node, flags: OpenFlags::READ },
        _ => Call::Lookup { parent: nodes[0], name: b'a' },
    }
}

/// A call of a client that knows `nodes`, the root of its session first, and has `files` and `dirs`
/// open.
pub fn call(rng: &mut Rng, habits: &Habits, nodes: &[Node], files: &[File], dirs: &[File]) -> Call {
    let any = |rng: &mut Rng| nodes[rng.within(0..nodes.len() as u64) as usize];
    let parent = |rng: &mut Rng| if rng.chance(60) { nodes[0] } else { any(rng) };
    if !files.is_empty() && rng.chance(45) {
        let file = files[rng.within(0..files.len() as u64) as usize];
        let (offset, fill) = (offset(rng), rng.number() as u32);
        let len = rng.within(1..habits.write_max);
        return match rng.within(0..20) {
            0..7 => Call::Write { file, offset, len: len as u32, fill, append: false },
            7..13 => Call::Read { file, offset, len: 4096 },
            13 => {
                let mode = rng.pick(&[
                    FallocateMode::empty(),
                    FallocateMode::KEEP_SIZE,
                    FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE,
                    FallocateMode::ZERO_RANGE,
                ]);
                Call::Fallocate { file, offset, len, mode }
            }
            14..16 => Call::Setattr { node: file.node, file: Some(file), set: set(rng) },
            16..18 => Call::Release { file },
            _ => Call::Getattr { node: file.node },
        };
    }
    if !dirs.is_empty() && rng.chance(20) {
        let file = dirs[rng.within(0..dirs.len() as u64) as usize];
        return match rng.chance(60) {
            true => Call::Readdir { file },
            false => Call::Releasedir { file },
        };
    }
    match rng.within(0..50) {
        0..8 => Call::Create {
            parent: parent(rng),
            name: letter(rng),
            mode: mode(rng),
            flags: flags(rng) | if rng.chance(10) { OpenFlags::EXCL } else { OpenFlags::empty() },
        },
        8..15 => Call::Lookup { parent: parent(rng), name: letter(rng) },
        15..20 => Call::Getattr { node: any(rng) },
        20..25 => Call::Open { node: any(rng), flags: flags(rng) },
        25..28 => Call::Setattr { node: any(rng), file: None, set: set(rng) },
        28..30 => Call::Mkdir { parent: parent(rng), name: letter(rng), mode: mode(rng) | 0o111 },
        30..32 => Call::Mknod { parent: parent(rng), name: letter(rng), mode: mode(rng) },
        32 => {
            let len = rng.within(1..300) as u16;
            Call::Symlink { parent: parent(rng), name: letter(rng), len }
        }
        33 => Call::Readlink { node: any(rng) },
        34..37 => Call::Unlink { parent: parent(rng), name: letter(rng) },
        37 => Call::Rmdir { parent: parent(rng), name: letter(rng) },
        38..41 => Call::Rename {
            parent: parent(rng),
            name: letter(rng),
            new_parent: parent(rng),
            new_name: letter(rng),
            flags: rng.pick(&[
                RenameFlags::empty(),
                RenameFlags::empty(),
                RenameFlags::NOREPLACE,
                RenameFlags::EXCHANGE,
                RenameFlags::WHITEOUT,
            ]),
        },
        41..43 => Call::Link { node: any(rng), parent: parent(rng), name: letter(rng) },
        43..45 => Call::Opendir { node: parent(rng) },
        45..48 => {
            let len = rng.within(0..habits.xattr_max) as u32;
            Call::Setxattr { node: any(rng), name: letter(rng), len, fill: rng.number() as u32 }
        }
        48 => Call::Getxattr { node: any(rng), name: letter(rng) },
        _ => Call::Removexattr { node: any(rng), name: letter(rng) },
    }
}
