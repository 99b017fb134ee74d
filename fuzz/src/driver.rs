//! Drivers whose devices are hostile: a file system's, with all that a guest has above it, a
//! disk's, a source's of entropy, and functions of PCI and registers in memory that are nearly
//! devices.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use atoll_block::{BLOCK_SIZE, BlockDevice, BlockIndex};
use atoll_transport::{Lost, Shared};
use atoll_vfs::kept::Kept;
use atoll_vfs::model::ModelFs;
use atoll_vfs::server::{Caller as Peer, Identity};
use atoll_vfs::windowed::Policy;
use atoll_vfs::wire::files::WriteIn;
use atoll_vfs::wire::header::{InHeader, OutHeader};
use atoll_vfs::wire::{Extensions, Fixed, REPLY_MAX, opcode};
use atoll_vfs::{
    Client, ClientOptions, Forgetting, Keeper, Keeping, Server, ServerOptions, Timespec, Window,
    Windowed,
};
use atoll_virtio::disk::Disk;
use atoll_virtio::entropy::Entropy;
use atoll_virtio::fs::{Notices, VirtioFs};
use atoll_virtio::mmio::{MmioDevice, Place};
use atoll_virtio::pci::{self, ConfigSpace, Function, Gap, PciDevice};
use atoll_virtio::testing::{Backend, FakeDevice, Lie, Machine};
use atoll_virtio::{Device, DeviceError, Registers};

use crate::Script;
use crate::replies::{Caller, Choices, fill};

/// How many devices there are one after the other, and calls of each.
const DEVICES: usize = 4;
const CALLS: usize = 200;
/// Bytes of a page, and how many there are in the window.
const PAGE: usize = 4096;
const PAGES: usize = 4;
/// Queues of each device.
const QUEUES: usize = 3;

/// The bytes that decide everything, on both sides.
type Choose<'s> = Rc<RefCell<Script<'s>>>;

/// What a hostile device answers.
struct Hostile<'s> {
    script: Choose<'s>,
    /// What it answers if it is right, now and then: a file system.
    behind: Option<(Server, ModelFs)>,
}

impl<'s> Hostile<'s> {
    /// A device that is nothing.
    fn new(script: &Choose<'s>) -> Hostile<'s> {
        Hostile { script: Rc::clone(script), behind: None }
    }

    /// A file system's, whose answers may be kept.
    fn file_system(script: &Choose<'s>) -> Hostile<'s> {
        let extensions = Extensions::from_bits_truncate(script.borrow_mut().byte().into());
        let server = Server::new(ServerOptions { max_data: PAGE as u32, extensions, valid: 1 });
        Hostile { script: Rc::clone(script), behind: Some((server, ModelFs::default())) }
    }

    /// The right answer to a request, if it has one.
    fn right(&mut self, request: &[u8], room: usize) -> Option<Vec<u8>> {
        let (server, fs) = self.behind.as_mut().filter(|_| request.len() >= InHeader::SIZE)?;
        let InHeader { opcode, unique, .. } = InHeader::load(request);
        let mut answer = vec![0; REPLY_MAX];
        if let opcode::FUSE_SETUPMAPPING | opcode::FUSE_REMOVEMAPPING = opcode {
            OutHeader { len: OutHeader::SIZE as u32, error: 0, unique }.store(&mut answer);
            answer.truncate(OutHeader::SIZE);
            return Some(answer);
        }
        let split = match opcode {
            opcode::FUSE_WRITE => request.len().min(InHeader::SIZE + WriteIn::SIZE),
            _ => request.len(),
        };
        let (message, data) = request.split_at(split);
        let mut brought = vec![0; room.saturating_sub(OutHeader::SIZE)];
        let caller = Peer { identity: Identity::FromHeader, now: Timespec::default() };
        let reply = server.serve(fs, &caller, message, data, &mut answer, &mut brought).ok()?;
        answer.truncate(reply.message);
        answer.extend_from_slice(&brought[..reply.data]);
        answer.truncate(room);
        Some(answer)
    }
}

/// A notice, which a driver may understand.
fn notice(script: &mut Script<'_>, room: usize) -> Vec<u8> {
    let len = OutHeader::SIZE + 8 * script.below(6) as usize + script.byte() as usize % 8;
    let mut notice = vec![0; len.min(room)];
    fill(script, &mut notice);
    if let Some(place) = notice.get_mut(..OutHeader::SIZE) {
        let error = i32::from(script.byte() % 8);
        OutHeader { len: len as u32, error, unique: 0 }.store(place);
    }
    notice
}

impl Backend for Hostile<'_> {
    fn serve(&mut self, queue: u16, request: &[u8], room: usize) -> Option<Vec<u8>> {
        let choice = self.script.borrow_mut().byte();
        if choice == 0 {
            return None;
        }
        let answer = if choice < 8 { None } else { self.right(request, room) };
        let script = &mut *self.script.borrow_mut();
        let Some(mut answer) = answer else {
            if self.behind.is_some() && queue == 1 && request.is_empty() {
                return Some(notice(script, room));
            }
            let len = if choice % 4 == 1 { script.below(room as u64 + 1) as usize } else { room };
            let mut answer = vec![0; len];
            fill(script, &mut answer);
            return Some(answer);
        };
        if answer.len() < OutHeader::SIZE {
            return Some(answer);
        }
        match choice {
            8 => fill(script, &mut answer[..4]),
            9 => fill(script, &mut answer[4..8]),
            10 => fill(script, &mut answer[8..16]),
            11 => answer.truncate(script.below(answer.len() as u64 + 1) as usize),
            12..16 => fill(script, &mut answer[OutHeader::SIZE..]),
            // One number of it.
            16..48 => {
                let at = script.below(answer.len() as u64 / 8) as usize * 8;
                fill(script, &mut answer[at..at + 8]);
            }
            _ => {}
        }
        Some(answer)
    }
}

/// A device of some features.
fn device<'s>(machine: &Machine, hostile: Hostile<'s>) -> FakeDevice<Hostile<'s>> {
    let script = Rc::clone(&hostile.script);
    let script = &mut *script.borrow_mut();
    let mut device = FakeDevice::new(machine, QUEUES, script.number(), hostile);
    device.config = vec![0; 64];
    fill(script, &mut device.config);
    if script.byte().is_multiple_of(2) {
        // What a device of notices has there: the least length of a buffer.
        device.config[40..44].copy_from_slice(&[0, 1, 0, 0]);
    }
    device.seed = script.number() | 1;
    device
}

