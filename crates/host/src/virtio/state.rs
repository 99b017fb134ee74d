//! A device's state in bytes, as a front end carries it to another device: docs/PROTOCOL.md,
//! "Moving a guest".
//!
//! What comes in was in the front end's hands. It is taken apart into checked types, each number
//! against what is left of the bytes, before anything is done with it.

use atoll_server::locks::{LockKind, LockOwner, LockRange};
use atoll_server::session::moving::{HeldLock, Known, OpenFile, State};
use atoll_vfs::{Handle, Ino, OpenFlags};

use super::SIZE_MAX;

/// The first bytes of a state.
const MAGIC: [u8; 8] = *b"atollvfs";
const VERSION: u32 = 1;
/// The most bytes of a state: some 500,000 inodes that are known.
pub(super) const STATE_MAX: usize = 32 << 20;
/// The most inodes of a state, open files and locks, and requests that wait.
const KNOWN_MAX: usize = 1 << 20;
const OPEN_MAX: usize = 1 << 18;
const WAITS_MAX: usize = 9 * SIZE_MAX as usize;
/// The most bytes of the guest's INIT, and of its answer.
const INIT_MAX: usize = 1024;
/// In the place of the rights of a directory.
const DIRECTORY: u32 = u32::MAX;

/// The terms agreed with a guest that has begun, and what it has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Begun {
    /// Its INIT.
    pub init: Vec<u8>,
    /// The answer.
    pub answer: Vec<u8>,
    pub session: State,
    /// Requests that wait for locks, by queue and descriptor, the first first.
    pub waits: Vec<(u16, u16)>,
}

/// The state of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DeviceState {
    /// How much the guest may keep, in bits.
    pub keeps: u64,
    /// `None` for a guest that has not begun.
    pub begun: Option<Begun>,
}

/// Why a state is none, for the log.
pub(super) const NONE: &str = "the state is no state of such a device";

struct Writer(Vec<u8>);

impl Writer {
    fn words(&mut self, words: &[u64]) {
        words.iter().for_each(|word| self.0.extend(word.to_le_bytes()));
    }

    fn half(&mut self, word: u32) {
        self.0.extend(word.to_le_bytes());
    }

    /// Bytes, with their number before them.
    fn bytes(&mut self, bytes: &[u8]) {
        self.half(bytes.len() as u32);
        self.0.extend(bytes);
    }
}

/// The bytes that are left.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (part, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(part)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn word(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn half(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn quarter(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn bytes(&mut self, most: usize) -> Option<Vec<u8>> {
        let len = self.half()? as usize;
        (len <= most).then(|| self.take(len))?.map(<[u8]>::to_vec)
    }

    /// A number of items, at most `most`.
    fn items<T>(
        &mut self,
        most: usize,
        mut item: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        let count = self.half()?;
        if count as usize > most {
            return None;
        }
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(item(self)?);
        }
        Some(items)
    }
}

impl DeviceState {
    /// In bytes.
    pub fn store(&self) -> Vec<u8> {
        let mut to = Writer(MAGIC.to_vec());
        to.half(VERSION);
        to.half(self.begun.is_some().into());
        to.words(&[self.keeps]);
        let Some(Begun { init, answer, session, waits }) = &self.begun else { return to.0 };
        to.bytes(init);
        to.bytes(answer);
        to.0.extend(session.identity);
        to.0.extend(session.secret);
        to.words(&[session.top]);
        to.half(session.known.len() as u32);
        for Known { ino, count, parent, name } in &session.known {
            to.words(&[ino.0, *count, parent.0]);
            to.bytes(name);
        }
        to.half(session.files.len() as u32);
        for OpenFile { ino, handle, flags } in &session.files {
            to.words(&[ino.0, handle.0]);
            to.half(flags.map_or(DIRECTORY, |flags| flags.bits()));
        }
        to.half(session.locks.len() as u32);
        for HeldLock { ino, through, owner, range, kind, pid } in &session.locks {
            let (whole, number) = match owner {
                LockOwner::Process(number) => (0, *number),
                LockOwner::OpenFile => (2, 0),
            };
            to.words(&[ino.0, through.0, number, range.start, range.end]);
            to.half(whole | u32::from(*kind == LockKind::Exclusive));
            to.half(*pid);
        }
        to.half(waits.len() as u32);
        for (queue, head) in waits {
            to.half(u32::from(*queue) << 16 | u32::from(*head));
        }
        to.0
    }

