//! What the kernel asks of a FUSE server, counted by its tracepoint `fuse:fuse_request_send`.
//! FORGETs have none.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use crate::record::Broken;

/// Where the kernel's tracing is.
const TRACING: &str = "/sys/kernel/tracing";
/// The event, below an instance.
const EVENT: &str = "events/fuse/fuse_request_send";
/// The memory of each processor for what is traced.
const BUFFER_KIB: &str = "65536";

/// A buffer of the kernel's tracing of our own, removed when the value goes.
pub struct Counter(PathBuf);

impl Counter {
    /// Makes one.
    pub fn begin() -> Result<Counter, Broken> {
        let cannot = |error| Broken(format!("requests cannot be counted: {error}; run as root"));
        let instance = format!("{TRACING}/instances/atoll-bench-{}", std::process::id());
        std::fs::create_dir(&instance).map_err(cannot)?;
        let counter = Counter(instance.into());
        counter.set("buffer_size_kb", BUFFER_KIB).map_err(cannot)?;
        Ok(counter)
    }

    fn set(&self, name: &str, value: &str) -> std::io::Result<()> {
        std::fs::write(self.0.join(name), value)
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
        for line in BufReader::new(std::fs::File::open(self.0.join("trace"))?).lines() {
            if let Some(kind) = kind(&line?) {
                *counts.entry(kind.to_owned()).or_default() += 1;
            }
        }
        let lost = |folder: &Path| std::fs::read_to_string(folder.join("stats"));
        for processor in std::fs::read_dir(self.0.join("per_cpu"))? {
            if lost(&processor?.path())?.lines().any(is_loss) {
                return Err(Broken("the kernel's buffer was too small for all requests".into()));
            }
        }
        Ok(counts)
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
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
