//! The life of the memory that holds what was stored and not flushed.
//!
//! After the end of a process, recovery must know whether everything that was stored is still
//! there, or only what is durable. It is there if the memory is: the same boot, and on it the same
//! instance of the file system and of the disks below it, since a file system that is shut down, or
//! a disk that is pulled out, loses what was not written without a reboot. The name is a hash of
//! all that identifies these. Where a part cannot be known, there is no name, and only what is
//! durable counts: a wrong "another" costs what was not synced, a wrong "the same" what was.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Statx, StatxFlags};
use xxhash_rust::xxh3::xxh3_128;

use super::ioctls;

/// No name: never the same as any.
const UNKNOWN: [u8; 16] = [0; 16];

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Linux 6.8: unlike those before, never used again.
const STATX_MNT_ID_UNIQUE: u32 = 0x4000;
/// Linux 6.10.
const STATX_SUBVOL: u32 = 0x8000;
/// Devices below devices that are looked at.
const STACK_MAX: u32 = 8;

/// How the instance of a file system is told from the one before on the same disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Instance {
    /// It is gone with its memory, and a file that is there has lost nothing.
    Memory,
    /// By the folder of this type in sysfs, named like the disk. It is made by mount(2) and goes
    /// with the file system; no other inode gets its number. Otherwise as `Mount`.
    Sysfs(&'static str),
    /// The same for btrfs, whose folder is named by its UUID.
    Btrfs,
    /// By the mount, which keeps the file system alive. A file that is reached by another mount, as
    /// in another namespace, then counts as lost.
    Mount,
}

/// By the magic number of statfs(2). File systems that are not here have memory elsewhere, like
/// those of networks and FUSE, or are not known to keep a mount through the loss of its memory.
fn instance(magic: u32) -> Option<Instance> {
    Some(match magic {
        // tmpfs, ramfs
        0x0102_1994 | 0x8584_58f6 => Instance::Memory,
        // ext2, ext3 and ext4
        0xef53 => Instance::Sysfs("ext4"),
        0x5846_5342 => Instance::Sysfs("xfs"),
        0xf2f5_2010 => Instance::Sysfs("f2fs"),
        0x9123_683e => Instance::Btrfs,
        // overlay, which holds the file system below; vfat; exfat
        0x794c_7630 | 0x4d44 | 0x2011_bab0 => Instance::Mount,
        _ => return None,
    })
}

/// The life of the memory that holds what was stored in `file` and not flushed. While it is the
/// same, nothing that any process stored there has been lost. Zeros: it cannot be known.
pub(super) fn incarnation(file: &File) -> [u8; 16] {
    let mut evidence = Evidence(Vec::with_capacity(256));
    match evidence.gather(file) {
        Some(()) => xxh3_128(&evidence.0).to_be_bytes(),
        None => UNKNOWN,
    }
}

/// The life of the memory of a process, and of the memory that the host has what this process wrote
/// in. Zeros: it cannot be known. `process`: the namespace of its number, that number, and when it
/// started.
pub(super) fn of_process(process: [u64; 3]) -> [u8; 16] {
    let mut evidence = Evidence(Vec::with_capacity(64));
    match evidence.gather_machine() {
        Some(()) => {
            evidence.add(b"process");
            process.into_iter().for_each(|number| evidence.add_number(number));
            xxh3_128(&evidence.0).to_be_bytes()
        }
        None => UNKNOWN,
    }
}

/// Whether the file's storage is memory.
pub(super) fn is_memory(file: BorrowedFd<'_>) -> bool {
    let magic = rustix::fs::fstatfs(file).map(|found| found.f_type as u32);
    magic.is_ok_and(|magic| instance(magic) == Some(Instance::Memory))
        && rustix::fs::fstat(file)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
}

/// The boot ID.
pub(super) fn boot() -> Option<[u8; 16]> {
    parse_uuid(&std::fs::read(BOOT_ID).ok()?)
}

/// The facts that name a life.
struct Evidence(Vec<u8>);

impl Evidence {
    fn add(&mut self, what: &[u8]) {
        self.0.extend_from_slice(&(what.len() as u32).to_le_bytes());
        self.0.extend_from_slice(what);
    }

    fn add_number(&mut self, number: u64) {
        self.add(&number.to_le_bytes());
    }

    /// Of the boot, and of the machine. `None` where something that is needed cannot be known.
    fn gather_machine(&mut self) -> Option<()> {
        self.add(&boot()?);
        if let Some(generation) = machine_generation(Path::new("/dev/vmclock0")) {
            self.add_number(generation);
        }
        Some(())
    }

