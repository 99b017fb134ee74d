//! The machine below the server: a clock that the world moves, chance from the seed, and bells that
//! are heard when the world comes to it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_server::host::{Bell, Done, Host, PAGES_LEN, Pages, ViewMemory};
use atoll_server::leases::gate::Mount;
use atoll_tests::rng::Rng;
use atoll_vfs::{Errno, Result, Timespec};

use crate::views::View;

/// The machine.
pub struct Machine {
    micros: AtomicU64,
    /// Bytes of memory of mapped files.
    paged: Arc<AtomicU64>,
    random: Mutex<Rng>,
}

impl Machine {
    /// A machine whose chance comes from `seed`.
    pub fn new(seed: u64) -> Machine {
        Machine {
            micros: AtomicU64::new(0),
            paged: Arc::default(),
            random: Mutex::new(Rng::new(seed)),
        }
    }

    /// Bytes of memory that mapped files take.
    pub fn paged(&self) -> u64 {
        self.paged.load(Ordering::Relaxed)
    }

    /// Time passes.
    pub fn pass(&self, time: Duration) {
        self.micros.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }
}

impl Host for Machine {
    fn now(&self) -> Timespec {
        let micros = self.micros.load(Ordering::Relaxed);
        let (sec, micros) = (micros / 1_000_000, micros % 1_000_000);
        Timespec { sec: 1_000_000_000 + sec as i64, nsec: micros as u32 * 1000 }
    }

    fn uptime(&self) -> Duration {
        Duration::from_micros(self.micros.load(Ordering::Relaxed))
    }

    fn random(&self, bytes: &mut [u8]) -> Result<()> {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        bytes.iter_mut().for_each(|byte| *byte = random.number() as u8);
        Ok(())
    }

    /// All requests of the world have carriers: nobody waits inside a call.
    fn wait(&self, begin: &mut dyn FnMut(Done)) {
        let done = Arc::new(AtomicBool::new(false));
        let is_done = Arc::clone(&done);
        begin(Box::new(move || is_done.store(true, Ordering::Relaxed)));
        assert!(
            done.load(Ordering::Relaxed),
            "a call waits for others that have no thread to go on"
        );
    }

    fn pages(&self) -> Result<Box<dyn Pages>> {
        let (pages, used) = (Mutex::default(), Arc::clone(&self.paged));
        Ok(Box::new(MappedFile { pages, used }))
    }

    fn view(&self, _: usize, _: bool) -> Result<Option<Box<dyn ViewMemory>>> {
        let view = View::new().map_err(|_| Errno::ENOMEM)?;
        Ok(Some(Box::new(view)))
    }
}

/// The content of a mapped file, in pages of which those that are not there are zeros.
struct MappedFile {
    pages: Mutex<BTreeMap<u64, Vec<u8>>>,
    used: Arc<AtomicU64>,
}

const PAGE: u64 = 4096;

impl MappedFile {
    fn pages(&self) -> MutexGuard<'_, BTreeMap<u64, Vec<u8>>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pieces of `len` bytes at `at`, each within a page: its page, where it begins there and in
/// all, and its length.
fn pieces(at: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let (page, within) = ((at + done as u64) / PAGE, ((at + done as u64) % PAGE) as usize);
        let piece = (len - done).min(PAGE as usize - within);
        let from = done;
        done += piece;
        (piece > 0).then_some((page, within, from, piece))
    })
}

impl Pages for MappedFile {
    fn read(&self, at: u64, to: &mut [u8]) -> Result<()> {
        let pages = self.pages();
        for (page, within, from, len) in pieces(at, to.len()) {
            match pages.get(&page) {
                Some(page) => to[from..from + len].copy_from_slice(&page[within..within + len]),
                None => to[from..from + len].fill(0),
            }
        }
        Ok(())
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let mut pages = self.pages();
        for (page, within, from, len) in pieces(at, bytes.len()) {
            let page = pages.entry(page).or_insert_with(|| {
                self.used.fetch_add(PAGE, Ordering::Relaxed);
                vec![0; PAGE as usize]
            });
            page[within..within + len].copy_from_slice(&bytes[from..from + len]);
        }
        Ok(())
    }

    fn zero(&self, from: u64, to: u64) -> Result<()> {
        let mut pages = self.pages();
        for (&page, bytes) in pages.range_mut(from / PAGE..to.div_ceil(PAGE)) {
            let begin = from.saturating_sub(page * PAGE).min(PAGE) as usize;
            let end = to.saturating_sub(page * PAGE).min(PAGE) as usize;
            bytes[begin..end].fill(0);
        }
        Ok(())
    }

    fn next_data(&self, at: u64) -> Result<u64> {
        let page = self.pages().range(at / PAGE..).next().map(|(&page, _)| page);
        Ok(page.map_or(PAGES_LEN, |page| at.max(page * PAGE)))
    }

    fn is_shared(&self) -> bool {
        true
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        let pages = self.pages().len() as u64;
        self.used.fetch_sub(pages * PAGE, Ordering::Relaxed);
    }
}

/// A bell. It is heard when the world comes to it, maybe much later.
#[derive(Default)]
pub struct Rung {
    rung: AtomicBool,
    fenced: AtomicBool,
    rings: AtomicU32,
    /// Loses the ring of this number, if it is planted: the first has number 1.
    loses: u32,
}

impl Rung {
    /// One that loses the ring number `loses`; 0: none.
    pub fn losing(loses: u32) -> Rung {
        Rung { loses, ..Rung::default() }
    }

    /// Whether it was rung and not heard.
    pub fn is_rung(&self) -> bool {
        self.rung.load(Ordering::Relaxed)
    }

    /// Hears it.
    pub fn hear(&self) {
        self.rung.store(false, Ordering::Relaxed);
    }

    /// Whether the mount that it belongs to is to end.
    pub fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::Relaxed)
    }
}

impl Bell for Rung {
    fn ring(&self) {
        if self.rings.fetch_add(1, Ordering::Relaxed) + 1 != self.loses {
            self.rung.store(true, Ordering::Relaxed);
        }
    }
}

impl Mount for Rung {
    fn fence(&self) {
        self.fenced.store(true, Ordering::Relaxed);
    }
}
