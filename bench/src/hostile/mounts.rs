//! Attacks of strangers with FUSE mounts: a served one of theirs, or one that they serve
//! themselves.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_host::client::Connection;
use atoll_host::control;
use atoll_host::fuse::mount::{self as fuse, MountOptions};
use atoll_host::server::rules::Mode;
use atoll_vfs::AccessTimes;
use atoll_vfs::wire::attributes::{AttrOut, EntryOut, RawAttr};
use atoll_vfs::wire::files::OpenOut;
use atoll_vfs::wire::fixed::Fixed;
use atoll_vfs::wire::header::{InHeader, OutHeader};
use atoll_vfs::wire::opcode::*;
use atoll_vfs::wire::session::{InitOut, MAJOR};
use rustix::mount::UnmountFlags;

use super::attacks::Scene;
use super::rings::{BIG, become_user, open};
use crate::record::Broken;
use crate::system;

/// The mounts, by their directories.
static MOUNTS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Takes all mounts down, whoever uses them: their kernel answers every request with an error.
pub fn down() {
    for target in MOUNTS.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        let how = UnmountFlags::FORCE | UnmountFlags::DETACH;
        let _ = rustix::mount::unmount(&target, how);
        let _ = fs::remove_dir(&target);
    }
}

/// Mounts a new device, as the superuser, for `user`.
fn mount(user: u32) -> Result<(OwnedFd, PathBuf), Broken> {
    let target = tempfile::Builder::new().prefix("stranger").tempdir()?.keep();
    MOUNTS.lock().unwrap_or_else(PoisonError::into_inner).push(target.clone());
    let options = MountOptions {
        source: Path::new("stranger"),
        read_only: false,
        owner: (user, user),
        checked: false,
        access_times: AccessTimes::Noatime,
    };
    let device = fuse::open_device().map_err(|error| Broken(error.to_string()))?;
    fuse::mount(&device, &target, &options).map_err(|error| Broken(error.to_string()))?;
    Ok((device, target))
}

/// Mounts what the server serves, `count` times, as the user of `scene`.
fn served(scene: &Scene, count: usize) -> Result<Vec<Served>, Broken> {
    let made: Vec<_> = (0..count).map(|_| mount(scene.user)).collect::<Result<_, _>>()?;
    become_user(scene.user)?;
    let serve = |(device, target): (OwnedFd, PathBuf)| {
        let session = open(&scene.socket).map_err(Broken)?;
        let granted = session.mount(device.as_fd(), Mode::Write, false);
        granted.map_err(|error| Broken(error.to_string()))?;
        Ok(Served { _session: session, device, target })
    };
    made.into_iter().map(serve).collect()
}

/// A mount that the server serves.
struct Served {
    /// For as long as the mount.
    _session: Connection,
    /// The kernel takes the mount for gone when the last copy is closed.
    device: OwnedFd,
    target: PathBuf,
}

/// Four threads that read a megabyte at a time, past the page cache.
pub fn reads(scene: &Scene) -> Result<(), Broken> {
    let mounts = served(scene, 2)?;
    scene.ready();
    let threads = mounts.iter().flat_map(|mount| [mount; 2]).map(|mount| {
        let big = mount.target.join(BIG);
        std::thread::spawn(move || {
            let big = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(big)?;
            let mut buffer = vec![0; 1 << 20];
            loop {
                big.read_at(&mut buffer, 0)?;
            }
        })
    });
    let threads: Vec<std::thread::JoinHandle<std::io::Result<()>>> = threads.collect();
    threads.into_iter().try_for_each(|one| match one.join() {
        Ok(Err(error)) => Err(error.into()),
        _ => Err(Broken("a thread ended".into())),
    })
}

/// Locks on four mounts, threads that wait for one, and one let go of again and again.
pub fn locks(scene: &Scene) -> Result<(), Broken> {
    let mounts = served(scene, 4)?;
    let (held, waiting) = if scene.smoke { (100, 4) } else { (10_000, 50) };
    let open = |mount: &Served| {
        let path = mount.target.join("locked");
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
    };
    let files = mounts.iter().map(open).collect::<Result<Vec<File>, _>>()?;
    for lock in 0..held {
        let file = &files[lock as usize % files.len()];
        if let Err(error) = system::lock(file, libc::F_RDLCK, lock * 2, false) {
            scene.note(&format!("{lock} locks: {error}"));
            break;
        }
    }
    for waiter in 0..waiting {
        let file = open(&mounts[waiter % mounts.len()])?;
        std::thread::spawn(move || system::lock(&file, libc::F_WRLCK, 0, true));
    }
    scene.ready();
    loop {
        system::lock(&files[0], libc::F_UNLCK, 1, false)?;
    }
}

