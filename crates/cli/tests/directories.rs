//! Directories of the host, served: by rings, by mounts, beside programs of the host.
#![allow(missing_docs)]

mod common;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::process::Command;

use common::serving::Served;
use common::{TempDir, atoll, folder, need, ok, unmount, volume};

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// A folder with a directory `host`, and the volumes that tests of servers look at.
fn with_directory() -> TempDir {
    let dir = folder();
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    for name in ["a.vol", "b.vol"] {
        volume(dir.path(), name, "32M");
    }
    fs::copy(env!("CARGO_BIN_EXE_atoll"), dir.path().join("atoll")).unwrap();
    fs::create_dir(dir.path().join("host")).unwrap();
    fs::set_permissions(dir.path().join("host"), PermissionsExt::from_mode(0o755)).unwrap();
    dir
}

/// A program with the library, one without, and the host see each other's changes at once.
#[test]
fn a_directory_is_the_hosts_and_the_clients() {
    let served = Served::again(with_directory(), &["host", "a.vol"]);
    let host = served.path().join("host");
    fs::write(host.join("f"), b"from the host\n").unwrap();
    let mut one = served.shell("s/host:/vol");
    let mut other = served.shell("s/host:/mnt");
    assert_eq!(one.does("cat /vol/f"), "from the host");
    for round in 0..50 {
        let text = format!("{:width$}", round, width = 3 + round % 7);
        fs::write(host.join("f"), &text).unwrap();
        let seen = one.does("stat -c %s /vol/f; cat /vol/f");
        assert_eq!(
            seen.split_whitespace().collect::<Vec<_>>(),
            [text.len().to_string(), round.to_string()]
        );
        assert_eq!(other.does("cat /mnt/f").trim(), round.to_string());
        // Names too, also those that were not there.
        let name = format!("n{round}");
        assert_eq!(one.does(&format!("test ! -e /vol/{name}")), "");
        fs::write(host.join(&name), b"").unwrap();
        assert_eq!(one.does(&format!("test -e /vol/{name}")), "");
        fs::remove_file(host.join(&name)).unwrap();
        assert_eq!(one.does(&format!("test ! -e /vol/{name}")), "");
    }
    // A file that a client makes is the host's at once, under its name, mode and owner.
    let made =
        "mkdir /vol/d; umask 027; echo made > /vol/d/g; ln -s g /vol/d/l; ln /vol/d/g /vol/h";
    assert_eq!(one.does(made), "");
    assert_eq!(other.does("cat /mnt/d/l /mnt/h; ls /mnt/d"), "made made g l");
    let attr = fs::metadata(host.join("d/g")).unwrap();
    assert_eq!((attr.mode() & 0o7777, attr.nlink()), (0o640, 2));
    assert_eq!(attr.uid(), nix::unistd::geteuid().as_raw());
    assert_eq!(fs::read(host.join("h")).unwrap(), b"made\n");
    assert_eq!(one.does("mv /vol/d/g /vol/e; rm /vol/h; sync /vol/e; cat /vol/e"), "made");
    assert!(!host.join("d/g").exists() && !host.join("h").exists());
    // The same file has the same number through every mount.
    assert_eq!(one.does("stat -c %i /vol/e"), other.does("stat -c %i /mnt/e"));
    // Locks hold between clients.
    assert_eq!(one.does("exec 6> /vol/lock; flock -n 6"), "");
    assert_eq!(other.does("exec 6> /mnt/lock; flock -n 6"), "!");
    one.end();
    other.end();
    served.stop();
}

/// A client leaves the directory by no link and no parent, and another volume is another one.
#[test]
fn nothing_outside_is_served() {
    let dir = with_directory();
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("secret"), b"secret").unwrap();
    symlink(&outside, dir.path().join("host/link")).unwrap();
    symlink("../outside/secret", dir.path().join("host/up")).unwrap();
    let served = Served::again(dir, &["host", "a.vol"]);
    // Links lead where they lead in the client's file tree.
    let said = ok(&mut served.run(
        "s/host:/vol",
        "readlink /vol/up; cat /vol/up 2>/dev/null || echo none; ls -a /vol/.. >/dev/null",
    ));
    assert_eq!(said, "../outside/secret\nnone\n");
    served.stop();
}

