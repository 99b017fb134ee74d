//! Users and groups of a guest that stand for others here: a map of ranges of numbers, as user
//! namespaces have it.
//!
//! A map says whose the files are, and not what the guest may do: its kernel has checked that.

use std::fmt;

use atoll_vfs::wire::Request;
use atoll_vfs::wire::attributes::{FATTR_GID, FATTR_UID};
use atoll_vfs::wire::header::InHeader;
use atoll_vfs::{Attr, Errno, Result};

/// The most ranges that a map has.
const RANGES_MAX: usize = 8;
/// The number that a guest is shown of whoever has none there: Linux's overflowuid.
pub const NOBODY: u32 = 65534;

/// Numbers of a guest, and those here that they stand for, one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdRange {
    /// The first number of the guest's.
    pub guest: u32,
    /// The first of those here.
    pub host: u32,
    /// How many there are.
    pub count: u32,
}

/// Why ranges are no map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoMap {
    /// There are none, or more than a map has.
    Number,
    /// A range of no numbers.
    Empty,
    /// A range that reaches beyond the last number, 4294967294.
    Beyond,
    /// Two ranges have a number of the guest's in common, or one of those here.
    Overlap,
}

impl fmt::Display for NoMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoMap::Number => write!(f, "a map has 1 to {RANGES_MAX} ranges"),
            NoMap::Empty => f.write_str("a range has at least one number"),
            NoMap::Beyond => f.write_str("a range ends before 4294967295, which is nobody's"),
            NoMap::Overlap => f.write_str("two ranges have a number in common"),
        }
    }
}

impl std::error::Error for NoMap {}

/// Which user and group of a guest stands for which one here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdMap {
    /// Those that are not used are empty.
    ranges: [IdRange; RANGES_MAX],
}

fn overlap(one: u32, other: u32, counts: (u32, u32)) -> bool {
    let (one, other) = (u64::from(one), u64::from(other));
    one < other + u64::from(counts.1) && other < one + u64::from(counts.0)
}

impl IdMap {
    /// The map of these ranges.
    ///
    /// # Errors
    /// When they are none.
    pub fn new(ranges: &[IdRange]) -> std::result::Result<IdMap, NoMap> {
        if ranges.is_empty() || ranges.len() > RANGES_MAX {
            return Err(NoMap::Number);
        }
        for (i, range) in ranges.iter().enumerate() {
            if range.count == 0 {
                return Err(NoMap::Empty);
            }
            // The last number of all says that none is meant.
            if [range.guest, range.host].iter().any(|first| u32::MAX - first < range.count) {
                return Err(NoMap::Beyond);
            }
            for other in &ranges[..i] {
                let counts = (range.count, other.count);
                if overlap(range.guest, other.guest, counts)
                    || overlap(range.host, other.host, counts)
                {
                    return Err(NoMap::Overlap);
                }
            }
        }
        let mut map = IdMap { ranges: [IdRange::default(); RANGES_MAX] };
        map.ranges[..ranges.len()].copy_from_slice(ranges);
        Ok(map)
    }

    /// The number here of a guest's.
    pub fn to_host(&self, guest: u32) -> Option<u32> {
        self.ranges.iter().find_map(|range| {
            let at = guest.checked_sub(range.guest).filter(|at| *at < range.count)?;
            Some(range.host + at)
        })
    }

    /// The guest's number of one here.
    pub fn to_guest(&self, host: u32) -> Option<u32> {
        self.ranges.iter().find_map(|range| {
            let at = host.checked_sub(range.host).filter(|at| *at < range.count)?;
            Some(range.guest + at)
        })
    }

    /// The number that a guest is shown of one here.
    pub fn shown(&self, host: u32) -> u32 {
        self.to_guest(host).unwrap_or(NOBODY)
    }

