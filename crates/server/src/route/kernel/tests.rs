use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use atoll_vfs::server::{Identity, ServerOptions};
use atoll_vfs::wire::files::LseekIn;
use atoll_vfs::wire::header::InHeader;
use atoll_vfs::wire::opcode::{FUSE_FORGET, FUSE_LSEEK, FUSE_STATFS, FUSE_UNLINK};
use atoll_vfs::wire::{Extensions, REPLY_MAX};
use atoll_vfs::{AccessTimes, Data, Name, Room, Timespec};

use super::*;
use crate::leases::caches::Lends;
use crate::leases::gate::Next;
use crate::revocable::Revocable;
use crate::route::carrier::{Carrier, Held, Incoming};
use crate::route::router::{Router, serve_next};
use crate::testing::{Noted, StillHost};
use crate::{Access, Credentials, Volume};

/// The message of an INIT that offers everything.
fn offer() -> Vec<u8> {
    let offer = InitIn::new(u64::MAX >> 1, Extensions::empty());
    let mut message = vec![0; InHeader::SIZE + InitIn::SIZE];
    let header = InHeader { len: message.len() as u32, opcode: FUSE_INIT, ..InHeader::default() };
    header.store(&mut message);
    offer.store(&mut message[InHeader::SIZE..]);
    message
}

/// The features that a mount with these options gets of all that there are, of a volume or of what
/// has other file systems in it.
fn agreed(options: KernelOptions, access_times: AccessTimes, submounts: bool) -> u64 {
    let volume = crate::testing::volume();
    if submounts {
        volume.set_submounts();
    }
    volume.set_access_times(access_times).unwrap();
    let mut session = volume.session(Credentials::default(), Access::default()).unwrap();
    let lends = if options.others == Others::None { Lends::All } else { Lends::Pages };
    let cache = session.begin_cache(lends, Arc::new(Noted::default())).unwrap();
    let agrees = ServerOptions { extensions: Extensions::empty(), ..ServerOptions::default() };
    let mut router = Router::of_kernel(agrees, Kernel::new(cache, options));
    let incoming = Incoming { message: &offer(), data: Data::default(), room: Room::default() };
    router.route(&mut session, incoming, true).unwrap();
    InitOut::load(&router.out.message[OutHeader::SIZE..]).features()
}

/// docs/PROTOCOL-FUSE.md says of each bit of INIT whether it is agreed to. So it is.
#[test]
fn the_document_says_what_is_agreed() {
    let document = include_str!("../../../../../docs/PROTOCOL-FUSE.md");
    let (_, table) = document.split_once("## Bits of INIT").unwrap();
    let table = table.split_once("\n## ").unwrap().0;
    let said: BTreeMap<u32, &str> = table
        .lines()
        .map(|line| line.split('|').map(str::trim).collect::<Vec<_>>())
        .filter_map(|cells| Some((cells.get(1)?.parse().ok()?, *cells.get(3)?)))
        .collect();

    let mut reply = [0; REPLY_MAX];
    let caller = Caller { identity: Identity::FromHeader, now: Timespec::default() };
    let mut fs = atoll_vfs::model::ModelFs::default();
    let mut plain = Server::new(ServerOptions::default());
    plain.serve(&mut fs, &caller, &offer(), &[], &mut reply, &mut []).unwrap();
    let plain = InitOut::load(&reply[OutHeader::SIZE..]).features();
    let mut mounts = 0;
    for others in [Others::Any, Others::Joining, Others::Host, Others::None] {
        for access_times in [AccessTimes::Noatime, AccessTimes::Relatime] {
            for unchanging in [false, true] {
                for owner in [None, Some((1, 1))] {
                    for untold in [None, Some(0), Some(1)] {
                        for window in [false, true] {
                            let ids = None;
                            let options = KernelOptions {
                                owner,
                                ids,
                                others,
                                unchanging,
                                untold,
                                window,
                                implicit_opens: false,
                                writes_back: false,
                            };
                            for submounts in [false, true] {
                                mounts |= agreed(options, access_times, submounts);
                            }
                        }
                    }
                }
            }
        }
    }
    for bit in 0..63 {
        let should = match (plain >> bit & 1, mounts >> bit & 1) {
            (1, _) => "yes",
            (_, 1) => "mounts",
            _ => "no",
        };
        assert_eq!(said.get(&bit).copied().unwrap_or("no"), should, "bit {bit}");
    }
}