/// `:ro` and the modes of rules.
#[test]
fn a_directory_for_looking_only() {
    let served = Served::again(with_directory(), &["ro=host:ro", "a.vol"]);
    fs::write(served.path().join("host/f"), b"as it is\n").unwrap();
    let said = ok(&mut served.run(
        "s/ro:/vol",
        "cat /vol/f; (echo x >> /vol/f) 2>/dev/null || echo refused; mkdir /vol/d 2>/dev/null || echo refused",
    ));
    assert_eq!(said, "as it is\nrefused\nrefused\n");
    assert_eq!(fs::read(served.path().join("host/f")).unwrap(), b"as it is\n");
    served.stop();
}

/// A file that another user makes is that user's on the host, if the server may say so.
#[test]
fn owners_are_the_hosts() {
    if !is_root() {
        // Only the superuser can be several users.
        return;
    }
    let served = Served::again(with_directory(), &["host", "a.vol", "--allow", "uid:65534=rw"]);
    let host = served.path().join("host");
    fs::set_permissions(&host, PermissionsExt::from_mode(0o777)).unwrap();
    fs::write(host.join("roots"), b"").unwrap();
    fs::set_permissions(host.join("roots"), PermissionsExt::from_mode(0o600)).unwrap();
    let said = ok(&mut served.run_as_user(
        "s/host:/vol",
        "echo hers > /vol/f; mkdir /vol/d; cat /vol/roots 2>/dev/null || echo refused; \
         chown 0 /vol/f 2>/dev/null || echo refused",
    ));
    assert_eq!(said, "refused\nrefused\n");
    for name in ["f", "d"] {
        assert_eq!(fs::metadata(host.join(name)).unwrap().uid(), 65534, "{name}");
    }
    // Quotas are not ours to give.
    let refused = atoll()
        .current_dir(served.path())
        .args(["serve", "--socket", "other", "host", "--allow", "all=rw,quota=1M"])
        .output()
        .unwrap();
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("no quotas"));
    served.stop();
}

/// All files are one user's, and each client's own.
#[test]
fn squashed_directories() {
    let served =
        Served::again(with_directory(), &["host:all_squash", "a.vol", "--allow", "all=rw"]);
    let host = served.path().join("host");
    if is_root() {
        // The directory has to be that user's too.
        std::os::unix::fs::chown(&host, Some(65534), Some(65534)).unwrap();
    }
    let script = "echo x > /vol/f; chmod 640 /vol/f; stat -c %u /vol/f /vol";
    let own = nix::unistd::geteuid().as_raw();
    let said = ok(&mut served.run("s/host:/vol", script));
    assert_eq!(said, format!("{own}\n{own}\n"));
    let squashed = if is_root() { 65534 } else { own };
    assert_eq!(fs::metadata(host.join("f")).unwrap().uid(), squashed);
    let refused = atoll()
        .current_dir(served.path())
        .args(["serve", "--socket", "other", "b.vol:all_squash"])
        .output()
        .unwrap();
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("for directories"));
    served.stop();
}

/// Without a server that runs already.
#[test]
fn a_directory_of_ones_own() {
    let dir = with_directory();
    let host = dir.path().join("host");
    fs::write(host.join("f"), b"first\n").unwrap();
    let mut run = atoll();
    let script = "cat /vol/f; echo second > /vol/g; mv /vol/g /vol/h; cat /vol/h";
    run.current_dir(dir.path()).args(["run", "-v", "host:/vol", "--", "sh", "-ec", script]);
    assert_eq!(ok(&mut run), "first\nsecond\n");
    assert_eq!(fs::read(host.join("h")).unwrap(), b"second\n");
    let mut run = atoll();
    let script = "cat /vol/f; ! touch /vol/x 2>/dev/null";
    run.current_dir(dir.path()).args(["run", "-v", "host:/vol:ro", "--", "sh", "-ec", script]);
    assert_eq!(ok(&mut run), "first\n");
    if !is_root() {
        return;
    }
    let place = dir.path().join("mnt");
    fs::create_dir(&place).unwrap();
    ok(atoll().current_dir(dir.path()).args(["mount", "host", "mnt"]));
    assert_eq!(fs::read(place.join("f")).unwrap(), b"first\n");
    for round in 0..20 {
        let text = format!("round {round}");
        fs::write(host.join("f"), &text).unwrap();
        assert_eq!(fs::read_to_string(place.join("f")).unwrap(), text);
        fs::write(place.join("m"), &text).unwrap();
        assert_eq!(fs::read_to_string(host.join("m")).unwrap(), text);
        let there = place.join(format!("late{round}"));
        assert!(!there.exists());
        fs::write(host.join(format!("late{round}")), b"").unwrap();
        assert!(there.exists());
    }
    unmount(dir.path(), "mnt");
}

