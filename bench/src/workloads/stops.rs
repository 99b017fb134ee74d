//! How long one client's calls take at most while another writes as fast as it is told to; and for
//! how long the machine keeps a thread in the client's place from doing nothing but look at the
//! clock.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::calls::{Calls, O_CREAT, O_EXCL, O_RDWR, O_WRONLY};
use crate::record::Broken;

use super::{Pattern, Run, check, path, whole};

/// Bytes of a write.
const WRITE: usize = 64 << 10;
/// The writer's file: it begins anew at its end.
const FILE: u64 = 256 << 20;

/// The times that each of the two has taken for its calls.
type Times = Vec<Duration>;

/// Writes `rate` bytes a second into one file until `end`; the time that it lost it makes up for.
fn write<C: Calls>(calls: &mut C, rate: f64, end: &AtomicBool) -> Result<Times, Broken> {
    let pattern = Pattern::new(WRITE);
    let file = calls.open(&path("large"), O_RDWR | O_CREAT)?;
    let mut times = Times::new();
    let begin = Instant::now();
    while !end.load(Ordering::Relaxed) {
        let number = times.len() as u64;
        let due = Duration::from_secs_f64((number * WRITE as u64) as f64 / rate);
        if let Some(early) = due.checked_sub(begin.elapsed())
            && early > Duration::from_micros(200)
        {
            std::thread::sleep(early);
        }
        let at = number * WRITE as u64 % FILE;
        let called = Instant::now();
        whole(calls.pwrite(file, pattern.slice(number, WRITE), at)?, WRITE, "pwrite")?;
        times.push(called.elapsed());
    }
    let last = times.len() as u64 - 1;
    let mut buf = vec![0; WRITE];
    let n = calls.pread(file, &mut buf, last * WRITE as u64 % FILE)?;
    check(&buf[..n], pattern.slice(last, WRITE), "large")?;
    calls.close(file)?;
    Ok(times)
}

/// Makes and removes files for `length`, of which up to `most` are there at a time.
fn make<C: Calls>(calls: &mut C, most: usize, length: Duration) -> Result<Times, Broken> {
    let folder = path("folder");
    calls.mkdir(&folder)?;
    let mut there = VecDeque::new();
    let mut times = Times::new();
    let begin = Instant::now();
    while begin.elapsed() < length {
        let name = path(&format!("folder/file-{}", times.len()));
        let called = Instant::now();
        let file = calls.open(&name, O_WRONLY | O_CREAT | O_EXCL)?;
        calls.close(file)?;
        times.push(called.elapsed());
        there.push_back(name);
        if there.len() > most
            && let Some(name) = there.pop_front()
        {
            let called = Instant::now();
            calls.unlink(&name)?;
            times.push(called.elapsed());
        }
    }
    let mut entries = 0;
    calls.list(&folder, |_| entries += 1)?;
    match entries == there.len() + 2 {
        true => Ok(times),
        false => Err(Broken(format!("{entries} entries of {} files", there.len()))),
    }
}

/// Looks at the clock for `length`. Returns the longest time between two looks.
fn watch(length: Duration) -> Duration {
    let begin = Instant::now();
    let (mut last, mut longest) = (begin, Duration::ZERO);
    while last - begin < length {
        let now = Instant::now();
        longest = longest.max(now - last);
        last = now;
    }
    longest
}

/// Does `work` while a client writes `rate` bytes a second.
fn beside_writer<C: Calls, T>(
    attach: &(dyn Fn() -> Result<C, Broken> + Sync),
    rate: f64,
    work: impl FnOnce() -> Result<T, Broken>,
) -> Result<(Times, T), Broken> {
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(&mut attach()?, rate, &end));
        let done = work();
        end.store(true, Ordering::Relaxed);
        let writes = writer.join().map_err(|_| Broken("the writer panicked".into()))?;
        Ok((writes?, done?))
    })
}

/// The point is how many megabytes a second are written.
pub fn stops<C: Calls>(
    attach: &(dyn Fn() -> Result<C, Broken> + Sync),
    run: &mut Run,
) -> Result<(), Broken> {
    let (length, most) = match run.smoke {
        true => (Duration::from_millis(200), 50),
        false => (Duration::from_secs(10), 5000),
    };
    let rate = run.point as f64 * 1e6;
    let names = || attach().and_then(|mut calls| make(&mut calls, most, length));
    let (mut writes, mut names) = beside_writer(attach, rate, names)?;
    let (_, gap) = beside_writer(attach, rate, || Ok(watch(length)))?;
    run.record.add("clock longest", gap.as_nanos() as f64 / 1000.0);
    run.record.add("written", writes.len() as f64 * WRITE as f64 / length.as_secs_f64() / 1e6);
    run.record.add("names", names.len() as f64 / length.as_secs_f64());
    for (what, times) in [("name", &mut names), ("write", &mut writes)] {
        times.sort_unstable();
        let nanos = |at: usize| times[at].as_nanos() as f64;
        run.record.add(&format!("{what} p50"), nanos(times.len() / 2));
        run.record.add(&format!("{what} p999"), nanos(times.len() * 999 / 1000));
        run.record.add(&format!("{what} longest"), nanos(times.len() - 1) / 1000.0);
        let long = times.iter().filter(|time| **time > Duration::from_millis(5)).count();
        run.record.add(&format!("{what}s over 5 ms"), long as f64);
    }
    Ok(())
}
