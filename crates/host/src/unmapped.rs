//! The numbers that stand for everybody without a number of his own.
//!
//! A user namespace may have no number for some of the host's users and groups. The kernel then
//! says `overflowuid` and `overflowgid` of them, 65534 unless it is set otherwise, whoever they
//! are; and that may be the number of somebody whom the namespace does have.

use std::fs;

/// The numbers by which the kernel shows users and groups that this process's user namespace does
/// not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unmapped {
    uid: Option<u32>,
    gid: Option<u32>,
}

impl Unmapped {
    /// Asks the kernel, by files in /proc. Where they do not say, there may be such users.
    pub(crate) fn read() -> Unmapped {
        let number = |map: &str, overflow: &str| {
            if fs::read_to_string(map).is_ok_and(|map| is_total(&map)) {
                return None;
            }
            let said = fs::read_to_string(overflow).ok().and_then(|text| text.trim().parse().ok());
            Some(said.unwrap_or(65534))
        };
        Unmapped {
            uid: number("/proc/self/uid_map", "/proc/sys/kernel/overflowuid"),
            gid: number("/proc/self/gid_map", "/proc/sys/kernel/overflowgid"),
        }
    }

    /// Whether `uid` may be anybody's.
    pub(crate) fn has_user(self, uid: u32) -> bool {
        self.uid == Some(uid)
    }

    /// Whether `gid` may be any group's.
    pub(crate) fn has_group(self, gid: u32) -> bool {
        self.gid == Some(gid)
    }
}

/// Whether a `uid_map` or `gid_map`, user_namespaces(7), has all numbers: that of the first user
/// namespace does. The highest number is nobody's.
fn is_total(map: &str) -> bool {
    let count = |line: &str| line.split_whitespace().nth(2)?.parse::<u64>().ok();
    map.lines().filter_map(count).sum::<u64>() >= u64::from(u32::MAX)
}

#[cfg(test)]
impl Unmapped {
    /// Both are `number`.
    pub(crate) fn both(number: u32) -> Unmapped {
        Unmapped { uid: Some(number), gid: Some(number) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_of_the_first_and_of_other_namespaces() {
        assert!(is_total("         0          0 4294967295\n"));
        assert!(is_total("0 0 1000\n1000 1000 4294966295\n"));
        for partial in ["", "0 1000 1\n", "65534 3000 1\n", "0 0 65536\n", "0 0 x\n"] {
            assert!(!is_total(partial), "{partial}");
        }
    }
}
