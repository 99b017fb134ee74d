//! The owner of a volume, written into the volume: for where locks do not see, as on file systems
//! that have none, or where a disk and its file are reached by users who may not open the other.
//!
//! A mark names a process: a hash of the boot, the namespace of its number, that number, and when
//! it started. Whether the process lives can be found out only on the same boot and in the same
//! namespace. A mark from elsewhere looks like one left by a crash, and so the volume is taken.

use std::os::unix::fs::MetadataExt;

use xxhash_rust::xxh3::xxh3_64;

use super::life;

/// The mark of this process. Zeros if it cannot be known.
pub fn owner() -> [u8; 32] {
    let mut mark = [0; 32];
    let Some((boot, namespace)) = here() else { return mark };
    let process = std::process::id();
    let Some(started) = started(process) else { return mark };
    for (at, number) in [boot, namespace, process.into(), started].into_iter().enumerate() {
        mark[at * 8..at * 8 + 8].copy_from_slice(&number.to_le_bytes());
    }
    mark
}

/// The process that made `mark`, if it lives and is not this one.
pub fn living_owner(mark: &[u8; 32]) -> Option<u32> {
    if *mark == [0; 32] {
        return None;
    }
    let number = |at: usize| {
        let bytes = mark[at * 8..at * 8 + 8].try_into();
        bytes.map_or(0, u64::from_le_bytes)
    };
    let (boot, namespace) = here()?;
    let process = u32::try_from(number(2)).ok()?;
    let is_here = (number(0), number(1)) == (boot, namespace) && process != std::process::id();
    (is_here && started(process)? == number(3)).then_some(process)
}

/// The life of the memory of the process with this number, and of what it wrote in the host's.
/// Zeros if it cannot be known.
pub(super) fn life_of(process: u32) -> [u8; 16] {
    match (here(), started(process)) {
        (Some((_, namespace)), Some(started)) => {
            life::of_process([namespace, process.into(), started])
        }
        _ => [0; 16],
    }
}

/// A hash of the boot, and the namespace of processes. `None` where /proc is another namespace's,
/// as after unshare(1) without --mount-proc: a number there is that of another process.
fn here() -> Option<(u64, u64)> {
    let own = std::fs::read_link("/proc/self").ok()?;
    if own.to_str()?.parse() != Ok(std::process::id()) {
        return None;
    }
    let namespace = std::fs::metadata("/proc/self/ns/pid").ok()?.ino();
    Some((xxh3_64(&life::boot()?), namespace))
}

/// When a process that has not ended started, in ticks since the boot.
fn started(process: u32) -> Option<u64> {
    let stat = std::fs::read(format!("/proc/{process}/stat")).ok()?;
    // The name may have anything in it, and ends with the last parenthesis.
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    let text = core::str::from_utf8(&stat[end + 1..]).ok()?;
    let mut fields = text.split_ascii_whitespace();
    let state = fields.next()?;
    // Field 22; the state is the third.
    fields.nth(18)?.parse().ok().filter(|_| !matches!(state, "Z" | "X"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_owns_until_it_ends() {
        let mine = owner();
        assert_ne!(mine, [0; 32]);
        assert_eq!(owner(), mine);
        assert_eq!(living_owner(&mine), None, "this process may do what it likes");
        let mut child = Command::new("sleep").arg("100").stdout(Stdio::null()).spawn().unwrap();
        let mut other = mine;
        other[16..24].copy_from_slice(&u64::from(child.id()).to_le_bytes());
        other[24..].copy_from_slice(&started(child.id()).unwrap().to_le_bytes());
        assert_eq!(living_owner(&other), Some(child.id()));
        let lives = [std::process::id(), child.id()].map(life_of);
        assert!(lives[0] != lives[1] && lives.iter().all(|life| *life != [0; 16]));
        for at in [0, 8, 24] {
            let mut strange = other;
            strange[at] ^= 1;
            assert_eq!(living_owner(&strange), None, "another boot, namespace or process");
        }
        child.kill().unwrap();
        // Before anybody has waited for it, too.
        let ended = (0..2000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            living_owner(&other).is_none()
        });
        assert!(ended);
        child.wait().unwrap();
        assert_eq!(living_owner(&other), None);
        assert_eq!(life_of(child.id()), [0; 16]);
        assert_eq!(living_owner(&[0; 32]), None);
        assert_eq!(living_owner(&[255; 32]), None);
    }

    /// Says whether a process is known, in the namespace in which the test below runs it.
    #[test]
    #[ignore = "a part of the next test"]
    fn nobody_is_known_here() {
        let process = std::process::id();
        assert_eq!((owner(), life_of(process)), ([0; 32], [0; 16]));
    }

    /// In a namespace of processes whose /proc is that of the one around it, the numbers there are
    /// those of others, which live on when a process and its namespace have ended.
    #[test]
    fn numbers_of_another_namespace_name_nobody() {
        let unshare = |command: &mut Command| {
            command.args(["--user", "--map-root-user", "--pid", "--fork"]);
        };
        let mut tried = Command::new("unshare");
        unshare(&mut tried);
        if !tried.arg("true").status().is_ok_and(|status| status.success()) {
            eprintln!("skipped: this user makes no namespaces");
            return;
        }
        let mut command = Command::new("unshare");
        unshare(&mut command);
        let test = "device::owner::tests::nobody_is_known_here";
        command.arg(std::env::current_exe().unwrap()).args(["--exact", "--ignored", test]);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }
}