/// The kernel of the mount that all share has names while nobody else may change any, and the first
/// change of another waits until they have run out.
#[test]
fn names_are_lent_for_a_time() {
    let host = Arc::<StillHost>::default();
    let volume =
        Volume::new(atoll_vfs::model::ModelFs::default(), "v", Arc::<StillHost>::clone(&host));
    let session = |read_only| {
        let access = Access { read_only, ..Access::default() };
        volume.session(Credentials::default(), access).unwrap()
    };
    let make = |session: &mut Session<_>, name: &[u8]| {
        let cx = Context { uid: 0, gid: 0, now: Timespec::default() };
        session.mkdir(&cx, Ino::ROOT, Name::new(name).unwrap(), 0o755).unwrap();
        session.take_needs().is_some()
    };
    let mut shared = session(false);
    shared.carried();
    let cache = shared.begin_cache(Lends::Timed, Arc::new(Noted::default())).unwrap();
    let _looks = session(true);
    let lent = std::time::Duration::from_secs(cache.lends_names());
    assert!(!lent.is_zero());
    // The kernel knows what it changes itself.
    assert!(!make(&mut shared, b"own") && cache.next() == Next::Nothing);
    let mut other = session(false);
    other.carried();
    assert_eq!(cache.lends_names(), 0);
    assert!(make(&mut other, b"a"));
    let Next::Tell(notice) = cache.next() else { panic!("nothing is told") };
    let until = notice.until.unwrap();
    assert!(until > lent && until < 2 * lent);
    assert!(!volume.gate().is_free(Ino::ROOT));
    host.pass(until);
    cache.told();
    assert!(volume.gate().is_free(Ino::ROOT) && !make(&mut other, b"b"));
    drop(other);
    assert!(cache.lends_names() > 0);
}

/// The kernel of the mount that all share reads and writes a file through its page cache whatever
/// its own calls have changed just before: only others' changes take that from it for a while.
#[test]
fn own_changes_leave_a_file_in_the_page_cache() {
    let volume = crate::testing::volume();
    let session = || volume.session(Credentials::default(), Access::default()).unwrap();
    let cx = Context { uid: 0, gid: 0, now: Timespec::default() };
    let mut shared = session();
    shared.carried();
    let cache = shared.begin_cache(Lends::Timed, Arc::new(Noted::default())).unwrap();
    let flags = atoll_vfs::OpenFlags::READ | atoll_vfs::OpenFlags::WRITE;
    let name = Name::new(b"f").unwrap();
    let (attr, handle) = shared.create(&cx, Ino::ROOT, name, 0o644, flags).unwrap();
    shared.write(&cx, attr.ino, handle, 0, b"content").unwrap();
    shared.reads_for_cache(true);
    shared.read(&cx, attr.ino, handle, 0, &mut [0; 4]).unwrap();
    let at = |offset| atoll_vfs::FileAt { ino: attr.ino, handle, offset };
    shared.copy_file_range(&cx, at(0), at(4), 4).unwrap();
    assert!(cache.keeps_pages(attr.ino));
    let mut other = session();
    other.carried();
    assert!(!cache.keeps_pages(attr.ino));
}

/// Brings one request after the other.
#[derive(Default)]
struct Script {
    request: Vec<u8>,
    /// Nobody wants the answers.
    lost: bool,
    /// The request was set aside before.
    again: bool,
    aside: usize,
    answers: usize,
    /// One that was set aside is due.
    due: Arc<AtomicBool>,
}

struct Due(Arc<AtomicBool>);

impl Held for Due {
    fn release(self: Box<Self>, _: atoll_vfs::Result<()>) -> bool {
        self.0.store(true, Ordering::Relaxed);
        true
    }
}

impl Carrier for Script {
    type Slot = ();
    type Error = ();

    fn take(&mut self) -> Result<Option<()>, ()> {
        Ok(Some(()))
    }

    fn incoming(&mut self, (): &()) -> Incoming<'_> {
        Incoming { message: &self.request, data: Data::default(), room: Room::default() }
    }

    fn set_aside(&mut self, (): ()) -> Result<Box<dyn Held>, ()> {
        assert!(!self.again, "it was set aside before");
        self.aside += 1;
        Ok(Box::new(Due(Arc::clone(&self.due))))
    }

    fn is_again(&self) -> bool {
        self.again
    }

    fn answer(&mut self, (): (), message: &[u8], _: usize) -> Result<bool, ()> {
        self.answers += usize::from(!message.is_empty());
        Ok(!self.lost)
    }

    fn hold(&mut self, (): (), _: &[u8], _: usize) -> Box<dyn Held> {
        Box::new(Due(Arc::clone(&self.due)))
    }
}

