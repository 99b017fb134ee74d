//! What a guest that takes notices may keep: a driver with caches of attributes, names and pages,
//! which are as old as the protocol lets them be.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::guest::{Guest, NOTICE_ROOM};

const LOOKUP: u32 = 1;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const INVAL_INODE: u32 = 2;
const INVAL_ENTRY: u32 = 3;
const STORE: u32 = 4;
const DIRECT_IO: u32 = 1;

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

/// A guest with caches.
pub struct Caching {
    /// The guest.
    pub guest: Guest,
    /// Sizes by inode.
    sizes: HashMap<u64, (u64, Instant)>,
    names: HashMap<(u64, Vec<u8>), (u64, Instant)>,
    /// The beginning of files.
    pages: HashMap<u64, Vec<u8>>,
    /// Counts the notices that were heeded: what was asked for before one came is not kept.
    pub heeded: u64,
    /// How many questions were answered by what was kept: names, attributes, pages.
    pub hits: [u64; 3],
    /// Whether it says that it has done what it was told.
    pub acknowledges: bool,
}

impl Caching {
    /// A driver that has so many `buffers` for notices.
    pub fn new(mut guest: Guest, buffers: u16) -> Caching {
        (0..buffers).for_each(|number| guest.offer_buffer(number, NOTICE_ROOM));
        Caching {
            guest,
            sizes: HashMap::new(),
            names: HashMap::new(),
            pages: HashMap::new(),
            heeded: 0,
            hits: [0; 3],
            acknowledges: true,
        }
    }

    /// Takes one notice that has come, if there is one, and does what it says.
    ///
    /// # Panics
    /// When it says nothing that makes sense.
    pub fn heed(&mut self) -> bool {
        let Some((buffer, message)) = self.guest.take_notice() else { return false };
        assert_eq!((half(&message, 0) as usize, word(&message, 8)), (message.len(), 0));
        self.heeded += 1;
        let ino = word(&message, 16);
        match half(&message, 4) {
            INVAL_ENTRY => {
                let len = half(&message, 24) as usize;
                let name = message[32..32 + len].to_vec();
                assert_eq!(message[32 + len..], [0]);
                self.names.remove(&(ino, name));
            }
            INVAL_INODE => {
                self.sizes.remove(&ino);
                if word(&message, 24) == 0 {
                    self.pages.remove(&ino);
                }
            }
            STORE => {
                self.sizes.remove(&ino);
                self.pages.remove(&ino);
            }
            other => panic!("a notice {other}"),
        }
        if self.acknowledges {
            self.guest.offer_buffer(buffer, NOTICE_ROOM);
        }
        true
    }

    /// Asks the device, and heeds what comes meanwhile; what was found may be kept if the second is
    /// true.
    ///
    /// # Panics
    /// When it takes too long, or the device has gone.
    pub fn ask(
        &mut self,
        opcode: u32,
        ino: u64,
        body: &[u8],
        room: usize,
    ) -> ((i32, Vec<u8>), bool) {
        let (queue, heeded) = (self.guest.requests(), self.heeded);
        let slot = self.guest.submit(queue, opcode, ino, body, room);
        let until = Instant::now() + Duration::from_secs(30);
        while !self.guest.is_answered(queue, slot) {
            if !self.heed() {
                assert!(Instant::now() < until, "no answer to {opcode}");
                std::thread::sleep(Duration::from_micros(20));
            }
        }
        let answer = self.guest.answer(queue, slot).expect("a device");
        (answer, self.heeded == heeded)
    }

    /// The caller changes `ino`, or names in it: it keeps nothing of it.
    pub fn forget(&mut self, ino: u64) {
        self.sizes.remove(&ino);
        self.pages.remove(&ino);
        self.names.retain(|(dir, _), _| *dir != ino);
    }

    /// The inode that `name` is in `dir`.
    ///
    /// # Panics
    /// As [`ask`](Self::ask).
    pub fn lookup(&mut self, dir: u64, name: &str) -> Result<u64, i32> {
        let key = (dir, name.as_bytes().to_vec());
        if let Some((ino, until)) = self.names.get(&key)
            && Instant::now() < *until
        {
            self.hits[0] += 1;
            return Ok(*ino);
        }
        let begun = Instant::now();
        let ((error, entry), keep) = self.ask(LOOKUP, dir, &[name.as_bytes(), b"\0"].concat(), 0);
        if error != 0 {
            return Err(error);
        }
        let ino = word(&entry, 0);
        let [entry_valid, attr_valid] = [16, 24].map(|at| Duration::from_secs(word(&entry, at)));
        if keep && !entry_valid.is_zero() {
            self.names.insert(key, (ino, begun + entry_valid));
        }
        if keep && !attr_valid.is_zero() {
            self.sizes.insert(ino, (word(&entry, 40 + 8), begun + attr_valid));
        }
        Ok(ino)
    }

    /// The size of `ino`.
    ///
    /// # Panics
    /// As [`ask`](Self::ask).
    pub fn size(&mut self, ino: u64) -> Result<u64, i32> {
        if let Some((size, until)) = self.sizes.get(&ino)
            && Instant::now() < *until
        {
            self.hits[1] += 1;
            return Ok(*size);
        }
        let begun = Instant::now();
        let ((error, attr), keep) = self.ask(GETATTR, ino, &[0; 16], 0);
        if error != 0 {
            return Err(error);
        }
        let (valid, size) = (Duration::from_secs(word(&attr, 0)), word(&attr, 16 + 8));
        if keep && !valid.is_zero() {
            self.sizes.insert(ino, (size, begun + valid));
        }
        Ok(size)
    }

    /// Opens `ino` to read it: the handle, and whether it is read through the page cache.
    ///
    /// # Panics
    /// As [`ask`](Self::ask), and when it is refused.
    pub fn open(&mut self, ino: u64) -> (u64, bool) {
        let ((error, opened), _) = self.ask(OPEN, ino, &[0; 8], 0);
        assert_eq!(error, 0);
        (word(&opened, 0), half(&opened, 8) & DIRECT_IO == 0)
    }

    /// The beginning of `ino`, by a handle that goes through the page cache.
    ///
    /// # Panics
    /// As [`ask`](Self::ask), and when it is refused.
    pub fn read(&mut self, ino: u64, handle: u64) -> Vec<u8> {
        if let Some(data) = self.pages.get(&ino) {
            self.hits[2] += 1;
            return data.clone();
        }
        let head = [handle.to_le_bytes(), 0u64.to_le_bytes()].concat();
        let body = [&head[..], &4096u32.to_le_bytes(), &[0; 20]].concat();
        let ((error, data), keep) = self.ask(READ, ino, &body, 4096);
        assert_eq!(error, 0);
        if keep {
            self.pages.insert(ino, data.clone());
        }
        data
    }
}
