//! The virtio-fs device beside the stock daemons, at the speed of this machine: one driver, the
//! same messages in the same pieces, by turns, with the data checked.
//!
//! Each daemon has a process of its own, and a folder on the same disk; Atoll also a volume there.
//! What is written is synced apart from the writes, and a row of its own says what that took: data
//! after the sequential writes of a size, names after all of them. Beside the time of each
//! operation there is the processor time that the daemon took for it, which is not hidden by its
//! waiting.
//!
//! Goals: Atoll's volume and its directory take less of both than each stock daemon.
//!
//! [`guest`] measures the same daemons as a program sees them that is a guest.

mod daemon;
mod driver;
pub mod guest;
mod image;
mod report;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use daemon::{Daemon, Kind};
use driver::{DATA_MAX, Driver};

use crate::machine::Watch;
use crate::record::Broken;

// Operations of FUSE.
const LOOKUP: u32 = 1;
const UNLINK: u32 = 10;
const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const RELEASE: u32 = 18;
const FSYNC: u32 = 20;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const RELEASEDIR: u32 = 29;
const FSYNCDIR: u32 = 30;
const CREATE: u32 = 35;
const READDIRPLUS: u32 = 44;
const DESTROY: u32 = 38;
const ROOT: u64 = 1;
const O_RDWR: u32 = 2;

/// Sizes of reads and writes, in bytes: 2^4 to 2^20.
const SIZES: std::ops::RangeInclusive<u32> = 4..=20;
/// Bytes that are moved by each size, if that is no more than so many operations.
const MOVED: usize = 32 << 20;
const OPERATIONS: u64 = 1000;
/// How many files are made, listed and removed.
const FILES: [u64; 4] = [2, 32, 256, 1024];
/// Operations before any is measured: where threads run has settled by then.
const WARM_UP: u64 = 500;
/// Room for a part of a listing.
const LISTING: usize = 32 << 10;

/// Measures the virtio-fs device beside the stock daemons
#[derive(clap::Args)]
pub struct Options {
    /// Only show that everything works
    #[arg(long)]
    smoke: bool,
    /// How often each point is measured on each daemon
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// A folder on the disk, where the daemons' folders are
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    disk: PathBuf,
    /// Only measure reads and writes of these sizes, in bytes, and no names
    #[arg(long, value_name = "BYTES", value_delimiter = ',')]
    sizes: Vec<usize>,
    /// Only measure these kinds: volume, directory, c, rust; of a process as guest also native,
    /// volume-kept, directory-kept
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    on: Vec<String>,
    /// Write the tables and the goals to this file as well
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Another `atoll` than the one beside this program
    #[arg(long, value_name = "FILE")]
    atoll: Option<PathBuf>,
    /// The virtiofsd that is written in Rust; without it, it is left out
    #[arg(long, value_name = "FILE", env = "ATOLL_VIRTIOFSD")]
    virtiofsd: Option<PathBuf>,
}

impl Options {
    fn rounds(&self) -> usize {
        if self.smoke { 1 } else { self.rounds.max(1) }
    }
}

/// Those that are measured: Atoll, the stock daemons that there are, and `others`.
fn kinds(options: &Options, others: &[Kind]) -> Vec<Kind> {
    let mut kinds = vec![Kind::AtollVolume, Kind::AtollFolder];
    kinds.extend(Kind::stock(options.virtiofsd.as_deref()));
    kinds.extend_from_slice(others);
    kinds.retain(|kind| options.on.is_empty() || options.on.iter().any(|on| on == kind.word()));
    kinds
}

/// A size in bytes for people.
fn shown(size: usize) -> String {
    match size {
        1024.. => format!("{} KiB", size >> 10),
        _ => format!("{size} B"),
    }
}

/// Nanoseconds of one operation, and of the daemon's processor; the latter is no number where
/// nobody has looked.
type Sample = (f64, f64);
/// The samples of each operation, in the order in which they were made, on each daemon.
type Found = BTreeMap<(usize, String), BTreeMap<Kind, Vec<Sample>>>;

