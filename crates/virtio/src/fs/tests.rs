//! The file system's driver and a device that speaks as much of FUSE as it takes.

use alloc::vec;
use alloc::vec::Vec;
use std::cell::RefCell;
use std::rc::Rc;

use super::*;
use crate::device::features;
use crate::queue::Addresses;
use crate::testing::{FakeDevice, Lie, Machine};

const READ: u32 = 15;
const WRITE: u32 = 16;
const GETATTR: u32 = 3;

/// What was asked: queue, number of the request, bytes behind the header.
type Asked = Rc<RefCell<Vec<(u16, u32, usize)>>>;

fn message(opcode: u32, unique: u64, more: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; IN_HEADER];
    bytes[4..8].copy_from_slice(&opcode.to_ne_bytes());
    bytes[8..16].copy_from_slice(&unique.to_ne_bytes());
    bytes.extend_from_slice(more);
    bytes
}

/// Answers READ with as many bytes as there is room, WRITE with how many came, others with their
/// own arguments.
fn backend(asked: &Asked) -> impl FnMut(u16, &[u8], usize) -> Option<Vec<u8>> + use<> {
    let asked = Rc::clone(asked);
    move |queue, request, room| {
        let opcode = u32::from_ne_bytes(request[4..8].try_into().unwrap());
        asked.borrow_mut().push((queue, opcode, request.len() - IN_HEADER));
        if matches!(opcode, FORGET | BATCH_FORGET) {
            assert_eq!(room, 0);
            return Some(Vec::new());
        }
        let body = match opcode {
            READ => (0..room - OUT_HEADER).map(|at| at as u8 ^ request[8]).collect(),
            WRITE => {
                let data = &request[IN_HEADER + 8..];
                assert!(data.iter().enumerate().all(|(at, &byte)| byte == at as u8));
                (data.len() as u64).to_ne_bytes().to_vec()
            }
            _ => request[IN_HEADER..].to_vec(),
        };
        let mut answer = vec![0; OUT_HEADER];
        answer[..4].copy_from_slice(&((OUT_HEADER + body.len()) as u32).to_ne_bytes());
        answer[8..16].copy_from_slice(&request[8..16]);
        answer.extend_from_slice(&body);
        Some(answer)
    }
}

#[test]
fn data_goes_to_and_from_the_callers_buffer() {
    for (lends, offers) in [(true, 0), (false, features::INDIRECT), (true, features::EVENT_INDEX)] {
        let (machine, asked) = (Machine::lending(lends), Asked::default());
        let fake = FakeDevice::new(&machine, 2, offers, backend(&asked));
        let mut fs = VirtioFs::new(fake, machine.clone(), 100_000).unwrap();
        let lens = [(1u64, 1), (2, 4096), (3, 99_999), (4, 1 << 20)];
        for (unique, len) in lens.into_iter().take(if cfg!(miri) { 2 } else { 4 }) {
            let mut room = vec![0xaa; len];
            let mut answer = [0; 16];
            let sent = fs.call(&message(READ, unique, &[0; 40]), &[], &mut answer, &mut room);
            let data: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let mut said = [0; 24];
            let written = fs.call(&message(WRITE, unique, &[0; 8]), &data, &mut said, &mut []);
            if !lends && len > 102_400 {
                // More than is copied, and nothing was sent.
                assert_eq!((sent, written), (Err(SendError::TooLarge), Err(SendError::TooLarge)));
                continue;
            }
            assert_eq!(sent, Ok(Received { message: 16, data: len }));
            assert!(room.iter().enumerate().all(|(at, &byte)| byte == at as u8 ^ unique as u8));
            assert_eq!(written, Ok(Received { message: 24, data: 0 }));
            assert_eq!(said[16..], (len as u64).to_ne_bytes());
        }
        assert_eq!(machine.lent(), 0, "all is taken back");
        // As lent memory, and not through another place.
        let most = asked.borrow().iter().map(|asked| asked.2).max();
        assert!(cfg!(miri) || (most > Some(1 << 20)) == lends);
    }
}

/// Requests that are sent without waiting keep their answers while others come and go.
#[test]
fn answers_wait_for_who_asked() {
    let (machine, asked) = (Machine::default(), Asked::default());
    let fake = FakeDevice::new(&machine, 2, features::INDIRECT, backend(&asked));
    let mut fs = VirtioFs::new(fake, machine, 4096).unwrap();
    let mut held: Vec<(Token, u8)> = Vec::new();
    for round in 0..if cfg!(miri) { 60 } else { 3000u32 } {
        let byte = round as u8;
        if round % 3 < 2 {
            match fs.send(&message(GETATTR, 1, &[byte; 30]), &[], 0) {
                Ok(token) => held.push((token, byte)),
                Err(error) => assert_eq!((error, held.len()), (SendError::Full, SLOTS)),
            }
        }
        if held.len() < SLOTS {
            let mut answer = [0; 46];
            let sent = fs.call(&message(GETATTR, 1, &[7; 30]), &[], &mut answer, &mut []);
            assert_eq!((sent, answer[45]), (Ok(Received { message: 46, data: 0 }), 7));
        }
        if round % 5 > 0 && !held.is_empty() {
            let (token, byte) = held.remove(round as usize * 7 % held.len());
            if round.is_multiple_of(2) {
                fs.wait(&token).unwrap();
                assert_eq!(fs.ready(&token), Ok(true));
            }
            let mut answer = [0; 100];
            assert_eq!(fs.receive(token, &mut answer, &mut []).unwrap().message, 46);
            assert!(answer[16..46].iter().all(|&got| got == byte));
        }
    }
}

