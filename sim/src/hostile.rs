//! Clients that keep to no rule: they send noise, lies about lengths, numbers that they were never
//! given, answers to nothing, and more of everything than anybody should have. They get errors or
//! are dropped; nothing changes by them, nobody else notices.

use atoll_tests::rng::Rng;
use atoll_vfs::wire::Fixed;
use atoll_vfs::wire::header::{InHeader, OutHeader};
use atoll_vfs::wire::opcode::*;

use crate::carrier::Parcel;
use crate::seat::{Arrived, Pending, What};
use crate::world::{Outcome, World, trace};

/// Makes a number that stands for nothing that a session gives out.
const NEVER: u64 = 1 << 40;

/// Requests that name an entry of the directory they are about, or open it: for clients that could
/// walk there.
const BY_DIRECTORY: [u32; 14] = [
    FUSE_OPEN,
    FUSE_LOOKUP,
    FUSE_MKNOD,
    FUSE_MKDIR,
    FUSE_SYMLINK,
    FUSE_UNLINK,
    FUSE_RMDIR,
    FUSE_RENAME,
    FUSE_RENAME2,
    FUSE_LINK,
    FUSE_CREATE,
    FUSE_TMPFILE,
    FUSE_OPENDIR,
    FUSE_ACCESS,
];

/// Noise that begins with a header, or does not.
fn noise(rng: &mut Rng, most: u64) -> Vec<u8> {
    (0..rng.within(0..most)).map(|_| rng.number() as u8).collect()
}

/// Words of which some mean something.
fn words(rng: &mut Rng) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..rng.within(0..8) {
        let word = match rng.within(0..6) {
            0 => 0,
            1 => u64::MAX,
            2 => i64::MAX as u64,
            3 => rng.within(0..5000),
            4 => rng.number(),
            // A handle that nobody has.
            _ => rng.within(0..9) << 32 | 0xdead,
        };
        bytes.extend(word.to_le_bytes());
    }
    if rng.chance(50) {
        bytes.extend(b"a\0b\0");
    }
    bytes
}

/// A message that nobody should send, of a client that may make changes if `changes`, and may guess
/// numbers that it was not given if `guesses`.
fn message(rng: &mut Rng, unique: u64, changes: bool, guesses: bool) -> (u32, Vec<u8>) {
    let opcode = match rng.within(0..12) {
        0 => rng.number() as u32,
        // Far from what FUSE counts up from.
        1 => 0xa701_0000 + rng.within(0..4) as u32,
        _ => rng.within(0..54) as u32,
    };
    let by_directory = BY_DIRECTORY.contains(&opcode);
    let nodeid = match rng.within(0..5) {
        // A client that changes nothing may name the root.
        0 if !changes && opcode != FUSE_OPENDIR => 1,
        _ if by_directory => rng.number() | NEVER,
        0 => 0,
        1 => u64::MAX - rng.within(0..3),
        2 if guesses => rng.within(2..40),
        _ => rng.number() | NEVER,
    };
    let mut body = words(rng);
    let first = |body: &mut Vec<u8>, value: u64| {
        body.resize(body.len().max(8), 0);
        body[..8].copy_from_slice(&value.to_le_bytes());
    };
    match opcode {
        // With a valid handle it could close a file, and then the model would have to know.
        FUSE_RELEASE | FUSE_RELEASEDIR | FUSE_SETLK | FUSE_SETLKW | FUSE_FLUSH | FUSE_READ
        | FUSE_WRITE | FUSE_FALLOCATE | FUSE_IOCTL | FUSE_LSEEK | FUSE_FSYNC => {
            first(&mut body, rng.within(0..9) << 32 | 0xdead);
        }
        // As many as it says, each of more than it was given.
        FUSE_BATCH_FORGET if rng.chance(80) => {
            let count = rng.within(0..40);
            body.clear();
            body.extend((count as u32).to_le_bytes());
            body.extend([0; 4]);
            for _ in 0..count {
                let ino = rng.pick(&[1, 2, 3, 4, u64::MAX, NEVER]);
                body.extend([ino, u64::MAX].map(u64::to_le_bytes).as_flattened());
            }
        }
        _ => {}
    }
    let extensions = if rng.chance(5) { rng.number() as u16 } else { 0 };
    let mut len = (InHeader::SIZE + body.len()) as u32;
    if rng.chance(4) {
        len = rng.number() as u32;
    }
    let header = InHeader {
        len,
        opcode,
        unique,
        nodeid,
        uid: rng.pick(&[0, 1000, 2000]),
        gid: 0,
        pid: rng.number() as u32,
        total_extlen: extensions,
        padding: rng.number() as u16,
    };
    let mut message = vec![0; InHeader::SIZE];
    header.store(&mut message);
    message.append(&mut body);
    (opcode, message)
}

impl World {
    /// The hostile client number `at` sends what nobody should.
    pub(crate) fn hostile_request(&mut self, at: usize) {
        let id = self.next_id;
        let seat = &self.seats[at];
        let (changes, is_mount) = (!seat.role.is_read_only(), seat.role.is_mount());
        // A client that was given nothing guesses nothing that it may name.
        let is_given =
            |pending: &Pending| pending.seat == seat.id && !matches!(pending.what, What::Raw(_));
        let guesses = !changes || seat.nodes.len() == 1 && !self.pending.iter().any(is_given);
        let rng = &mut self.rng;
        let unique = if rng.chance(30) { rng.number() } else { 2 * rng.within(0..id + 1) };
        let (opcode, message) = match rng.within(0..40) {
            0 => (0, noise(rng, 80)),
            _ => message(rng, unique, changes, guesses),
        };
        let data = if is_mount || rng.chance(70) { Vec::new() } else { noise(rng, 300) };
        let room = rng.pick(&[0, 0, 1, 4096, 8192]);
        // It has begun again, or ended: nothing that was agreed holds.
        let is_lost = matches!(opcode, FUSE_INIT | FUSE_DESTROY);
        let mut message = message;
        if let Some((header, _)) = InHeader::get(&message)
            && header.len as usize == message.len()
        {
            let len = header.len + data.len() as u32;
            InHeader { len, ..header }.store(&mut message);
        }
        let seat = &mut self.seats[at];
        seat.is_lost |= is_lost;
        let unique = InHeader::get(&message).map_or(0, |(header, _)| header.unique);
        trace!(self, "session {} attacks with {opcode} ({id})", seat.id.0);
        seat.line.push(Parcel { id, message, data, room });
        self.counts.attacks += 1;
        self.queue(at, What::Raw(unique));
        self.note(&[17, id, opcode.into()]);
    }

    /// The message that was sent is answered.
    pub(crate) fn raw_arrived(&self, at: usize, unique: u64, arrived: &Arrived<'_>) -> Outcome<()> {
        let Arrived { id, reply, .. } = arrived;
        if reply.message.is_empty() {
            return Ok(());
        }
        let seat = &self.seats[at];
        let (header, _) = OutHeader::get(&reply.message).ok_or("an answer without a header")?;
        if header.len as usize != reply.message.len() + reply.data.len() {
            return Err(format!("request {id} is answered with another length than it says"));
        }
        if header.unique != unique {
            return Err(format!("session {} gets the answer to {}", seat.id.0, header.unique));
        }
        // No byte that the request did not ask for, and none that was there before.
        if reply.data.len() >= 8 && reply.data.iter().all(|&byte| byte == 0xa5) {
            return Err(format!("request {id} is answered with what nobody wrote"));
        }
        Ok(())
    }
}
