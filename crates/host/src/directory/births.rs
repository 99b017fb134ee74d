//! Inodes that are recognised by their number and the time of their birth, by one call of the host
//! and without opening them.
//!
//! An inode's handle tells it from all others (`identity`), and takes four calls. Number and time
//! of birth do so as well once that time has passed: an inode that is recognised here lived when it
//! was noted, later than its birth by more than the host's clock for files is coarse. Another one
//! of its number is born after that, and so has another time. That holds on the host's own file
//! systems, whose times come from one clock; of Btrfs in the subvolume of the root alone, since the
//! device of another that has gone may become a snapshot's, with the same numbers and times.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::time::{Duration, SystemTime};

use atoll_vfs::Ino;
use rustix::fs::{AtFlags, Statx, StatxAttributes, StatxFlags, fstatfs, statx};

/// How old an inode is when it is noted: the host counts times of birth by its ticks, of which
/// there are 100 a second at least.
const AGE: Duration = Duration::from_millis(50);

/// The magic numbers of ext4, XFS, Btrfs and tmpfs.
const LOCAL: [i64; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994];

/// The birth of one inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Birth {
    number: u64,
    time: (i64, u32),
}

fn device(stat: &Statx) -> (u32, u32) {
    (stat.stx_dev_major, stat.stx_dev_minor)
}

impl Birth {
    /// That of the inode with these attributes, if they say it. The root of a mount has to be
    /// opened to be seen.
    fn of(stat: &Statx) -> Option<Birth> {
        let has = StatxFlags::from_bits_retain(stat.stx_mask);
        let tells_mounts = stat.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT);
        let is_mount = stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
        let told = has.contains(StatxFlags::INO | StatxFlags::BTIME) && tells_mounts && !is_mount;
        told.then_some(Birth {
            number: stat.stx_ino,
            time: (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec),
        })
    }

    /// Whether it was long ago at `now`.
    fn has_passed(&self, now: SystemTime) -> bool {
        let Ok(sec) = u64::try_from(self.time.0) else { return false };
        let then = SystemTime::UNIX_EPOCH.checked_add(Duration::new(sec, self.time.1));
        then.is_some_and(|then| now.duration_since(then).is_ok_and(|age| age > AGE))
    }
}

/// The births of the inodes that are known.
#[derive(Debug, Default)]
pub(super) struct Births {
    /// The device on which they tell inodes apart, if there is one.
    device: Option<(u32, u32)>,
    inos: HashMap<Birth, Ino>,
}

impl Births {
    /// For the file system of the directory `root`, if there is no other below it.
    pub fn of(root: BorrowedFd<'_>, is_alone: bool) -> Births {
        let tell = is_alone && fstatfs(root).is_ok_and(|found| LOCAL.contains(&found.f_type));
        let said = statx(root, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS);
        let device = said.ok().filter(|_| tell).as_ref().map(device);
        Births { device, inos: HashMap::new() }
    }

    /// Whether it is worth asking.
    pub fn tell(&self) -> bool {
        self.device.is_some()
    }

    /// That of the inode with these attributes, if it tells.
    fn birth(&self, stat: &Statx) -> Option<Birth> {
        Birth::of(stat).filter(|_| self.device == Some(device(stat)))
    }

    /// The inode with these attributes, if it was noted.
    pub fn find(&self, stat: &Statx) -> Option<Ino> {
        self.inos.get(&self.birth(stat)?).copied()
    }

    /// Notes `ino`, which has these attributes now and was found by its handle; for
    /// [`forget`](Self::forget).
    pub fn note(&mut self, ino: Ino, stat: &Statx, now: SystemTime) -> Option<Birth> {
        let birth = self.birth(stat).filter(|birth| birth.has_passed(now))?;
        self.inos.insert(birth, ino);
        Some(birth)
    }

    /// Its inode is not known any more.
    pub fn forget(&mut self, birth: Birth) {
        self.inos.remove(&birth);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::CWD;

    use super::*;

    #[test]
    fn an_inode_is_noted_when_its_birth_has_passed() {
        let dir = tempfile::tempdir().unwrap();
        let root = std::fs::File::open(dir.path()).unwrap();
        let mut births = Births::of(root.as_fd(), true);
        let file = dir.path().join("file");
        std::fs::write(&file, b"").unwrap();
        let now = SystemTime::now();
        let ask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let stat = statx(CWD, &file, AtFlags::empty(), ask).unwrap();
        assert_eq!(births.note(Ino(7), &stat, now), None, "another could be born in this tick");
        assert_eq!(births.find(&stat), None);
        let birth = births.note(Ino(7), &stat, now + 2 * AGE);
        // Of another device, as a subvolume has, it says nothing.
        let mut other = stat;
        other.stx_dev_minor ^= 1;
        assert_eq!(births.note(Ino(7), &other, now + 2 * AGE), None);
        // Elsewhere, as on an overlay, there is nothing to note.
        assert_eq!(births.tell(), birth.is_some());
        if let Some(birth) = birth {
            assert_eq!((births.find(&stat), births.find(&other)), (Some(Ino(7)), None));
            births.forget(birth);
            assert_eq!(births.find(&stat), None);
        }
        // A clock that was set back says nothing.
        assert_eq!(births.note(Ino(7), &stat, now - Duration::from_secs(9)), None);
    }
}