/// Measures.
pub fn run(options: &Options) -> Result<(), Broken> {
    std::fs::create_dir_all(&options.disk)?;
    let kinds = kinds(options, &[]);
    let watch = Watch::begin();
    let mut found = Found::new();
    for _ in 0..options.rounds() {
        for kind in &kinds {
            let daemon = Daemon::start(kind, &options.disk, options.atoll.as_deref())?;
            let mut guest = Guest::begin(&daemon)?;
            let all = guest.all(&daemon, options);
            let all = all.map_err(|Broken(why)| Broken(format!("{}: {why}", kind.name())))?;
            for (at, (name, sample)) in all.into_iter().enumerate() {
                found.entry((at, name)).or_default().entry(kind.clone()).or_default().push(sample);
            }
            guest.end();
            daemon.end()?;
        }
    }
    let noise = watch.end();
    let text = report::text(&kinds, &found, &noise, options.smoke);
    print!("{text}");
    if let Some(path) = &options.report {
        std::fs::write(path, text)?;
    }
    Ok(())
}

fn word(bytes: &[u8], at: usize) -> Result<u64, Broken> {
    let bytes = bytes.get(at..at + 8).ok_or_else(|| Broken("an answer is too short".into()))?;
    Ok(u64::from_le_bytes(bytes.try_into().expect("8 bytes")))
}

/// The bytes that a file has at `at`.
fn fill(data: &mut [u8], at: u64) {
    for (offset, byte) in data.iter_mut().enumerate() {
        let place = at + offset as u64;
        *byte = (place ^ place >> 8 ^ place >> 16) as u8;
    }
}

/// A shuffled order, the same for each daemon.
fn shuffled(count: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..count).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for at in (1..order.len()).rev() {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        order.swap(at, (state >> 33) as usize % (at + 1));
    }
    order
}

/// What each operation took.
#[derive(Default)]
struct Samples(Vec<(String, Sample)>);

impl Samples {
    fn take(&mut self, name: String, count: u64, took: (Duration, Option<Duration>)) {
        let each = |time: Duration| time.as_nanos() as f64 / count as f64;
        self.0.push((name, (each(took.0), took.1.map_or(f64::NAN, each))));
    }
}

/// The guest of one daemon.
struct Guest(Driver);

impl Guest {
    fn begin(daemon: &Daemon) -> Result<Guest, Broken> {
        let mut driver = Driver::connect(&daemon.socket())?;
        // 7.38, 128 KiB to read ahead; asynchronous reads, big writes, READDIRPLUS, long messages.
        let features = 1u32 | 1 << 5 | 1 << 13 | 1 << 22;
        let mut body = [7u32, 38, 128 << 10, features].map(u32::to_le_bytes).concat();
        body.resize(64, 0);
        let (answer, _) = driver.ask(INIT, 0, &body, 0, 0)?;
        let most = answer.get(20..24).map(|most| u32::from_le_bytes(most.try_into().expect("4")));
        if most.is_none_or(|most| (most as usize) < DATA_MAX) {
            return Err(Broken(format!("the daemon takes {most:?} bytes in a write")));
        }
        Ok(Guest(driver))
    }

    fn end(mut self) {
        // Not every daemon answers.
        let _ = self.0.ask(DESTROY, 0, &[], 0, 0);
    }

    /// Measures everything.
    fn all(&mut self, daemon: &Daemon, options: &Options) -> Result<Vec<(String, Sample)>, Broken> {
        let mut samples = Samples::default();
        let smoke = options.smoke;
        let (ino, file) = self.create(b"warm-up")?;
        let order: Vec<u64> = (0..if smoke { 4 } else { WARM_UP }).collect();
        self.write_all(ino, file, 4096, &order)?;
        self.read_all(ino, file, 4096, &order)?;
        self.release(RELEASE, ino, file)?;
        self.remove(b"warm-up\0")?;
        self.0.forget(ino, 1)?;
        // To show that everything works a few are enough: each of them syncs.
        let sizes = SIZES.step_by(if smoke { 8 } else { 1 });
        let sizes: Vec<usize> = sizes.map(|bits| 1 << bits).collect();
        for &size in if options.sizes.is_empty() { &sizes } else { &options.sizes } {
            self.data(daemon, smoke, size, &mut samples)?;
        }
        if options.sizes.is_empty() {
            for count in FILES.into_iter().take(if smoke { 2 } else { FILES.len() }) {
                self.names(daemon, count, &mut samples)?;
            }
        }
        Ok(samples.0)
    }

