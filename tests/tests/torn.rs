//! Data that its writer changes while the server copies it: the server passes it on as it is in
//! memory that they share. The file gets some of these bytes, whatever they are; nothing else does,
//! and all who read it later read the same.
#![allow(missing_docs)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use atoll_block::{Addressable, RamDevice};
use atoll_fs::{CheckOptions, FormatOptions, Fs, MountOptions, check, format};
use atoll_host::server::lanes::{Lanes, Latest};
use atoll_host::shm::{Doorbell, SharedMemory};
use atoll_server::revocable::Revocable;
use atoll_server::{Access, Credentials, Identity, Session};
use atoll_tests::rng::Rng;
use atoll_tests::subject::{RW, name};
use atoll_transport::Lost;
use atoll_transport::channel::{ClientChannel, Config, Layout, Mapped, WaitStrategy};
use atoll_vfs::client::{Client, ClientOptions};
use atoll_vfs::{Context, FileSystem, Handle, Ino, Timespec};

const CX: Context = Context { uid: 0, gid: 0, now: Timespec { sec: 1, nsec: 0 } };
const BLOCKS: u64 = 1 << 13;
/// Bytes of the client's file, and of another's beside it.
const LEN: usize = 1 << 20;
const WRITES: u32 = 300;
/// How long a change may take to come in time.
const PATIENCE: Duration = Duration::from_secs(30);
/// The byte that the client writes, and those that it changes it to.
const BYTES: [u8; 3] = [0x33, 0xaa, 0x55];

/// Waits without sleeping.
struct Spins;

impl WaitStrategy<SharedMemory> for Spins {
    fn spin(&mut self, _: u32) -> bool {
        std::thread::yield_now();
        true
    }

    fn park(&mut self, _: &SharedMemory, _: usize, _: u32) -> Result<(), Lost> {
        Err(Lost)
    }

    fn ring(&mut self) {}
}

/// Has a client write while it changes what it writes. Returns the device.
fn change_while_written<M: Addressable + Send + 'static>(device: M, maps: bool) -> M {
    let fs = Fs::mount(device, &MountOptions::default()).unwrap();
    let volume = atoll_host::server::volume(fs, "v");
    let access = || Access { identity: Identity::Caller, ..Access::default() };
    let mut reader: Session<_> = volume.session(Credentials::default(), access()).unwrap();
    let neighbour: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
    let create = |session: &mut Session<_>, text: &str| -> (Ino, Handle) {
        let (attr, handle) = session.create(&CX, Ino::ROOT, name(text), 0o644, RW).unwrap();
        (attr.ino, handle)
    };
    let (ino, handle) = create(&mut reader, "torn");
    let (other, beside) = create(&mut reader, "beside");
    reader.write(&CX, other, beside, 0, &neighbour).unwrap();
    if maps {
        reader.map(&CX, ino, handle, 0, LEN as u64).unwrap();
    }

    let config = Config { lanes: 1, ..Config::default() };
    let layout = Layout::new(&config).unwrap();
    let memory = SharedMemory::create("test", layout.total()).unwrap();
    let mut channel = ClientChannel::create(memory.clone(), &config).unwrap();
    let mut lanes = Lanes::attach(memory.clone(), 0, Doorbell::new().unwrap()).unwrap();
    let place = Revocable::default();
    assert!(place.begin(volume.session(Credentials::default(), access()).unwrap()));
    let window = layout.window(0);
    let (over, seen) = (AtomicBool::new(false), AtomicBool::new(false));
    let content = std::thread::scope(|scope| {
        let lane = channel.lane(0, Spins).unwrap();
        let (over, seen, memory) = (&over, &seen, &memory);
        let client = scope.spawn(move || {
            let mut client = Client::connect(lane, ClientOptions::default()).unwrap();
            let handle = client.open(&CX, ino, RW).unwrap();
            let mut rng = Rng::new(1);
            let begun = Instant::now();
            for number in 0.. {
                // Until a change was seen to come in time: the other thread may be late.
                let seen = seen.load(Ordering::SeqCst) || begun.elapsed() > PATIENCE;
                if number >= WRITES && seen {
                    break;
                }
                let (at, len) = (rng.within(0..LEN as u64), rng.within(1..200_000));
                let len = len.min(LEN as u64 - at) as usize;
                client.write(&CX, ino, handle, at, &vec![BYTES[0]; len]).unwrap();
            }
            over.store(true, Ordering::SeqCst);
        });
        scope.spawn(move || {
            let memory = memory.shared();
            let words = || (window.offset..window.offset + window.len / 8 * 8).step_by(8);
            while !over.load(Ordering::SeqCst) {
                for byte in &BYTES[1..] {
                    let word = u64::from_ne_bytes([*byte; 8]);
                    words().for_each(|at| memory.u64(at).store(word, Ordering::Relaxed));
                }
            }
        });
        let mut latest = Latest::default();
        let mut look = vec![0; LEN];
        let is_changed = |byte: &u8| BYTES[1..].contains(byte);
        while !client.is_finished() {
            // A failure of the client ends both.
            let Ok(turn) = lanes.turn(&place, &mut latest, 64) else { break };
            if turn.units > 0 && !seen.load(Ordering::SeqCst) {
                let len = reader.read(&CX, ino, handle, 0, &mut look).unwrap();
                seen.store(look[..len].iter().any(is_changed), Ordering::SeqCst);
            }
        }
        over.store(true, Ordering::SeqCst);
        client.join().unwrap();
        let mut content = vec![0; LEN];
        let mut read = |ino, handle, content: &mut [u8]| {
            let mut done = 0;
            while done < content.len() {
                match reader.read(&CX, ino, handle, done as u64, &mut content[done..]).unwrap() {
                    0 => break,
                    n => done += n,
                }
            }
        };
        read(ino, handle, &mut content);
        let mut beside_now = vec![0; LEN];
        read(other, beside, &mut beside_now);
        assert!(beside_now == neighbour, "another file has changed");
        content
    });
    let own = content.iter().filter(|byte| BYTES.contains(byte)).count();
    let holes = content.iter().filter(|&&byte| byte == 0).count();
    assert_eq!(own + holes, LEN, "there are bytes that nobody wrote");
    assert!(seen.into_inner(), "nothing was changed in time");
    place.revoke();
    drop((reader, lanes));
    // Nobody has the file in memory any more.
    let fs = volume.into_inner().map_err(|_| "somebody has the volume").unwrap().unwrap();
    let device = fs.unmount().unwrap();
    let mut fs = Fs::mount(device, &MountOptions::default()).unwrap();
    let ino = fs.lookup(&CX, Ino::ROOT, name("torn")).unwrap().ino;
    let handle = fs.open(&CX, ino, RW).unwrap();
    let mut again = vec![0; LEN];
    let len = fs.read(&CX, ino, handle, 0, &mut again).unwrap();
    assert!(len > LEN / 2 && again == content, "it is read in two ways");
    fs.unmount().unwrap()
}

fn new_device() -> RamDevice {
    let mut device = RamDevice::new(BLOCKS);
    format(&mut device, &FormatOptions::default()).unwrap();
    device
}

fn is_sound<M: Addressable>(mut device: M) {
    let report = check(&mut device, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
}

#[test]
fn data_that_changes_while_it_is_copied() {
    is_sound(change_while_written(new_device(), false));
}

#[test]
fn data_that_changes_while_its_file_is_mapped() {
    is_sound(change_while_written(new_device(), true));
}