    /// The user and group here who make a request of a guest's: nobody, where they have none.
    pub fn caller(&self, uid: u32, gid: u32) -> (u32, u32) {
        (self.to_host(uid).unwrap_or(NOBODY), self.to_host(gid).unwrap_or(NOBODY))
    }

    /// Has a request of a guest name users and groups of here. `owned` looks up the inode that it
    /// is about.
    ///
    /// # Errors
    /// `EOVERFLOW` for one that gives a file to whoever has no number here, or makes one for such;
    /// `EPERM` for one that takes a file from an owner who has none in the guest.
    pub(crate) fn request(
        &self,
        header: &mut InHeader,
        request: &mut Request<'_>,
        owned: impl FnOnce() -> Result<Attr>,
    ) -> Result<()> {
        let (uid, gid) = (self.to_host(header.uid), self.to_host(header.gid));
        let makes = matches!(
            request,
            Request::Mknod { .. }
                | Request::Mkdir { .. }
                | Request::Symlink { .. }
                | Request::Create { .. }
                | Request::Tmpfile { .. }
        );
        if makes && (uid.is_none() || gid.is_none()) {
            return Err(Errno::EOVERFLOW);
        }
        (header.uid, header.gid) = self.caller(header.uid, header.gid);
        let Request::Setattr(args) = request else { return Ok(()) };
        if args.valid & (FATTR_UID | FATTR_GID) == 0 {
            return Ok(());
        }
        let map = |asked: &mut u32, bit| {
            if args.valid & bit != 0 {
                *asked = self.to_host(*asked).ok_or(Errno::EOVERFLOW)?;
            }
            Ok::<(), Errno>(())
        };
        map(&mut args.uid, FATTR_UID)?;
        map(&mut args.gid, FATTR_GID)?;
        let attr = owned()?;
        let both = [attr.uid, attr.gid];
        if both.iter().any(|id| self.to_guest(*id).is_none()) { Err(Errno::EPERM) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(ranges: &[(u32, u32, u32)]) -> std::result::Result<IdMap, NoMap> {
        let range = |&(guest, host, count): &(u32, u32, u32)| IdRange { guest, host, count };
        IdMap::new(&ranges.iter().map(range).collect::<Vec<_>>())
    }

    #[test]
    fn numbers_go_there_and_back() {
        let map = map(&[(0, 100_000, 1000), (1000, 1000, 1), (5000, 0, 2)]).unwrap();
        for (guest, host) in [(0, 100_000), (999, 100_999), (1000, 1000), (5000, 0), (5001, 1)] {
            assert_eq!((map.to_host(guest), map.to_guest(host)), (Some(host), Some(guest)));
        }
        for id in [1001, 4999, 5002, NOBODY, u32::MAX] {
            assert_eq!(map.to_host(id), None, "{id}");
        }
        for id in [2, 999, 1001, 99_999, 101_000, u32::MAX] {
            assert_eq!((map.to_guest(id), map.shown(id)), (None, NOBODY), "{id}");
        }
    }

    #[test]
    fn ranges_that_are_no_map() {
        assert_eq!(map(&[]), Err(NoMap::Number));
        assert_eq!(map(&[(0, 0, 1); 9]), Err(NoMap::Number));
        assert_eq!(map(&[(0, 0, 0)]), Err(NoMap::Empty));
        assert_eq!(map(&[(1, 0, u32::MAX)]), Err(NoMap::Beyond));
        assert_eq!(map(&[(0, u32::MAX, 1)]), Err(NoMap::Beyond));
        assert!(map(&[(0, 0, u32::MAX)]).is_ok());
        assert_eq!(map(&[(0, 10, 5), (4, 20, 5)]), Err(NoMap::Overlap));
        assert_eq!(map(&[(0, 10, 5), (10, 14, 5)]), Err(NoMap::Overlap));
        assert!(map(&[(0, 10, 5), (5, 15, 5)]).is_ok());
        assert!(map(&[(5, 15, 5), (0, 10, 5)]).is_ok());
    }
}