    /// What these bytes say; `None` if they are no state.
    pub fn load(bytes: &[u8]) -> Option<DeviceState> {
        let mut from = Reader(bytes);
        if from.array()? != MAGIC || from.half()? != VERSION {
            return None;
        }
        let (begun, keeps) = (from.half()?, from.word()?);
        let begun = match begun {
            0 => None,
            1 => Some(begun_of(&mut from)?),
            _ => return None,
        };
        from.0.is_empty().then_some(DeviceState { keeps, begun })
    }
}

fn begun_of(from: &mut Reader<'_>) -> Option<Begun> {
    let (init, answer) = (from.bytes(INIT_MAX)?, from.bytes(INIT_MAX)?);
    let (identity, secret, top) = (from.array()?, from.array()?, from.word()?);
    let known = from.items(KNOWN_MAX, |from| {
        let (ino, count, parent) = (Ino(from.word()?), from.word()?, Ino(from.word()?));
        // Sums of these stay numbers, whoever else knows the inode.
        if count > u32::MAX.into() {
            return None;
        }
        Some(Known { ino, count, parent, name: from.bytes(u8::MAX.into())? })
    })?;
    let files = from.items(OPEN_MAX, |from| {
        let (ino, handle) = (Ino(from.word()?), Handle(from.word()?));
        let flags = match from.half()? {
            DIRECTORY => None,
            bits => Some(OpenFlags::from_bits(bits)?),
        };
        Some(OpenFile { ino, handle, flags })
    })?;
    let locks = from.items(OPEN_MAX, |from| {
        let (ino, through, number) = (Ino(from.word()?), Handle(from.word()?), from.word()?);
        let range = LockRange { start: from.word()?, end: from.word()? };
        let (kind, pid) = (from.half()?, from.half()?);
        let owner = match kind & !1 {
            0 => LockOwner::Process(number),
            2 if number == 0 => LockOwner::OpenFile,
            _ => return None,
        };
        let kind = if kind & 1 == 1 { LockKind::Exclusive } else { LockKind::Shared };
        Some(HeldLock { ino, through, owner, range, kind, pid })
    })?;
    let waits = from.items(WAITS_MAX, |from| {
        let (head, queue) = (from.quarter()?, from.quarter()?);
        Some((queue, head))
    })?;
    let session = State { identity, top, secret, known, files, locks };
    Some(Begun { init, answer, session, waits })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> DeviceState {
        let known = |ino, parent, name: &[u8]| {
            let (ino, parent, name) = (Ino(ino), Ino(parent), name.to_vec());
            Known { ino, count: 3, parent, name }
        };
        let both = OpenFlags::READ | OpenFlags::WRITE;
        let file = |ino, flags| OpenFile { ino: Ino(ino), handle: Handle(1 << 32 | ino), flags };
        let lock = |owner, kind| {
            let range = LockRange { start: 5, end: u64::MAX };
            HeldLock { ino: Ino(7), through: Handle(9), owner, range, kind, pid: 77 }
        };
        let session = State {
            identity: [1; 16],
            top: 1,
            secret: [2; 16],
            known: vec![known(5, 1, b"d"), known(7, 5, b"name")],
            files: vec![file(7, Some(both)), file(5, None)],
            locks: vec![
                lock(LockOwner::Process(8), LockKind::Shared),
                lock(LockOwner::OpenFile, LockKind::Exclusive),
            ],
        };
        let (init, answer) = (vec![3; 104], vec![4; 80]);
        let begun = Begun { init, answer, session, waits: vec![(1, 40), (8, 1023)] };
        DeviceState { keeps: 5, begun: Some(begun) }
    }

    #[test]
    fn what_is_stored_is_loaded() {
        for state in [state(), DeviceState { keeps: 1, begun: None }] {
            assert_eq!(DeviceState::load(&state.store()), Some(state));
        }
    }

    #[test]
    fn what_is_no_state() {
        let bytes = state().store();
        for len in 0..bytes.len() {
            assert_eq!(DeviceState::load(&bytes[..len]), None, "{len}");
        }
        assert_eq!(DeviceState::load(&[&bytes[..], &[0]].concat()), None);
        // Whatever any byte is, nothing is taken that is not there.
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut wrong = bytes.clone();
                wrong[at] = value;
                if let Some(state) = DeviceState::load(&wrong) {
                    assert_eq!(state.store(), wrong, "byte {at} is {value}");
                }
            }
        }
    }
}
