//! A split virtqueue, as the device sees it: VIRTIO 1.2, 2.7.
//!
//! The driver's half is hostile. Each field is read once, then checked: indices that run on,
//! descriptors that loop, lie outside of the memory or are offered twice break the queue, which
//! costs the guest its connection. The device does not read again what it has written itself.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

use rustix::fs::{FileType, fstat};
use rustix::io::Errno;

use super::inflight::Record;
use super::memory::GuestMemory;
use super::{Broken, SIZE_MAX, now};

/// The most descriptors of one chain, also of an indirect one.
const CHAIN_MAX: usize = 1024;

// Flags of a descriptor, of the available ring and of the used ring.
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
const NO_INTERRUPT: u16 = 1;
const NO_NOTIFY: u16 = 1;

/// The bytes of a descriptor, and of an entry of the used ring.
const DESCRIPTOR: usize = 16;
const USED: u64 = 8;

/// The parts of a queue, by their addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Parts {
    pub descriptors: u64,
    pub available: u64,
    pub used: u64,
}

impl Parts {
    /// The bytes of each, of a queue with `size` entries.
    fn lens(size: u16) -> [u64; 3] {
        let size = u64::from(size);
        [DESCRIPTOR as u64 * size, 6 + 2 * size, 6 + USED * size]
    }

    /// The same parts by the guest's addresses.
    fn resolve(&self, memory: &GuestMemory, size: u16) -> Option<Parts> {
        let [descriptors, available, used] = Self::lens(size);
        let aligned = |addr: u64, to: u64| addr.is_multiple_of(to).then_some(addr);
        Some(Parts {
            descriptors: aligned(memory.guest_address(self.descriptors, descriptors)?, 16)?,
            available: aligned(memory.guest_address(self.available, available)?, 2)?,
            used: aligned(memory.guest_address(self.used, used)?, 4)?,
        })
    }
}

/// The features that were negotiated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Features {
    /// The sides say with an index what they want to hear of next.
    pub event_index: bool,
    /// Chains may lie in tables of their own.
    pub indirect: bool,
}

struct Descriptor {
    addr: u64,
    len: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    fn load(bytes: &[u8; DESCRIPTOR]) -> Descriptor {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = *bytes;
        Descriptor {
            addr: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            len: u32::from_le_bytes([i, j, k, l]),
            flags: u16::from_le_bytes([m, n]),
            next: u16::from_le_bytes([o, p]),
        }
    }
}

/// A request that was taken: a chain of descriptors.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chain {
    /// Its first descriptor, which names it.
    head: u16,
    /// The life of the queue that it was taken in.
    life: u64,
    /// Where the request is.
    pub readable: Vec<(u64, u32)>,
    /// Where the answer goes.
    pub writable: Vec<(u64, u32)>,
}

/// How many bytes there are in `places`.
fn total(places: &[(u64, u32)]) -> u64 {
    places.iter().map(|&(_, len)| u64::from(len)).sum()
}

impl Chain {
    /// Its name: the number of its first descriptor.
    pub fn head(&self) -> u16 {
        self.head
    }

    /// How many bytes the answer may have.
    pub fn room(&self) -> u64 {
        total(&self.writable)
    }

    /// How many bytes the request has.
    pub fn sent(&self) -> u64 {
        total(&self.readable)
    }

    /// Copies the request's bytes from number `from` on, as many as fit, to `out`.
    pub fn copy(&self, memory: &GuestMemory, from: usize, out: &mut [u8]) -> Result<(), Broken> {
        let (mut skip, mut out) = (from as u64, out);
        for &(addr, len) in &self.readable {
            let here = u64::from(len).saturating_sub(skip);
            let (part, rest) = out.split_at_mut(out.len().min(here as usize));
            if !part.is_empty() {
                memory.read(addr.wrapping_add(skip), part)?;
            }
            (skip, out) = (skip.saturating_sub(u64::from(len)), rest);
        }
        Ok(())
    }
}

/// A queue.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub size: u16,
    /// By the front end's addresses.
    parts: Parts,
    /// By the guest's, once the queue runs; `None` after the memory has changed.
    resolved: Option<Parts>,
    pub features: Features,
    /// Where in the guest the used ring is for the dirty log, if that is said apart.
    log: Option<u64>,
    /// The next entry of the available ring.
    next: u16,
    /// The index of the used ring, and the one that the driver was last told.
    used: u16,
    told: u16,
    /// The front end has said that it may run, and that it does.
    pub enabled: bool,
    pub started: bool,
    /// Rung by the driver, and by the device.
    kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
    /// By descriptor: it is the head of a chain that has been taken.
    taken: Vec<bool>,
    /// How many are.
    in_flight: u16,
    /// How often the driver has begun anew.
    life: u64,
    /// Their record for another back end.
    record: Option<Record>,
    /// What is in flight are empty buffers for the device, which have no answer: when the queue
    /// stops they are offered again.
    has_buffers: bool,
}

