//! The memory of a volume's caches: how much they may take when nobody says, and huge pages for it.
#![allow(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

/// The most that a cache takes unless it is told to.
const MOST: u64 = 512 << 20;
/// The part of the memory that a cache takes.
const PART: u64 = 32;
/// Memory up to this is little.
const LITTLE: u64 = 64 << 20;

/// A bound for cached metadata, in bytes: a part of the memory that this process may have, by the
/// machine, its control group and its resource limits, and never more than 512 MiB. The kernel's
/// own caches of inodes and names have no such bound.
pub fn cache_bytes() -> usize {
    (most() / PART).min(MOST) as usize
}

/// The memory that this process may have, in bytes: by the machine, its control group and its
/// resource limits.
pub(crate) fn most() -> u64 {
    let info = rustix::system::sysinfo();
    let ram = (info.totalram as u64).saturating_mul(u64::from(info.mem_unit.max(1)));
    let limits = [Resource::As, Resource::Data].map(|resource| getrlimit(resource).current);
    limits.into_iter().flatten().chain(own_group_limit()).fold(ram, u64::min)
}

/// Whether the control group of this process allows so little memory that what it writes to files
/// would fill that before the host takes notice.
pub(crate) fn is_little() -> bool {
    own_group_limit().is_some_and(|limit| limit <= LITTLE)
}

fn own_group_limit() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    group_limit(Path::new("/sys/fs/cgroup"), &groups)
}

/// Asks for huge pages in the `len` bytes at `address`, which a cache is about to use. Without them
/// a lookup in a large directory waits for address translation more than for anything else. Does
/// nothing where the kernel has none.
pub fn use_huge_pages(address: *const u8, len: usize) {
    /// Small caches would be rounded up to more than they may take.
    const LEN_MIN: usize = 8 << 20;
    const PAGE: usize = 4096;
    let first = (address as usize).next_multiple_of(PAGE);
    let end = (address as usize).saturating_add(len) / PAGE * PAGE;
    if len < LEN_MIN || first >= end {
        return;
    }
    // SAFETY: MADV_HUGEPAGE changes how memory is backed, never its content, whoever owns it.
    let _ = unsafe {
        rustix::mm::madvise(
            std::ptr::without_provenance_mut(first),
            end - first,
            rustix::mm::Advice::LinuxHugepage,
        )
    };
}

/// The least memory limit among the control groups that `groups`, the content of
/// /proc/self/cgroup, names below `root`.
fn group_limit(root: &Path, groups: &str) -> Option<u64> {
    groups.lines().filter_map(|line| limit_of(root, line)).min()
}

fn limit_of(root: &Path, line: &str) -> Option<u64> {
    let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
    let (mut folder, file): (PathBuf, &str) = match controllers {
        "" => (root.to_path_buf(), "memory.max"),
        c if c.split(',').any(|c| c == "memory") => (root.join("memory"), "memory.limit_in_bytes"),
        _ => return None,
    };
    let mut least = None;
    for part in Path::new(path.trim_start_matches('/')).iter() {
        folder.push(part);
        // A group without a limit says "max", or a number beyond any memory.
        let limit = fs::read_to_string(folder.join(file)).ok();
        let limit = limit.and_then(|text| text.trim().parse::<u64>().ok());
        least = least.into_iter().chain(limit).min();
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_groups() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("a/memory.max", "max\n");
        put("a/b/memory.max", "8388608\n");
        put("memory/c/memory.limit_in_bytes", "4096\n");
        assert_eq!(group_limit(root.path(), "0::/a\n"), None);
        assert_eq!(group_limit(root.path(), "0::/a/b\n"), Some(8 << 20));
        assert_eq!(group_limit(root.path(), "3:cpu:/c\n4:memory:/c\n0::/a/b\n"), Some(4096));
        assert_eq!(group_limit(root.path(), "nonsense\n"), None);
    }

    #[test]
    fn a_bound_is_given() {
        assert!((1..=512 << 20).contains(&cache_bytes()));
    }
}
