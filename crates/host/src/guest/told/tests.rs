//! A device that rings no more often than the driver wants, as VIRTIO 1.2, 2.7.10 has it.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use std::sync::atomic::fence;

use atoll_transport::channel::Mapped;
use atoll_virtio::device::features;
use atoll_virtio::fs::VirtioFs;
use atoll_virtio::queue::Addresses;
use atoll_virtio::{Device, Platform, Region};

use super::super::Shares;
use super::*;

/// The queue for notices, and the feature that a device has it (VIRTIO 1.2, 5.11).
const NOTICES: u16 = 1;
const NOTIFICATION: u64 = 1;
/// Longer than any call takes on a loaded machine.
const LONG: Duration = Duration::from_secs(60);

/// Memory, and what of it there is.
#[derive(Clone, Default)]
struct Noted {
    shares: Shares,
    regions: Arc<Mutex<Vec<Region<SharedMemory>>>>,
}

impl Platform for Noted {
    type Memory = SharedMemory;

    fn share(&mut self, len: usize) -> Option<Region<SharedMemory>> {
        let region = self.shares.share(len)?;
        self.regions.lock().unwrap().push(region.clone());
        Some(region)
    }
}

/// A device that does nothing but note where its queues are, each with this many entries.
struct Setup {
    entries: u16,
    queues: Arc<Mutex<BTreeMap<u16, Addresses>>>,
}

impl Device for Setup {
    fn begin(&mut self) -> Result<u64, DeviceError> {
        let rings = features::EVENT_INDEX | features::INDIRECT;
        Ok(NOTIFICATION | features::VERSION_1 | rings)
    }

    fn accept(&mut self, _: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    fn queue_size(&mut self, number: u16) -> u16 {
        if number == NOTICES { self.entries } else { 64 }
    }

    fn start_queue(&mut self, number: u16, _: u16, at: &Addresses) -> Result<(), DeviceError> {
        self.queues.lock().unwrap().insert(number, *at);
        Ok(())
    }

    fn start(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn ring(&mut self, _: u16) {}

    fn pause(&mut self, _: u16, _: u64) -> Result<bool, DeviceError> {
        Err(DeviceError::Lost)
    }

    fn configuration(&mut self, _: usize, out: &mut [u8]) -> Result<(), DeviceError> {
        out.fill(0);
        Ok(())
    }

    fn stop(&mut self) -> bool {
        true
    }
}

/// The device's half of the queue for notices.
struct Teller {
    memory: SharedMemory,
    /// Offsets of the available and of the used ring in the memory.
    available: usize,
    used: usize,
    entries: u16,
    sent: u16,
    /// How many had been sent when it was last seen to the bell.
    rung: u16,
    bell: EventFd,
}

impl Teller {
    fn half(&self, at: usize) -> u16 {
        u16::from_le(self.memory.shared().u16(at).load(Acquire))
    }

    /// How many buffers the driver has offered.
    fn offered(&self) -> u16 {
        self.half(self.available + 2)
    }

    /// Puts an empty notice into the next buffer, when there is one.
    fn tell(&mut self) {
        let begun = Instant::now();
        while self.offered() == self.sent {
            assert!(begun.elapsed() < LONG, "notice {} is not taken", self.sent);
            std::hint::spin_loop();
        }
        let entry = usize::from(self.sent % self.entries);
        let head = self.half(self.available + 4 + 2 * entry);
        let shared = self.memory.shared();
        let place = self.used + 4 + 8 * entry;
        shared.u32(place).store(u32::from(head).to_le(), Release);
        shared.u32(place + 4).store(0, Release);
        self.sent = self.sent.wrapping_add(1);
        shared.u16(self.used + 2).store(self.sent.to_le(), Release);
    }

    /// Rings, if the driver wants to hear of one of those that were sent since the last call.
    fn ring(&mut self) {
        fence(SeqCst);
        let wanted = self.half(self.available + 4 + 2 * usize::from(self.entries));
        let new = self.sent.wrapping_sub(self.rung);
        if self.sent.wrapping_sub(wanted).wrapping_sub(1) < new {
            self.bell.write(1).unwrap();
        }
        self.rung = self.sent;
    }
}

/// However many notices come at once, the thread hears of the next one: also when they were just as
/// many as one call takes.
#[test]
fn a_burst_leaves_the_thread_awake_to_the_next() {
    for entries in [1, 2, 16] {
        let (noted, queues) = (Noted::default(), Arc::default());
        let device = Setup { entries, queues: Arc::clone(&queues) };
        let (_fs, notices) = VirtioFs::with_notices(device, noted.clone(), 4096).unwrap();
        let bell = EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC).unwrap();
        let ours = bell.try_clone().unwrap();
        let told = Told::begin(notices.unwrap(), (Kick::new().unwrap(), bell)).unwrap();
        let at = queues.lock().unwrap()[&NOTICES];
        let regions = noted.regions.lock().unwrap();
        let region = regions.iter().find(|region| region.address() == at.descriptors).unwrap();
        let offset = |address: u64| (address - region.address()) as usize;
        let mut teller = Teller {
            memory: region.memory().clone(),
            available: offset(at.available),
            used: offset(at.used),
            entries,
            sent: 0,
            rung: 0,
            bell: ours,
        };
        for burst in std::iter::repeat_n(2 * entries, 10_000) {
            for number in 0..burst {
                teller.tell();
                // All the buffers are full before the thread hears of any.
                if number + 1 >= burst.min(entries) {
                    teller.ring();
                }
            }
            // All are done when as many buffers are on offer as there were.
            let begun = Instant::now();
            while teller.offered().wrapping_sub(teller.sent) != entries {
                assert!(begun.elapsed() < LONG, "{burst} notices: the thread sleeps");
                std::thread::yield_now();
            }
        }
        drop(told);
    }
}