impl Queue {
    /// Sets the number of entries.
    pub fn resize(&mut self, size: u32) -> Result<(), Broken> {
        match u16::try_from(size) {
            Ok(size) if size.is_power_of_two() && size <= SIZE_MAX && !self.started => {
                self.size = size;
                self.resolved = None;
                Ok(())
            }
            _ => Err(Broken("wants a queue of a size that there is not")),
        }
    }

    /// Sets where the parts are, and the used ring for the dirty log.
    pub fn place(&mut self, parts: Parts, log: Option<u64>) {
        (self.parts, self.log) = (parts, log);
        self.resolved = None;
    }

    /// Sets the next entry of the available ring.
    pub fn set_next(&mut self, next: u16) {
        self.next = next;
    }

    /// Sets whether what is in flight are empty buffers.
    pub fn set_has_buffers(&mut self, has: bool) {
        if std::mem::replace(&mut self.has_buffers, has) != has {
            // Another queue is in its place.
            self.taken = Vec::new();
        }
    }

    /// The memory has changed.
    pub fn moved(&mut self) {
        self.resolved = None;
    }

    /// Sets what the driver rings.
    pub fn set_kick(&mut self, kick: Option<OwnedFd>) -> Result<(), Broken> {
        self.kick = kick.map(bell).transpose()?;
        Ok(())
    }

    /// Sets what the device rings.
    pub fn set_call(&mut self, call: Option<OwnedFd>) -> Result<(), Broken> {
        self.call = call.map(bell).transpose()?;
        Ok(())
    }

