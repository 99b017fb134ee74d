//! A program's own way to a served volume: POSIX over a client of the server's rings.

use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use atoll_host::client::{Address, CachedClient, Connection, Ring};
use atoll_host::server::rules::Mode;
use atoll_transport::channel::Config;
use atoll_vfs::{Context, Errno, FileSystem, Handle, Ino, SeekTo, Timespec};

use crate::machine;
use crate::over::Over;
use crate::processor::Usage;
use crate::record::Broken;
use crate::workloads::Run;

/// The client by which a thread reaches the server.
type Way = CachedClient;

/// Connects to the only volume behind `socket`, for up to as many threads as a workload has.
fn connect(socket: &Path) -> Result<Ring, Broken> {
    let place = Address { socket: socket.to_owned(), volume: String::new() };
    let config = Config { lanes: 8, ..Config::default() };
    let connection = Connection::open(&place).map_err(|error| Broken(error.to_string()))?;
    connection.ring(Mode::Write, &config).map_err(|error| Broken(error.to_string()))
}

fn client(ring: &mut Ring) -> Result<Way, Broken> {
    ring.cached().ok_or_else(|| Broken("the server gives no lane".into()))
}

/// The calls of one thread.
pub type Remote = Over<Way>;

impl Remote {
    /// Attaches the calling thread to the volume behind `socket`, through the process's one
    /// connection.
    pub fn attach(socket: &Path) -> Result<Remote, Broken> {
        static RING: OnceLock<Mutex<Option<Ring>>> = OnceLock::new();
        let ring = RING.get_or_init(|| Mutex::new(connect(socket).ok()));
        let mut ring = ring.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(ring) = ring.as_mut() else {
            return Err(Broken("the server cannot be reached".into()));
        };
        Ok(Over::new(client(ring)?))
    }
}

/// The time of a request that is refused as soon as it is understood, beside that of a cache line's
/// way to another processor and back. While `polling` neither side sleeps, else both whenever they
/// can.
pub fn null_call(socket: &Path, polling: bool, run: &mut Run, usage: &Usage) -> Result<(), Broken> {
    // Before this thread is bound to a processor.
    if let Some(time) = machine::ping_pong() {
        run.record.add("ping-pong", time);
    }
    if run.point == 1 {
        crate::system::pin(crate::system::processors()[0])?;
    } else if let Some(&processor) = crate::system::processors().get(1) {
        crate::system::pin(processor)?;
    }
    let mut ring = connect(socket)?;
    ring.set_spin(if polling { Duration::from_secs(1) } else { Duration::ZERO });
    let mut client = client(&mut ring)?;
    let cx = Context { uid: 0, gid: 0, now: Timespec::default() };
    let samples = if run.smoke { 100 } else { 100_000 };
    let mut times = Vec::with_capacity(samples);
    let mut before = usage.now()?;
    for sample in 0..samples {
        if sample == samples / 10 {
            times.clear();
            before = usage.now()?;
        }
        let begin = Instant::now();
        // A handle that nobody has.
        let result = client.seek(&cx, Ino::ROOT, Handle(u64::MAX), 0, SeekTo::Data);
        times.push(begin.elapsed().as_nanos() as f64);
        if result != Err(Errno::EBADF) {
            return Err(Broken(format!("the null call gave {result:?}")));
        }
    }
    let used = usage.since(before)?.as_nanos() as f64;
    run.record.add("processor", used / times.len() as f64);
    times.sort_by(f64::total_cmp);
    run.record.add("p50", times[times.len() / 2]);
    run.record.add("p99", times[times.len() * 99 / 100]);
    Ok(())
}
