//! A process of limited memory: a control group, of either version.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A control group that limits memory; removed when the value goes, which must be after the
/// processes in it have ended.
#[derive(Debug)]
pub struct Limit(PathBuf);

impl Limit {
    /// Makes a group that may use `bytes` of memory and no swap.
    pub fn new(bytes: u64) -> io::Result<Limit> {
        let name = format!("atoll-bench-{}", std::process::id());
        let version1 = Path::new("/sys/fs/cgroup/memory");
        let (folder, file, swap) = if version1.is_dir() {
            let swap = ("memory.memsw.limit_in_bytes", bytes);
            (version1.join(name), "memory.limit_in_bytes", swap)
        } else {
            (Path::new("/sys/fs/cgroup").join(name), "memory.max", ("memory.swap.max", 0))
        };
        fs::create_dir(&folder)?;
        let limit = Limit(folder);
        fs::write(limit.0.join(file), bytes.to_string())?;
        // Kernels without accounting of swap lack the file; then there is nothing to forbid.
        let _ = fs::write(limit.0.join(swap.0), swap.1.to_string());
        Ok(limit)
    }

    /// The group's folder, for [`enter`].
    pub fn folder(&self) -> &Path {
        &self.0
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        // The kernel lets go of a process that was killed a little after it was reaped.
        for _ in 0..100 {
            match fs::remove_dir(&self.0) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                _ => break,
            }
        }
    }
}

/// Moves this process into the group at `folder`. Its earlier memory stays where it was charged.
pub fn enter(folder: &Path) -> io::Result<()> {
    fs::write(folder.join("cgroup.procs"), std::process::id().to_string())
}
