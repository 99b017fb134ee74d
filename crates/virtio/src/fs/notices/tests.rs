//! The driver's half of notices, and a device that gives them in any order and lies.

use alloc::boxed::Box;
use alloc::rc::Rc;
use core::cell::{Cell, RefCell};

use atoll_transport::Transport;

use super::*;
use crate::fs::VirtioFs;
use crate::testing::{FakeDevice, Lie, Machine};

const GETATTR: u32 = 3;

/// What requests came by which queue; and the next notice.
#[derive(Clone, Default)]
struct Log {
    asked: Rc<RefCell<Vec<u16>>>,
    next: Rc<Cell<u32>>,
}

type Serve = Box<dyn FnMut(u16, &[u8], usize) -> Option<Vec<u8>>>;
type Fake = FakeDevice<Serve>;

/// A device whose notices are numbers, with this configuration.
fn device(machine: &Machine, offers: u64, config: &[u8]) -> (Fake, Log) {
    let log = Log::default();
    let told = log.clone();
    let backend = move |queue: u16, request: &[u8], _: usize| {
        if queue == NUMBER && request.is_empty() {
            let number = told.next.replace(told.next.get() + 1);
            return Some(number.to_le_bytes().to_vec());
        }
        told.asked.borrow_mut().push(queue);
        let mut answer = vec![0; 16];
        answer[0] = 16;
        Some(answer)
    };
    let backend: Serve = Box::new(backend);
    let mut fake = FakeDevice::new(machine, 3, offers, backend);
    fake.config = config.to_vec();
    (fake, log)
}

fn config(buffer: u32) -> Vec<u8> {
    [&[b't'; TAG_LEN][..], &1u32.to_le_bytes(), &buffer.to_le_bytes()].concat()
}

/// One request; the queue that it came by.
fn ask<P: Platform>(fs: &mut VirtioFs<Fake, P>, log: &Log) -> u16 {
    let mut message = [0; 40];
    message[4..8].copy_from_slice(&GETATTR.to_ne_bytes());
    fs.call(&message, &[], &mut [0; 16], &mut []).unwrap();
    log.asked.borrow_mut().pop().unwrap()
}

/// Notices come while others are not done, in whatever order those are; indices begin anew.
#[test]
fn notices_come_and_are_done() {
    for offers in [FEATURE, FEATURE | features::EVENT_INDEX | features::INDIRECT] {
        let machine = Machine::default();
        let (fake, log) = device(&machine, offers, &config(320));
        let (mut fs, notices) = VirtioFs::with_notices(fake, machine.clone(), 4096).unwrap();
        let mut notices = notices.unwrap();
        assert_eq!((notices.buffers(), notices.buffer_len(), notices.number()), (16, 512, 1));
        assert_eq!(ask(&mut fs, &log), 2);
        assert_eq!(fs.device().pending(1), 16, "all buffers are on offer");
        let mut message = vec![0; notices.buffer_len()];
        let (mut held, mut seen, mut seed) = (Vec::new(), 0u32, 7usize);
        while seen < if cfg!(miri) { 300 } else { 70_000 } {
            seed = seed.wrapping_mul(5).wrapping_add(12345) % 1_000_003;
            if seed % 3 > 0 && held.len() < 16 {
                assert_eq!(fs.device().pause(NUMBER, 0), Ok(true));
                let (buffer, len) = notices.next(&mut message).unwrap().expect("one has come");
                assert_eq!((len, &message[..4]), (4, &seen.to_le_bytes()[..]));
                seen += 1;
                held.push(buffer);
            } else if !held.is_empty() {
                let buffer = held.swap_remove(seed % held.len());
                notices.done(buffer).unwrap();
                if notices.must_ring() {
                    fs.device().ring(NUMBER);
                }
            }
            assert_eq!(notices.next(&mut message), Ok(None));
            assert_eq!(fs.device().pending(1), 16 - held.len(), "what is done is on offer again");
        }
        // One that came while nobody wanted to hear of it is noticed.
        for buffer in held {
            notices.done(buffer).unwrap();
        }
        assert!(notices.must_ring());
        fs.device().ring(NUMBER);
        assert!(!notices.want_interrupt());
        fs.device().pause(NUMBER, 0).unwrap();
        assert!(notices.want_interrupt());
        assert_eq!(ask(&mut fs, &log), 2);
    }
}