/// Something that is not so, now and then.
fn lie(script: &mut Script<'_>) -> Option<Lie> {
    Some(match script.byte() {
        0 => Lie::NoSuchChain(script.number() as u32),
        1 => Lie::NotOutstanding,
        2 => Lie::Twice,
        3 => Lie::TooLong,
        4 => Lie::IndexAhead(script.below(300) as u16),
        _ => return None,
    })
}

/// Takes notices from a queue, if there is one.
struct Heard {
    state: RefCell<Option<(Notices<Shared<'static>>, Kept)>>,
    now: RefCell<Duration>,
}

impl Keeper for Heard {
    fn with<R>(&self, act: impl FnOnce(&mut Kept) -> R) -> Option<R> {
        let mut state = self.state.borrow_mut();
        let (notices, kept) = state.as_mut()?;
        let mut message = vec![0; notices.buffer_len()];
        let mut take = || -> Result<(), Lost> {
            for _ in 0..2 * notices.buffers() {
                let Some((buffer, len)) = notices.next(&mut message)? else { break };
                kept.take(&message[..len]);
                notices.done(buffer)?;
            }
            Ok(())
        };
        if take().is_err() {
            *state = None;
            return None;
        }
        Some(act(kept))
    }

    fn now(&self) -> Duration {
        *self.now.borrow_mut() += Duration::from_millis(50);
        *self.now.borrow()
    }
}

/// A window in which some bytes are not there.
struct Shown<'s> {
    bytes: RefCell<Vec<u8>>,
    script: Choose<'s>,
}

impl Shown<'_> {
    fn is_there(&self) -> bool {
        self.script.borrow_mut().byte() != 0
    }
}

impl Window for Shown<'_> {
    fn len(&self) -> u64 {
        (PAGES * PAGE) as u64
    }

    fn copy_out(&self, at: u64, out: &mut [u8]) -> bool {
        let at = at as usize;
        out.copy_from_slice(&self.bytes.borrow()[at..at + out.len()]);
        self.is_there()
    }

    fn copy_in(&self, at: u64, data: &[u8]) -> bool {
        let at = at as usize;
        self.bytes.borrow_mut()[at..at + data.len()].copy_from_slice(data);
        self.is_there()
    }
}

