//! Shared by the tests of whole volumes: a seeded workload that uses every kind of item.
#![allow(dead_code)]

use atoll_block::Addressable;
use atoll_fs::{FormatOptions, Fs, MountOptions, format};
use atoll_vfs::*;

pub const CX: Context = Context { uid: 1, gid: 2, now: Timespec { sec: 5, nsec: 6 } };
pub const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
pub const BOOT: [u8; 16] = [7; 16];

/// xorshift64: the same seed, the same run.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

pub fn mount_options() -> MountOptions {
    MountOptions { incarnation: BOOT, ..MountOptions::default() }
}

pub fn format_seeded<M: Addressable>(device: &mut M, seed: u64) {
    let options =
        FormatOptions { hash_key: [seed as u8; 16], now: CX.now, ..FormatOptions::default() };
    format(device, &options).unwrap();
}

fn name_of(n: u64) -> Vec<u8> {
    let mut name = format!("name{n}").into_bytes();
    if n.is_multiple_of(5) {
        name.resize(200, b'x');
    }
    name
}

/// A directory to work in: the root or one of its subdirectories.
fn some_dir<M: Addressable>(fs: &mut Fs<M>, rng: &mut Rng) -> Ino {
    let name = name_of(rng.below(8));
    match fs.lookup(&CX, Ino::ROOT, Name::new(&name).unwrap()) {
        Ok(attr) if attr.file_type() == FileType::Directory => attr.ino,
        _ => Ino::ROOT,
    }
}

fn write_some<M: Addressable>(fs: &mut Fs<M>, rng: &mut Rng, ino: Ino, handle: Handle) {
    for _ in 0..rng.below(4) {
        let at = rng.below(60_000);
        let data = vec![rng.below(256) as u8; rng.below(9_000) as usize + 1];
        let _ = match rng.below(5) {
            0 => fs.fallocate(&CX, ino, handle, at, 9_000, FallocateMode::KEEP_SIZE),
            1 => {
                let mode = FallocateMode::KEEP_SIZE | FallocateMode::PUNCH_HOLE;
                fs.fallocate(&CX, ino, handle, at, 9_000, mode)
            }
            _ => fs.write(&CX, ino, handle, at, &data).map(|_| ()),
        };
    }
}

/// One random operation. It may be refused; it must not fail for other reasons.
pub fn step<M: Addressable>(fs: &mut Fs<M>, rng: &mut Rng) -> Result<()> {
    let dir = some_dir(fs, rng);
    let other = some_dir(fs, rng);
    let (a, b) = (name_of(rng.below(24)), name_of(rng.below(24)));
    let (a, b) = (Name::new(&a).unwrap(), Name::new(&b).unwrap());
    match rng.below(14) {
        0..=2 => {
            let (attr, handle) = fs.create(&CX, dir, a, 0o644, RW)?;
            write_some(fs, rng, attr.ino, handle);
            if rng.below(8) != 0 {
                fs.release(&CX, attr.ino, handle)?;
            }
        }
        3 => {
            let name = name_for_dir(rng, a);
            let _ = fs.mkdir(&CX, dir, name, 0o755)?;
        }
        4 => {
            let target = vec![b't'; rng.below(4095) as usize + 1];
            let _ = fs.symlink(&CX, dir, a, &target)?;
        }
        5 | 6 => fs.unlink(&CX, dir, a)?,
        7 => fs.rmdir(&CX, dir, a)?,
        8 => {
            let flags = [0, 1, 2, 4].map(RenameFlags::from_bits_retain);
            fs.rename(&CX, dir, a, other, b, flags[rng.below(4) as usize])?;
        }
        9 => {
            let attr = fs.lookup(&CX, dir, a)?;
            let _ = fs.link(&CX, attr.ino, other, b)?;
        }
        10 => {
            let attr = fs.lookup(&CX, dir, a)?;
            let value = vec![b'v'; rng.below(3_000) as usize];
            let name = format!("user.{}", rng.below(5));
            fs.setxattr(&CX, attr.ino, name.as_bytes(), &value, XattrFlags::empty())?;
        }
        11 => {
            let attr = fs.lookup(&CX, dir, a)?;
            let set = SetAttr { size: Some(rng.below(70_000)), ..SetAttr::default() };
            let _ = fs.setattr(&CX, attr.ino, None, &set)?;
        }
        12 => fs.syncfs(&CX)?,
        _ => {
            let (attr, handle) = fs.tmpfile(&CX, dir, 0o600, RW)?;
            write_some(fs, rng, attr.ino, handle);
            if rng.below(2) == 0 {
                fs.release(&CX, attr.ino, handle)?;
            }
        }
    }
    Ok(())
}

fn name_for_dir<'a>(rng: &mut Rng, name: Name<'a>) -> Name<'a> {
    const NAMES: [&[u8]; 4] = [b"name1", b"name2", b"name3", b"name4"];
    if rng.below(2) == 0 { Name::new(NAMES[rng.below(4) as usize]).unwrap() } else { name }
}

/// Runs `steps` operations; refusals are fine.
pub fn work<M: Addressable>(fs: &mut Fs<M>, rng: &mut Rng, steps: u64) {
    for _ in 0..steps {
        let _ = step(fs, rng);
    }
}
