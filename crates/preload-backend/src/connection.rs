//! A process's session with the server of one volume.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use atoll_host::client::{Address, ConnectOptions, Connection, Ring, Wait};
use atoll_host::control::Mode;
use atoll_host::shm::{MappedView, SharedMemory};
use atoll_transport::channel::{Config, Lane};
use atoll_vfs::client::Client;
use atoll_vfs::{
    Answers, Attr, Context, Errno, FileSystem, Handle, Ino, OpenFiles, OpenFlags, Timespec,
};

use crate::lock::Lock;
use crate::repeats::Repeats;
use crate::servers::ServedMount;

/// Threads that are served at the same time; others make system calls meanwhile.
const LANES: u32 = 4;
/// The most bytes of one request. An append by one write(2) is in one piece if it is no longer.
pub const TRANSFER: usize = 256 << 10;
/// How long a server may take to let a process in, which waits, and could do without.
const PATIENCE: Duration = Duration::from_secs(2);
/// Adopted files of closed descriptors that wait to be given back.
const CLOSED_MAX: usize = 64;
/// How many are given back whenever one is adopted: more than one, so that they do not pile up.
const GIVEN_BACK: usize = 2;

/// The most bytes of the View: a mebibyte of pages in five has room for their attributes and so on.
/// The system gives memory for what is used of it.
const VIEW: u32 = 5 << 20;
/// The longest read that the server puts into a View.
const SHORT: usize = 32 << 10;

/// The client that carries calls to the server.
pub type Files = Client<Lane<SharedMemory, Wait>>;

struct LanePlace {
    lock: Lock,
    files: UnsafeCell<Option<Files>>,
}

struct Closed {
    files: [(Ino, Handle); CLOSED_MAX],
    count: usize,
}

/// A session.
pub struct Session {
    /// The device number of the mount.
    pub device: u64,
    /// The user and group that the mount shows as the owner of everything.
    pub owner: Option<(u32, u32)>,
    cx: Context,
    lanes: [LanePlace; LANES as usize],
    /// Lanes that are in use, from the first.
    made: AtomicUsize,
    ring_lock: Lock,
    ring: UnsafeCell<Ring>,
    closed_lock: Lock,
    closed: UnsafeCell<Closed>,
    lost: AtomicBool,
    repeats: Repeats,
    /// The View's answers, when there is one.
    answers: OnceLock<Answers<Arc<MappedView>>>,
}

// SAFETY: each cell is used under its lock.
unsafe impl Sync for Session {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Session {}

impl Session {
    /// Connects to `server`. `lowest` is the least number for its descriptors.
    pub fn begin(server: &ServedMount<'_>, lowest: i32) -> Option<Session> {
        let place = Address::find(Path::new(server.place))?;
        let options = ConnectOptions { timeout: PATIENCE, lowest, view: false };
        let config =
            Config { lanes: LANES, slots: 1, window: TRANSFER as u64, ..Config::default() };
        let mode = if server.read_only { Mode::Read } else { Mode::Write };
        let mut ring = Connection::open_with(&place, options).ok()?.ring(mode, &config).ok()?;
        ring.memory().keep_from_children().ok()?;
        let first = ring.client_of(TRANSFER as u32)?;
        let mut first = Some(first);
        let lanes = std::array::from_fn(|_| LanePlace {
            lock: Lock::new(),
            files: UnsafeCell::new(first.take()),
        });
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        Some(Session {
            device: server.device,
            owner: server.owner,
            // The server has the time.
            cx: Context { uid, gid, now: Timespec::default() },
            lanes,
            made: AtomicUsize::new(1),
            ring_lock: Lock::new(),
            ring: UnsafeCell::new(ring),
            closed_lock: Lock::new(),
            closed: UnsafeCell::new(Closed { files: [(Ino(0), Handle(0)); CLOSED_MAX], count: 0 }),
            lost: AtomicBool::new(false),
            repeats: Repeats::new(),
            answers: OnceLock::new(),
        })
    }

    /// The numbers of its descriptors.
    pub fn descriptors(&self) -> [i32; 3] {
        let _held = self.ring_lock.lock();
        // SAFETY: under its lock.
        let ring = unsafe { &*self.ring.get() };
        ring.descriptors().map(|fd| fd.as_raw_fd())
    }

    /// Nothing is made or asked of the server that would give this process descriptors or memory,
    /// from here until [`go_on`](Self::go_on).
    pub fn stand_still(&self) {
        self.ring_lock.take();
    }

    /// The end of that.
    pub fn go_on(&self) {
        self.ring_lock.reset();
    }

    /// Asks for the View, without which all goes as well.
    #[cold]
    fn begin_view(&self) {
        let _held = self.ring_lock.lock();
        // SAFETY: under its lock.
        let Ok(view) = unsafe { &mut *self.ring.get() }.begin_view(VIEW) else { return };
        if view.keep_from_children().is_ok() {
            // Asked for once.
            let _ = self.answers.set(Answers::new(view, Arc::new(OpenFiles::default())));
        }
    }

    /// The attributes of `ino`: from the View, or as [`call`](Self::call).
    #[inline]
    pub fn getattr(&self, ino: Ino) -> Option<Result<Attr, Errno>> {
        let answers = self.answers.get();
        if let Some(attr) = answers.and_then(|answers| answers.getattr(ino)) {
            return Some(Ok(attr));
        }
        let answer = self.call(|files, cx| files.getattr(cx, ino));
        if answers.is_none() && matches!(answer, Some(Ok(_))) && self.repeats.asked(ino.0, u64::MAX)
        {
            self.begin_view();
        }
        answer
    }

