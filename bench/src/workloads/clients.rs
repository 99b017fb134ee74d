//! Workloads of a server's clients, one by one and many at once.

use std::ffi::CString;
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use crate::calls::{Calls, O_APPEND, O_CREAT, O_EXCL, O_RDONLY, O_RDWR, O_WRONLY, SEEK_SET};
use crate::processor::Usage;
use crate::record::{Broken, Record};

use super::{Pattern, Random, Run, check, path, whole};

const BLOCK: usize = 4096;
/// The blocks of the file that calls act on: 1 MiB.
const BLOCKS: u64 = 256;

/// A file of [`BLOCKS`] blocks, each with its slice of the pattern.
fn file<C: Calls>(calls: &mut C, name: &CString, pattern: &Pattern) -> Result<i32, Broken> {
    let file = calls.open(name, O_RDWR | O_CREAT | O_EXCL)?;
    for block in 0..BLOCKS {
        let data = pattern.slice(block, BLOCK);
        whole(calls.pwrite(file, data, block * BLOCK as u64)?, BLOCK, "pwrite")?;
    }
    Ok(file)
}

/// Takes samples of one call.
struct Sampler<'a> {
    usage: &'a Usage,
    record: &'a mut Record,
    smoke: bool,
    /// The most samples of the next call.
    most: usize,
}

impl Sampler<'_> {
    /// Times `call` again and again, in groups of `group` calls, which make one sample; the first
    /// tenth warms up. Records the median, the 99th percentile and the processors' time for each.
    fn sample(
        &mut self,
        metric: &str,
        group: u32,
        mut call: impl FnMut(u64) -> Result<(), Broken>,
    ) -> Result<(), Broken> {
        let samples = if self.smoke { 20 } else { self.most };
        let mut number = 0;
        let mut times = Vec::with_capacity(samples);
        let mut before = self.usage.now()?;
        let enough = Instant::now();
        for sample in 0..samples {
            if sample == samples / 10 {
                times.clear();
                before = self.usage.now()?;
            }
            let begin = Instant::now();
            for _ in 0..group {
                call(number)?;
                number += 1;
            }
            times.push(begin.elapsed().as_nanos() as f64 / f64::from(group));
            // Calls of the FUSE mount take so long that fewer have to do.
            if times.len() >= 1000 && enough.elapsed() > Duration::from_secs(1) {
                break;
            }
        }
        let processor = self.usage.since(before)?.as_nanos() as f64;
        self.record.add(
            &format!("{metric} processor"),
            processor / (times.len() as f64 * f64::from(group)),
        );
        times.sort_by(f64::total_cmp);
        self.record.add(metric, times[times.len() / 2]);
        self.record.add(&format!("{metric} p99"), times[times.len() * 99 / 100]);
        Ok(())
    }
}

/// Single calls of one client.
pub fn operations<C: Calls>(calls: &mut C, run: &mut Run, usage: &Usage) -> Result<(), Broken> {
    let pattern = Pattern::new(BLOCK);
    let name = path("file");
    let file = file(calls, &name, &pattern)?;
    let order = Random(7).order(BLOCKS);
    let block = |call: u64| order[(call % BLOCKS) as usize];
    let mut buf = vec![0; BLOCK];
    let mut sampler = Sampler { usage, record: &mut run.record, smoke: run.smoke, most: 10_000 };

    sampler.sample("pread", 16, |call| {
        let block = block(call);
        let n = calls.pread(file, &mut buf, block * BLOCK as u64)?;
        // Comparing all of it would be most of the time: the beginning and the end, here.
        let expected = pattern.slice(block, BLOCK);
        if n != BLOCK || buf[..8] != expected[..8] || buf[BLOCK - 8..] != expected[BLOCK - 8..] {
            return Err(Broken("pread gave other bytes".into()));
        }
        Ok(())
    })?;
    sampler.sample("pwrite", 1, |call| {
        let block = block(call);
        let data = pattern.slice(block + 1, BLOCK);
        whole(calls.pwrite(file, data, block * BLOCK as u64)?, BLOCK, "pwrite")
    })?;
    // And all of it here, after the writes.
    for block in 0..BLOCKS {
        let n = calls.pread(file, &mut buf, block * BLOCK as u64)?;
        let old = pattern.slice(block, BLOCK);
        if run.smoke && buf[..n] == *old {
            continue;
        }
        check(&buf[..n], pattern.slice(block + 1, BLOCK), "file")?;
    }
    sampler.sample("fstat", 64, |_| match calls.stat(file)?.size {
        size if size == BLOCKS * BLOCK as u64 => Ok(()),
        _ => Err(Broken("fstat told another size".into())),
    })?;
    sampler.sample("lseek", 64, |call| {
        let at = block(call) * BLOCK as u64;
        match calls.seek(file, at as i64, SEEK_SET)? {
            there if there == at => Ok(()),
            _ => Err(Broken("lseek went elsewhere".into())),
        }
    })?;
    sampler.sample("open+close", 1, |_| {
        let file = calls.open(&name, O_RDONLY)?;
        Ok(calls.close(file)?)
    })?;
    calls.close(file)?;

    let log = path("log");
    let file = calls.open(&log, O_WRONLY | O_CREAT | O_APPEND)?;
    let mut appended = 0;
    sampler.sample("append", 1, |_| {
        appended += 1;
        whole(calls.write(file, pattern.slice(0, BLOCK))?, BLOCK, "append")
    })?;
    if calls.stat(file)?.size != appended * BLOCK as u64 {
        return Err(Broken("the log has another size than was appended".into()));
    }
    calls.close(file)?;

    let folder = path("folder");
    calls.mkdir(&folder)?;
    let names: Vec<CString> = (0..10_000).map(|n| path(&format!("folder/file-{n:05}"))).collect();
    let mut created = 0;
    sampler.sample("create", 1, |call| {
        created += 1;
        let file = calls.open(&names[call as usize], O_WRONLY | O_CREAT | O_EXCL)?;
        Ok(calls.close(file)?)
    })?;
    sampler.most = created;
    let mut removed = 0;
    sampler.sample("unlink", 1, |call| {
        removed += 1;
        Ok(calls.unlink(&names[call as usize])?)
    })?;
    for name in &names[removed..created] {
        calls.unlink(name)?;
    }
    let mut entries = 0;
    calls.list(&folder, |_| entries += 1)?;
    if entries != 2 {
        return Err(Broken(format!("{entries} entries are left of none")));
    }
    Ok(())
}

