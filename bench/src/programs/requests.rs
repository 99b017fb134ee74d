//! What the kernel asks of a FUSE server, counted by its tracepoint `fuse:fuse_request_send`.
//! FORGETs have none.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::column::done;
use crate::record::Broken;

/// The event, below an instance.
const EVENT: &str = "events/fuse/fuse_request_send";
/// The memory of each processor for what is traced.
const BUFFER_KIB: &str = "65536";

/// A buffer of the kernel's tracing of our own, removed when the value goes.
pub struct Counter {
    instance: PathBuf,
    /// Where the kernel's tracing is mounted meanwhile.
    tracing: TempDir,
}

impl Counter {
    /// Makes one.
    pub fn begin() -> Result<Counter, Broken> {
        let tracing = tempfile::tempdir()?;
        let mut mount = Command::new("mount");
        done(mount.args(["-t", "tracefs", "none"]).arg(tracing.path()))
            .map_err(|Broken(why)| Broken(format!("root counts requests: {why}")))?;
        let instance = format!("instances/atoll-bench-{}", std::process::id());
        let counter = Counter { instance: tracing.path().join(instance), tracing };
        std::fs::create_dir(&counter.instance)?;
        counter.set("buffer_size_kb", BUFFER_KIB)?;
        Ok(counter)
    }

    fn set(&self, name: &str, value: &str) -> std::io::Result<()> {
        std::fs::write(self.instance.join(name), value)
    }

    /// Counts the requests of this connection from now on.
    pub fn start(&self, connection: u64) -> Result<(), Broken> {
        self.set("trace", "")?;
        self.set(&format!("{EVENT}/filter"), &format!("connection == {connection}"))?;
        Ok(self.set(&format!("{EVENT}/enable"), "1")?)
    }

    /// How many there were, by kind.
    pub fn stop(&self) -> Result<BTreeMap<String, u64>, Broken> {
        self.set(&format!("{EVENT}/enable"), "0")?;
        let mut counts = BTreeMap::new();
        for line in BufReader::new(std::fs::File::open(self.instance.join("trace"))?).lines() {
            if let Some(kind) = kind(&line?) {
                *counts.entry(kind.to_owned()).or_default() += 1;
            }
        }
        let lost = |folder: &Path| std::fs::read_to_string(folder.join("stats"));
        for processor in std::fs::read_dir(self.instance.join("per_cpu"))? {
            if lost(&processor?.path())?.lines().any(is_loss) {
                return Err(Broken("the kernel's buffer was too small for all requests".into()));
            }
        }
        Ok(counts)
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.instance);
        let _ = done(Command::new("umount").arg(self.tracing.path()));
    }
}

/// The kind of request that a line of the trace is about.
fn kind(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once(" opcode ")?;
    Some(rest.split_once("(FUSE_")?.1.split_once(')')?.0)
}

/// Whether a line of a processor's statistics says that something was lost.
fn is_loss(line: &str) -> bool {
    let of = ["overrun: ", "commit overrun: ", "dropped events: "];
    of.iter().any(|name| line.strip_prefix(name).is_some_and(|count| count.trim() != "0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let line = "  stat-7 [001] .... 1.0: fuse_request_send: connection 51 req 4 opcode 1 (FUSE_LOOKUP) len 42";
        assert_eq!(kind(line), Some("LOOKUP"));
        assert_eq!(kind("# tracer: nop"), None);
        assert!(is_loss("overrun: 3") && !is_loss("overrun: 0") && !is_loss("entries: 3"));
    }
}
