//! A device in the driver's own thread, and the memory that it sees: for tests and fuzzing.
//!
//! The memory is a copy where it can be: bytes that are lent are copied when the device gets them
//! and copied back when it gives them up, so that a driver that forgets either is found out. The
//! device hears of requests only when it is rung, and answers only while the driver waits, in any
//! order; it can be told to [lie](Lie).
#![allow(unsafe_code)]

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use atoll_transport::Shared;

use crate::device::{Device, DeviceError};
use crate::lent::Lent;
use crate::platform::{Platform, Region};
use crate::queue::Addresses;

/// Turns without anything to do after which the device is taken for dead.
const PATIENCE: u64 = 100;
/// Entries of each queue that the device offers.
const SIZE: u16 = 16;

/// The memory that the device sees, by its addresses.
#[derive(Debug, Default)]
struct World {
    regions: Vec<(u64, Shared<'static>)>,
    lent: BTreeMap<u64, Vec<u8>>,
    next: u64,
}

std::thread_local! {
    /// Memory that machines had which are no more. It is never given back: one who still has it
    /// sees what another machine shares there.
    static KEPT: RefCell<Vec<Shared<'static>>> = const { RefCell::new(Vec::new()) };
}

/// Zeros that live for ever, aligned as memory of devices is.
fn zeros(len: usize) -> Shared<'static> {
    let kept = KEPT.with_borrow_mut(|kept| {
        let found = kept.iter().position(|shared| shared.len() == len)?;
        Some(kept.swap_remove(found))
    });
    if let Some(shared) = kept {
        shared.write(0, &vec![0; len]);
        return shared;
    }
    let bytes = Box::leak(vec![0; len + 64].into_boxed_slice());
    let skip = bytes.as_ptr().align_offset(64);
    Shared::from_slice(&mut bytes[skip..skip + len])
}

impl Drop for World {
    fn drop(&mut self) {
        KEPT.with_borrow_mut(|kept| kept.extend(self.regions.drain(..).map(|(_, shared)| shared)));
    }
}

impl World {
    /// An address for `len` bytes, with nothing behind them.
    fn place(&mut self, len: usize) -> u64 {
        let address = self.next + 0x10_0000;
        self.next = (address + len as u64).next_multiple_of(4096);
        address
    }
}

/// A machine whose devices see copies of what is lent to them.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    world: Rc<RefCell<World>>,
    lends_nothing: bool,
}

impl Machine {
    /// A machine that can lend bytes to its devices, or cannot.
    pub fn lending(lends: bool) -> Machine {
        Machine { lends_nothing: !lends, ..Machine::default() }
    }

    /// How many buffers are lent.
    pub fn lent(&self) -> usize {
        self.world.borrow().lent.len()
    }

    /// The shared memory at an address of the device's.
    fn shared(&self, address: u64, len: usize) -> Option<(Shared<'static>, usize)> {
        let world = self.world.borrow();
        world.regions.iter().find_map(|&(base, shared)| {
            let at = usize::try_from(address.checked_sub(base)?).ok()?;
            shared.contains(at, len).then_some((shared, at))
        })
    }

    /// Copies bytes out as the device does.
    ///
    /// # Panics
    /// When the driver has not let it see them.
    pub fn read(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        if let Some((shared, at)) = self.shared(address, len) {
            shared.read(at, &mut bytes);
        } else {
            let world = self.world.borrow();
            let (base, lent) = world.lent.range(..=address).next_back().expect("memory");
            let at = (address - base) as usize;
            bytes.copy_from_slice(&lent[at..at + len]);
        }
        bytes
    }

    /// Copies bytes in as the device does.
    ///
    /// # Panics
    /// As [`read`](Self::read).
    pub fn write(&self, address: u64, bytes: &[u8]) {
        if let Some((shared, at)) = self.shared(address, bytes.len()) {
            shared.write(at, bytes);
        } else {
            let mut world = self.world.borrow_mut();
            let (base, lent) = world.lent.range_mut(..=address).next_back().expect("memory");
            let at = (address - base) as usize;
            lent[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }

    fn word(&self, address: u64) -> u16 {
        let (shared, at) = self.shared(address, 2).expect("memory");
        u16::from_le(shared.u16(at).load(Acquire))
    }

    fn set_word(&self, address: u64, value: u16) {
        let (shared, at) = self.shared(address, 2).expect("memory");
        shared.u16(at).store(value.to_le(), Release);
    }
}

impl Platform for Machine {
    type Memory = Shared<'static>;

    fn share(&mut self, len: usize) -> Option<Region<Shared<'static>>> {
        let shared = zeros(len);
        let mut world = self.world.borrow_mut();
        let address = world.place(len);
        world.regions.push((address, shared));
        Some(Region::new(shared, address))
    }

    fn lend(&mut self, lent: &Lent) -> Option<u64> {
        if self.lends_nothing {
            return None;
        }
        // Bytes of the driver's that the device is not to see.
        let mut bytes = vec![0xee; lent.len()];
        if !lent.is_written() {
            // SAFETY: lent, so that they can be read until they are taken back.
            bytes
                .copy_from_slice(unsafe { core::slice::from_raw_parts(lent.as_ptr(), lent.len()) });
        }
        let mut world = self.world.borrow_mut();
        let address = world.place(lent.len());
        world.lent.insert(address, bytes);
        Some(address)
    }

    fn take_back(&mut self, lent: &Lent, address: u64) {
        let bytes = self.world.borrow_mut().lent.remove(&address).expect("it was lent");
        if lent.is_written() {
            // SAFETY: lent for writing, and nobody else uses the bytes.
            unsafe { core::slice::from_raw_parts_mut(lent.as_ptr(), lent.len()) }
                .copy_from_slice(&bytes);
        }
    }
}

/// What the device says that is not so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// A chain whose number there is not.
    NoSuchChain(u32),
    /// A chain that is not the device's.
    NotOutstanding,
    /// The chain before, once more.
    Twice,
    /// One byte more than may be written.
    TooLong,
    /// More answers than there are requests.
    IndexAhead(u16),
}