/// How many calls each of several clients makes.
fn calls_each(smoke: bool, clients: u64) -> u64 {
    if smoke { 100 } else { 100_000 / clients }
}

/// One of several clients: makes its file, waits at `gate`, writes, waits again, reads.
fn client<C: Calls>(
    calls: &mut C,
    number: u64,
    count: u64,
    gate: &dyn Fn() -> Result<(), Broken>,
) -> Result<(), Broken> {
    let pattern = Pattern::new(BLOCK);
    let file = file(calls, &path(&format!("file-{number}")), &pattern)?;
    let order = Random(number).order(BLOCKS);
    let at = |call: u64| order[(call % BLOCKS) as usize];
    gate()?;
    for call in 0..count {
        let data = pattern.slice(at(call) + number, BLOCK);
        whole(calls.pwrite(file, data, at(call) * BLOCK as u64)?, BLOCK, "pwrite")?;
    }
    gate()?;
    gate()?;
    let mut buf = vec![0; BLOCK];
    for call in 0..count {
        let n = calls.pread(file, &mut buf, at(call) * BLOCK as u64)?;
        if n != BLOCK
            || (count >= BLOCKS && buf[..8] != pattern.slice(at(call) + number, BLOCK)[..8])
        {
            return Err(Broken("pread gave other bytes".into()));
        }
    }
    gate()?;
    Ok(calls.close(file)?)
}

/// The time between the gates that clients pass together: writing, then reading.
pub struct Phases<'a> {
    usage: &'a Usage,
    count: u64,
    clients: u64,
}

impl Phases<'_> {
    fn measure(
        &self,
        run: &mut Run,
        pass: &mut dyn FnMut() -> Result<(), Broken>,
    ) -> Result<(), Broken> {
        let calls = (self.count * self.clients) as f64;
        for metric in ["pwrite", "pread"] {
            let before = self.usage.now()?;
            pass()?;
            let begin = Instant::now();
            pass()?;
            run.record.add(metric, begin.elapsed().as_nanos() as f64 / calls);
            let used = self.usage.since(before)?.as_nanos() as f64;
            run.record.add(&format!("{metric} processor"), used / calls);
        }
        Ok(())
    }
}

/// The point is the number of threads; each has `attach` give it its calls.
pub fn threads<C: Calls>(
    attach: &(dyn Fn() -> Result<C, Broken> + Sync),
    run: &mut Run,
    usage: &Usage,
) -> Result<(), Broken> {
    let clients = run.point;
    let count = calls_each(run.smoke, clients);
    let barrier = Barrier::new(clients as usize + 1);
    let failure = Mutex::new(None);
    std::thread::scope(|scope| {
        for number in 0..clients {
            let (barrier, failure) = (&barrier, &failure);
            scope.spawn(move || {
                let passed = std::cell::Cell::new(0);
                let gate = || {
                    passed.set(passed.get() + 1);
                    barrier.wait();
                    Ok(())
                };
                let result =
                    attach().and_then(|mut calls| client(&mut calls, number, count, &gate));
                if let Err(broken) = result {
                    *failure.lock().unwrap_or_else(std::sync::PoisonError::into_inner) =
                        Some(broken);
                    // The others wait for everybody.
                    while passed.get() < 4 {
                        let _ = gate();
                    }
                }
            });
        }
        let mut pass = || {
            barrier.wait();
            Ok(())
        };
        Phases { usage, count, clients }.measure(run, &mut pass)
    })?;
    match failure.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        Some(broken) => Err(broken),
        None => Ok(()),
    }
}

