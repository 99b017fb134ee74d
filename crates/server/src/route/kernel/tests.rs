use std::collections::BTreeMap;

use atoll_vfs::server::{Identity, ServerOptions};
use atoll_vfs::wire::attributes::StatxIn;
use atoll_vfs::wire::opcode::FUSE_STATX;
use atoll_vfs::wire::{Extensions, REPLY_MAX};
use atoll_vfs::{AccessTimes, Timespec};

use super::*;
use crate::leases::caches::Lends;
use crate::route::carrier::Incoming;
use crate::route::router::Router;
use crate::testing::Noted;
use crate::{Access, Credentials};

/// The message of an INIT that offers everything.
fn offer() -> Vec<u8> {
    let offer = InitIn::new(u64::MAX >> 1, Extensions::empty());
    let mut message = vec![0; InHeader::SIZE + InitIn::SIZE];
    let header = InHeader { len: message.len() as u32, opcode: FUSE_INIT, ..InHeader::default() };
    header.store(&mut message);
    offer.store(&mut message[InHeader::SIZE..]);
    message
}

/// The features that a mount with these options gets of all that there are.
fn agreed(options: KernelOptions, access_times: AccessTimes) -> u64 {
    let volume = crate::testing::volume();
    volume.set_access_times(access_times).unwrap();
    let mut session = volume.session(Credentials::default(), Access::default()).unwrap();
    let lends = if options.others == Others::None { Lends::All } else { Lends::Pages };
    let cache = session.begin_cache(lends, Arc::new(Noted::default())).unwrap();
    let agrees = ServerOptions { extensions: Extensions::empty(), ..ServerOptions::default() };
    let mut router = Router::of_kernel(agrees, Kernel::new(cache, options));
    let incoming = Incoming { message: &offer(), data: &[], room: &mut [] };
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
    for others in [Others::Any, Others::Rings, Others::None] {
        for access_times in [AccessTimes::Noatime, AccessTimes::Relatime] {
            for unchanging in [false, true] {
                for owner in [None, Some((1, 1))] {
                    let options = KernelOptions { owner, others, unchanging };
                    mounts |= agreed(options, access_times);
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

/// What the kernel is told of a file's birth is told of the owner that the mount shows.
#[test]
fn statx_is_getattr_with_the_time_of_creation() {
    let volume = crate::testing::volume();
    let mut session = volume.session(Credentials::default(), Access::default()).unwrap();
    let cache = session.begin_cache(Lends::Pages, Arc::new(Noted::default())).unwrap();
    let options = KernelOptions { owner: Some((7, 8)), ..KernelOptions::default() };
    let agrees = ServerOptions { extensions: Extensions::empty(), ..ServerOptions::default() };
    let mut router = Router::of_kernel(agrees, Kernel::new(cache, options));
    let mut room = [0xaa; StatxOut::SIZE];
    let incoming = Incoming { message: &offer(), data: &[], room: &mut [] };
    router.route(&mut session, incoming, true).unwrap();
    let mut message = [0; InHeader::SIZE + StatxIn::SIZE];
    let header = InHeader { len: message.len() as u32, opcode: FUSE_STATX, ..InHeader::default() };
    InHeader { nodeid: 1, ..header }.store(&mut message);
    let mut ask = |room: &mut [u8]| {
        let incoming = Incoming { message: &message, data: &[], room };
        router.route(&mut session, incoming, true).unwrap();
        let header = OutHeader::load(&router.out.message);
        (header.error, header.len as usize, router.out.reply)
    };
    let len = OutHeader::SIZE + StatxOut::SIZE;
    let reply = Reply { message: OutHeader::SIZE, data: StatxOut::SIZE };
    assert_eq!(ask(&mut room), (0, len, reply));
    let out = StatxOut::load(&room);
    assert_eq!((out.stat.ino, out.stat.uid, out.stat.gid, out.attr_valid), (1, 7, 8, 0));
    assert_eq!((out.stat.mask, out.stat.mode), (0xfff, 0o40755));
    let short = Reply { message: OutHeader::SIZE, data: 0 };
    let refused = (-Errno::EINVAL.raw(), OutHeader::SIZE, short);
    assert_eq!(ask(&mut room[..StatxOut::SIZE - 1]), refused);
}
