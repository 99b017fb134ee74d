//! A process as the guest: programs' calls of POSIX over a virtio-fs device, at the speed of this
//! machine, beside the same calls of the system on a folder of the same disk.
//!
//! All that are measured live side by side, and each piece of work goes to one after the other, so
//! that what the machine does meanwhile meets all of them. Both sides move the same bytes and sync
//! at the same places: after the writes of a file, and after the names of a directory were made or
//! removed. How long that takes is a row of its own, and is part of the rows that say so.
//!
//! Every kind of guest is attached to in one place ([`Seat::begin`]).

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use atoll_host::guest::{GuestFs, attach};
use atoll_vfs::Forgetting;

use super::daemon::{Daemon, Kind};
use super::image;
use super::report::{self, Goal, STOCK, times};
use super::{Found, MOVED, Options, SIZES, Sample, Samples, kinds, shown};
use crate::calls::{Calls, O_CREAT, O_EXCL, O_RDONLY, O_RDWR, O_WRONLY};
use crate::machine::{Watch, warm_memory};
use crate::over::Over;
use crate::record::{Broken, Summary};
use crate::system::{System, settle};
use crate::workloads::{Pattern, Random, check, path, whole};

/// The most reads and writes of a size, unless [`MOVED`] bytes are fewer.
const OPERATIONS: u64 = 8192;
/// How many files are made, listed and removed: 2^1 to 2^17.
const FILES: [u64; 6] = [2, 16, 128, 1024, 8192, 131_072];
/// Few files are made, listed and removed again and again, until there were about so many.
const AGAIN: u64 = 64;
/// So many calls are long enough for the daemon's processor time to be told.
const TOLD: u64 = 1024;
/// Calls before each piece of work: both sides are awake then.
const AWAKE: usize = 64;
/// What each has done before anything is measured: reads and writes of a page, and files.
const BEFORE: u64 = 256;
/// About the memory that a piece of work takes, in bytes.
const FRESH: u64 = 64 << 20;

const HEAD: &str = "\
A process as guest. Microseconds for one call, medians of the rounds; in brackets the daemon's
processor time, looks for the next request included; behind it the distance between the quartiles in
percent of the median. One call at a time, by turns, data checked after every read. `+ fsync`: with
the sync of all that was written, made or removed, in equal parts. A sync waits for the disk, and is
judged with nothing by itself. Reads are of what was just written; `again` is the same reads once more,
for which a window shows what it shows.
";

/// What is measured beside a device that lets nothing be kept, and the stock daemons.
const OTHERS: [Kind; 3] = [Kind::AtollVolumeKept, Kind::AtollFolderKept, Kind::Native];

/// The goals beside those towards the stock daemons.
const NATIVE: [Goal; 2] = [
    Goal {
        rivals: |kind| *kind == Kind::Native,
        whom: "native calls, in removing and listing,",
        processor: false,
        judges: |name| name.starts_with("remove") || name.starts_with("list"),
    },
    Goal {
        rivals: |kind| *kind == Kind::Native,
        whom: "native calls, in sequences of 4 KiB,",
        processor: false,
        judges: |name| ["read 4 KiB", "read 4 KiB, again", "write 4 KiB"].contains(&name),
    },
];

/// Measures a process as the guest of virtio-fs devices, beside calls of the system
#[derive(clap::Args)]
pub struct Guests {
    #[command(flatten)]
    common: Options,
    /// Only measure names, of so many files
    #[arg(long, value_name = "NUMBER", value_delimiter = ',')]
    files: Vec<u64>,
    /// Only count what calls cost in the image
    #[arg(long, conflicts_with_all = ["smoke", "sizes", "files"])]
    image: bool,
}

