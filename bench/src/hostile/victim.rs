//! The victim: calls like those of any program, with every byte that it reads compared.

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use atoll_host::client::Ring;
use atoll_transport::channel::Config;
use atoll_vfs::{Errno, FileSystem, Handle, Ino, OpenFlags};

use super::report::Measured;
use super::rings::{CX, Way, become_user, connect, name};
use crate::record::Broken;

/// The order to be a victim, or a newcomer.
#[derive(clap::Args)]
pub struct Visit {
    #[arg(long)]
    socket: PathBuf,
    #[arg(long)]
    user: u32,
    /// `stay`: connect, and work for as long as said from the word on; `come`: connect then
    how: String,
    /// How long.
    seconds: f64,
}

/// Pages of the file that is written and read one at a time.
const PAGES: usize = 512;
const PAGE: usize = 4096;
/// Bytes of a call of the threads that move as much as they can.
const CHUNK: usize = 128 << 10;
/// Such threads.
const THREADS: usize = 4;
/// Places that each of them writes to.
const CHUNKS: u64 = 16;

impl Visit {
    /// Does what it says, and prints the figures, or why there are none, in one line.
    pub fn pay(&self) -> Result<(), Broken> {
        become_user(self.user)?;
        let result = match self.how.as_str() {
            "come" => newcomer(&self.socket).and_then(as_json),
            _ => stay(&self.socket, self.seconds).and_then(as_json),
        };
        let result = result.map_err(|Broken(why)| why);
        println!("{}", serde_json::to_string(&result).map_err(|e| Broken(e.to_string()))?);
        Ok(())
    }
}

fn as_json<T: serde::Serialize>(value: T) -> Result<serde_json::Value, Broken> {
    serde_json::to_value(value).map_err(|error| Broken(error.to_string()))
}

/// Waits for the word to begin.
fn word() -> Result<(), Broken> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    Ok(())
}

fn failed(errno: Errno) -> Broken {
    Broken(format!("the victim's call failed: {errno:?}"))
}

/// The longest of five first answers, in milliseconds.
fn newcomer(socket: &Path) -> Result<f64, Broken> {
    word()?;
    let mut longest = Duration::ZERO;
    for _ in 0..5 {
        let begin = Instant::now();
        let mut ring = connect(socket, &Config::default()).map_err(Broken)?;
        let mut client = ring.client().ok_or_else(|| Broken("it gets no lane".into()))?;
        let _ = client.lookup(&CX, Ino::ROOT, name("nothing")?);
        longest = longest.max(begin.elapsed());
    }
    Ok(longest.as_secs_f64() * 1e3)
}

/// Calls one at a time, then as many bytes as there can be.
fn stay(socket: &Path, seconds: f64) -> Result<Measured, Broken> {
    let config = Config { lanes: 1 + THREADS as u32, ..Config::default() };
    let mut ring = connect(socket, &config).map_err(Broken)?;
    let mut client = lane(&mut ring)?;
    let movers = (0..THREADS).map(|_| lane(&mut ring)).collect::<Result<Vec<_>, _>>()?;
    let own = format!("victim{}", std::process::id());
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let made = client.create(&CX, Ino::ROOT, name(&own)?, 0o600, flags);
    let (attr, handle) = made.map_err(failed)?;
    let mut file = Own { ino: attr.ino, handle, written: vec![0; PAGES] };
    word()?;
    let half = Duration::from_secs_f64(seconds / 2.0);
    let mut times = file.calls(&mut client, half)?;
    let begin = Instant::now();
    let threads = movers.into_iter().enumerate().map(|(number, mover)| {
        let own = format!("{own}.{number}");
        std::thread::spawn(move || bytes(mover, &own, half))
    });
    let threads: Vec<_> = threads.collect();
    let joined = threads.into_iter().map(|thread| thread.join());
    let moved = joined.map(|one| one.unwrap_or_else(|_| Err(Broken("a thread ended".into()))));
    let moved = moved.sum::<Result<u64, Broken>>()?;
    let elapsed = begin.elapsed().as_secs_f64();
    file.all_there(&mut client)?;
    client.unlink(&CX, Ino::ROOT, name(&own)?).map_err(failed)?;
    times.sort_by(f64::total_cmp);
    let at = |part: usize| times[times.len() * part / 100];
    let max = times.last().copied().unwrap_or_default();
    Ok(Measured { p50: at(50), p99: at(99), max, throughput: moved as f64 / 1e6 / elapsed })
}