/// What a device does with requests.
pub trait Backend {
    /// Carries a request out, that came by queue `queue`: returns what is written, at most `room`
    /// bytes, or `None` to answer never.
    fn serve(&mut self, queue: u16, request: &[u8], room: usize) -> Option<Vec<u8>>;
}

impl<F: FnMut(u16, &[u8], usize) -> Option<Vec<u8>>> Backend for F {
    fn serve(&mut self, queue: u16, request: &[u8], room: usize) -> Option<Vec<u8>> {
        self(queue, request, room)
    }
}

#[derive(Debug)]
struct Chain {
    head: u16,
    readable: Vec<(u64, u32)>,
    writable: Vec<(u64, u32)>,
}

#[derive(Debug, Default)]
struct DeviceQueue {
    addresses: Option<Addresses>,
    size: u16,
    next: u16,
    used: u16,
    pending: Vec<Chain>,
    last: u16,
}

/// A device.
#[derive(Debug)]
pub struct FakeDevice<B> {
    machine: Machine,
    /// What it does.
    pub backend: B,
    /// The features that it offers.
    pub offers: u64,
    /// Its configuration.
    pub config: Vec<u8>,
    /// What it is to say next that is not so.
    pub lie: Option<Lie>,
    /// The same, after so many answers.
    pub lies_after: Option<(usize, Lie)>,
    /// Decides which request is answered next.
    pub seed: u64,
    /// How often it was rung.
    pub rung: usize,
    /// What it was settled on.
    pub agreed: u64,
    queues: Vec<DeviceQueue>,
    stopped: bool,
}

impl<B: Backend> FakeDevice<B> {
    /// A device with so many queues on `machine`, which offers `offers` besides version 1.
    pub fn new(machine: &Machine, queues: usize, offers: u64, backend: B) -> Self {
        let queue = |_| DeviceQueue { size: SIZE, ..DeviceQueue::default() };
        FakeDevice {
            machine: machine.clone(),
            backend,
            offers: offers | crate::device::features::VERSION_1,
            config: Vec::new(),
            lie: None,
            lies_after: None,
            seed: 1,
            rung: 0,
            agreed: 0,
            queues: (0..queues).map(queue).collect(),
            stopped: true,
        }
    }

    /// How many requests it has that have no answer.
    pub fn pending(&self, number: usize) -> usize {
        self.queues[number].pending.len()
    }