/// A piece of work.
#[derive(Clone, Debug)]
enum Work {
    /// Reads and writes of so many bytes, in this order.
    Data(usize, Vec<u64>, &'static str),
    /// So many files, made, listed and removed.
    Names(u64),
}

/// Measures.
pub fn run(guests: &Guests) -> Result<(), Broken> {
    let options = &guests.common;
    std::fs::create_dir_all(&options.disk)?;
    let kinds = kinds(options, &OTHERS);
    let works = guests.works();
    let watch = Watch::begin();
    let mut found = Found::new();
    let mut failures = BTreeMap::new();
    for round in 0..if guests.image { 0 } else { options.rounds() } {
        let begin = |kind: &Kind| Seat::begin(kind, options);
        let mut seats = kinds.iter().map(begin).collect::<Result<Vec<Seat>, Broken>>()?;
        let mut row = 0;
        for work in &works {
            eprintln!("round {}, {}", round + 1, work.name());
            let mut rows = 0;
            // No seat always follows the same one.
            seats.rotate_left(1);
            for seat in &mut seats {
                settle(&options.disk);
                if !options.smoke {
                    warm_memory(FRESH);
                }
                let failure = (work.name(), seat.kind.name());
                if failures.contains_key(&failure) {
                    continue;
                }
                let samples = match seat.work(work) {
                    Ok(samples) => samples,
                    // A stock daemon may not be up to it; the next work is for another one.
                    Err(Broken(why)) if seat.kind.is_stock() => {
                        failures.insert(failure, why);
                        *seat = Seat::begin(&seat.kind, options)?;
                        continue;
                    }
                    Err(Broken(why)) => {
                        return Err(Broken(format!("{}, {}: {why}", failure.0, failure.1)));
                    }
                };
                rows = samples.0.len();
                for (at, (name, sample)) in samples.0.into_iter().enumerate() {
                    let found = found.entry((row + at, name)).or_default();
                    found.entry(seat.kind.clone()).or_default().push(sample);
                }
            }
            row += rows;
        }
        seats.into_iter().try_for_each(Seat::end)?;
    }
    let noise = watch.end();
    let mut text = report::head(&noise, HEAD, options.smoke);
    report::table(&mut text, &kinds, &found, cell);
    for ((work, kind), why) in &failures {
        let _ = writeln!(text, "\nWithout {work} of {kind}: {why}");
    }
    if !options.smoke {
        report::goals(&mut text, &kinds, &found, &STOCK);
        report::goals(&mut text, &kinds, &found, &NATIVE);
    }
    let counted = match !options.smoke && guests.is_whole() {
        true => image::text(&mut text, options),
        false => Ok(()),
    };
    print!("{text}");
    if let Some(path) = &options.report {
        std::fs::write(path, text)?;
    }
    counted?;
    match failures.is_empty() || !options.smoke {
        true => Ok(()),
        false => Err(Broken(format!("{} pieces of work failed", failures.len()))),
    }
}

/// The time, the daemon's processor time, and how far the times of several rounds lie apart.
fn cell(samples: &[Sample]) -> String {
    let [time, processor] = times(samples).map(|ns| ns / 1000.0);
    let all: Vec<f64> = samples.iter().map(|sample| sample.0).collect();
    let spread = match Summary::of(&all) {
        Some(summary) if summary.samples > 1 => format!(" ±{:.0}%", 100.0 * summary.spread()),
        _ => String::new(),
    };
    match processor.is_nan() {
        true => format!("{time:.2}{spread}"),
        false => format!("{time:.2} ({processor:.2}){spread}"),
    }
}

impl Guests {
    /// Whether everything is measured.
    fn is_whole(&self) -> bool {
        self.common.sizes.is_empty() && self.files.is_empty()
    }

