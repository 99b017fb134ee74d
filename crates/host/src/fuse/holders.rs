//! The processes that have something of a file system: by an open file, a directory that they are
//! in, a program or a mapping of it, or a mount in a namespace of theirs. Nothing is asked of the
//! file system, whose server may be gone.

use std::fs;
use std::io;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

/// How many are told at most, so that a busy machine does not take the caller's time.
const MOST: usize = 16;

/// The device number by which the kernel tells a file system from others.
pub type Device = (u32, u32);

/// The device of the file system that `path` is in; of a mount point the one that is mounted.
///
/// # Errors
/// Those of statx(2).
pub fn device(path: &Path) -> io::Result<Device> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let stat = statx(CWD, path, flags, StatxFlags::empty())?;
    Ok((stat.stx_dev_major, stat.stx_dev_minor))
}

/// Processes that have something of the file system `device`, with their names: some, if there are
/// many. Those of other users are found by who may look at them.
pub fn of(device: Device) -> Vec<(i32, String)> {
    let Ok(all) = fs::read_dir("/proc") else { return Vec::new() };
    let numbers = all.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let has = numbers.filter(|&pid: &i32| pid != std::process::id() as i32 && holds(pid, device));
    has.map(|pid| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        (pid, name.trim().to_owned())
    })
    .take(MOST)
    .collect()
}

fn holds(pid: i32, of: Device) -> bool {
    let at = format!("/proc/{pid}");
    let is = |path: &Path| device(path).is_ok_and(|device| device == of);
    let open = || fs::read_dir(format!("{at}/fd")).into_iter().flatten().flatten();
    ["cwd", "root", "exe"].iter().any(|what| is(Path::new(&format!("{at}/{what}"))))
        || open().any(|entry| is(&entry.path()))
        || has_line(&format!("{at}/maps"), 3, &format!("{:02x}:{:02x}", of.0, of.1))
        || is_elsewhere(&at)
            && has_line(&format!("{at}/mountinfo"), 2, &format!("{}:{}", of.0, of.1))
}

/// Whether the process is in another mount namespace than this one.
fn is_elsewhere(at: &str) -> bool {
    let own = fs::read_link("/proc/self/ns/mnt").ok();
    fs::read_link(format!("{at}/ns/mnt")).is_ok_and(|its| own.is_none_or(|own| own != its))
}

/// Whether a line of the file at `path` has this `word` at its place `field`.
fn has_line(path: &str, field: usize, word: &str) -> bool {
    let text = fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&text)
        .lines()
        .any(|line| line.split_ascii_whitespace().nth(field) == Some(word))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// A process that sleeps in a directory of /dev/shm, or has a file there open, is found.
    #[test]
    fn who_has_something_is_found() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let file = dir.path().join("file");
        fs::write(&file, b"").unwrap();
        let own = device(dir.path()).unwrap();
        assert_ne!(own, device(Path::new("/proc")).unwrap());
        let mut inside = Command::new("sleep").arg("100").current_dir(dir.path()).spawn().unwrap();
        let open = fs::File::open(&file).unwrap();
        let mut reads = Command::new("sleep").arg("100").stdin(open).spawn().unwrap();
        for child in [&inside, &reads] {
            assert!(holds(child.id() as i32, own), "{child:?}");
        }
        assert!(of(own).len() <= MOST);
        for child in [&mut inside, &mut reads] {
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(!holds(child.id() as i32, own), "{child:?}");
        }
    }
}