    /// A number below `below`, by chance.
    fn chance(&mut self, below: usize) -> usize {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed % below.max(1) as u64) as usize
    }

    fn event_index(&self) -> bool {
        self.agreed & crate::device::features::EVENT_INDEX != 0
    }

    /// Takes what is offered.
    fn look(&mut self, number: usize) {
        let machine = self.machine.clone();
        let wants_index = self.event_index();
        let queue = &mut self.queues[number];
        let Some(addresses) = queue.addresses else { return };
        while machine.word(addresses.available + 2) != queue.next {
            let entry = u64::from(queue.next % queue.size);
            let head = machine.word(addresses.available + 4 + 2 * entry);
            queue.next = queue.next.wrapping_add(1);
            queue.pending.push(chain(&machine, addresses.descriptors, head));
        }
        if wants_index {
            let at = addresses.used + 4 + 8 * u64::from(queue.size);
            machine.set_word(at, queue.next);
        }
    }

    /// Answers one request, if there is one.
    fn answer(&mut self, number: usize) -> bool {
        let count = self.queues[number].pending.len();
        if count == 0 {
            return false;
        }
        let which = self.chance(count);
        let machine = self.machine.clone();
        let chain = self.queues[number].pending.remove(which);
        let mut request = Vec::new();
        for &(address, len) in &chain.readable {
            request.extend(machine.read(address, len as usize));
        }
        let room: u32 = chain.writable.iter().map(|&(_, len)| len).sum();
        let Some(answer) = self.backend.serve(number as u16, &request, room as usize) else {
            self.queues[number].pending.push(chain);
            return false;
        };
        let mut rest = &answer[..];
        for &(address, len) in &chain.writable {
            let (now, later) = rest.split_at(rest.len().min(len as usize));
            machine.write(address, now);
            rest = later;
        }
        let (mut id, mut len) = (u32::from(chain.head), answer.len() as u32);
        let mut ahead = 1;
        match self.lies_after.take() {
            Some((0, lie)) => self.lie = Some(lie),
            later => self.lies_after = later.map(|(after, lie)| (after - 1, lie)),
        }
        let queue = &mut self.queues[number];
        match self.lie.take() {
            None => {}
            Some(Lie::NoSuchChain(number)) => id = number,
            Some(Lie::NotOutstanding) => id = u32::from((chain.head + 1) % queue.size),
            Some(Lie::Twice) => id = u32::from(queue.last),
            Some(Lie::TooLong) => len = room + 1,
            Some(Lie::IndexAhead(by)) => ahead = by,
        }
        queue.last = chain.head;
        // Of what it says it has given up it knows nothing any more.
        queue.pending.retain(|pending| u32::from(pending.head) != id);
        let Some(addresses) = queue.addresses else { return false };
        let at = addresses.used + 4 + 8 * u64::from(queue.used % queue.size);
        machine.write(at, &[id.to_le_bytes(), len.to_le_bytes()].concat());
        queue.used = queue.used.wrapping_add(ahead);
        machine.set_word(addresses.used + 2, queue.used);
        true
    }
}

/// Follows a chain, which the driver has made as it should.
fn chain(machine: &Machine, table: u64, head: u16) -> Chain {
    let mut chain = Chain { head, readable: Vec::new(), writable: Vec::new() };
    let (mut table, mut index) = (table, head);
    loop {
        let bytes = machine.read(table + 16 * u64::from(index), 16);
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|i| bytes[at + i]));
        let (address, rest) = (word(0), word(8));
        let (len, flags) = (rest as u32, (rest >> 32) as u16);
        if flags & 4 != 0 {
            assert!(flags == 4 && len.is_multiple_of(16) && len > 0);
            (table, index) = (address, 0);
            continue;
        }
        if flags & 2 != 0 {
            chain.writable.push((address, len));
        } else {
            assert!(chain.writable.is_empty(), "what is read comes first");
            chain.readable.push((address, len));
        }
        if flags & 1 == 0 {
            return chain;
        }
        index = (rest >> 48) as u16;
    }
}

impl<B: Backend> Device for FakeDevice<B> {
    fn begin(&mut self) -> Result<u64, DeviceError> {
        self.stop();
        Ok(self.offers)
    }

    fn accept(&mut self, features: u64) -> Result<(), DeviceError> {
        self.agreed = features;
        if features & !self.offers == 0 { Ok(()) } else { Err(DeviceError::Unsupported) }
    }

    fn queue_size(&mut self, number: u16) -> u16 {
        self.queues.get(usize::from(number)).map_or(0, |queue| queue.size)
    }

    fn start_queue(
        &mut self,
        number: u16,
        size: u16,
        addresses: &Addresses,
    ) -> Result<(), DeviceError> {
        let queue = &mut self.queues[usize::from(number)];
        *queue = DeviceQueue { size, addresses: Some(*addresses), ..DeviceQueue::default() };
        Ok(())
    }

    fn start(&mut self) -> Result<(), DeviceError> {
        self.stopped = false;
        Ok(())
    }

    fn ring(&mut self, number: u16) {
        self.rung += 1;
        if !self.stopped {
            self.look(usize::from(number));
        }
    }

    fn pause(&mut self, number: u16, turn: u64) -> Result<bool, DeviceError> {
        let looks_again = turn.is_multiple_of(2);
        let busy = looks_again && !self.stopped && self.answer(usize::from(number));
        if busy || turn < PATIENCE { Ok(looks_again) } else { Err(DeviceError::Lost) }
    }

    fn sleep(&mut self, number: u16) -> Result<(), DeviceError> {
        if !self.stopped {
            self.answer(usize::from(number));
        }
        Ok(())
    }

    fn configuration(&mut self, offset: usize, out: &mut [u8]) -> Result<(), DeviceError> {
        let place = self.config.get(offset..).and_then(|rest| rest.get(..out.len()));
        out.copy_from_slice(place.ok_or(DeviceError::Unsupported)?);
        Ok(())
    }

    fn stop(&mut self) -> bool {
        self.stopped = true;
        for queue in &mut self.queues {
            queue.pending.clear();
        }
        true
    }
}

/// A word of shared memory as the device stores it, for tests that write it by themselves.
pub fn store(shared: Shared<'_>, at: usize, value: u16) {
    shared.u16(at).store(value.to_le(), Relaxed);
}
