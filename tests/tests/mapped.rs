//! Files that clients have mapped: all others see what one stores, writes or cuts off.

#[path = "mapped/late.rs"]
mod late;
#[path = "mapped/power.rs"]
mod power;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use atoll_block::RamDevice;
use atoll_fs::{CheckOptions, Fs, MountOptions, check};
use atoll_server::rights::accounts::{Account, Accounts, Resource, Shares};
use atoll_server::{Access, Credentials, Limits, MapToken, Session, Volume};
use atoll_tests::fixtures::volume;
use atoll_tests::served::in_namespace;
use atoll_tests::subject::{RW, name};
use atoll_vfs::*;
use late::Late;
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::io::{pread, pwrite};

type Real = Fs<RamDevice>;
const PAGE: u64 = 4096;
const NOW: Timespec = Timespec { sec: 1_000_000_000, nsec: 0 };

fn cx() -> Context {
    Context { uid: 0, gid: 0, now: NOW }
}

fn volume_of(blocks: u64) -> Arc<Volume<Real>> {
    atoll_host::server::volume(volume(blocks), "v")
}

fn session(volume: &Arc<Volume<Real>>) -> Session<Real> {
    volume.session(Credentials::default(), Access::default()).unwrap()
}

fn create(session: &mut Session<Real>, named: &str) -> (Ino, Handle) {
    let (attr, handle) = session.create(&cx(), Ino::ROOT, name(named), 0o644, RW).unwrap();
    (attr.ino, handle)
}

fn resize(session: &mut Session<Real>, ino: Ino, size: u64) {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    session.setattr(&cx(), ino, None, &set).unwrap();
}

/// Maps the first `len` bytes; a store is a write to the descriptor.
fn map(session: &mut Session<Real>, (ino, handle): (Ino, Handle), len: u64) -> (OwnedFd, MapToken) {
    let mapping = session.map(&cx(), ino, handle, 0, len).unwrap();
    let (memory, writable) =
        atoll_host::server::mapped_memory(session.volume(), mapping.token).unwrap();
    assert_eq!(writable, mapping.writable);
    (memory, mapping.token)
}

fn read(session: &mut Session<Real>, (ino, handle): (Ino, Handle), at: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0xee; len];
    let read = session.read(&cx(), ino, handle, at, &mut buf).unwrap();
    buf.truncate(read);
    buf
}

fn in_memory(memory: &OwnedFd, at: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0xee; len];
    assert_eq!(pread(memory, &mut buf, at).unwrap(), len);
    buf
}

