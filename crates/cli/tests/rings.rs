//! Programs that ask `atoll serve` through rings, beside others that have it mounted.
#![allow(missing_docs)]

mod common;

use std::process::{Child, Stdio};

use atoll_host::client::{Connection, Place};
use atoll_host::server::rules::Mode;
use atoll_transport::channel::Config;
use atoll_vfs::{Context, Errno, FileSystem, Ino, Name, OpenFlags, Timespec};
use common::{atoll, folder, fsck, ok, volume, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const CX: Context = Context { uid: 0, gid: 0, now: Timespec { sec: 1, nsec: 0 } };

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

#[test]
fn rings_and_mounts_see_the_same_files() {
    let dir = folder();
    let vol = volume(dir.path(), "a.vol", "32M");
    let mut server = Killed(
        atoll()
            .current_dir(dir.path())
            .args(["serve", "a.vol", "--socket", "s", "--log-level", "warn"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let socket = dir.path().join("s");
    wait_until("it serves", || {
        Place::find(&socket).is_some_and(|place| Connection::open(&place).is_ok())
    });
    let place = Place::find(&socket).unwrap();
    let config = Config { lanes: 4, ..Config::default() };
    let mut ring = Connection::open(&place).unwrap().ring(Mode::Write, &config).unwrap();
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    // A thread for each lane, all at once.
    let threads: Vec<_> = (0..4u8)
        .map(|thread| {
            let mut client = ring.cached().unwrap();
            std::thread::spawn(move || {
                let own = format!("f{thread}");
                let (attr, handle) =
                    client.create(&CX, Ino::ROOT, name(&own), 0o644, flags).unwrap();
                for round in 0..50u64 {
                    let data = vec![thread; 5000];
                    client.write(&CX, attr.ino, handle, round * 5000, &data).unwrap();
                    let mut back = vec![0; 5000];
                    let got = client.read(&CX, attr.ino, handle, round * 5000, &mut back).unwrap();
                    assert!(got == 5000 && back == data);
                }
                client
            })
        })
        .collect();
    let mut clients: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(ring.cached().is_none());
    // A program that has it mounted sees that, and the ring what it does.
    let run = |script: &str| {
        ok(atoll().current_dir(dir.path()).args(["run", "-v", "s:/vol", "--", "sh", "-ec", script]))
    };
    assert_eq!(
        run("stat -c %s /vol/f3; tail -c 1 /vol/f3 | od -An -tu1; mv /vol/f0 /vol/g"),
        "250000\n   3\n"
    );
    let client = &mut clients[0];
    assert_eq!(client.lookup(&CX, Ino::ROOT, name("f0")), Err(Errno::ENOENT));
    assert_eq!(client.lookup(&CX, Ino::ROOT, name("g")).unwrap().size, 250_000);
    // Its unlinked files are gone when it is.
    let free = || run("stat -f -c %f /vol");
    let (attr, handle) = client.create(&CX, Ino::ROOT, name("big"), 0o644, flags).unwrap();
    let before = free();
    client.write(&CX, attr.ino, handle, 0, &vec![1; 1 << 20]).unwrap();
    client.unlink(&CX, Ino::ROOT, name("big")).unwrap();
    assert_ne!(free(), before);
    drop(clients);
    drop(ring);
    wait_until("the session has ended", || free() == before);
    // A server that ends is noticed, not waited for.
    let mut ring = Connection::open(&place).unwrap().ring(Mode::Read, &config).unwrap();
    let mut client = ring.cached().unwrap();
    assert_eq!(client.unlink(&CX, Ino::ROOT, name("g")), Err(Errno::EROFS));
    kill(Pid::from_raw(server.0.id() as i32), Signal::SIGTERM).unwrap();
    assert!(server.0.wait().unwrap().success());
    assert_eq!(client.getattr(&CX, Ino::ROOT), Err(Errno::EIO));
    fsck(&vol);
}