    fn works(&self) -> Vec<Work> {
        let options = &self.common;
        let (sizes, files) = (&options.sizes, &self.files);
        let smoke = options.smoke;
        let all = self.is_whole();
        if self.image {
            return Vec::new();
        }
        // To show that everything works a few are enough: each of them syncs.
        let every = SIZES.step_by(if smoke { 8 } else { 1 }).map(|bits| 1 << bits);
        let sizes = if all { every.collect() } else { sizes.clone() };
        let few = if smoke { 2 } else { FILES.len() };
        let files = if all { FILES[..few].to_vec() } else { files.clone() };
        let data = sizes.into_iter().flat_map(|size: usize| {
            let most = if smoke { 16 } else { OPERATIONS };
            let count = (MOVED as u64 / size.max(1) as u64).clamp(8, most);
            let shuffled = Random(size as u64).order(count);
            [Work::Data(size, (0..count).collect(), ""), Work::Data(size, shuffled, ", random")]
        });
        data.chain(files.into_iter().map(Work::Names)).collect()
    }
}

impl Work {
    fn name(&self) -> String {
        match self {
            Work::Data(size, _, how) => format!("{}{how}", shown(*size)),
            Work::Names(count) => format!("{count} files"),
        }
    }
}

/// What makes the calls.
enum Program {
    /// A guest.
    Guest(Box<Over<Forgetting<GuestFs>>>),
    /// A program of the system, in this folder.
    Native(PathBuf),
}

/// One of those that are measured.
struct Seat {
    kind: Kind,
    daemon: Daemon,
    program: Program,
}

impl Seat {
    /// Has a daemon begin, with an empty folder or volume, and becomes its guest.
    fn begin(kind: &Kind, options: &Options) -> Result<Seat, Broken> {
        let daemon = Daemon::start(kind, &options.disk, options.atoll.as_deref())?;
        let program = match kind {
            Kind::Native => Program::Native(std::path::absolute(daemon.source())?),
            _ => {
                let fs = attach(&daemon.socket()).map_err(|error| Broken(error.to_string()))?;
                Program::Guest(Box::new(Over::new(Forgetting::new(fs))))
            }
        };
        let mut seat = Seat { kind: kind.clone(), daemon, program };
        let few = if options.smoke { 4 } else { BEFORE };
        for work in [Work::Data(4096, (0..few).collect(), ""), Work::Names(few)] {
            seat.work(&work)?;
        }
        Ok(seat)
    }

    fn work(&mut self, work: &Work) -> Result<Samples, Broken> {
        let mut timer = Timer { daemon: &self.daemon, told: work.is_told(), sums: Vec::new() };
        match &mut self.program {
            Program::Guest(calls) => work.run(&mut **calls, &mut timer)?,
            Program::Native(folder) => {
                let before = std::env::current_dir()?;
                std::env::set_current_dir(folder)?;
                let result = work.run(&mut System, &mut timer);
                std::env::set_current_dir(before)?;
                result?;
            }
        }
        Ok(timer.samples())
    }

    fn end(self) -> Result<(), Broken> {
        // The guest goes first, as a machine does.
        drop(self.program);
        self.daemon.end()
    }
}

/// Takes times, and adds those of the same name up.
struct Timer<'a> {
    daemon: &'a Daemon,
    /// Whether the daemon's processor time is looked at.
    told: bool,
    /// Names, how many calls, and the times of all.
    sums: Vec<(String, u64, Duration, Option<Duration>)>,
}

impl Timer<'_> {
    fn processor_time(&self) -> Result<Option<Duration>, Broken> {
        let told = self.told && self.daemon.is_process();
        told.then(|| self.daemon.processor_time()).transpose()
    }

    fn add(&mut self, name: String, calls: u64, took: Duration, processor: Option<Duration>) {
        match self.sums.iter_mut().find(|sum| sum.0 == name) {
            Some(sum) => {
                (sum.1, sum.2) = (sum.1 + calls, sum.2 + took);
                sum.3 = sum.3.zip(processor).map(|(sum, processor)| sum + processor);
            }
            None => self.sums.push((name, calls, took, processor)),
        }
    }

    /// Runs `work`, which is `count` calls, and keeps how long they took under `name`. Returns
    /// that as well.
    fn time<C: Calls>(
        &mut self,
        calls: &mut C,
        name: String,
        count: u64,
        work: impl FnOnce(&mut C) -> Result<(), Broken>,
    ) -> Result<(Duration, Option<Duration>), Broken> {
        let before = self.processor_time()?;
        wake(calls)?;
        let begin = Instant::now();
        work(calls)?;
        let took = begin.elapsed();
        let processor = self.processor_time()?.zip(before);
        let processor = processor.map(|(after, before)| after.saturating_sub(before));
        self.add(name, count, took, processor);
        Ok((took, processor))
    }

    /// The same for `work`, which is `count` calls, then for `sync`, and for both together.
    fn synced<C: Calls>(
        &mut self,
        calls: &mut C,
        [name, of]: [String; 2],
        count: u64,
        work: impl FnOnce(&mut C) -> Result<(), Broken>,
        sync: impl FnOnce(&mut C) -> Result<(), Broken>,
    ) -> Result<(), Broken> {
        let both = format!("{name} + fsync");
        let (time, processor) = self.time(calls, name, count, work)?;
        let (more, other) = self.time(calls, format!("fsync of {of}"), 1, sync)?;
        let processor = processor.zip(other).map(|(one, other)| one + other);
        self.add(both, count, time + more, processor);
        Ok(())
    }

    fn samples(self) -> Samples {
        let mut samples = Samples::default();
        for (name, calls, took, processor) in self.sums {
            samples.take(name, calls, (took, processor));
        }
        samples
    }
}