fn lane(ring: &mut Ring) -> Result<Way, Broken> {
    ring.client().ok_or_else(|| Broken("the victim gets no lane".into()))
}

/// The content of the page or chunk number `place` after it was written for the `round`th time.
fn pattern(place: usize, round: u64, out: &mut [u8]) {
    for (at, word) in out.chunks_exact_mut(8).enumerate() {
        let value = (place as u64) << 40 ^ round << 16 ^ at as u64;
        word.copy_from_slice(&value.to_le_bytes());
    }
}

/// The file that is written and read one page at a time.
struct Own {
    ino: Ino,
    handle: Handle,
    /// How often each page was written.
    written: Vec<u64>,
}

impl Own {
    /// A call a millisecond, for `time`. How long each took, in milliseconds.
    fn calls(&mut self, client: &mut Way, time: Duration) -> Result<Vec<f64>, Broken> {
        let (begin, mut times) = (Instant::now(), Vec::new());
        while begin.elapsed() < time {
            let turn = times.len();
            let page = turn / 4 % PAGES;
            let called = Instant::now();
            match turn % 4 {
                0 => self.write(client, page)?,
                1 => self.read(client, page)?,
                2 => drop(client.getattr(&CX, self.ino).map_err(failed)?),
                _ => match client.lookup(&CX, Ino::ROOT, name("nothing")?) {
                    Err(Errno::ENOENT) => {}
                    other => return Err(Broken(format!("what is not there is {other:?}"))),
                },
            }
            times.push(called.elapsed().as_secs_f64() * 1e3);
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(times)
    }

    fn write(&mut self, client: &mut Way, page: usize) -> Result<(), Broken> {
        let mut data = [0; PAGE];
        pattern(page, self.written[page] + 1, &mut data);
        let at = (page * PAGE) as u64;
        let written = client.write(&CX, self.ino, self.handle, at, &data).map_err(failed)?;
        if written.len != PAGE {
            return Err(Broken("a page was written in part".into()));
        }
        self.written[page] += 1;
        Ok(())
    }

    /// Compares the page with what was written.
    fn read(&self, client: &mut Way, page: usize) -> Result<(), Broken> {
        let (mut found, mut right) = ([0; PAGE], [0; PAGE]);
        let at = (page * PAGE) as u64;
        client.read(&CX, self.ino, self.handle, at, &mut found).map_err(failed)?;
        pattern(page, self.written[page], &mut right);
        if found == right { Ok(()) } else { Err(Broken(format!("page {page} is not its own"))) }
    }

    fn all_there(&self, client: &mut Way) -> Result<(), Broken> {
        let pages = (0..PAGES).filter(|&page| self.written[page] > 0);
        pages.into_iter().try_for_each(|page| self.read(client, page))
    }
}

/// Writes and reads back for `time`. Returns the bytes that went either way.
fn bytes(mut client: Way, own: &str, time: Duration) -> Result<u64, Broken> {
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let (attr, handle) = client.create(&CX, Ino::ROOT, name(own)?, 0o600, flags).map_err(failed)?;
    let (mut data, mut found) = (vec![0; CHUNK], vec![0; CHUNK]);
    let (begin, mut round) = (Instant::now(), 0);
    while begin.elapsed() < time {
        pattern(0, round, &mut data);
        let at = round % CHUNKS * CHUNK as u64;
        let written = client.write(&CX, attr.ino, handle, at, &data).map_err(failed)?;
        let read = client.read(&CX, attr.ino, handle, at, &mut found).map_err(failed)?;
        if written.len != CHUNK || read != CHUNK || found != data {
            return Err(Broken(format!("round {round} read other bytes than it wrote")));
        }
        round += 1;
    }
    client.unlink(&CX, Ino::ROOT, name(own)?).map_err(failed)?;
    Ok(2 * round * CHUNK as u64)
}