/// The server lends attributes to eight mounts; their kernels forget the inodes, of which the
/// server is never told. Each change of them then waits for kernels that have nothing to take.
pub fn forgets(scene: &Scene) -> Result<(), Broken> {
    let mounts = served(scene, 8)?;
    let lent = |mount: &Served| -> Result<Vec<PathBuf>, Broken> {
        let names = fs::read_dir(&mount.target)?.filter_map(Result::ok);
        let paths = names.map(|entry| entry.path());
        Ok(paths.filter(|path| path.to_string_lossy().contains("/victim")).collect())
    };
    let targets = mounts.iter().map(lent).collect::<Result<Vec<_>, _>>()?;
    let takes: Vec<_> = mounts.iter().map(|_| Arc::new(AtomicBool::new(false))).collect();
    for (mount, take) in mounts.iter().zip(&takes) {
        // The server's reads share this.
        rustix::io::ioctl_fionbio(&mount.device, true).map_err(|e| Broken(e.to_string()))?;
        for _ in 0..2 {
            let (device, take) = (File::from(mount.device.try_clone()?), Arc::clone(take));
            std::thread::spawn(move || taker(device, &take));
        }
    }
    scene.ready();
    loop {
        for (paths, take) in targets.iter().zip(&takes) {
            for path in paths {
                let _ = fs::metadata(path);
                // The next one is answered here: no such name. Its kernel forgets the inode.
                take.store(true, Ordering::SeqCst);
                let _ = fs::metadata(path);
                for _ in 0..40 {
                    if !take.load(Ordering::SeqCst) {
                        break;
                    }
                    std::thread::sleep(Duration::from_micros(50));
                }
                take.store(false, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
}

/// While it may, takes requests from `device`, until it has a FORGET.
fn taker(mut device: File, take: &AtomicBool) {
    let mut buffer = vec![0; 2 << 20];
    loop {
        if !take.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_micros(50));
            continue;
        }
        let Ok(len) = device.read(&mut buffer) else { continue };
        let Some((header, _)) = InHeader::get(&buffer[..len]) else { continue };
        if matches!(header.opcode, FUSE_FORGET | FUSE_BATCH_FORGET) {
            take.store(false, Ordering::SeqCst);
        } else {
            let _ = reply(&mut device, header.unique, -libc::ENOENT, &[]);
        }
    }
}

fn reply(device: &mut File, unique: u64, error: i32, body: &[u8]) -> std::io::Result<()> {
    let len = (OutHeader::SIZE + body.len()) as u32;
    let mut message = vec![0; OutHeader::SIZE];
    OutHeader { len, error, unique }.store(&mut message);
    message.extend_from_slice(body);
    device.write_all(&message)
}

fn bytes(value: &impl Fixed, size: usize) -> Vec<u8> {
    let mut out = vec![0; size];
    value.store(&mut out);
    out
}

/// A file of a mount that the stranger serves itself, as a descriptor: close(2) makes the kernel
/// ask for a FLUSH, which it never answers.
pub fn close(scene: &Scene) -> Result<(), Broken> {
    let (device, target) = mount(scene.user)?;
    become_user(scene.user)?;
    let (mut device, user) = (File::from(device), scene.user);
    std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 20];
        while let Ok(len) = device.read(&mut buffer) {
            let Some((header, _)) = InHeader::get(&buffer[..len]) else { continue };
            let is_root = header.nodeid == 1 && header.opcode != FUSE_LOOKUP;
            let (ino, mode) = if is_root { (1, 0o40_755) } else { (2, 0o100_666) };
            let attr = RawAttr { ino, mode, nlink: 1, uid: user, gid: user, ..RawAttr::default() };
            let body = match header.opcode {
                FUSE_INIT => bytes(
                    &InitOut { major: MAJOR, minor: 31, max_write: 4096, ..InitOut::default() },
                    InitOut::SIZE,
                ),
                FUSE_GETATTR => {
                    bytes(&AttrOut { attr_valid: 3600, attr, ..AttrOut::default() }, AttrOut::SIZE)
                }
                FUSE_LOOKUP => bytes(
                    &EntryOut {
                        nodeid: 2,
                        attr_valid: 3600,
                        entry_valid: 3600,
                        attr,
                        ..EntryOut::default()
                    },
                    EntryOut::SIZE,
                ),
                FUSE_OPEN => bytes(&OpenOut { fh: 7, ..OpenOut::default() }, OpenOut::SIZE),
                FUSE_FLUSH | FUSE_FORGET | FUSE_BATCH_FORGET => continue,
                _ => {
                    let _ = reply(&mut device, header.unique, -libc::ENOSYS, &[]);
                    continue;
                }
            };
            let _ = reply(&mut device, header.unique, 0, &body);
        }
    });
    let file = OpenOptions::new().read(true).write(true).open(target.join("x"))?;
    // As junk, for a ring, for a mount; from many threads, since each may wait for the server.
    let kept = Arc::new(Mutex::new(Vec::new()));
    let ring: &[u8] = b"atol\x01\0\x02\0\0\0\0\0";
    let mount: &[u8] = b"atol\x01\0\x01\0\0\0\0\0";
    for message in [b"junk".as_slice(), ring, mount].into_iter().cycle().take(24) {
        let (socket, file, kept) = (scene.socket.clone(), file.try_clone()?, Arc::clone(&kept));
        std::thread::spawn(move || {
            if let Ok(connection) = open(&socket) {
                let _ = control::send(&connection, message, &[file.as_fd()]);
                kept.lock().unwrap_or_else(PoisonError::into_inner).push((connection, file));
            }
        });
    }
    std::thread::sleep(Duration::from_millis(200));
    scene.ready();
    loop {
        std::thread::park();
    }
}
