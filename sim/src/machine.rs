//! The machine below the server: a clock that the world moves, chance from the seed, and bells that are heard
//! when the world comes to it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_server::host::{Bell, Done, Host, Pages, ViewMemory};
use atoll_server::leases::gate::Mount;
use atoll_tests::rng::Rng;
use atoll_vfs::{Errno, Result, Timespec};

use crate::views::View;

/// The machine.
pub struct Machine {
    micros: AtomicU64,
    random: Mutex<Rng>,
}

impl Machine {
    /// One whose chance comes from `seed`.
    pub fn new(seed: u64) -> Machine {
        Machine { micros: AtomicU64::new(0), random: Mutex::new(Rng::new(seed)) }
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
        Err(Errno::ENOSYS)
    }

    fn view(&self, _: usize) -> Result<Option<Box<dyn ViewMemory>>> {
        let view = View::new().map_err(|_| Errno::ENOMEM)?;
        Ok(Some(Box::new(view)))
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
