//! Times of last access on a served volume: every read of a client, from the View or from the
//! server, sets the time when it is due, and all clients see it.

use std::sync::Arc;

use atoll_block::RamDevice;
use atoll_fs::Fs;
use atoll_host::shm::MappedView;
use atoll_server::{Access, Credentials, Limits, Session, Volume};
use atoll_tests::fixtures::{root, volume};
use atoll_tests::rng::Rng;
use atoll_tests::subject::{RW, name};
use atoll_vfs::model::ModelFs;
use atoll_vfs::*;

type Client = Cached<Session<Fs<RamDevice>>, Arc<MappedView>>;

fn at(sec: i64) -> Context {
    Context { uid: 0, gid: 0, now: Timespec { sec, nsec: 0 } }
}

fn shared(access_times: AccessTimes) -> Arc<Volume<Fs<RamDevice>>> {
    let volume = atoll_host::server::volume(volume(2048), "v");
    volume.set_access_times(access_times).expect("a new volume");
    volume
}

/// A session with a View, which is read without a word to the server.
fn client(volume: &Arc<Volume<Fs<RamDevice>>>, peer: Credentials, read_only: bool) -> Client {
    let limits = Limits { view: 4 << 20, ..Limits::default() };
    let access = Access { limits, read_only, ..Access::default() };
    let mut session = volume.session(peer, access).expect("a session");
    let memory =
        atoll_host::server::open_view(&mut session, usize::MAX).expect("memory").expect("a View");
    let view = MappedView::attach(memory, || true).expect("a View");
    Cached::new(session, view, Arc::default())
}

/// Two clients that read and change two files, and one that may only look: all times are as in a
/// model in which each read counts. The steps are of seconds: the next test covers times older than
/// a day.
#[test]
fn every_read_counts_wherever_it_comes_from() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let volume = shared(AccessTimes::Relatime);
        let mut clients = [
            client(&volume, root(), false),
            client(&volume, root(), false),
            client(&volume, root(), true),
        ];
        let mut model = ModelFs::default();
        let made = |fs: &mut dyn FileSystem, named: &str| {
            fs.mknod(&at(1), Ino::ROOT, name(named), 0o100666, 0).expect("room").ino
        };
        let files = [made(&mut clients[0], "a"), made(&mut clients[0], "b")];
        let also = [made(&mut model, "a"), made(&mut model, "b")];
        let open =
            |fs: &mut dyn FileSystem, ino, flags| fs.open(&at(1), ino, flags).expect("it is there");
        let kept: Vec<[Handle; 2]> = (0..3)
            .map(|who| {
                let flags = if who == 2 { OpenFlags::READ } else { RW };
                files.map(|ino| open(&mut clients[who], ino, flags))
            })
            .collect();
        let quiet =
            files.map(|ino| open(&mut clients[1], ino, OpenFlags::READ | OpenFlags::NOATIME));
        let model_kept = also.map(|ino| open(&mut model, ino, RW));
        for step in 0..300 {
            let cx = at(100 + step / (1 + rng.within(0..3) as i64));
            let (who, which) = (rng.within(0..2) as usize, rng.within(0..2) as usize);
            let (fs, ino, handle) = (&mut clients[who], files[which], kept[who][which]);
            let (other, other_handle) = (also[which], model_kept[which]);
            let mut bytes = [0; 50];
            let offset = rng.within(0..3) * 4096;
            match rng.within(0..8) {
                0..=3 => {
                    fs.read(&cx, ino, handle, offset, &mut bytes).expect("open");
                    model.accessed(&cx, other);
                }
                4 => {
                    fs.write(&cx, ino, handle, offset, &[step as u8; 200]).expect("room");
                    model
                        .write(&cx, other, other_handle, offset, &[step as u8; 200])
                        .expect("room");
                }
                5 => {
                    let set = SetAttr { mode: Some(0o600 + step as u32 % 8), ..SetAttr::default() };
                    fs.setattr(&cx, ino, None, &set).expect("root");
                    model.setattr(&cx, other, None, &set).expect("root");
                }
                6 => {
                    let handle = quiet[which];
                    clients[1].read(&cx, ino, handle, offset, &mut bytes).expect("open");
                }
                _ => {
                    let handle = kept[2][which];
                    clients[2].read(&cx, ino, handle, offset, &mut bytes).expect("open");
                }
            }
            for fs in &mut clients {
                let (seen, meant) =
                    (fs.getattr(&cx, ino).unwrap(), model.getattr(&cx, other).unwrap());
                assert_eq!(
                    [seen.atime, seen.mtime, seen.ctime],
                    [meant.atime, meant.mtime, meant.ctime],
                    "seed {seed}, step {step}"
                );
            }
        }
    }
}

/// Directories and symbolic links count too; a read of nothing does not, nor does any without the
/// option.
#[test]
fn listing_and_following_count() {
    for access_times in [AccessTimes::Noatime, AccessTimes::Relatime] {
        let volume = shared(access_times);
        let mut fs = client(&volume, root(), false);
        let mut other = client(&volume, root(), false);
        let directory = fs.mkdir(&at(5), Ino::ROOT, name("d"), 0o755).expect("room").ino;
        let link = fs.symlink(&at(5), Ino::ROOT, name("l"), b"d").expect("room").ino;
        let (file, handle) = fs.create(&at(5), Ino::ROOT, name("f"), 0o644, RW).expect("room");
        let listing = fs.opendir(&at(6), directory).expect("it is there");
        for (sec, sets) in [(7, true), (8, false), (7 + 24 * 60 * 60, true)] {
            fs.readdir(&at(sec), directory, listing, 0, &mut |_| true).expect("open");
            fs.readlink(&at(sec), link, &mut Vec::new()).expect("a link");
            assert_eq!(fs.read(&at(sec), file.ino, handle, 0, &mut []), Ok(0));
            let sets = sets && access_times == AccessTimes::Relatime;
            for ino in [directory, link] {
                let seen = other.getattr(&at(sec), ino).expect("it is there");
                assert_eq!(seen.atime == at(sec).now, sets, "{access_times:?}, {sec}");
                assert_eq!((seen.mtime, seen.ctime), (at(5).now, at(5).now));
            }
            assert_eq!(other.getattr(&at(sec), file.ino).map(|attr| attr.atime), Ok(at(5).now));
        }
    }
}