/// Calls the other side until it looks for the next call.
fn wake<C: Calls>(calls: &mut C) -> Result<(), Broken> {
    let root = calls.open(c".", O_RDONLY)?;
    for _ in 0..AWAKE {
        calls.stat(root)?;
    }
    Ok(calls.close(root)?)
}

impl Work {
    /// Does it, and leaves nothing.
    fn run<C: Calls>(&self, calls: &mut C, timer: &mut Timer<'_>) -> Result<(), Broken> {
        match self {
            Work::Data(size, order, how) => data(calls, timer, *size, order, how),
            Work::Names(count) => {
                let times = (AGAIN / (*count).max(1)).max(1);
                (0..times).try_for_each(|_| names(calls, timer, *count))
            }
        }
    }

    /// Whether the daemon's processor time is worth telling: while it is looked at the daemon goes
    /// to sleep, which few calls feel.
    fn is_told(&self) -> bool {
        !matches!(self, Work::Names(count) if *count < TOLD)
    }
}

/// Reads, twice, and writes of `size` bytes, in `order`, of a file that is made for them.
fn data<C: Calls>(
    calls: &mut C,
    timer: &mut Timer<'_>,
    size: usize,
    order: &[u64],
    how: &str,
) -> Result<(), Broken> {
    const NAME: &CStr = c"data";
    let (pattern, mut buf) = (Pattern::new(size), vec![0; size]);
    let (count, shown) = (order.len() as u64, shown(size));
    let file = calls.open(NAME, O_RDWR | O_CREAT | O_EXCL)?;
    let write = |calls: &mut C| {
        order.iter().try_for_each(|&number| {
            let data = pattern.slice(number, size);
            whole(calls.pwrite(file, data, number * size as u64)?, size, "write")
        })
    };
    let names = [format!("write {shown}{how}"), format!("{shown} writes{how}")];
    timer.synced(calls, names, count, write, |calls| Ok(calls.sync(file)?))?;
    // The second time what is shown in a window is there already.
    for again in ["", ", again"] {
        timer.time(calls, format!("read {shown}{how}{again}"), count, |calls| {
            order.iter().try_for_each(|&number| {
                let read = calls.pread(file, &mut buf, number * size as u64)?;
                check(&buf[..read], pattern.slice(number, size), "read")
            })
        })?;
    }
    whole(calls.pread(file, &mut buf, count * size as u64)?, 0, "end of file")?;
    calls.close(file)?;
    Ok(calls.unlink(NAME)?)
}

/// `count` files made, listed and removed.
fn names<C: Calls>(calls: &mut C, timer: &mut Timer<'_>, count: u64) -> Result<(), Broken> {
    let names: Vec<CString> = (0..count).map(|number| path(&format!("file-{number}"))).collect();
    let root = calls.open(c".", O_RDONLY)?;
    let sync = |calls: &mut C| Ok(calls.sync(root)?);
    let create = |calls: &mut C| {
        names.iter().try_for_each(|name| {
            let file = calls.open(name, O_WRONLY | O_CREAT | O_EXCL)?;
            Ok(calls.close(file)?)
        })
    };
    let of = [format!("create and close, {count}"), format!("{count} new names")];
    timer.synced(calls, of, count, create, sync)?;
    let mut listed = 0;
    timer.time(calls, format!("list an entry, of {count}"), count, |calls| {
        Ok(calls.list(c".", |_| listed += 1)?)
    })?;
    let remove = |calls: &mut C| names.iter().try_for_each(|name| Ok(calls.unlink(name)?));
    let of = [format!("remove, {count}"), format!("{count} removals")];
    timer.synced(calls, of, count, remove, sync)?;
    calls.close(root)?;
    let mut left = 0;
    calls.list(c".", |_| left += 1)?;
    // `.` and `..` are listed too.
    if (listed, left) != (count + 2, 2) {
        return Err(Broken(format!("of {count} files {listed} entries, then {left}")));
    }
    Ok(())
}