/// The kernel of any mount may have forgotten what it has removed, and is heard before STATFS is
/// answered. What nobody has told it, it forgets no more often.
#[test]
fn what_stands_is_heard_first() {
    let volume = crate::testing::volume();
    let mut session = volume.session(Credentials::default(), Access::default()).unwrap();
    let cache = session.begin_cache(Lends::Pages, Arc::new(Noted::default())).unwrap();
    session.hold_removed();
    let (cx, f) = (Context { uid: 0, gid: 0, now: Timespec::default() }, Name::new(b"f").unwrap());
    let ino = session.mknod(&cx, Ino::ROOT, f, 0o100_644, 0).unwrap().ino;
    let place = Revocable::default();
    place.begin(session);
    let agrees = ServerOptions { extensions: Extensions::empty(), ..ServerOptions::default() };
    let mut router = Router::of_kernel(agrees, Kernel::new(cache, KernelOptions::default()));
    let mut kernel = Script { request: offer(), ..Script::default() };
    serve_next(&mut kernel, &mut router, &place).unwrap();
    let mut asks = |opcode, Ino(nodeid), body: &[u8], lost| {
        let len = (InHeader::SIZE + body.len()) as u32;
        kernel.request = vec![0; InHeader::SIZE];
        InHeader { len, opcode, nodeid, ..InHeader::default() }.store(&mut kernel.request);
        kernel.request.extend_from_slice(body);
        (kernel.lost, kernel.aside, kernel.answers) = (lost, 0, 0);
        serve_next(&mut kernel, &mut router, &place).unwrap();
        (kernel.aside, kernel.answers)
    };
    assert_eq!(asks(FUSE_LOOKUP, Ino::ROOT, b"f\0", true), (0, 1));
    assert_eq!(asks(FUSE_STATFS, Ino::ROOT, b"", false), (0, 1));
    assert_eq!(asks(FUSE_UNLINK, Ino::ROOT, b"f\0", false), (0, 1));
    assert_eq!(asks(FUSE_STATFS, Ino::ROOT, b"", false), (1, 0));
    assert_eq!(asks(FUSE_FORGET, ino, &1u64.to_ne_bytes(), false), (0, 0));
    assert_eq!(asks(FUSE_STATFS, Ino::ROOT, b"", false), (0, 1));
}

/// A kernel that writes back is made to do so once for a request that depends on it.
#[test]
fn what_awaits_the_pages_of_a_kernel_has_them_written_once() {
    let volume = crate::testing::volume();
    let mut session = volume.session(Credentials::default(), Access::default()).unwrap();
    session.carried();
    let cache = session.begin_cache(Lends::All, Arc::new(Noted::default())).unwrap();
    let cx = Context { uid: 0, gid: 0, now: Timespec::default() };
    let name = Name::new(b"f").unwrap();
    let flags = atoll_vfs::OpenFlags::READ;
    let (attr, handle) = session.create(&cx, Ino::ROOT, name, 0o600, flags).unwrap();
    let options =
        KernelOptions { others: Others::None, writes_back: true, ..KernelOptions::default() };
    let agrees = ServerOptions { extensions: Extensions::empty(), ..ServerOptions::default() };
    let mut router = Router::of_kernel(agrees, Kernel::new(Arc::clone(&cache), options));
    let place = Revocable::default();
    place.begin(session);

    let mut kernel = Script { request: offer(), ..Script::default() };
    serve_next(&mut kernel, &mut router, &place).unwrap();
    kernel.request = vec![0; InHeader::SIZE + LseekIn::SIZE];
    let header = InHeader {
        len: kernel.request.len() as u32,
        opcode: FUSE_LSEEK,
        nodeid: attr.ino.0,
        ..InHeader::default()
    };
    header.store(&mut kernel.request);
    const SEEK_DATA: u32 = 3;
    let args = LseekIn { fh: handle.0, whence: SEEK_DATA, ..LseekIn::default() };
    args.store(&mut kernel.request[InHeader::SIZE..]);
    serve_next(&mut kernel, &mut router, &place).unwrap();
    assert_eq!(kernel.answers, 1, "the file is not written back yet");
    let Next::Tell(notice) = cache.next() else { panic!("nothing is invalidated") };
    assert_eq!(notice.ino, attr.ino.0);
    cache.told();
    assert!(kernel.due.load(Ordering::Relaxed));
    kernel.again = true;
    serve_next(&mut kernel, &mut router, &place).unwrap();
    assert_eq!((kernel.answers, cache.next()), (2, Next::Nothing));
}
