//! Processor time of several processes.

use std::time::Duration;

use crate::record::Broken;

/// The processes whose time is counted.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    processes: Vec<u32>,
}

impl Usage {
    /// Counts the time of this process, and of the server if there is one.
    pub fn new(server: Option<u32>) -> Usage {
        let mut processes = vec![std::process::id()];
        processes.extend(server);
        Usage { processes }
    }

    /// Counts that of `process` as well.
    pub fn add(&mut self, process: u32) {
        self.processes.push(process);
    }

    /// The time used until now by all threads, living or not.
    pub fn now(&self) -> Result<Duration, Broken> {
        let mut nanoseconds = 0;
        for process in &self.processes {
            // The threads' own figures, to the nanosecond: the process's count in ticks.
            for task in std::fs::read_dir(format!("/proc/{process}/task"))? {
                let text = std::fs::read_to_string(task?.path().join("schedstat"));
                let used = text.ok().and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
                nanoseconds += used.unwrap_or(0);
            }
        }
        Ok(Duration::from_nanos(nanoseconds))
    }

    /// The time used since `before`.
    pub fn since(&self, before: Duration) -> Result<Duration, Broken> {
        Ok(self.now()?.saturating_sub(before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_counted() {
        let usage = Usage::new(None);
        let before = usage.now().unwrap();
        let begin = std::time::Instant::now();
        while begin.elapsed() < Duration::from_millis(30) {
            std::hint::spin_loop();
        }
        let used = usage.since(before).unwrap();
        assert!(used > Duration::from_millis(1) && used < Duration::from_secs(5), "{used:?}");
    }
}