/// A file system's device, below all that a guest has.
fn file_system(script: &Choose<'_>) {
    let machine = Machine::lending(script.borrow_mut().byte().is_multiple_of(2));
    let device = device(&machine, Hostile::file_system(script));
    let Ok((fs, notices)) = VirtioFs::with_notices(device, machine.clone(), PAGE) else { return };
    let Ok(client) = Client::connect(fs, ClientOptions::default()) else { return };
    let state = notices.map(|notices| (notices, Kept::new(PAGES * PAGE)));
    let heard = Heard { state: RefCell::new(state), now: RefCell::default() };
    let bytes = RefCell::new(vec![0; PAGES * PAGE]);
    let shown = Shown { bytes, script: Rc::clone(script) };
    let range = PAGE as u64;
    let policy = Policy { range, least: 1, least_asked: 1, worth: 0, ahead: 2, batch: 2 };
    let windowed = Windowed::new(Keeping::new(client, heard), Some(shown), policy);
    let (mut fs, mut caller) = (Forgetting::new(windowed), Caller::default());
    for _ in 0..CALLS {
        let choices = {
            let script = &mut *script.borrow_mut();
            if script.is_over() {
                break;
            }
            Choices::new(script)
        };
        let device = fs.inner().inner().transport().device();
        device.lie = lie(&mut script.borrow_mut());
        // A notice, if there are any.
        let _ = device.pause(1, 0);
        caller.call(&mut fs, &choices);
    }
    let (device, _) = fs.into_inner().into_inner().into_inner().disconnect().stop();
    drop(device);
    assert_eq!(machine.lent(), 0, "what was lent is given back");
}

/// A disk.
fn disk(script: &Choose<'_>) {
    let machine = Machine::lending(script.borrow_mut().byte().is_multiple_of(2));
    let device = device(&machine, Hostile::new(script));
    let Ok(mut disk) = Disk::new(device, machine.clone()) else { return };
    for _ in 0..CALLS {
        let (which, first, len) = {
            let script = &mut *script.borrow_mut();
            if script.is_over() {
                break;
            }
            let last = disk.block_count().wrapping_sub(script.below(4));
            let first = if script.byte().is_multiple_of(2) { script.below(40) } else { last };
            (script.byte(), BlockIndex(first), BLOCK_SIZE * (1 + script.below(3) as usize))
        };
        let mut bytes = vec![0; len];
        let _ = match which % 4 {
            0 => disk.read(first, &mut bytes),
            1 => disk.write(first, &bytes),
            2 => disk.flush(),
            _ => disk.discard(first, (len / BLOCK_SIZE) as u64),
        };
        assert_eq!(machine.lent(), 0, "what was lent is given back");
    }
    disk.stop();
}

/// A source of entropy.
fn entropy(script: &Choose<'_>) {
    let mut machine = Machine::lending(true);
    let device = device(&machine, Hostile::new(script));
    let Ok(mut source) = Entropy::new(device, &mut machine) else { return };
    let len = script.borrow_mut().below(9000) as usize;
    let _ = source.fill(&mut vec![0; len]);
}

/// A function of PCI, in whose configuration capabilities of virtio are likely.
struct Space<'s> {
    script: Choose<'s>,
    ranges: [u32; 6],
}

impl ConfigSpace for Space<'_> {
    fn read(&mut self, at: Function, offset: u16) -> u32 {
        let script = &mut *self.script.borrow_mut();
        match offset {
            _ if at.device != 0 => u32::MAX,
            0 => 0x105a_1af4,
            0x04 => 1 << 20,
            0x10..0x28 => self.ranges[usize::from(offset - 0x10) / 4],
            0x34 => 0x40,
            0x40..0xd0 => {
                let (number, word) = ((offset - 0x40) / 24, (offset - 0x40) % 24);
                let right = match word {
                    // Kind, successor, length, and which structure.
                    0 => [9, 0x40 + 24 * (number as u8 + 1), 24, number as u8 + 1],
                    // Of which range, and where.
                    4 => [0, 0, 0, 0],
                    8 => u32::to_le_bytes(0x1000 * u32::from(number)),
                    12 => u32::to_le_bytes(0x1000),
                    _ => [0; 4],
                };
                match script.byte() {
                    0..4 => script.number() as u32,
                    4..8 => script.below(0x4000) as u32,
                    _ => u32::from_le_bytes(right),
                }
            }
            _ => script.number() as u32,
        }
    }

    fn write(&mut self, _: Function, offset: u16, value: u32) {
        if let 0x10..0x28 = offset {
            let range = usize::from(offset - 0x10) / 4;
            // 1 MiB each, of 64 bits the even ones.
            let mask = if range.is_multiple_of(2) { 0xfff0_0000 } else { u32::MAX };
            self.ranges[range] = value & mask | if range.is_multiple_of(2) { 4 } else { 0 };
        }
    }
}

