//! A program's own way to a served volume: POSIX over a client of the server's rings.

use std::ffi::CStr;
use std::io;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use atoll::clock::HostClock;
use atoll_host::client::{Address, CachedClient, Connection, Ring};
use atoll_host::server::rules::Mode;
use atoll_posix::{OFlags, Options, Posix, Whence};
use atoll_transport::channel::Config;
use atoll_vfs::{Context, Errno, FileSystem, Handle, Ino, SeekTo, Timespec};

use crate::calls::{Calls, Stat};
use crate::machine;
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
pub struct Remote(Posix<Way, HostClock>);

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
        Ok(Remote(Posix::new(client(ring)?, HostClock, &Options::default())))
    }
}

fn error(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.raw())
}

impl Calls for Remote {
    fn open(&mut self, path: &CStr, flags: i32) -> io::Result<i32> {
        let flags = OFlags::from_bits_retain(flags as u32);
        self.0.open(path.to_bytes(), flags, 0o644).map_err(error)
    }

    fn close(&mut self, file: i32) -> io::Result<()> {
        self.0.close(file).map_err(error)
    }

    fn pread(&mut self, file: i32, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.pread(file, buf, offset as i64).map_err(error)
    }

    fn pwrite(&mut self, file: i32, data: &[u8], offset: u64) -> io::Result<usize> {
        self.0.pwrite(file, data, offset as i64).map_err(error)
    }

    fn read(&mut self, file: i32, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(file, buf).map_err(error)
    }

    fn write(&mut self, file: i32, data: &[u8]) -> io::Result<usize> {
        self.0.write(file, data).map_err(error)
    }

    fn seek(&mut self, file: i32, offset: i64, whence: i32) -> io::Result<u64> {
        let whence = match whence {
            libc::SEEK_SET => Whence::Set,
            libc::SEEK_CUR => Whence::Current,
            _ => Whence::End,
        };
        self.0.lseek(file, offset, whence).map(|at| at as u64).map_err(error)
    }

    fn stat(&mut self, file: i32) -> io::Result<Stat> {
        let attr = self.0.fstat(file).map_err(error)?;
        Ok(Stat { ino: attr.ino.0, size: attr.size })
    }

    fn sync(&mut self, file: i32) -> io::Result<()> {
        self.0.fsync(file, false).map_err(error)
    }

    fn unlink(&mut self, path: &CStr) -> io::Result<()> {
        self.0.unlink(path.to_bytes()).map_err(error)
    }

    fn mkdir(&mut self, path: &CStr) -> io::Result<()> {
        self.0.mkdir(path.to_bytes(), 0o755).map_err(error)
    }

    fn list(&mut self, path: &CStr, mut each: impl FnMut(u64)) -> io::Result<()> {
        let flags = OFlags::DIRECTORY;
        let file = self.0.open(path.to_bytes(), flags, 0).map_err(error)?;
        let mut stream = self.0.fdopendir(file).map_err(error)?;
        while let Some(entry) = stream.next(&mut self.0).map_err(error)? {
            each(entry.ino.0);
        }
        self.0.closedir(stream).map_err(error)
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