/// The point is the number of processes: this one starts them by `start` and passes the gates with
/// them, a line on their standard input for each and one on their standard output.
pub fn processes(
    start: &dyn Fn(u64) -> Result<std::process::Child, Broken>,
    run: &mut Run,
    usage: &mut Usage,
) -> Result<(), Broken> {
    use std::io::{BufRead, BufReader, Write};
    let clients = run.point;
    let count = calls_each(run.smoke, clients);
    let mut children = Vec::new();
    for number in 0..clients {
        let mut child = start(number)?;
        usage.add(child.id());
        let lines = child.stdin.take().zip(child.stdout.take());
        let (input, output) = lines.ok_or_else(|| Broken("no pipes to a client".into()))?;
        children.push((child, input, BufReader::new(output)));
    }
    let mut pass = || {
        // All are at the gate before any passes it.
        for (_, _, output) in &mut children {
            let mut line = String::new();
            output.read_line(&mut line)?;
            if line != "gate\n" {
                return Err(Broken("a client failed".into()));
            }
        }
        for (_, input, _) in &mut children {
            input.write_all(b"go\n")?;
        }
        Ok(())
    };
    let result = Phases { usage, count, clients }.measure(run, &mut pass);
    for (mut child, input, _) in children {
        drop(input);
        if result.is_err() {
            child.kill()?;
        }
        let status = child.wait()?;
        if result.is_ok() && !status.success() {
            return Err(Broken(format!("a client failed: {status}")));
        }
    }
    result
}

/// The work of each process.
pub fn process<C: Calls>(calls: &mut C, run: &Run, number: u64) -> Result<(), Broken> {
    let gate = || {
        println!("gate");
        let mut line = String::new();
        std::io::stdin().read_line(&mut line)?;
        if line.is_empty() { Err(Broken("the benchmark ended".into())) } else { Ok(()) }
    };
    client(calls, number, calls_each(run.smoke, run.point), &gate)
}

/// The point is the number of files, each created, written, made durable and closed.
pub fn create_sync<C: Calls>(calls: &mut C, run: &mut Run, usage: &Usage) -> Result<(), Broken> {
    let pattern = Pattern::new(BLOCK);
    let names: Vec<CString> = (0..run.point).map(|n| path(&format!("file-{n:05}"))).collect();
    let before = usage.now()?;
    run.record.time("each", run.point, || {
        for (number, name) in names.iter().enumerate() {
            let file = calls.open(name, O_WRONLY | O_CREAT | O_EXCL)?;
            whole(calls.write(file, pattern.slice(number as u64, BLOCK))?, BLOCK, "write")?;
            calls.sync(file)?;
            calls.close(file)?;
        }
        Ok(())
    })?;
    run.record.add("processor", usage.since(before)?.as_nanos() as f64 / run.point as f64);
    let mut buf = vec![0; BLOCK];
    for (number, name) in names.iter().enumerate() {
        let file = calls.open(name, O_RDONLY)?;
        let n = calls.read(file, &mut buf)?;
        check(&buf[..n], pattern.slice(number as u64, BLOCK), "file")?;
        calls.close(file)?;
    }
    Ok(())
}

/// The point is the size of a call; a file of 16 MiB is overwritten, then read.
pub fn sizes<C: Calls>(calls: &mut C, run: &mut Run) -> Result<(), Broken> {
    const FILE: u64 = 16 << 20;
    let len = run.point as usize;
    let pattern = Pattern::new(len);
    let file = calls.open(&path("file"), O_RDWR | O_CREAT)?;
    let mut buf = vec![0; len];
    let mut pass = 0;
    // Once to make it.
    for at in (0..FILE).step_by(len) {
        whole(calls.pwrite(file, pattern.slice(at, len), at)?, len, "pwrite")?;
    }
    run.steady(|run| {
        pass += 1;
        let begin = Instant::now();
        for at in (0..FILE).step_by(len) {
            whole(calls.pwrite(file, pattern.slice(at + pass, len), at)?, len, "pwrite")?;
        }
        run.record.add("write", FILE as f64 / begin.elapsed().as_secs_f64() / 1e6);
        let begin = Instant::now();
        for at in (0..FILE).step_by(len) {
            let n = calls.pread(file, &mut buf, at)?;
            if n != len || buf[..8] != pattern.slice(at + pass, len)[..8] {
                return Err(Broken("pread gave other bytes".into()));
            }
        }
        run.record.add("read", FILE as f64 / begin.elapsed().as_secs_f64() / 1e6);
        Ok(())
    })?;
    Ok(calls.close(file)?)
}
