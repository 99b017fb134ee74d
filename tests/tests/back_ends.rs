//! Volumes on disks that another process offers by vhost-user-blk: QEMU's storage daemon.

use std::path::Path;

use atoll_block::conformance::{BLOCKS, limits, random_operations};
use atoll_block::{BLOCK_SIZE, BlockDevice, BlockError, BlockIndex};
use atoll_fs::{CheckOptions, FormatOptions, Fs, MountOptions, check, format};
use atoll_host::device::{self, Access, Create, HostDevice, OpenError, OpenOptions};
use atoll_vfs::{Context, Errno, FileSystem, Ino, Name, OpenFlags};
use atoll_vm::StorageDaemon;

/// An image of so many blocks in `folder`.
fn image(folder: &Path, blocks: u64) -> std::path::PathBuf {
    let path = folder.join("image");
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(blocks * BLOCK_SIZE as u64).unwrap();
    path
}

fn open(daemon: &StorageDaemon) -> HostDevice {
    let access = Access::Direct { cache_bytes: 30_000 };
    device::open(&daemon.place(), &OpenOptions { access, ..OpenOptions::default() }).unwrap()
}

#[test]
fn keeps_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = StorageDaemon::start(&image(folder.path(), BLOCKS));
    let fresh = || {
        let mut device = open(&daemon);
        assert_eq!(device.block_count(), BLOCKS);
        device.discard(BlockIndex(0), BLOCKS).unwrap();
        device
    };
    limits(&mut fresh());
    random_operations("atoll-tests --test back_ends", "keeps_the_contract", 40, fresh);
}

/// Large transfers, and what was written is in the image, also before a flush.
#[test]
fn what_is_written_is_with_the_back_end() {
    const COUNT: u64 = 1024;
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path(), COUNT + 3);
    let daemon = StorageDaemon::start(&path);
    let data: Vec<u8> = (0..COUNT * BLOCK_SIZE as u64).map(|at| (at / 77) as u8).collect();
    let mut device = open(&daemon);
    device.write(BlockIndex(3), &data).unwrap();
    assert!(std::fs::read(&path).unwrap()[3 * BLOCK_SIZE..] == data);
    let mut read = vec![0; data.len()];
    device.read(BlockIndex(3), &mut read).unwrap();
    assert!(read == data);
    device.flush().unwrap();
}

#[test]
fn the_incarnation_is_the_life_of_the_back_end() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = StorageDaemon::start(&image(folder.path(), 64));
    let first = open(&daemon).incarnation();
    assert_ne!(first, [0; 16]);
    assert_eq!(open(&daemon).incarnation(), first);
    let looking = OpenOptions { read_only: true, ..OpenOptions::default() };
    assert_eq!(device::open(&daemon.place(), &looking).unwrap().incarnation(), first);
    // The socket is the same, and whoever bound it lives.
    daemon.restart();
    let second = open(&daemon).incarnation();
    assert!(second != [0; 16] && second != first);
}

#[test]
fn what_cannot_be_opened() {
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path(), 16);
    let daemon = StorageDaemon::read_only(&path);
    let options = OpenOptions::default();
    let open = |options: &OpenOptions| device::open(&daemon.place(), options).map(drop);
    assert_eq!(open(&options), Err(OpenError::ReadOnlyMedium));
    let looking = OpenOptions { read_only: true, ..options };
    assert_eq!(open(&looking), Ok(()));
    let sealable = OpenOptions { sealable: true, ..looking };
    assert_eq!(open(&sealable), Err(OpenError::NotSealable));
    let new = OpenOptions { create: Create::New, ..looking };
    assert_eq!(open(&new), Err(OpenError::Exists));
    let larger = OpenOptions { blocks: Some(17), ..looking };
    let bytes = |blocks: u64| blocks * BLOCK_SIZE as u64;
    assert_eq!(open(&larger), Err(OpenError::TooSmall { bytes: bytes(16), needed: bytes(17) }));
    let nobody = device::open(Path::new("vhost-user-blk:/nowhere/at/all"), &options).map(drop);
    let errno = rustix::io::Errno::NOENT.raw_os_error();
    assert_eq!(nobody, Err(OpenError::Host { call: "connect", errno }));
    // For looking nothing is written, though the back end would.
    let daemon = StorageDaemon::start(&path);
    let mut device = device::open(&daemon.place(), &looking).unwrap();
    assert_eq!(device.write(BlockIndex(0), &[1; BLOCK_SIZE]), Err(BlockError::ReadOnly));
    assert_eq!(device.discard(BlockIndex(0), 1), Err(BlockError::ReadOnly));
    assert!(!device.gives_back());
    // Let go while it is open, another has it.
    device.unlock();
    drop(device::open(&daemon.place(), &options).unwrap());
    assert_eq!(device.flush(), Err(BlockError::Io));
}