    /// Reads from `at` on: from the View, or as [`call`](Self::call).
    #[inline]
    pub fn read(
        &self,
        ino: Ino,
        handle: Handle,
        at: u64,
        buffer: &mut [u8],
    ) -> Option<Result<usize, Errno>> {
        let answers = self.answers.get();
        if let Some(len) = answers.and_then(|answers| answers.read(ino, handle, at, buffer)) {
            return Some(Ok(len));
        }
        let answer = self.call(|files, cx| files.read(cx, ino, handle, at, buffer));
        match (answers, &answer) {
            // So it may be read.
            (Some(answers), Some(Ok(_))) => answers.opened(ino, handle),
            (None, Some(Ok(_)))
                if buffer.len() <= SHORT && self.repeats.asked(ino.0, at / 4096) =>
            {
                self.begin_view();
            }
            // Its original was closed.
            (Some(answers), Some(Err(Errno::EBADF | Errno::ESTALE))) => answers.closed(ino, handle),
            _ => {}
        }
        answer
    }

    /// Makes a call on a lane that nobody uses. `None` when the kernel is to make it: all are in
    /// use, or the server is lost. `EBADF` or `ESTALE` when the server does not know the file any
    /// more.
    pub fn call<R>(
        &self,
        call: impl FnOnce(&mut Files, &Context) -> Result<R, Errno>,
    ) -> Option<Result<R, Errno>> {
        if self.lost.load(Ordering::Relaxed) {
            return None;
        }
        let made = self.made.load(Ordering::Acquire);
        // Each thread begins with another, and usually has it alone.
        let begin = if made == 1 { 0 } else { thread_number() };
        let free = (0..made).find_map(|step| {
            let lane = &self.lanes[(begin + step) % made];
            lane.lock.try_lock().map(|held| (held, lane))
        });
        let (_held, lane) = match free {
            Some(found) => found,
            None => self.another()?,
        };
        // SAFETY: under its lock.
        let files = unsafe { &mut *lane.files.get() }.as_mut()?;
        match call(files, &self.cx) {
            Err(Errno::EIO) if self.is_lost() => None,
            result => Some(result),
        }
    }

    /// One lane more, which the caller has.
    fn another(&self) -> Option<(crate::lock::Held<'_>, &LanePlace)> {
        let _making = self.ring_lock.try_lock()?;
        let made = self.made.load(Ordering::Relaxed);
        let lane = self.lanes.get(made)?;
        let held = lane.lock.try_lock()?;
        // SAFETY: under the locks of both.
        let (ring, files) = unsafe { (&mut *self.ring.get(), &mut *lane.files.get()) };
        *files = Some(ring.client_of(TRANSFER as u32)?);
        self.made.store(made + 1, Ordering::Release);
        Some((held, lane))
    }

    fn is_lost(&self) -> bool {
        let _held = self.ring_lock.lock();
        // SAFETY: under its lock.
        let alive = unsafe { &*self.ring.get() }.is_alive();
        if !alive {
            self.lost.store(true, Ordering::Relaxed);
        }
        !alive
    }

    /// Adopts an open file by its token.
    pub fn adopt(&self, token: [u64; 2]) -> Option<Handle> {
        self.adopt_by(|files| files.adopt(token))
    }

    /// Adopts what the mount has open of `ino` with these rights.
    pub fn adopt_open(&self, ino: Ino, rights: OpenFlags) -> Option<Handle> {
        self.adopt_by(|files| files.adopt_open(ino, rights))
    }

    fn adopt_by(&self, adopt: impl FnOnce(&mut Files) -> Result<Handle, Errno>) -> Option<Handle> {
        let mut back = [(Ino(0), Handle(0)); GIVEN_BACK];
        let mut count = 0;
        if let Some(_held) = self.closed_lock.try_lock() {
            // SAFETY: under its lock.
            let closed = unsafe { &mut *self.closed.get() };
            while count < GIVEN_BACK && closed.count > 0 {
                closed.count -= 1;
                back[count] = closed.files[closed.count];
                count += 1;
            }
        }
        let adopted = self.call(|files, cx| {
            for &(ino, handle) in &back[..count] {
                // Nothing more can be done, whatever the server says.
                let _ = files.release(cx, ino, handle);
            }
            adopt(files)
        });
        adopted?.ok()
    }

    /// Takes note that an adopted file is used no more. Called also from a signal handler that has
    /// interrupted anything here: what cannot be noted at once the server keeps until the session
    /// ends.
    pub fn closed(&self, ino: Ino, handle: Handle) {
        if let Some(answers) = self.answers.get() {
            answers.closed(ino, handle);
        }
        if let Some(_held) = self.closed_lock.try_lock() {
            // SAFETY: under its lock.
            let closed = unsafe { &mut *self.closed.get() };
            if closed.count < CLOSED_MAX {
                closed.files[closed.count] = (ino, handle);
                closed.count += 1;
            }
        }
    }
}

/// A number that differs between threads, and is found without allocating.
fn thread_number() -> usize {
    // SAFETY: an address that every thread has.
    let address = unsafe { libc::__errno_location() }.addr();
    (address >> 12).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48
}
