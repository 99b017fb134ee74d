//! The cost of reads that a View answers, and the cost of Views for sessions that change something:
//! `cargo run --release -p atoll-host --example view [NAME COUNT]`.
//!
//! With a name and a count, only that measurement is run, COUNT times: for counting instructions.

use std::time::Instant;

use atoll_host::shm::MappedView;
use atoll_posix::{OFlags, Options, Posix, Whence};
use atoll_server::{Access, Credentials, Session, Volume};
use atoll_vfs::model::ModelFs;
use atoll_vfs::{Cached, Context, FileSystem, Ino, Name, OpenFlags, Timespec};

const CX: Context = Context { uid: 0, gid: 0, now: Timespec { sec: 1, nsec: 0 } };
const PAGE: usize = 4096;
const PAGES: usize = 64;
const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

fn begin(
    volume: &std::sync::Arc<Volume<ModelFs>>,
) -> (Session<ModelFs>, std::sync::Arc<MappedView>) {
    let mut session = volume.session(Credentials::default(), Access::default()).expect("a session");
    let memory = atoll_host::server::open_view(&mut session, usize::MAX)
        .expect("memory")
        .expect("room for a View");
    (session, MappedView::attach(memory, || true).expect("a View"))
}

/// Runs `call` so often as `only` says, or prints the least mean time of some runs.
fn measure(name: &str, only: Option<(&str, u64)>, mut call: impl FnMut(u64)) {
    if let Some((wanted, count)) = only {
        if wanted == name {
            (0..count).for_each(call);
        }
        return;
    }
    let least = (0..9)
        .map(|_| {
            let begin = Instant::now();
            (0..100_000).for_each(&mut call);
            begin.elapsed().as_nanos() as f64 / 100_000.0
        })
        .fold(f64::INFINITY, f64::min);
    println!("{name:<28} {least:>8.1} ns");
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let only = match &arguments[..] {
        [name, count] => Some((name.as_str(), count.parse().expect("a count"))),
        _ => None,
    };

    let volume = atoll_host::server::volume(ModelFs::default(), "v");
    let (session, view) = begin(&volume);
    let cached = Cached::new(session, view, std::sync::Arc::default());
    let mut posix = Posix::new(cached, || CX.now, &Options::default());
    posix.mkdir(b"/d", 0o755).expect("mkdir");
    let fd = posix.open(b"/d/f", OFlags::RDWR | OFlags::CREAT, 0o644).expect("open");
    posix.pwrite(fd, &[1; PAGE * PAGES], 0).expect("write");
    let mut buf = [0; PAGE];
    for page in 0..PAGES {
        posix.pread(fd, &mut buf, (page * PAGE) as i64).expect("read");
    }
    posix.stat(b"/d/f").expect("stat");
    assert!(posix.stat(b"/d/missing").is_err());
    let at = |n: u64| (n as usize % PAGES * PAGE) as i64;
    measure("pread-4k", only, |n| assert_eq!(posix.pread(fd, &mut buf, at(n)), Ok(PAGE)));
    measure("pread-1", only, |n| assert_eq!(posix.pread(fd, &mut buf[..1], at(n)), Ok(1)));
    measure("fstat", only, |_| assert!(posix.fstat(fd).is_ok()));
    measure("lseek-end", only, |_| assert!(posix.lseek(fd, 0, Whence::End).is_ok()));
    measure("lseek-set", only, |n| assert!(posix.lseek(fd, at(n), Whence::Set).is_ok()));
    measure("stat-2-components", only, |_| assert!(posix.stat(b"/d/f").is_ok()));
    measure("stat-missing", only, |_| assert!(posix.stat(b"/d/missing").is_err()));
    drop(posix);

    // Another session's changes, of a file that no View has anything of.
    let mut writer = volume.session(Credentials::default(), Access::default()).expect("a session");
    let name = Name::new(b"g").expect("a name");
    let (attr, handle) = writer.create(&CX, Ino::ROOT, name, 0o644, RW).expect("create");
    let mut views = Vec::new();
    for count in [0, 1, 8] {
        while views.len() < count {
            views.push(begin(&volume));
        }
        measure(&format!("write-1-views-{count}"), only, |_| {
            assert!(writer.write(&CX, attr.ino, handle, 0, &[1]).is_ok());
        });
        measure(&format!("chmod-views-{count}"), only, |_| {
            let set = atoll_vfs::SetAttr { mode: Some(0o600), ..Default::default() };
            assert!(writer.setattr(&CX, attr.ino, None, &set).is_ok());
        });
        let other = Name::new(b"h").expect("a name");
        measure(&format!("link-unlink-views-{count}"), only, |_| {
            assert!(writer.link(&CX, attr.ino, Ino::ROOT, other).is_ok());
            assert!(writer.unlink(&CX, Ino::ROOT, other).is_ok());
        });
    }
    // The extra cost of a miss for the server, compared with no View: it also puts the page there.
    let (mut session, _view) = views.pop().expect("a session");
    let handle = session.open(&CX, attr.ino, RW).expect("open");
    session.write(&CX, attr.ino, handle, 0, &[1; PAGE]).expect("write");
    let plain = writer.open(&CX, attr.ino, RW).expect("open");
    measure("server-read-4k-without", only, |_| {
        assert_eq!(writer.read(&CX, attr.ino, plain, 0, &mut buf), Ok(PAGE));
    });
    measure("server-read-4k-there", only, |_| {
        assert_eq!(session.read(&CX, attr.ino, handle, 0, &mut buf), Ok(PAGE));
    });
    let mut own = [2; PAGE];
    measure("server-write-4k-refilled", only, |n| {
        own[0] = n as u8;
        assert!(session.write(&CX, attr.ino, handle, 0, &own).is_ok());
    });
    measure("server-write-4k-without", only, |n| {
        own[0] = n as u8;
        assert!(writer.write(&CX, attr.ino, plain, 0, &own).is_ok());
    });
}