    /// Measures reads and writes of `size` bytes, of a file each.
    fn data(
        &mut self,
        daemon: &Daemon,
        smoke: bool,
        size: usize,
        samples: &mut Samples,
    ) -> Result<(), Broken> {
        let most = if smoke { 16 } else { OPERATIONS };
        let count = ((MOVED / size) as u64).clamp(8, most);
        let shown = shown(size);
        let sequence: Vec<u64> = (0..count).collect();
        let random = shuffled(count);
        for (order, how) in [(&sequence, ""), (&random, ", random")] {
            let (ino, file) = self.create(b"data")?;
            let write = |guest: &mut Guest| guest.write_all(ino, file, size, order);
            samples.take(format!("write {shown}{how}"), count, self.time(daemon, write)?);
            let sync = |guest: &mut Guest| guest.sync(FSYNC, ino, file);
            samples.take(format!("fsync of {shown} writes{how}"), 1, self.time(daemon, sync)?);
            let read = |guest: &mut Guest| guest.read_all(ino, file, size, order);
            samples.take(format!("read {shown}{how}"), count, self.time(daemon, read)?);
            self.release(RELEASE, ino, file)?;
            self.remove(b"data\0")?;
            self.0.forget(ino, 1)?;
        }
        Ok(())
    }

    /// Measures names: `count` files made, listed, looked up, opened, removed.
    fn names(&mut self, daemon: &Daemon, count: u64, samples: &mut Samples) -> Result<(), Broken> {
        let names: Vec<Vec<u8>> =
            (0..count).map(|number| format!("file-{number}\0").into_bytes()).collect();
        let mut inodes = Vec::new();
        let create = |guest: &mut Guest| {
            for name in &names {
                let (ino, file) = guest.create(&name[..name.len() - 1])?;
                guest.release(RELEASE, ino, file)?;
                inodes.push(ino);
            }
            Ok(())
        };
        samples.take(format!("create and close, {count}"), count, self.time(daemon, create)?);
        let root = |guest: &mut Guest| guest.sync_root();
        samples.take(format!("fsync of {count} new names"), 1, self.time(daemon, root)?);
        let list = |guest: &mut Guest| guest.list(count);
        samples.take(format!("list an entry, of {count}"), count, self.time(daemon, list)?);
        let lookup = |guest: &mut Guest| {
            names.iter().try_for_each(|name| guest.0.ask(LOOKUP, ROOT, name, 0, 0).map(drop))
        };
        samples.take(format!("lookup, {count}"), count, self.time(daemon, lookup)?);
        let open = |guest: &mut Guest| {
            inodes.iter().try_for_each(|&ino| {
                let (answer, _) = guest.0.ask(OPEN, ino, &O_RDWR.to_le_bytes().repeat(2), 0, 0)?;
                guest.release(RELEASE, ino, word(&answer, 0)?)
            })
        };
        samples.take(format!("open and close, {count}"), count, self.time(daemon, open)?);
        let remove = |guest: &mut Guest| names.iter().try_for_each(|name| guest.remove(name));
        samples.take(format!("remove, {count}"), count, self.time(daemon, remove)?);
        let root = |guest: &mut Guest| guest.sync_root();
        samples.take(format!("fsync of {count} removals"), 1, self.time(daemon, root)?);
        for ino in inodes {
            // Created, listed, looked up.
            self.0.forget(ino, 3)?;
        }
        Ok(())
    }

    fn remove(&mut self, name: &[u8]) -> Result<(), Broken> {
        self.0.ask(UNLINK, ROOT, name, 0, 0).map(drop)
    }

    fn sync(&mut self, opcode: u32, ino: u64, file: u64) -> Result<(), Broken> {
        let mut body = file.to_le_bytes().to_vec();
        body.extend([0; 8]);
        self.0.ask(opcode, ino, &body, 0, 0).map(drop)
    }

    /// Syncs the names of the root.
    fn sync_root(&mut self) -> Result<(), Broken> {
        let (answer, _) = self.0.ask(OPENDIR, ROOT, &[0; 8], 0, 0)?;
        let file = word(&answer, 0)?;
        self.sync(FSYNCDIR, ROOT, file)?;
        self.release(RELEASEDIR, ROOT, file)
    }