/// Two mounts and the host read and write the same files by turns: each read finds the last write,
/// though all of it goes through page caches.
#[test]
fn page_caches_follow_the_host() {
    if !is_root() {
        return;
    }
    let served = Served::again(with_directory(), &["host"]);
    let at = |name: &str| served.path().join(name);
    for place in ["m1", "m2"] {
        fs::create_dir(at(place)).unwrap();
        ok(atoll().current_dir(served.path()).args(["mount", "s", place]));
    }
    let places = ["m1", "m2", "host"];
    fs::write(at("host/f"), [b'0'; 8192]).unwrap();
    let open = |name: &str| {
        let open = |place: &str| {
            let mut options = File::options();
            options.read(true).write(true).create(true).append(name == "log");
            options.open(at(place).join(name)).unwrap()
        };
        places.map(open)
    };
    // The same size each time, as fast as it goes; the first page, across two, the last one.
    let files = open("f");
    for round in 0..3000_u64 {
        let (text, offset) = (format!("{round:08}"), [0, 4092, 8184][round as usize / 3 % 3]);
        files[round as usize % 3].write_all_at(text.as_bytes(), offset).unwrap();
        for (file, place) in files.iter().zip(places) {
            let mut found = [0; 8];
            file.read_exact_at(&mut found, offset).unwrap();
            assert_eq!(found, text.as_bytes(), "{place}, {round}");
        }
    }
    // Cut and grown.
    for round in 0..300 {
        files[round % 3].set_len(5000 + (round as u64 * 37) % 9000).unwrap();
        let length = files[2].metadata().unwrap().len();
        for (file, place) in files.iter().zip(places) {
            assert_eq!(file.read_at(&mut [0; 20_000], 0).unwrap() as u64, length, "{place}");
        }
    }
    // Appended, where a kernel may not know the end.
    let logs = open("log");
    let mut written = Vec::new();
    for round in 0..1000 {
        let record = format!("{round:09}\n");
        (&logs[round * 7 % 3]).write_all(record.as_bytes()).unwrap();
        written.extend_from_slice(record.as_bytes());
        let mut found = vec![0; written.len() + 1];
        let len = logs[round % 3].read_at(&mut found, 0).unwrap();
        assert!(found[..len] == written[..], "{round}");
    }
    // A change that the mount's own change of attributes follows.
    for round in 0..300_u32 {
        let text = format!("{round:08}");
        files[0].read_exact_at(&mut [0; 8], 0).unwrap();
        files[2].write_all_at(text.as_bytes(), 0).unwrap();
        files[0].set_permissions(PermissionsExt::from_mode(0o600 + round % 2 * 0o40)).unwrap();
        let mut found = [0; 8];
        files[0].read_exact_at(&mut found, 0).unwrap();
        assert_eq!(found, text.as_bytes(), "{round}");
    }
    // A log to which the mount and the host append by turns, and another program of the mount that
    // reads on meanwhile: no line is another than the host has.
    need("python3", "python3");
    let script = "import os, multiprocessing as mp
lines = 1000
def write(place, tag, lock):
    fd = os.open(place + '/turns', os.O_WRONLY | os.O_APPEND)
    for n in range(lines):
        with lock: os.write(fd, b'%s%06d\\n' % (tag, n))
open('host/turns', 'w').close()
lock = mp.Lock()
writers = [mp.Process(target=write, args=(*by, lock)) for by in (('host', b'H'), ('m1', b'M'))]
for writer in writers: writer.start()
fd, text = os.open('m1/turns', os.O_RDONLY), b''
while len(text) < 2 * lines * 8: text += os.pread(fd, 65536, len(text))
for writer in writers: writer.join()
assert text == open('host/turns', 'rb').read()";
    ok(Command::new("timeout").current_dir(served.path()).args(["60", "python3", "-c", script]));
    // What is opened after a change is new, also where it is only mapped.
    let script = "import mmap, os
for text in (b'%08d' % n for n in range(100)):
    with open('host/f', 'r+b') as file: file.write(text)
    for place in 'm1', 'm2':
        fd = os.open(place + '/f', os.O_RDONLY)
        with mmap.mmap(fd, 8, prot=mmap.PROT_READ) as mapped: assert mapped[:] == text, place
        os.close(fd)";
    ok(Command::new("python3").current_dir(served.path()).args(["-c", script]));
    drop((files, logs));
    for place in ["m1", "m2"] {
        unmount(served.path(), place);
    }
    served.stop();
}