    /// The same of a file or disk.
    fn gather(&mut self, file: &File) -> Option<()> {
        self.gather_machine()?;
        let wanted = StatxFlags::BASIC_STATS
            | StatxFlags::BTIME
            | StatxFlags::from_bits_retain(STATX_MNT_ID_UNIQUE | STATX_SUBVOL);
        let stat = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, wanted).ok()?;
        match FileType::from_raw_mode(stat.stx_mode.into()) {
            FileType::BlockDevice => {
                self.add(b"disk");
                self.add_number(ioctls::disk_sequence(file.as_fd())?);
                self.disk(&device_folder(stat.stx_rdev_major, stat.stx_rdev_minor)?, 0)
            }
            FileType::RegularFile => self.file(file, &stat),
            _ => None,
        }
    }

    fn file(&mut self, file: &File, stat: &Statx) -> Option<()> {
        self.add(b"file");
        self.add_number(u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor));
        self.add_number(stat.stx_ino);
        self.add_number(if has(stat, STATX_SUBVOL) { stat.stx_subvol } else { 0 });
        // A copy that was put in the place of the file may have got its number.
        let generation = ioctls::inode_generation(file.as_fd());
        let born = has(stat, StatxFlags::BTIME.bits()).then_some(stat.stx_btime);
        if generation.is_none() && born.is_none() {
            return None;
        }
        self.add_number(generation.unwrap_or_default().into());
        self.add_number(born.map_or(0, |born| born.tv_sec as u64));
        self.add_number(born.map_or(0, |born| born.tv_nsec.into()));

        let magic = rustix::fs::fstatfs(file).ok()?.f_type as u32;
        let instance = instance(magic)?;
        if instance == Instance::Memory {
            return Some(());
        }
        let disk = device_folder(stat.stx_dev_major, stat.stx_dev_minor);
        let folder = match instance {
            Instance::Memory | Instance::Mount => None,
            // Named as the kernel names the disk.
            Instance::Sysfs(kind) => {
                let name = disk.as_deref().and_then(Path::file_name);
                name.map(|name| Path::new("/sys/fs").join(kind).join(name))
            }
            Instance::Btrfs => ioctls::btrfs_uuid(file.as_fd()).map(|uuid| btrfs_folder(&uuid)),
        };
        match folder.as_deref().and_then(sysfs_inode) {
            Some(inode) => self.add_number(inode),
            // A number of no mount twice, and no mount that outlives its file system.
            None if has(stat, STATX_MNT_ID_UNIQUE) => {
                self.add(b"mount");
                self.add_number(stat.stx_mnt_id);
            }
            None => return None,
        }
        match folder.map(|folder| folder.join("devices")).filter(|devices| devices.is_dir()) {
            Some(devices) => self.disks(&devices, 0),
            // Overlay has no disk of its own.
            None if stat.stx_dev_major == 0 => Some(()),
            None => self.disk(&disk?, 0),
        }
    }

    /// The disk with this folder in sysfs, which no link leads to, and those below it.
    fn disk(&mut self, folder: &Path, depth: u32) -> Option<()> {
        if depth > STACK_MAX || has_memory_elsewhere(folder) {
            return None;
        }
        // A partition lies in its disk's folder.
        let whole = if folder.join("partition").exists() { folder.parent()? } else { folder };
        if let Ok(sequence) = std::fs::read(whole.join("diskseq")) {
            self.add(&sequence);
        }
        self.disks(&folder.join("slaves"), depth + 1)
    }

    /// The disks that have links in `folder`.
    fn disks(&mut self, folder: &Path, depth: u32) -> Option<()> {
        let Ok(entries) = std::fs::read_dir(folder) else { return Some(()) };
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        paths.iter().try_for_each(|path| self.disk(&path.canonicalize().ok()?, depth))
    }
}

fn has(stat: &Statx, bit: u32) -> bool {
    stat.stx_mask & bit != 0
}

/// The disk's folder in sysfs. Without sysfs it may be anybody's.
fn device_folder(major: u32, minor: u32) -> Option<PathBuf> {
    let link = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    // Links of sysfs lead to a folder itself, by no further link: to follow them part by part would
    // cost as much as all else that names a life.
    match std::fs::read_link(&link).ok()?.strip_prefix("../../devices") {
        Ok(way) => Some(Path::new("/sys/devices").join(way)),
        Err(_) => link.canonicalize().ok(),
    }
}

fn btrfs_folder(uuid: &[u8; 16]) -> PathBuf {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    Path::new("/sys/fs/btrfs").join(parts.join("-"))
}

/// Whether a disk is that of another machine, which may lose what was written and not flushed while
/// this one stays up: by its name, or by a transport on its way.
fn has_memory_elsewhere(folder: &Path) -> bool {
    folder.components().any(|part| {
        let part = part.as_os_str().to_string_lossy();
        let names = ["nbd", "rbd", "drbd", "session", "nvme-fabrics"];
        names.iter().any(|name| {
            let rest = part.strip_prefix(name);
            rest.is_some_and(|rest| {
                rest.starts_with(|c: char| c.is_ascii_digit()) || rest.is_empty()
            })
        })
    })
}

