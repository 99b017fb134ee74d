//! The volumes that hostile images are made from: small, and with some of everything.

use std::sync::OnceLock;

use atoll_block::{Addressable, BLOCK_SIZE, RamDevice};
use atoll_fs::layout::{common, get32, magic};
use atoll_fs::{FormatOptions, Fs, MountOptions};
use atoll_vfs::{
    Context, FallocateMode, FileSystem, Ino, Name, OpenFlags, Result, SetAttr, Timespec, XattrFlags,
};

/// Blocks of each volume: 2 MiB.
const BLOCKS: u64 = 512;

/// The incarnation that the images were mounted with.
pub const INCARNATION: [u8; 16] = [7; 16];

/// The caller of everything here.
pub const CONTEXT: Context = Context { uid: 1, gid: 2, now: Timespec { sec: 1_000, nsec: 5 } };

/// A sound image.
#[derive(Debug)]
pub struct Image {
    /// Its name, for people.
    pub name: &'static str,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The offsets of its blocks that are not all zeros.
    pub used: Vec<usize>,
    /// The offsets of its tree nodes and map blocks.
    pub tree: Vec<usize>,
}

impl Image {
    fn new(name: &'static str, bytes: Vec<u8>) -> Image {
        let offsets = |wanted: fn(&[u8]) -> bool| {
            let blocks = bytes.chunks_exact(BLOCK_SIZE).enumerate();
            let blocks = blocks.filter(|(_, block)| wanted(block));
            blocks.map(|(index, _)| index * BLOCK_SIZE).collect()
        };
        let used = offsets(|block| block.iter().any(|&byte| byte != 0));
        let tree =
            offsets(|block| [magic::NODE, magic::MAP].contains(&get32(block, common::MAGIC)));
        Image { name, bytes, used, tree }
    }
}

/// How images are mounted.
pub fn mount_options(incarnation: [u8; 16], read_only: bool) -> MountOptions {
    MountOptions { read_only, incarnation, cache_bytes: 1 << 20, ..MountOptions::default() }
}

/// An empty volume.
///
/// # Panics
/// If one cannot be made, which is a defect.
pub fn empty(blocks: u64) -> RamDevice {
    let mut device = RamDevice::new(blocks);
    let options = FormatOptions { uuid: [3; 16], hash_key: [11; 16], ..FormatOptions::default() };
    atoll_fs::format(&mut device, &options).expect("a device in memory takes a volume");
    device
}

/// All sound images: unmounted cleanly; left by the end of a process, its operations in the
/// journal; the same with many checkpoints behind it.
///
/// # Panics
/// If they cannot be made, which is a defect.
pub fn images() -> &'static [Image] {
    static IMAGES: OnceLock<Vec<Image>> = OnceLock::new();
    IMAGES.get_or_init(|| {
        let mount = || {
            Fs::mount(empty(BLOCKS), &mount_options(INCARNATION, false))
                .expect("a new volume mounts")
        };
        let mut clean = mount();
        fill(&mut clean, 40).expect("there is room");
        let clean = clean.unmount().expect("memory does not fail").bytes().to_vec();

        let mut crashed = mount();
        fill(&mut crashed, 40).expect("there is room");
        let crashed = crashed.device().bytes().to_vec();

        let mut long = mount();
        for _ in 0..30 {
            fill(&mut long, 40).expect("there is room");
            empty_again(&mut long).expect("what was made is there");
        }
        fill(&mut long, 60).expect("there is room");
        let long = long.device().bytes().to_vec();
        vec![
            Image::new("clean", clean),
            Image::new("crashed", crashed),
            Image::new("crashed after many checkpoints", long),
        ]
    })
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).expect("a short name without slashes")
}

const BOTH: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// Makes some of everything, and leaves a file open whose name is gone.
fn fill<M: Addressable>(fs: &mut Fs<M>, files: u64) -> Result<()> {
    let cx = &CONTEXT;
    let root = Ino::ROOT;
    let dir = fs.mkdir(cx, root, name("dir"), 0o755)?.ino;
    let inner = fs.mkdir(cx, dir, name("inner"), 0o700)?.ino;
    for number in 0..files {
        let text = format!("file {number} {}", "with a long name ".repeat(number as usize % 9));
        let (attr, handle) = fs.create(cx, dir, name(&text), 0o644, BOTH)?;
        fs.write(cx, attr.ino, handle, number * 4096, b"some content")?;
        fs.release(cx, attr.ino, handle)?;
    }
    let (sparse, handle) = fs.create(cx, inner, name("sparse"), 0o644, BOTH)?;
    for hole in 0..20u64 {
        fs.write(cx, sparse.ino, handle, hole * 20_000, b"island")?;
    }
    fs.fallocate(cx, sparse.ino, handle, 500_000, 20_000, FallocateMode::KEEP_SIZE)?;
    fs.release(cx, sparse.ino, handle)?;
    fs.symlink(cx, root, name("symlink"), b"dir/inner/sparse")?;
    fs.link(cx, sparse.ino, root, name("hard link"))?;
    fs.mknod(cx, root, name("pipe"), 0o010600, 0)?;
    fs.setxattr(cx, sparse.ino, b"user.short", b"value", XattrFlags::empty())?;
    fs.setxattr(cx, dir, b"user.long", &[b'x'; 5000], XattrFlags::empty())?;
    let set = SetAttr { uid: Some(5), size: Some(1 << 40), ..SetAttr::default() };
    fs.setattr(cx, sparse.ino, None, &set)?;
    let (orphan, handle) = fs.create(cx, root, name("orphan"), 0o600, BOTH)?;
    fs.write(cx, orphan.ino, handle, 0, &[1; 10_000])?;
    fs.syncfs(cx)?;
    fs.unlink(cx, root, name("orphan"))?;
    Ok(())
}

/// Removes the files that [`fill`] made.
fn empty_again<M: Addressable>(fs: &mut Fs<M>) -> Result<()> {
    let cx = &CONTEXT;
    let mut pending = vec![(Ino::ROOT, Vec::new())];
    let mut directories = Vec::new();
    while let Some((dir, _)) = pending.pop() {
        let handle = fs.opendir(cx, dir)?;
        let mut entries = Vec::new();
        fs.readdir(cx, dir, handle, 0, &mut |entry| {
            entries.push((entry.ino, entry.file_type, entry.name.to_vec()));
            true
        })?;
        fs.releasedir(cx, dir, handle)?;
        for (ino, file_type, bytes) in entries {
            if bytes == b"." || bytes == b".." {
                continue;
            }
            if file_type == atoll_vfs::FileType::Directory {
                directories.push((dir, bytes.clone()));
                pending.push((ino, bytes));
            } else {
                fs.unlink(cx, dir, Name::new(&bytes)?)?;
            }
        }
    }
    for (parent, bytes) in directories.into_iter().rev() {
        fs.rmdir(cx, parent, Name::new(&bytes)?)?;
    }
    Ok(())
}
