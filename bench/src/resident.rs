//! How much memory the process has resident.

use std::io;

/// Resident memory in KiB, as /proc/self/status tells.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Resident {
    /// Memory of the process alone.
    pub anonymous: f64,
    /// Pages of files and of shared memory that it has mapped.
    pub mapped: f64,
}

impl Resident {
    /// The resident memory of this process.
    pub fn now() -> io::Result<Resident> {
        Ok(Self::parse(&std::fs::read_to_string("/proc/self/status")?))
    }

    fn parse(status: &str) -> Resident {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let number = line.and_then(|rest| rest.split_whitespace().next());
            number.and_then(|number| number.parse().ok()).unwrap_or(0.0)
        };
        Resident { anonymous: field("RssAnon"), mapped: field("RssFile") + field("RssShmem") }
    }

    /// The bytes added since `before`.
    pub fn since(self, before: Resident) -> Resident {
        Resident {
            anonymous: self.anonymous - before.anonymous,
            mapped: self.mapped - before.mapped,
        }
    }

    /// All of it.
    pub fn total(self) -> f64 {
        self.anonymous + self.mapped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsed() {
        let status = "Name:\tx\nRssAnon:\t     100 kB\nRssFile:\t 20 kB\nRssShmem:\t 3 kB\n";
        let resident = Resident::parse(status);
        assert_eq!(resident, Resident { anonymous: 100.0, mapped: 23.0 });
        assert_eq!(resident.total(), 123.0);
    }

    #[test]
    fn memory_that_is_used_is_seen() {
        let before = Resident::now().unwrap();
        let mut memory = vec![0u8; 8 << 20];
        memory.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        let used = Resident::now().unwrap().since(before);
        assert!(used.anonymous > 4096.0, "{used:?}, {}", memory[4096]);
    }
}