    /// Runs `work`: how long it took, and of the daemon's processors.
    fn time(
        &mut self,
        daemon: &Daemon,
        work: impl FnOnce(&mut Guest) -> Result<(), Broken>,
    ) -> Result<(Duration, Option<Duration>), Broken> {
        let before = daemon.processor_time()?;
        let begin = Instant::now();
        work(self)?;
        let took = begin.elapsed();
        Ok((took, Some(daemon.processor_time()?.saturating_sub(before))))
    }

    fn create(&mut self, name: &[u8]) -> Result<(u64, u64), Broken> {
        const O_CREAT: u32 = 0o100;
        let mut body = [O_RDWR | O_CREAT, 0o100_644, 0o022, 0].map(u32::to_le_bytes).concat();
        body.extend(name);
        body.push(0);
        let (answer, _) = self.0.ask(CREATE, ROOT, &body, 0, 0)?;
        // The entry, then the open file.
        Ok((word(&answer, 0)?, word(&answer, 128)?))
    }

    fn release(&mut self, opcode: u32, ino: u64, file: u64) -> Result<(), Broken> {
        let mut body = file.to_le_bytes().to_vec();
        body.extend([O_RDWR, 0, 0, 0].map(u32::to_le_bytes).concat());
        self.0.ask(opcode, ino, &body, 0, 0).map(drop)
    }

    fn body(file: u64, offset: u64, size: usize) -> Vec<u8> {
        let mut body = [file, offset].map(u64::to_le_bytes).concat();
        body.extend([size as u32, 0, 0, 0, O_RDWR, 0].map(u32::to_le_bytes).concat());
        body
    }

    fn write_all(&mut self, ino: u64, file: u64, size: usize, order: &[u64]) -> Result<(), Broken> {
        let mut data = vec![0; size];
        for &number in order {
            let at = number * size as u64;
            fill(&mut data, at);
            self.0.place_data(&data);
            let (answer, _) = self.0.ask(WRITE, ino, &Self::body(file, at, size), size, 0)?;
            if word(&answer, 0)? as u32 as usize != size {
                return Err(Broken("a write is short".into()));
            }
        }
        Ok(())
    }

    fn read_all(&mut self, ino: u64, file: u64, size: usize, order: &[u64]) -> Result<(), Broken> {
        let (mut data, mut expected) = (vec![0; size], vec![0; size]);
        for &number in order {
            let at = number * size as u64;
            let (_, len) = self.0.ask(READ, ino, &Self::body(file, at, size), 0, size)?;
            self.0.answer_data(&mut data);
            fill(&mut expected, at);
            if len != size || data != expected {
                return Err(Broken(format!("a read of {size} bytes at {at} brings others")));
            }
        }
        Ok(())
    }

    /// Lists the root with attributes, as `ls -l` does, and counts.
    fn list(&mut self, count: u64) -> Result<(), Broken> {
        let (answer, _) = self.0.ask(OPENDIR, ROOT, &[0; 8], 0, 0)?;
        let file = word(&answer, 0)?;
        let (mut offset, mut seen) = (0, 0);
        let mut data = vec![0; LISTING];
        loop {
            let body = Self::body(file, offset, LISTING);
            let (_, len) = self.0.ask(READDIRPLUS, ROOT, &body, 0, LISTING)?;
            if len == 0 {
                break;
            }
            self.0.answer_data(&mut data);
            let mut rest = &data[..len];
            // An entry's attributes, then inode, offset, the name's length and its type, the name.
            while rest.len() >= 152 {
                offset = word(rest, 136)?;
                let name = u32::from_le_bytes(rest[144..148].try_into().expect("4")) as usize;
                seen += u64::from(rest[152..].starts_with(b"file-"));
                rest = rest.get((152 + name).next_multiple_of(8)..).unwrap_or_default();
            }
        }
        self.release(RELEASEDIR, ROOT, file)?;
        match seen == count {
            true => Ok(()),
            false => Err(Broken(format!("a listing has {seen} files of {count}"))),
        }
    }
}