/// Registers that say anything.
struct Anything<'s> {
    script: Choose<'s>,
    address: u64,
    len: u64,
    /// They are those of a device without a bus, as the first two say mostly.
    is_mmio: bool,
}

impl Anything<'_> {
    fn word(&self, at: usize, size: usize) -> u32 {
        assert!((self.address + at as u64).is_multiple_of(size as u64), "askew");
        assert!((at + size) as u64 <= self.len, "outside");
        let script = &mut *self.script.borrow_mut();
        if let (true, 0 | 4, 8..) = (self.is_mmio, at, script.byte()) {
            return if at == 0 { u32::from_le_bytes(*b"virt") } else { 2 };
        }
        match script.byte() % 4 {
            0 => script.number() as u32,
            1 => script.below(40) as u32,
            // What a register of flags says that has them all, and the state after a reset.
            2 => u32::MAX,
            _ => 0,
        }
    }
}

impl Registers for Anything<'_> {
    fn read8(&self, at: usize) -> u8 {
        self.word(at, 1) as u8
    }
    fn read16(&self, at: usize) -> u16 {
        self.word(at, 2) as u16
    }
    fn read32(&self, at: usize) -> u32 {
        self.word(at, 4)
    }
    fn write8(&self, at: usize, _: u8) {
        self.word(at, 1);
    }
    fn write16(&self, at: usize, _: u16) {
        self.word(at, 2);
    }
    fn write32(&self, at: usize, _: u32) {
        self.word(at, 4);
    }
}

/// A machine with one device.
struct Around<'s> {
    script: Choose<'s>,
    is_mmio: bool,
}

impl<'s> atoll_virtio::Machine for Around<'s> {
    type Registers = Anything<'s>;

    fn map(&mut self, address: u64, len: u64) -> Option<Anything<'s>> {
        let (script, is_mmio) = (Rc::clone(&self.script), self.is_mmio);
        Some(Anything { script, address, len, is_mmio })
    }

    fn pause(&mut self, turn: u64) -> Result<bool, DeviceError> {
        if turn > 100 { Err(DeviceError::Lost) } else { Ok(true) }
    }
}

/// A function that is nearly a device.
fn function(script: &Choose<'_>) {
    let mut space = Space { script: Rc::clone(script), ranges: [0; 6] };
    let (mut low, mut high) =
        (Gap::new(0x8000_0000, 0xc000_0000), Gap::new(0x80_0000_0000, 0x90_0000_0000));
    for found in pci::scan(&mut space).into_iter().take(2) {
        let around = Around { script: Rc::clone(script), is_mmio: false };
        let device = PciDevice::new(&mut space, found.function, &mut low, &mut high, around);
        if let Ok(device) = device {
            drive(device);
        }
    }
}

/// Registers in memory that are nearly a device's.
fn registers(script: &Choose<'_>) {
    let len = 0x100 + 4 * script.borrow_mut().below(64);
    let around = Around { script: Rc::clone(script), is_mmio: true };
    let place = Place::new(0xfeb0_0000, len).expect("long enough");
    if let Ok(device) = MmioDevice::new(place, around) {
        drive(device);
    }
}

/// Has a driver set a device up that will not answer.
fn drive(device: impl Device) {
    if let Ok(fs) = VirtioFs::new(device, Machine::lending(true), PAGE) {
        let _ = Client::connect(fs, ClientOptions::default());
    }
}

/// Runs drivers until the script is over.
///
/// # Panics
/// When one does what it may not.
pub fn run(bytes: &[u8]) {
    let script: Choose<'_> = Rc::new(RefCell::new(Script::new(bytes)));
    for _ in 0..DEVICES {
        let kind = script.borrow_mut().byte();
        match kind % 8 {
            0 => disk(&script),
            1 => entropy(&script),
            2 => function(&script),
            3 => registers(&script),
            _ => file_system(&script),
        }
        if script.borrow().is_over() {
            break;
        }
    }
}
