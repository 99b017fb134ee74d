//! A machine for unit tests: its clock goes when it is told to, and its memory fails when it is.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_vfs::model::ModelFs;
use atoll_vfs::{Errno, Result, Timespec};

use crate::Volume;
use crate::host::{Bell, Done, Host, PAGES_LEN, Pages, ViewMemory};
use crate::leases::gate::Mount;

/// The machine.
#[derive(Debug, Default)]
pub(crate) struct StillHost {
    millis: AtomicU64,
    random: AtomicU64,
    /// Memory takes nothing that is written.
    full: Arc<AtomicBool>,
    /// No client has memory any more.
    unshared: Arc<AtomicBool>,
}

impl StillHost {
    pub fn unshare(&self, unshared: bool) {
        self.unshared.store(unshared, Ordering::Relaxed);
    }

    pub fn fill(&self, full: bool) {
        self.full.store(full, Ordering::Relaxed);
    }

    pub fn pass(&self, time: Duration) {
        self.millis.fetch_add(time.as_millis() as u64, Ordering::Relaxed);
    }
}

impl Host for StillHost {
    fn now(&self) -> Timespec {
        Timespec::default()
    }

    fn uptime(&self) -> Duration {
        Duration::from_millis(self.millis.load(Ordering::Relaxed))
    }

    fn random(&self, bytes: &mut [u8]) -> Result<()> {
        for byte in bytes {
            let n = self.random.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            *byte = (n >> 56) as u8;
        }
        Ok(())
    }

    fn wait(&self, begin: &mut dyn FnMut(Done)) {
        let (tell, told) = channel();
        begin(Box::new(move || {
            let _ = tell.send(());
        }));
        // Another thread of the test may have to do it.
        told.recv_timeout(Duration::from_secs(30)).expect("nobody does it");
    }

    fn pages(&self) -> Result<Box<dyn Pages>> {
        let (full, unshared) = (Arc::clone(&self.full), Arc::clone(&self.unshared));
        Ok(Box::new(Bytes { bytes: Mutex::default(), full, unshared }))
    }

    fn view(&self, _: usize, _: bool) -> Result<Option<Box<dyn ViewMemory>>> {
        Ok(None)
    }
}

/// Memory for the content of a file, byte by byte.
#[derive(Debug)]
struct Bytes {
    bytes: Mutex<BTreeMap<u64, u8>>,
    full: Arc<AtomicBool>,
    unshared: Arc<AtomicBool>,
}

thread_local! {
    /// Called when memory is freed, once.
    pub(crate) static FREED: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

impl Drop for Bytes {
    fn drop(&mut self) {
        FREED.take().into_iter().for_each(|freed| freed());
    }
}

impl Pages for Bytes {
    fn read(&self, at: u64, to: &mut [u8]) -> Result<()> {
        let bytes = self.bytes.lock().unwrap();
        to.fill(0);
        let there = bytes.range(at..at + to.len() as u64);
        there.for_each(|(place, byte)| to[(place - at) as usize] = *byte);
        Ok(())
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<()> {
        if self.full.load(Ordering::Relaxed) {
            return Err(Errno::ENOMEM);
        }
        self.bytes.lock().unwrap().extend((at..).zip(from.iter().copied()));
        Ok(())
    }

    fn zero(&self, from: u64, to: u64) -> Result<()> {
        let gone: Range<u64> = from..to.max(from);
        self.bytes.lock().unwrap().retain(|at, _| !gone.contains(at));
        Ok(())
    }

    fn next_data(&self, at: u64) -> Result<u64> {
        Ok(self.bytes.lock().unwrap().range(at..).next().map_or(PAGES_LEN, |(at, _)| *at))
    }

    fn is_shared(&self) -> bool {
        !self.unshared.load(Ordering::Relaxed)
    }
}

/// A volume on such a machine.
pub(crate) fn volume() -> Arc<Volume<ModelFs>> {
    Volume::new(ModelFs::default(), "v", Arc::new(StillHost::default()))
}

/// Notes that it was rung, or fenced.
#[derive(Debug, Default)]
pub(crate) struct Noted {
    rung: AtomicBool,
    fenced: AtomicBool,
}

impl Noted {
    /// Whether it was rung since it was last asked.
    pub fn was_rung(&self) -> bool {
        self.rung.swap(false, Ordering::Relaxed)
    }

    pub fn was_fenced(&self) -> bool {
        self.fenced.load(Ordering::Relaxed)
    }
}

impl Bell for Noted {
    fn ring(&self) {
        self.rung.store(true, Ordering::Relaxed);
    }
}

impl Mount for Noted {
    fn fence(&self) {
        assert!(!self.fenced.swap(true, Ordering::Relaxed), "once is enough");
    }
}