/// The back end is killed under a volume that is in use: calls end with an error, and what was
/// synced is there afterwards.
#[test]
fn the_end_of_a_back_end_is_power_loss() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = StorageDaemon::start(&image(folder.path(), 2048));
    let mut device = open(&daemon);
    format(&mut device, &FormatOptions { hash_key: [7; 16], ..FormatOptions::default() }).unwrap();
    let options = |device: &HostDevice| MountOptions {
        incarnation: device.incarnation(),
        cache_bytes: 0,
        ..MountOptions::default()
    };
    let mount = options(&device);
    let mut fs = Fs::mount(device, &mount).unwrap();
    let cx = Context { uid: 0, gid: 0, now: atoll_vfs::Timespec::default() };
    let made = |fs: &mut Fs<HostDevice>, name: String| {
        fs.mkdir(&cx, Ino::ROOT, Name::new(name.as_bytes()).unwrap(), 0o755).map(drop)
    };
    for number in 0..300 {
        made(&mut fs, format!("synced-{number}")).unwrap();
    }
    fs.syncfs(&cx).unwrap();
    daemon.kill();
    let refused = (0..10_000).find_map(|number| made(&mut fs, format!("later-{number}")).err());
    assert_eq!(refused, Some(Errno::EIO));
    drop(fs);

    daemon.restart();
    let mut device = open(&daemon);
    let again = options(&device);
    assert_ne!(again.incarnation, mount.incarnation);
    let checking = CheckOptions { incarnation: again.incarnation, ..CheckOptions::default() };
    assert!(check(&mut device, &checking).unwrap().is_clean());
    let mut fs = Fs::mount(device, &again).unwrap();
    for number in 0..300 {
        let name = format!("synced-{number}");
        fs.lookup(&cx, Ino::ROOT, Name::new(name.as_bytes()).unwrap()).unwrap();
    }
    fs.unmount().unwrap();
}

/// How many requests, and notifications of them, `of` takes.
fn counted(device: &HostDevice) -> (u64, u64) {
    let HostDevice::Guest(cached) = device else { unreachable!("it is a back end's") };
    cached.device().counts()
}

/// What goes to the disk for a thousand small files and a sync, for the checkpoint after them, and
/// for one large write. The bounds are those of the design: each operation is with the back end
/// when it returns.
#[test]
fn requests_and_notifications_are_few() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = StorageDaemon::start(&image(folder.path(), 32 << 10));
    let mut device = device::open(&daemon.place(), &OpenOptions::default()).unwrap();
    format(&mut device, &FormatOptions { hash_key: [7; 16], ..FormatOptions::default() }).unwrap();
    let options = MountOptions { incarnation: device.incarnation(), ..MountOptions::default() };
    let mut fs = Fs::mount(device, &options).unwrap();
    let cx = Context { uid: 0, gid: 0, now: atoll_vfs::Timespec::default() };
    let mut last = counted(fs.device());
    let mut since = |device: &HostDevice, what: &str| {
        let now = counted(device);
        let (requests, rings) = (now.0 - last.0, now.1 - last.1);
        println!("{what}: {requests} requests, {rings} notifications");
        last = now;
        (requests, rings)
    };
    for number in 0..1000 {
        let name = format!("file-{number}");
        let name = Name::new(name.as_bytes()).unwrap();
        let (made, handle) = fs.create(&cx, Ino::ROOT, name, 0o644, OpenFlags::WRITE).unwrap();
        fs.write(&cx, made.ino, handle, 0, &[7; 1000]).unwrap();
        fs.release(&cx, made.ino, handle).unwrap();
    }
    let made = since(fs.device(), "1,000 files of 1,000 bytes");
    fs.syncfs(&cx).unwrap();
    let synced = since(fs.device(), "sync");
    let device = fs.unmount().unwrap();
    let home = since(&device, "checkpoint");
    let mut fs = Fs::mount(device, &options).unwrap();
    let name = Name::new(b"large").unwrap();
    let (large, handle) = fs.create(&cx, Ino::ROOT, name, 0o644, OpenFlags::WRITE).unwrap();
    since(fs.device(), "a mount, and a file");
    let data = vec![7; 16 << 20];
    for (at, piece) in data.chunks(1 << 20).enumerate() {
        fs.write(&cx, large.ino, handle, (at << 20) as u64, piece).unwrap();
    }
    let written = since(fs.device(), "16 MiB by writes of 1 MiB");
    fs.unmount().unwrap();
    // For each file its data and two records, some of which reach into another block.
    assert!(made.0 < 3200, "{made:?}");
    assert!(synced.0 < 30, "{synced:?}");
    // 51 blocks here and there, 8 at once, and the journal's header twice.
    assert!(home.0 < 70 && home.1 < 20, "{home:?}");
    // Each write by 8 requests at once, and a record.
    assert!(written.0 < 150 && written.1 < 40, "{written:?}");
}