/// All that have come are taken in order, and offered again; a device that sends them without end
/// is left in the middle.
#[test]
fn all_notices_are_taken() {
    let machine = Machine::default();
    let (fake, _) = device(&machine, FEATURE | features::EVENT_INDEX, &config(320));
    let (mut fs, notices) = VirtioFs::with_notices(fake, machine.clone(), 4096).unwrap();
    let mut notices = notices.unwrap();
    let mut message = vec![0; notices.buffer_len()];
    let mut seen = Vec::new();
    for count in [0, 1, 5, 16] {
        (0..count).for_each(|_| assert_eq!(fs.device().pause(NUMBER, 0), Ok(true)));
        let taken = notices.take_all(&mut message, |notice| seen.push(notice.to_vec())).unwrap();
        assert_eq!(taken, Taken { rings: count > 0, more: false }, "{count}");
        if taken.rings {
            fs.device().ring(NUMBER);
        }
        assert_eq!(fs.device().pending(1), 16);
    }
    let expected: Vec<_> = (0..22u32).map(|number| number.to_le_bytes().to_vec()).collect();
    assert_eq!(seen, expected);
    fs.device().pause(NUMBER, 0).unwrap();
    let mut count = 0;
    let taken = notices.take_all(&mut message, |_| {
        count += 1;
        // It looks by itself.
        fs.device().ring(NUMBER);
        fs.device().pause(NUMBER, 0).unwrap();
    });
    assert_eq!((taken.unwrap().more, count), (true, 32));
}

/// A device that has no notices, or not such as there is room for.
#[test]
fn not_every_device_has_notices() {
    let long = config(BUFFER_MAX as u32 + 1);
    let cases = [(0, config(320)), (FEATURE, config(320)[..40].to_vec()), (FEATURE, long)];
    for (offers, config) in cases {
        let machine = Machine::default();
        let (fake, log) = device(&machine, offers, &config);
        let (mut fs, notices) = VirtioFs::with_notices(fake, machine.clone(), 4096).unwrap();
        assert!(notices.is_none());
        assert_eq!((ask(&mut fs, &log), fs.device().agreed & FEATURE), (1, 0));
    }
    // And a driver that wants none.
    let machine = Machine::default();
    let (fake, log) = device(&machine, FEATURE, &config(320));
    let mut fs = VirtioFs::new(fake, machine, 4096).unwrap();
    assert_eq!((ask(&mut fs, &log), fs.device().agreed & FEATURE), (1, 0));
}

#[test]
fn a_device_that_lies_tells_nothing() {
    let lies = [
        Lie::NoSuchChain(99),
        Lie::NoSuchChain(u32::MAX),
        Lie::Twice,
        Lie::TooLong,
        Lie::IndexAhead(17),
        Lie::IndexAhead(u16::MAX),
    ];
    for lie in lies {
        let machine = Machine::default();
        let (fake, _) = device(&machine, FEATURE, &config(320));
        let (mut fs, notices) = VirtioFs::with_notices(fake, machine.clone(), 4096).unwrap();
        let mut notices = notices.unwrap();
        let mut message = vec![0; notices.buffer_len()];
        fs.device().pause(NUMBER, 0).unwrap();
        let (buffer, _) = notices.next(&mut message).unwrap().unwrap();
        fs.device().lie = Some(lie);
        fs.device().pause(NUMBER, 0).unwrap();
        assert_eq!(notices.next(&mut message), Err(Lost), "{lie:?}");
        assert_eq!(notices.next(&mut message), Err(Lost), "{lie:?}");
        assert_eq!(notices.done(buffer), Err(Lost), "{lie:?}");
    }
}