#[test]
fn what_is_forgotten_goes_by_the_queue_of_high_priority() {
    let (machine, asked) = (Machine::default(), Asked::default());
    let fake = FakeDevice::new(&machine, 2, 0, backend(&asked));
    let mut fs = VirtioFs::new(fake, machine, 4096).unwrap();
    let one = fs.send(&message(FORGET, 1, &[0; 8]), &[], 0).unwrap();
    let many = fs.send(&message(BATCH_FORGET, 1, &[0; 8]), &[1; 1024], 0).unwrap();
    let other = fs.send(&message(READ, 1, &[0; 40]), &[], 1000).unwrap();
    let mut room = [0; 1000];
    let read = fs.receive(other, &mut [0; 16], &mut room);
    assert_eq!(read, Ok(Received { message: 16, data: 1000 }));
    for token in [many, one] {
        let nothing = Received { message: 0, data: 0 };
        assert_eq!(fs.receive(token, &mut [1; 16], &mut [1; 5]), Ok(nothing));
    }
    let mut seen = asked.borrow().clone();
    seen.sort_unstable();
    assert_eq!(seen, [(0, FORGET, 8), (0, BATCH_FORGET, 1032), (1, READ, 40)]);
    assert_eq!(fs.send(&message(READ, 1, &[]), &[], 5000), Err(SendError::TooLarge));
    assert_eq!(fs.send(&[0; 39], &[], 0), Err(SendError::TooLarge));
}

#[test]
fn a_device_that_lies_is_lost() {
    let lies = [Lie::NoSuchChain(99), Lie::TooLong, Lie::NotOutstanding, Lie::IndexAhead(7)];
    for (lie, calls) in lies.into_iter().flat_map(|lie| [(lie, true), (lie, false)]) {
        let (machine, asked) = (Machine::default(), Asked::default());
        let mut fake = FakeDevice::new(&machine, 2, features::INDIRECT, backend(&asked));
        fake.lie = Some(lie);
        let mut fs = VirtioFs::new(fake, machine.clone(), 4096).unwrap();
        let read = message(READ, 1, &[0; 40]);
        let mut room = [0; 100];
        if calls {
            let got = fs.call(&read, &[], &mut [0; 16], &mut room);
            assert_eq!(got, Err(SendError::Lost), "{lie:?}");
        } else {
            let token = fs.send(&read, &[], 100).unwrap();
            assert_eq!(fs.receive(token, &mut [0; 16], &mut room), Err(Lost), "{lie:?}");
        }
        assert_eq!(fs.call(&read, &[], &mut [0; 16], &mut room), Err(SendError::Lost));
        assert_eq!(fs.send(&read, &[], 0), Err(SendError::Lost));
        assert_eq!(machine.lent(), 0, "{lie:?}");
    }
}

/// One that answers never does not keep its caller's buffer.
#[test]
fn a_device_that_says_nothing_is_lost() {
    let machine = Machine::default();
    let fake = FakeDevice::new(&machine, 2, 0, |_: u16, _: &[u8], _: usize| None);
    let mut fs = VirtioFs::new(fake, machine.clone(), 4096).unwrap();
    let got = fs.call(&message(READ, 1, &[0; 40]), &[], &mut [0; 16], &mut [0; 100]);
    assert_eq!((got, machine.lent()), (Err(SendError::Lost), 0));
}

/// A device that does not hear the first ring.
struct Deaf<B>(FakeDevice<B>, bool);

impl<B: crate::testing::Backend> Device for Deaf<B> {
    fn begin(&mut self) -> Result<u64, DeviceError> {
        self.0.begin()
    }

    fn accept(&mut self, features: u64) -> Result<(), DeviceError> {
        self.0.accept(features)
    }

    fn queue_size(&mut self, number: u16) -> u16 {
        self.0.queue_size(number)
    }

    fn start_queue(
        &mut self,
        number: u16,
        size: u16,
        addresses: &Addresses,
    ) -> Result<(), DeviceError> {
        self.0.start_queue(number, size, addresses)
    }

    fn start(&mut self) -> Result<(), DeviceError> {
        self.0.start()
    }

    fn ring(&mut self, number: u16) {
        if core::mem::replace(&mut self.1, true) {
            self.0.ring(number);
        }
    }

    /// Its machine has time without end, and no interrupts.
    fn pause(&mut self, number: u16, _: u64) -> Result<bool, DeviceError> {
        self.0.pause(number, 0).map(|_| true)
    }

    fn sleep(&mut self, _: u16) -> Result<(), DeviceError> {
        Err(DeviceError::Lost)
    }

    fn configuration(&mut self, offset: usize, out: &mut [u8]) -> Result<(), DeviceError> {
        self.0.configuration(offset, out)
    }

    fn stop(&mut self) -> bool {
        self.0.stop()
    }
}

/// A ring that is lost, or that an emulator has the driver leave out, costs some time.
#[test]
#[cfg_attr(miri, ignore = "waits for long")]
fn a_device_that_sleeps_is_rung_again() {
    let (machine, asked) = (Machine::default(), Asked::default());
    let deaf = Deaf(FakeDevice::new(&machine, 2, features::EVENT_INDEX, backend(&asked)), false);
    let mut fs = VirtioFs::new(deaf, machine, 4096).unwrap();
    for _ in 0..2 {
        let mut answer = [0; 46];
        let sent = fs.call(&message(GETATTR, 1, &[7; 30]), &[], &mut answer, &mut []);
        assert_eq!((sent, answer[45]), (Ok(Received { message: 46, data: 0 }), 7));
    }
    assert_eq!(fs.device().0.rung, 2);
}