/// The number of an inode that is really in sysfs. On processors of 64 bits none is used twice.
fn sysfs_inode(path: &Path) -> Option<u64> {
    const SYSFS_MAGIC: u32 = 0x6265_6572;
    if cfg!(not(target_pointer_width = "64")) {
        return None;
    }
    let folder = File::open(path).ok()?;
    let is_sysfs = rustix::fs::fstatfs(&folder).ok()?.f_type as u32 == SYSFS_MAGIC;
    let inode = rustix::fs::fstat(&folder).ok()?.st_ino;
    is_sysfs.then_some(inode)
}

/// The number that a virtual machine's host changes whenever it continues a saved state of its
/// memory: two machines from one image have the same boot ID. `None` where the host does not tell.
fn machine_generation(vmclock: &Path) -> Option<u64> {
    use std::io::Read;
    const MAGIC: &[u8] = b"VCLK";
    const FLAGS: usize = 24;
    const GENERATION_PRESENT: u64 = 1 << 8;
    const GENERATION: usize = 104;
    let mut page = [0; GENERATION + 8];
    File::open(vmclock).ok()?.read_exact(&mut page).ok()?;
    let number = |at: usize| Some(u64::from_le_bytes(page[at..at + 8].try_into().ok()?));
    let is_there = page.starts_with(MAGIC) && number(FLAGS)? & GENERATION_PRESENT != 0;
    number(GENERATION).filter(|_| is_there)
}

fn parse_uuid(text: &[u8]) -> Option<[u8; 16]> {
    let text = core::str::from_utf8(text).ok()?;
    let digits: String = text.trim_end().chars().filter(|&c| c != '-').collect();
    let valid = digits.len() == 32 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    let number = u128::from_str_radix(&digits, 16).ok().filter(|_| valid)?;
    Some(number.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_parsed_or_refused() {
        let text = b"00112233-4455-6677-8899-aabbccddeeff\n";
        let bytes = parse_uuid(text).unwrap();
        assert_eq!(bytes[..3], [0, 0x11, 0x22]);
        assert_eq!(bytes[15], 0xff);
        for bad in [&b""[..], b"00112233", &text[1..], b"+0112233445566778899aabbccddeeff", b"\xff"]
        {
            assert_eq!(parse_uuid(bad), None);
        }
        let folder = btrfs_folder(&bytes);
        assert!(folder.ends_with("00112233-4455-6677-8899-aabbccddeeff"), "{folder:?}");
    }

    #[test]
    fn a_disk_is_where_its_links_lead() {
        let links = std::fs::read_dir("/sys/dev/block").into_iter().flatten().flatten();
        for link in links {
            let name = link.file_name();
            let (major, minor) = name.to_str().and_then(|name| name.split_once(':')).unwrap();
            let found = device_folder(major.parse().unwrap(), minor.parse().unwrap());
            assert_eq!(found, link.path().canonicalize().ok(), "{name:?}");
        }
        assert_eq!(device_folder(4095, 1 << 19), None);
    }

    #[test]
    fn disks_of_other_machines_are_known_by_their_way() {
        for (path, expected) in [
            ("/sys/devices/virtual/block/nbd3", true),
            ("/sys/devices/rbd/0/block/rbd0", true),
            ("/sys/devices/virtual/block/drbd0", true),
            ("/sys/devices/platform/host3/session12/target3:0:0/3:0:0:0/block/sda", true),
            ("/sys/devices/virtual/nvme-fabrics/ctl/nvme0/nvme0n1", true),
            ("/sys/devices/pci0000:00/0000:00:04.0/virtio1/block/vda/vda1", false),
            ("/sys/devices/virtual/block/dm-0", false),
            ("/sys/devices/virtual/block/loop0", false),
        ] {
            assert_eq!(has_memory_elsewhere(Path::new(path)), expected, "{path}");
        }
    }

    #[test]
    fn a_machine_has_a_generation_if_its_host_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vmclock0");
        assert_eq!(machine_generation(&path), None);
        let mut page = vec![0; 4096];
        page[..4].copy_from_slice(b"VCLK");
        page[104..112].copy_from_slice(&77u64.to_le_bytes());
        std::fs::write(&path, &page).unwrap();
        assert_eq!(machine_generation(&path), None, "the flag is not set");
        page[25] = 1;
        std::fs::write(&path, &page).unwrap();
        assert_eq!(machine_generation(&path), Some(77));
        page[0] = b'X';
        std::fs::write(&path, &page).unwrap();
        assert_eq!(machine_generation(&path), None);
        std::fs::write(&path, &page[..100]).unwrap();
        assert_eq!(machine_generation(&path), None);
    }
}