/// Ends the volume as a server does, checks the file system, and mounts it again.
fn again(volume: Arc<Volume<Real>>) -> Arc<Volume<Real>> {
    let fs = volume.into_inner().ok().expect("nobody has it").expect("it is sound");
    let mut device = fs.unmount().unwrap();
    let report = check(&mut device, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{report:?}");
    atoll_host::server::volume(Fs::mount(device, &MountOptions::default()).unwrap(), "v")
}

#[test]
fn stores_and_writes_are_seen_by_all() {
    let volume = volume_of(4096);
    let (mut a, mut b, mut c) = (session(&volume), session(&volume), session(&volume));
    let file = create(&mut a, "f");
    a.write(&cx(), file.0, file.1, 0, &[1; 10_000]).unwrap();
    let in_b = (
        file.0,
        b.lookup(&cx(), Ino::ROOT, name("f"))
            .map(|_| ())
            .map(|()| b.open(&cx(), file.0, RW).unwrap())
            .unwrap(),
    );
    c.lookup(&cx(), Ino::ROOT, name("f")).unwrap();
    let in_c = (file.0, c.open(&cx(), file.0, RW).unwrap());
    let (map_a, _) = map(&mut a, file, 10_000);
    let (map_b, _) = map(&mut b, in_b, 10_000);
    assert_eq!(in_memory(&map_a, 0, 10_000), [1; 10_000]);
    pwrite(&map_a, b"store", 5000).unwrap();
    assert_eq!(in_memory(&map_b, 5000, 5), b"store");
    assert_eq!(read(&mut c, in_c, 4999, 7), b"\x01store\x01");
    c.write(&cx(), in_c.0, in_c.1, 5001, b"WRITE").unwrap();
    assert_eq!(in_memory(&map_a, 5000, 6), b"sWRITE");
    // A write beyond the mapping and the end of the file.
    c.write(&cx(), in_c.0, in_c.1, 100_000, b"far").unwrap();
    assert_eq!(read(&mut a, file, 99_998, 10), b"\0\0far");
    // Durable on demand.
    let stored = a.getattr(&cx(), file.0).unwrap().mtime;
    pwrite(&map_b, b"more", 0).unwrap();
    let later = Timespec { sec: NOW.sec + 5, nsec: 0 };
    a.fsync(&Context { now: later, ..cx() }, file.0, file.1, false).unwrap();
    assert_eq!(a.getattr(&cx(), file.0).unwrap().mtime, later);
    assert_ne!(stored, later);
    pwrite(&map_b, b"last", 9_000).unwrap();
    drop((a, b, c));
    let volume = again(volume);
    let mut a = session(&volume);
    let file = (file.0, a.open(&cx(), file.0, RW).unwrap());
    assert_eq!(read(&mut a, file, 0, 5), b"more\x01");
    assert_eq!(read(&mut a, file, 9_000, 5), b"last\x01");
    assert_eq!(read(&mut a, file, 5000, 6), b"sWRITE");
}

#[test]
fn what_lies_beyond_the_end_goes_nowhere() {
    let volume = volume_of(4096);
    let mut a = session(&volume);
    let file = create(&mut a, "f");
    a.write(&cx(), file.0, file.1, 0, &[1; 5000]).unwrap();
    let (memory, _) = map(&mut a, file, 3 * PAGE);
    pwrite(&memory, &[7; 10_000], 1000).unwrap();
    a.fsync(&cx(), file.0, file.1, false).unwrap();
    assert_eq!(a.getattr(&cx(), file.0).unwrap().size, 5000);
    resize(&mut a, file.0, 9000);
    assert_eq!(read(&mut a, file, 4990, 20), [[7; 10], [0; 10]].concat());
    pwrite(&memory, &[8; 10], 8995).unwrap();
    a.write(&cx(), file.0, file.1, 10_000, &[9]).unwrap();
    assert_eq!(read(&mut a, file, 8990, 1011), {
        let mut expected = vec![0; 1011];
        expected[5..10].fill(8);
        expected[1010] = 9;
        expected
    });
    // Cut off and grown again.
    resize(&mut a, file.0, 500);
    assert_eq!(in_memory(&memory, 500, 11_000), [0; 11_000]);
    resize(&mut a, file.0, 2 * PAGE);
    assert_eq!(read(&mut a, file, 0, 2 * PAGE as usize), [&[1; 500][..], &[0; 7692]].concat());
    let again = a.open(&cx(), file.0, RW | OpenFlags::TRUNC).unwrap();
    assert_eq!(in_memory(&memory, 0, 600), [0; 600]);
    a.release(&cx(), file.0, again).unwrap();
}

/// Every call that changes a file, and stores, against an array.
#[test]
fn any_mixture_is_as_with_an_array() {
    const SIZE: u64 = 300_000;
    let volume = volume_of(8192);
    let (mut a, mut b) = (session(&volume), session(&volume));
    let file = create(&mut a, "f");
    b.lookup(&cx(), Ino::ROOT, name("f")).unwrap();
    let in_b = (file.0, b.open(&cx(), file.0, RW).unwrap());
    let mut model: Vec<u8> = Vec::new();
    let mut memory: Option<OwnedFd> = None;
    let mut seed = 1_u64;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for turn in 0..6000_u32 {
        let at = random(SIZE);
        let len = random(if turn % 7 == 0 { 90_000 } else { 5000 }) as usize + 1;
        let data = vec![turn as u8 | 1; len];
        let end = at as usize + len;
        match random(13) {
            0 | 1 if end < SIZE as usize * 2 => {
                a.write(&cx(), file.0, file.1, at, &data).unwrap();
                model.resize(model.len().max(end), 0);
                model[at as usize..end].copy_from_slice(&data);
            }
            2..=5 => {
                let Some(memory) = &memory else { continue };
                pwrite(memory, &data, at).unwrap();
                let stop = end.min(model.len());
                if (at as usize) < stop {
                    model[at as usize..stop].copy_from_slice(&data[..stop - at as usize]);
                }
            }
            6 => {
                resize(&mut b, file.0, at);
                model.resize(at as usize, 0);
            }
            7 => {
                let mode = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
                b.fallocate(&cx(), in_b.0, in_b.1, at, len as u64, mode).unwrap();
                let stop = end.min(model.len());
                if (at as usize) < stop {
                    model[at as usize..stop].fill(0);
                }
            }
            8 => {
                let mode = FallocateMode::ZERO_RANGE;
                a.fallocate(&cx(), file.0, file.1, at, len as u64, mode).unwrap();
                model.resize(model.len().max(end), 0);
                model[at as usize..end].fill(0);
            }
            10 => {
                let place = |offset| FileAt { ino: file.0, handle: file.1, offset };
                let (to, stop) = (random(SIZE), end.min(model.len()) as u64);
                let len = stop.saturating_sub(at);
                let mut copy =
                    |done| a.copy_file_range(&cx(), place(at + done), place(to + done), len - done);
                if at.abs_diff(to) < len {
                    assert_eq!(copy(0), Err(Errno::EINVAL), "turn {turn}");
                    continue;
                }
                let mut done = 0;
                while done < len {
                    let copied = copy(done).unwrap();
                    assert!(copied > 0, "turn {turn}: {done} of {len}");
                    done += copied;
                }
                let whole = (to + len) as usize;
                if len > 0 {
                    model.resize(model.len().max(whole), 0);
                    model.copy_within(at as usize..stop as usize, to as usize);
                }
            }
            9 => match random(4) {
                // From one to all, and to nothing again.
                0 => memory = None,
                1 => b.fsync(&cx(), in_b.0, in_b.1, true).unwrap(),
                // Often enough for an unused mapping to end.
                2 => (0..4).for_each(|_| volume.tend_mappings(NOW, &|| {}).unwrap()),
                _ => memory = Some(map(&mut a, file, SIZE * 2).0),
            },
            _ => {
                let expected = model.get(at as usize..).unwrap_or_default();
                let expected = &expected[..expected.len().min(len)];
                assert!(read(&mut b, in_b, at, len) == expected, "turn {turn}: {at} {len}");
                if let Some(memory) = &memory {
                    assert!(in_memory(memory, at, expected.len()) == expected, "turn {turn}");
                }
            }
        }
    }
    drop((a, b));
    let volume = again(volume);
    let mut a = session(&volume);
    let file = (file.0, a.open(&cx(), file.0, RW).unwrap());
    assert!(read(&mut a, file, 0, model.len() + 1) == model);
}

#[test]
fn the_memory_is_let_go_of_when_nobody_has_it() {
    let volume = volume_of(1024);
    let mut a = session(&volume);
    let file = create(&mut a, "f");
    a.write(&cx(), file.0, file.1, 0, &[1; 1 << 20]).unwrap();
    let free = a.statfs(&cx()).unwrap().blocks_free;
    let (memory, token) = map(&mut a, file, 1 << 20);
    a.unlink(&cx(), Ino::ROOT, name("f")).unwrap();
    drop(a);
    for _ in 0..10 {
        volume.tend_mappings(NOW, &|| {}).unwrap();
    }
    // Its client has gone, but a child of it, say, has not.
    assert!(volume.are_mapped([token].into_iter()));
    let mut b = session(&volume);
    assert_eq!(b.statfs(&cx()).unwrap().blocks_free, free);
    let in_b = (file.0, b.open(&cx(), file.0, RW).unwrap());
    // The last bytes, of a page that is not whole.
    resize(&mut b, file.0, 5000);
    pwrite(&memory, b"tail", 4996).unwrap();
    drop(memory);
    for _ in 0..3 {
        volume.tend_mappings(NOW, &|| {}).unwrap();
    }
    assert!(!volume.are_mapped([token].into_iter()));
    assert_eq!(read(&mut b, in_b, 4996, 9), b"tail");
    assert_eq!(atoll_host::server::mapped_memory(&volume, token).unwrap_err(), Errno::ESTALE);
    b.release(&cx(), in_b.0, in_b.1).unwrap();
    assert!(b.statfs(&cx()).unwrap().blocks_free >= free + 256, "it was reclaimed");
}

#[test]
fn nobody_gets_more_than_the_file_was_opened_for() {
    let volume = volume_of(4096);
    let mut a = session(&volume);
    let file = create(&mut a, "f");
    a.write(&cx(), file.0, file.1, 0, &[1; 5000]).unwrap();
    let (writable, _) = map(&mut a, file, 5000);
    let reading = a.open(&cx(), file.0, OpenFlags::READ).unwrap();
    let mut looks = volume
        .session(Credentials::default(), Access { read_only: true, ..Access::default() })
        .unwrap();
    looks.lookup(&cx(), Ino::ROOT, name("f")).unwrap();
    let looking = looks.open(&cx(), file.0, OpenFlags::READ).unwrap();
    for (session, handle) in [(&mut a, reading), (&mut looks, looking)] {
        let mapping = session.map(&cx(), file.0, handle, 0, 5000).unwrap();
        assert!(!mapping.writable);
        let (memory, _) = map(session, (file.0, handle), 5000);
        assert_eq!(pwrite(&memory, b"x", 0), Err(rustix::io::Errno::BADF));
        // Nor can another user open it for more.
        assert_eq!(fstat(&memory).unwrap().st_mode & 0o777, 0o600);
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        assert_eq!(fcntl_get_seals(&memory).unwrap(), seals);
        pwrite(&writable, b"seen", 0).unwrap();
        assert_eq!(in_memory(&memory, 0, 4), b"seen");
    }
    let blind = a.open(&cx(), file.0, OpenFlags::WRITE).unwrap();
    assert_eq!(a.map(&cx(), file.0, blind, 0, 1), Err(Errno::EACCES));
    assert_eq!(a.map(&cx(), file.0, Handle(77), 0, 1), Err(Errno::EBADF));
    assert_eq!(looks.map(&cx(), file.0, reading, 0, 1), Err(Errno::EBADF), "another's");
    assert_eq!(a.map(&cx(), file.0, file.1, 0, 0), Err(Errno::EINVAL));
    assert_eq!(a.map(&cx(), file.0, file.1, u64::MAX, 2), Err(Errno::EFBIG));
    assert_eq!(a.map(&cx(), file.0, file.1, 1 << 44, 1), Err(Errno::EFBIG));
    assert_eq!(
        atoll_host::server::mapped_memory(&volume, MapToken([0; 16])).unwrap_err(),
        Errno::ESTALE
    );
}

#[test]
fn limits() {
    let volume = volume_of(4096);
    let limits = Limits { mapped: 1 << 20, mapped_files: 2, ..Limits::default() };
    let mut a =
        volume.session(Credentials::default(), Access { limits, ..Access::default() }).unwrap();
    let (small, large) = (create(&mut a, "small"), create(&mut a, "large"));
    a.write(&cx(), small.0, small.1, 0, &[1; 1 << 19]).unwrap();
    a.write(&cx(), large.0, large.1, 0, &[2; 1 << 20]).unwrap();
    let memory = map(&mut a, small, 1 << 19);
    assert_eq!(a.map(&cx(), large.0, large.1, 0, 1 << 20), Err(Errno::ENOMEM));
    // A part of it will do, and where there is no file there is nothing to keep.
    a.map(&cx(), large.0, large.1, 1 << 19, 1 << 19).unwrap();
    map(&mut a, small, 1 << 40);
    let third = create(&mut a, "third");
    assert_eq!(a.map(&cx(), third.0, third.1, 0, 1), Err(Errno::ENOMEM), "files");
    // Others have limits of their own.
    let mut b = session(&volume);
    b.lookup(&cx(), Ino::ROOT, name("large")).unwrap();
    let in_b = (large.0, b.open(&cx(), large.0, RW).unwrap());
    map(&mut b, in_b, 1 << 20);
    drop(memory);

    // Data that cannot be written back is an error, and stays for a later try.
    let sparse = create(&mut b, "sparse");
    resize(&mut b, sparse.0, 1 << 20);
    let (memory, _) = map(&mut b, sparse, 1 << 20);
    let filler = create(&mut b, "filler");
    let mut at = 0;
    while let Ok(written) = b.write(&cx(), filler.0, filler.1, at, &[3; 1 << 16]) {
        at += written.len as u64;
    }
    pwrite(&memory, &[4; 1 << 20], 0).unwrap();
    assert_eq!(b.fsync(&cx(), sparse.0, sparse.1, false), Err(Errno::ENOSPC));
    assert_eq!(read(&mut b, sparse, 0, 1 << 20), [4; 1 << 20]);
    resize(&mut b, filler.0, 0);
    b.fsync(&cx(), sparse.0, sparse.1, false).unwrap();
}

/// A session of the user 7 with an account, which may have at most 1 MiB mapped.
fn reader(volume: &Arc<Volume<Real>>) -> (Session<Real>, Arc<Account>) {
    let account = Accounts::new(Shares::UNLIMITED).open(7, Shares::UNLIMITED);
    let limits = Limits { mapped: 1 << 20, ..Limits::default() };
    let access = Access { limits, account: Some(Arc::clone(&account)), ..Access::default() };
    let peer = Credentials { uid: 7, gid: 7, ..Credentials::default() };
    (volume.session(peer, access).unwrap(), account)
}

fn open(session: &mut Session<Real>, named: &str, flags: OpenFlags) -> (Ino, Handle) {
    let ino = session.lookup(&cx(), Ino::ROOT, name(named)).unwrap().ino;
    (ino, session.open(&cx(), ino, flags).unwrap())
}

/// A write into a mapped file takes memory of the user who has mapped it, within that user's
/// bounds.
#[test]
fn growth_counts() {
    let volume = volume_of(4096);
    let mut owner = session(&volume);
    let file = create(&mut owner, "f");
    let all = SetAttr { mode: Some(0o666), ..SetAttr::default() };
    owner.setattr(&cx(), file.0, None, &all).unwrap();
    let (mut user, account) = reader(&volume);
    let has = || account.has(Resource::Memory);
    let in_user = open(&mut user, "f", RW);
    let before = has();
    // Where there is no file yet there is nothing to count, nor for one that only gets longer.
    let (memory, token) = map(&mut user, in_user, 1 << 40);
    assert_eq!(has(), before);
    resize(&mut owner, file.0, 5 << 30);
    owner.write(&cx(), file.0, file.1, (5 << 30) - 1, b"x").unwrap();
    assert_eq!(has(), before + (64 << 10));
    // Bytes that are written again count once.
    for _ in 0..20 {
        owner.write(&cx(), file.0, file.1, (5 << 30) - 9, &[2; 8]).unwrap();
        user.write(&cx(), in_user.0, in_user.1, 0, &[1; 3 << 18]).unwrap();
    }
    assert_eq!(has(), before + (64 << 10) + (3 << 18));
    // The user's own write is refused.
    let refused = user.write(&cx(), in_user.0, in_user.1, 1 << 30, &[3; 1 << 18]);
    assert_eq!(refused.map(drop), Err(Errno::ENOMEM));
    assert_eq!(read(&mut owner, file, 1 << 30, 8), [0; 8]);
    // The owner's goes on: it is the mapping that ends, with what was stored.
    pwrite(&memory, b"stored", 0).unwrap();
    owner.write(&cx(), file.0, file.1, 1 << 30, &[3; 1 << 18]).unwrap();
    assert_eq!(read(&mut owner, file, 1 << 30, 8), [3; 8]);
    assert_eq!(read(&mut owner, file, 0, 8), *b"stored\x01\x01");
    assert!(!volume.are_mapped([token].into_iter()));
    owner.write(&cx(), file.0, file.1, 0, b"owners").unwrap();
    assert_eq!(in_memory(&memory, 0, 8), *b"stored\x01\x01");
    // The memory that the user has kept counts, for later mappings too, as long as it is there.
    volume.tend_mappings(NOW, &|| {}).unwrap();
    assert_eq!(has(), before + (64 << 10) + (3 << 18));
    let (again, _) = map(&mut user, in_user, 1 << 18);
    assert_eq!(in_memory(&again, 0, 6), *b"owners");
    drop(memory);
    volume.tend_mappings(NOW, &|| {}).unwrap();
    assert_eq!(has(), before + (1 << 18));
    drop((user, again));
    for _ in 0..4 {
        volume.tend_mappings(NOW, &|| {}).unwrap();
    }
    assert_eq!(has(), 0);
}

/// A list of parts is searched by every write, so that it is bounded.
#[test]
fn a_file_is_mapped_in_so_many_parts() {
    let volume = volume_of(1024);
    let mut a = session(&volume);
    let file = create(&mut a, "f");
    let parts = (0u64..1 << 20).take_while(|part| {
        a.map(&cx(), file.0, file.1, part << 17, PAGE)
            .map_err(|e| assert_eq!(e, Errno::ENOMEM))
            .is_ok()
    });
    let parts = parts.count();
    assert!((1000..10_000).contains(&parts), "{parts}");
    // Those that it has can grow.
    a.map(&cx(), file.0, file.1, 1 << 16, PAGE).unwrap();
}

/// write(2) on the memory with a source that its client brings in late has the lock of the
/// memory's inode for as long. Nothing that others do waits for it.
#[test]
fn a_write_whose_source_comes_late_holds_up_nobody() {
    let act = || {
        if !in_namespace() {
            return;
        }
        let late = Late::new();
        let volume = volume_of(4096);
        let (mut a, mut b, mut c) = (session(&volume), session(&volume), session(&volume));
        let file = create(&mut a, "f");
        a.write(&cx(), file.0, file.1, 0, &[1; 9 * PAGE as usize]).unwrap();
        let mapped = map(&mut a, file, 64 * PAGE);
        // Beyond the end of the file.
        pwrite(&mapped.0, &[7; 100], 20 * PAGE).unwrap();
        let (sender, done) = channel();
        std::thread::scope(|scope| {
            let held = scope.spawn(|| late.write(&mapped.0));
            late.wait();
            let (volume, memory) = (&volume, &mapped.0);
            scope.spawn(move || {
                let done = |what: &str| sender.send(what.to_owned()).unwrap();
                b.lookup(&cx(), Ino::ROOT, name("f")).unwrap();
                let file = (file.0, b.open(&cx(), file.0, RW).unwrap());
                b.write(&cx(), file.0, file.1, PAGE, b"written").unwrap();
                assert_eq!(in_memory(memory, PAGE, 8), b"written\x01");
                done("a write");
                assert_eq!(read(&mut b, file, PAGE, 8), b"written\x01");
                done("a read");
                resize(&mut b, file.0, 5 * PAGE + 10);
                assert_eq!(in_memory(memory, 5 * PAGE, 20), [[1; 10], [0; 10]].concat());
                done("a cut");
                resize(&mut b, file.0, 32 * PAGE);
                assert_eq!(in_memory(memory, 20 * PAGE, 100), [0; 100]);
                done("growth");
                let hole = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
                b.fallocate(&cx(), file.0, file.1, 3, 2 * PAGE, hole).unwrap();
                assert_eq!(in_memory(memory, 0, 5), [1, 1, 1, 0, 0]);
                done("a hole");
                b.fsync(&cx(), file.0, file.1, false).unwrap();
                done("fsync");
                let (second, _) = map(&mut b, file, 128 * PAGE);
                assert_eq!(in_memory(&second, 0, 5), [1, 1, 1, 0, 0]);
                b.fsync(&cx(), file.0, file.1, false).unwrap();
                done("another mapping, and fsync");
                for _ in 0..5 {
                    volume.tend_mappings(NOW, &|| {}).unwrap();
                }
                done("what comes every second");
                drop((b, second));
                drop(a);
                done("the ends of sessions");
                let other = create(&mut c, "other");
                let (other, _) = map(&mut c, other, PAGE);
                pwrite(&other, b"x", 0).unwrap();
                volume.write_back(NOW).unwrap();
                done("another file");
            });
            let mut last = "nothing".to_owned();
            loop {
                match done.recv_timeout(Duration::from_secs(30)) {
                    Ok(what) => last = what,
                    Err(error) => {
                        // Those who wait could not end.
                        let waits = !held.is_finished();
                        late.let_go();
                        assert!(waits, "the page came");
                        assert_eq!(
                            (&*last, error),
                            ("another file", RecvTimeoutError::Disconnected)
                        );
                        assert!(held.join().unwrap().is_err());
                        break;
                    }
                }
            }
        });
    };
    // The mount namespace is this thread's.
    std::thread::spawn(act).join().unwrap();
}
