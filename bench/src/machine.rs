//! The machine that the numbers were taken on, and how quiet it was.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use serde::Serialize;

use crate::system;

/// The machine.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The processor's model.
    pub processor: String,
    /// How many processors the process may use.
    pub processors: usize,
    /// Its memory in GiB, rounded up.
    pub memory_gib: u64,
    /// The kernel's release.
    pub kernel: String,
    /// For how long the kernel of a virtual machine looks for work before it halts an idle
    /// processor, which decides what it costs to wake a thread on it; `None` where it has no such
    /// choice.
    pub halt_poll_ns: Option<u64>,
}

impl Machine {
    /// This machine.
    pub fn this() -> Machine {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model =
            cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let memory = memory.strip_prefix("MemTotal:").unwrap_or_default().split_whitespace().next();
        let memory_kib: u64 = memory.and_then(|kib| kib.parse().ok()).unwrap_or(0);
        let halt = std::fs::read_to_string("/sys/module/haltpoll/parameters/guest_halt_poll_ns");
        Machine {
            processor: model.map_or("unknown", |(_, name)| name).trim().to_owned(),
            processors: system::processors().len(),
            memory_gib: memory_kib.div_ceil(1 << 20),
            kernel: kernel.trim().to_owned(),
            halt_poll_ns: halt.ok().and_then(|time| time.trim().parse().ok()),
        }
    }
}

/// How noisy the machine was during a workload.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Noise {
    /// Nanoseconds for a cache line to go to another processor and back; `None` with one processor.
    pub ping_pong_ns: Option<f64>,
    /// Part of the processors' time that the hypervisor gave to others.
    pub steal: f64,
    /// Processes that wanted to run, averaged over a minute, at the end.
    pub load: f64,
}

/// Watches the machine during a workload.
pub struct Watch {
    ping_pong_ns: Option<f64>,
    ticks: (u64, u64),
}

impl Watch {
    /// Begins to watch.
    pub fn begin() -> Watch {
        Watch { ping_pong_ns: ping_pong(), ticks: ticks() }
    }

    /// The quiet and the noise seen.
    pub fn end(self) -> Noise {
        let (steal, all) = ticks();
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Noise {
            ping_pong_ns: self.ping_pong_ns,
            steal: (steal - self.ticks.0) as f64 / (all - self.ticks.1).max(1) as f64,
            load: load.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0),
        }
    }
}

/// The stolen and all ticks of all processors since the machine started.
fn ticks() -> (u64, u64) {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = stat.lines().next().unwrap_or_default();
    let fields: Vec<u64> = line.split_whitespace().skip(1).filter_map(|f| f.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal; guest times are in user already.
    (fields.get(7).copied().unwrap_or(0), fields.iter().take(8).sum())
}

/// Has the machine's free memory be at hand: a hypervisor takes back what a guest leaves free for
/// some seconds, and the first use of a page of it afterwards takes seven times as long (10 us
/// where these measurements were made). The subject measured next would pay for it.
pub fn warm_memory(bytes: u64) {
    let mut memory = vec![0u8; usize::try_from(bytes).unwrap_or(0)];
    memory.iter_mut().step_by(4096).for_each(|page| *page = 1);
    std::hint::black_box(&memory);
}

/// The median time of a round trip of a cache line between the first two processors.
pub fn ping_pong() -> Option<f64> {
    let processors = system::processors();
    let (&here, &there) = (processors.first()?, processors.get(1)?);
    const TRIPS: u32 = 2000;
    const ROUNDS: usize = 9;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let line = AtomicU32::new(0);
        let time = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                system::pin(there).is_ok().then(|| {
                    for trip in 0..TRIPS {
                        wait(&line, 2 * trip + 1)?;
                        line.store(2 * trip + 2, Ordering::Release);
                    }
                    Some(())
                })?
            });
            let mine = scope.spawn(|| {
                system::pin(here).ok()?;
                let mut begin = Instant::now();
                for trip in 0..TRIPS {
                    if trip == TRIPS / 10 {
                        begin = Instant::now();
                    }
                    line.store(2 * trip + 1, Ordering::Release);
                    wait(&line, 2 * trip + 2)?;
                }
                Some(begin.elapsed())
            });
            other.join().ok()??;
            mine.join().ok()?
        })?;
        times.push(time.as_secs_f64() * 1e9 / f64::from(TRIPS - TRIPS / 10));
    }
    times.sort_by(f64::total_cmp);
    Some(times[ROUNDS / 2])
}

/// Waits until `line` holds `value`, for as long as another thread may be kept off its processor.
fn wait(line: &AtomicU32, value: u32) -> Option<()> {
    let mut begin = None;
    loop {
        for _ in 0..10_000 {
            if line.load(Ordering::Acquire) == value {
                return Some(());
            }
            spin_loop();
        }
        let begin = begin.get_or_insert_with(Instant::now);
        if begin.elapsed().as_secs() >= 5 {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_seen() {
        let noise = Watch::begin().end();
        assert!((0.0..=1.0).contains(&noise.steal));
        if system::processors().len() > 1 {
            assert!(noise.ping_pong_ns.unwrap() > 1.0);
        }
        let machine = Machine::this();
        assert!(machine.processors > 0 && machine.memory_gib > 0);
    }
}