    /// The bell that the driver rings, if the queue runs.
    pub fn kick(&self) -> Option<BorrowedFd<'_>> {
        self.kick.as_ref().filter(|_| self.runs()).map(AsFd::as_fd)
    }

    /// Whether requests are taken from it.
    pub fn runs(&self) -> bool {
        self.started && self.enabled
    }

    /// Begins to run. A guest that was stopped for a while goes on with the requests that it has
    /// in flight: its ring says that there are as many as this device knows of. Else the driver
    /// has begun anew, and nothing is in flight but what the record says, which is returned.
    pub fn start(&mut self, memory: &GuestMemory) -> Result<Vec<u16>, Broken> {
        let parts = self.parts(memory)?;
        self.used = memory.load(parts.used + 2)?;
        if self.has_buffers {
            // They are used in the order in which they were offered.
            self.next = self.used;
        }
        self.told = self.used;
        self.started = true;
        if self.taken.len() == usize::from(self.size)
            && self.next.wrapping_sub(self.used) == self.in_flight
        {
            return Ok(Vec::new());
        }
        self.taken = vec![false; usize::from(self.size)];
        self.in_flight = 0;
        self.life += 1;
        self.recover()
    }

    /// Sets where what is in flight is noted.
    pub fn keep(&mut self, record: Record) {
        self.record = Some(record);
        // This device's knowledge is of another record.
        self.taken = Vec::new();
    }

    /// The requests in flight by the record, the first first.
    fn recover(&mut self) -> Result<Vec<u16>, Broken> {
        let (size, used) = (self.size, self.used);
        let Some(record) = self.record() else { return Ok(Vec::new()) };
        let Some(heads) = record.recover(size, used)? else { return Ok(Vec::new()) };
        // The front end may not have seen the last answers: what is behind them is not to be taken
        // again.
        self.next = self.used.wrapping_add(heads.len() as u16);
        Ok(heads)
    }

    /// Where what is in flight is noted. Empty buffers are not.
    fn record(&mut self) -> Option<&mut Record> {
        self.record.as_mut().filter(|_| !self.has_buffers)
    }

    /// Whether what is in flight is noted for another back end.
    pub fn has_record(&self) -> bool {
        self.record.is_some()
    }

    /// Whether a request is still in flight, and not of a driver that has begun anew since.
    pub fn has(&self, chain: &Chain) -> bool {
        self.life == chain.life
    }

    /// Ends to run. Returns the next entry of the available ring.
    pub fn stop(&mut self) -> u16 {
        if self.has_buffers && self.started {
            self.next = self.used;
            self.taken = Vec::new();
        }
        self.started = false;
        self.kick = None;
        self.next
    }

    /// The queue's parts, looked up where that has to be.
    fn parts(&mut self, memory: &GuestMemory) -> Result<Parts, Broken> {
        if let Some(parts) = self.resolved {
            return Ok(parts);
        }
        let parts = self.parts.resolve(memory, self.size).filter(|_| self.size > 0);
        self.resolved = parts;
        parts.ok_or(Broken("has a queue outside of its memory"))
    }

    /// Marks `len` bytes at `offset` of the used ring, at the place that the front end has named.
    /// Those where the ring is are marked when they are written.
    fn mark_used(&self, memory: &GuestMemory, offset: u64, len: u64) -> Result<(), Broken> {
        let Some(log) = self.log else { return Ok(()) };
        let addr = log.checked_add(offset).ok_or(Broken("has its log at no address"))?;
        memory.mark(addr, len)
    }

    /// Stores a word at `offset` of the used ring, which is at `used`.
    fn store_used(
        &self,
        memory: &GuestMemory,
        (used, offset): (u64, u64),
        value: u16,
    ) -> Result<(), Broken> {
        memory.store(used + offset, value)?;
        self.mark_used(memory, offset, 2)
    }

    /// Takes the next request, of at most `most` bytes; `None` when there is none.
    pub fn take(&mut self, memory: &GuestMemory, most: usize) -> Result<Option<Chain>, Broken> {
        let parts = self.parts(memory)?;
        let ahead = memory.load(parts.available + 2)?.wrapping_sub(self.next);
        if ahead == 0 {
            return Ok(None);
        }
        if ahead > self.size {
            return Err(Broken("let an index of a queue run on"));
        }
        let entry = u64::from(self.next % self.size);
        let head = memory.load(parts.available + 4 + 2 * entry)?;
        let taken = self.chain(memory, parts.descriptors, head, most)?;
        self.next = self.next.wrapping_add(1);
        self.note(head)?;
        Ok(Some(taken))
    }

    /// Takes note that the chain with this head is in flight.
    fn note(&mut self, head: u16) -> Result<(), Broken> {
        match self.taken.get_mut(usize::from(head)) {
            Some(taken) if !*taken => *taken = true,
            _ => return Err(Broken("offered a descriptor twice")),
        }
        self.in_flight += 1;
        if let Some(record) = self.record() {
            record.taken(head);
        }
        Ok(())
    }

    /// Takes a request again that was in flight when another back end had the queue.
    pub fn resume(
        &mut self,
        memory: &GuestMemory,
        head: u16,
        most: usize,
    ) -> Result<Chain, Broken> {
        let parts = self.parts(memory)?;
        let taken = self.chain(memory, parts.descriptors, head, most)?;
        self.note(head)?;
        Ok(taken)
    }

    /// Walks a chain: notes what the device may read, and what it may write.
    fn chain(
        &self,
        memory: &GuestMemory,
        table: u64,
        head: u16,
        most: usize,
    ) -> Result<Chain, Broken> {
        let (readable, writable) = (Vec::new(), Vec::new());
        let mut chain = Chain { head, life: self.life, readable, writable };
        let mut sent = 0;
        // The chain's own table, if it has one, and how many descriptors it may still have.
        let mut own: Option<Vec<u8>> = None;
        let (mut index, mut left, mut is_first) = (head, usize::from(self.size), true);
        loop {
            left = left.checked_sub(1).ok_or(Broken("sent descriptors that do not end"))?;
            let mut bytes = [0; DESCRIPTOR];
            match &own {
                None if index < self.size => {
                    let at = table + DESCRIPTOR as u64 * u64::from(index);
                    memory.read(at, &mut bytes)?;
                }
                Some(own) if usize::from(index) < own.len() / DESCRIPTOR => {
                    let at = DESCRIPTOR * usize::from(index);
                    bytes.copy_from_slice(&own[at..at + DESCRIPTOR]);
                }
                _ => return Err(Broken("named a descriptor that there is not")),
            }
            let Descriptor { addr, len, flags, next } = Descriptor::load(&bytes);
            if flags & INDIRECT != 0 {
                let entries = len as usize / DESCRIPTOR;
                let is_table =
                    (1..=CHAIN_MAX).contains(&entries) && (len as usize).is_multiple_of(DESCRIPTOR);
                // At the end of a chain it would be allowed; no driver does it.
                if !self.features.indirect || !is_first || flags & NEXT != 0 || !is_table {
                    return Err(Broken("sent a table of descriptors that makes no sense"));
                }
                let mut descriptors = vec![0; len as usize];
                memory.read(addr, &mut descriptors)?;
                own = Some(descriptors);
                (index, left, is_first) = (0, entries, false);
                continue;
            }
            is_first = false;
            if flags & WRITE != 0 {
                chain.writable.push((addr, len));
            } else if chain.writable.is_empty() {
                sent += len as usize;
                if sent > most {
                    return Err(Broken("sent a request that is too long"));
                }
                chain.readable.push((addr, len));
            } else {
                return Err(Broken("mixed what it sends with what it wants"));
            }
            if flags & NEXT == 0 {
                return Ok(chain);
            }
            index = next;
        }
    }

    /// Gives a request back with its answer, all of whose parts go out one behind the other, and
    /// then `placed` bytes that are there already. They fit, or the driver has asked for what it
    /// has no room for.
    pub fn give(
        &mut self,
        memory: &GuestMemory,
        chain: Chain,
        answer: &[&[u8]],
        placed: usize,
    ) -> Result<(), Broken> {
        let len = answer.iter().map(|part| part.len()).sum::<usize>() + placed;
        if len as u64 > chain.room() {
            return Err(Broken("left no room for an answer"));
        }
        let mut places = chain.writable.iter().copied();
        let (mut addr, mut room) = (0, 0);
        for mut part in answer.iter().copied() {
            while !part.is_empty() {
                if room == 0 {
                    let (start, len) = places.next().unwrap_or_default();
                    (addr, room) = (start, len as usize);
                    continue;
                }
                let (now, rest) = part.split_at(room.min(part.len()));
                memory.write(addr, now)?;
                (addr, room, part) = (addr.wrapping_add(now.len() as u64), room - now.len(), rest);
            }
        }
        let parts = self.parts(memory)?;
        let mut entry = [0; USED as usize];
        entry[..4].copy_from_slice(&u32::from(chain.head).to_le_bytes());
        entry[4..].copy_from_slice(&(len as u32).to_le_bytes());
        let offset = 4 + USED * u64::from(self.used % self.size);
        memory.write(parts.used + offset, &entry)?;
        self.mark_used(memory, offset, USED)?;
        if let Some(record) = self.record() {
            record.ending(chain.head);
        }
        self.used = self.used.wrapping_add(1);
        self.store_used(memory, (parts.used, 2), self.used)?;
        let used = self.used;
        if let Some(record) = self.record() {
            record.ended(chain.head, used);
        }
        self.taken[usize::from(chain.head)] = false;
        self.in_flight -= 1;
        Ok(())
    }

    /// Rings the driver, if it has been given answers since the last time and wants to hear of it.
    pub fn tell(&mut self, memory: &GuestMemory) -> Result<(), Broken> {
        let old = std::mem::replace(&mut self.told, self.used);
        if old == self.used {
            return Ok(());
        }
        let parts = self.parts(memory)?;
        // The driver looks at the used ring after it has said what it wants: one of both sees the
        // other's.
        fence(Ordering::SeqCst);
        let wanted = if self.features.event_index {
            let event = memory.load(parts.available + 4 + 2 * u64::from(self.size))?;
            let passed = self.used.wrapping_sub(event).wrapping_sub(1);
            passed < self.used.wrapping_sub(old)
        } else {
            memory.load(parts.available)? & NO_INTERRUPT == 0
        };
        if let Some(call) = self.call.as_ref().filter(|_| wanted) {
            // Full means that it has been rung often enough.
            let _ = rustix::io::write(call, &1u64.to_ne_bytes());
        }
        Ok(())
    }

    /// Says that the device looks by itself: the driver need not ring.
    pub fn wake_up(&mut self, memory: &GuestMemory) -> Result<(), Broken> {
        if self.features.event_index {
            // The index that was asked for lies behind, and stays there.
            return Ok(());
        }
        let parts = self.parts(memory)?;
        self.store_used(memory, (parts.used, 0), NO_NOTIFY)
    }

    /// Says that the device does not look any more; returns whether that may be so. If not, a
    /// request has come meanwhile.
    pub fn fall_asleep(&mut self, memory: &GuestMemory) -> Result<bool, Broken> {
        let parts = self.parts(memory)?;
        if self.features.event_index {
            let offset = 4 + USED * u64::from(self.size);
            self.store_used(memory, (parts.used, offset), self.next)?;
        } else {
            self.store_used(memory, (parts.used, 0), 0)?;
        }
        fence(Ordering::SeqCst);
        Ok(memory.load(parts.available + 2)? == self.next)
    }

    /// Makes the driver's bell silent.
    pub fn silence(&self) {
        let _ = self.kick.as_ref().map(|bell| now::read(bell, &mut [0; 8]));
    }
}

/// The file that was handed over for a bell, if it is none that blocks: an eventfd, or a pipe,
/// which reads like one.
fn bell(file: OwnedFd) -> Result<OwnedFd, Broken> {
    const NONE: Broken = Broken("handed over a bell that is no eventfd");
    let kind = fstat(&file).map(|stat| FileType::from_raw_mode(stat.st_mode));
    match now::read_any(&file, &mut [0; 8]) {
        Ok(_) | Err(Errno::AGAIN) => {}
        Err(Errno::OPNOTSUPP) if kind == Ok(FileType::Fifo) => {}
        Err(_) => return Err(NONE),
    }
    // A counter that is full would block whoever rings.
    now::never_waits(&file).map_err(|_| NONE)?;
    Ok(file)
}
