//! `atoll serve`: many programs on one volume, who may use it, and how it all ends.
#![allow(missing_docs)]

mod common;

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use common::serving::Served;
use common::{as_user, atoll, fails, folder, fsck, need, ok, volume, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

#[test]
fn what_one_program_does_the_other_sees() {
    need("flock", "util-linux");
    let served = Served::start(&["a.vol", "two=b.vol"]);
    let (mut one, mut other) = (served.shell("s/a:/vol"), served.shell("s/a:/mnt"));
    assert_eq!(one.does("echo first > /vol/f; cat /vol/f"), "first");
    assert_eq!(other.does("cat /mnt/f; echo second >> /mnt/f"), "first");
    assert_eq!(one.does("cat /vol/f; stat -c %s /vol/f"), "first second 13");
    assert_eq!(other.does("mkdir /mnt/d; mv /mnt/f /mnt/d/g; ls /mnt"), "d");
    assert_eq!(one.does("ls /vol; test -e /vol/f || cat /vol/d/g"), "d first second");
    assert_eq!(one.does("chmod 640 /vol/d/g; truncate -s 5 /vol/d/g"), "");
    assert_eq!(other.does("stat -c '%a %s' /mnt/d/g; cat /mnt/d/g"), "640 5 first");
    // An unlinked file lives as long as the other has it open, and not a moment longer.
    let free = "stat -f -c %f /vol";
    let before = one.does(free);
    other.does("head -c 1000000 /dev/zero > /mnt/big; exec 5< /mnt/big");
    let full = one.does(free);
    assert_ne!(full, before);
    assert_eq!(one.does("rm /vol/big; ls /vol"), "d");
    assert_eq!(one.does(free), full);
    assert_eq!(other.does("wc -c <&5; exec 5<&-"), "1000000");
    wait_until("the file is gone", || one.does(free) == before);
    // Locks hold between them.
    assert_eq!(one.does("exec 6> /vol/lock; flock -n 6"), "");
    assert_eq!(other.does("exec 6> /mnt/lock; flock -n 6"), "!");
    assert_eq!(one.does("flock -u 6"), "");
    assert_eq!(other.does("flock -n 6"), "");
    // The other volume is another one.
    assert_eq!(ok(&mut served.run("s/two:/vol", "ls /vol; echo two > /vol/f")), "");
    // A mount for all, beside them.
    if nix::unistd::geteuid().is_root() {
        let place = served.path().join("mnt");
        std::fs::create_dir(&place).unwrap();
        ok(atoll().current_dir(served.path()).args(["mount", "s/a", "mnt"]));
        assert_eq!(std::fs::read(place.join("d/g")).unwrap(), b"first");
        std::fs::write(place.join("d/h"), "by mount").unwrap();
        assert_eq!(one.does("cat /vol/d/h"), "by mount");
        common::unmount(served.path(), "mnt");
        assert!(!place.join("d").exists());
    }
    one.end();
    other.end();
    served.stop();
}

#[test]
fn access_rules() {
    if !nix::unistd::geteuid().is_root() {
        // Only the superuser can be several users.
        return;
    }
    let served = Served::start(&[
        "a.vol",
        "b.vol",
        "--allow",
        "uid:65534=rw,volume=a,path=/home",
        "--allow",
        "gid:65534=ro,volume=b",
    ]);
    ok(&mut served.run(
        "s/a:/vol",
        "mkdir /vol/home; chmod 777 /vol/home; echo hers > /vol/home/f; chmod 600 /vol/home/f; echo r > /vol/r",
    ));
    ok(&mut served.run("s/b:/vol", "echo b > /vol/f; chmod 644 /vol/f"));
    // The subtree is all there is, and the owner of what is made there is true.
    let said = ok(&mut served.run_as_user(
        "s/a:/vol",
        "ls -a /vol/.. > /dev/null; ls /vol; echo mine > /vol/g; cat /vol/g; test ! -e /vol/r",
    ));
    assert_eq!(said, "f\nmine\n");
    assert_eq!(
        ok(&mut served.run("s/a:/vol", "stat -c %u:%g /vol/home/g /vol/home/f")),
        "65534:65534\n0:0\n"
    );
    // Read-only means that.
    let said = fails(&mut served.run_as_user("s/b:/vol", "true"), 125);
    assert!(said.contains(":ro"), "{said}");
    let script = "cat /vol/f; ! touch /vol/g; ! rm -f /vol/f";
    assert_eq!(ok(&mut served.run_as_user("s/b:/vol:ro", script)), "b\n");
    served.stop();

    // Without rules a user gets nowhere, even past the mode of the socket.
    let served = Served::start(&["a.vol"]);
    let socket = served.path().join("s");
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    let said = fails(&mut served.run_as_user("s:/vol", "touch ran"), 125);
    assert!(said.contains("Permission denied") && said.contains("--allow"), "{said}");
    std::fs::set_permissions(&socket, PermissionsExt::from_mode(0o666)).unwrap();
    let said = fails(&mut served.run_as_user("s:/vol", "touch ran"), 125);
    assert!(said.contains("user 65534 may not use it"), "{said}");
    assert!(!served.path().join("ran").exists());
    served.stop();
}

#[test]
fn an_ordinary_user_may_serve() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let dir = folder();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_atoll"), dir.path().join("atoll")).unwrap();
    // The whole life, as that user: programs in user namespaces, a mount by fusermount3, the end.
    let script = "
        ./atoll mkfs --size 32M u.vol
        ./atoll serve u.vol --socket u 2> log & server=$!
        trap 'kill $server' EXIT
        while ! ./atoll run -v u:/vol -- true 2> said; do grep -q 'no such\\|No such\\|no server\\|cannot open' said; sleep 0.05; done
        ./atoll run -v u:/vol -- sh -ec 'echo one > /vol/f; test $(stat -c %u /vol/f) = 65534'
        ./atoll run -v u:/vol -- sh -ec 'cat /vol/f; echo two >> /vol/f' &
        wait $!
        ./atoll run -v u:/vol -- cat /vol/f
        mkdir m; ./atoll mount u m; echo three >> m/f; tail -n 1 m/f; ./atoll umount m
        trap - EXIT
        kill $server; wait $server
        ./atoll fsck u.vol";
    let said = ok(&mut as_user(dir.path(), "666", script));
    assert!(said.contains("one\none\ntwo\nthree\n"), "{said}");
}

#[test]
fn a_client_that_is_killed_leaves_nothing() {
    // Who has limits has a session of his own, and a mount by himself.
    let served = Served::start(&["a.vol", "--limit", "all,connections=1000"]);
    let mut watcher = served.shell("s:/vol");
    let free = "stat -f -c '%f %d' /vol";
    watcher.does("touch /vol/x; rm /vol/x");
    let before = watcher.does(free);
    let mut victim = served.shell("s:/vol");
    assert_eq!(victim.does("exec 5> /vol/gone; head -c 3000000 /dev/zero >&5; rm /vol/gone"), "");
    assert_ne!(watcher.does(free), before);
    // All of it: the one that the shell sees, the one that holds the session, and the program.
    let pid = victim.child.id();
    for name in ["atoll-server", "sh"] {
        for child in common::children(pid, name) {
            kill(Pid::from_raw(child), Signal::SIGKILL).unwrap();
        }
    }
    victim.child.kill().unwrap();
    wait_until("the file is gone", || watcher.does(free) == before);
    // If only the holder of the session goes, programs get errors and do not hang.
    let mut victim = served.shell("s:/vol");
    assert_eq!(victim.does("exec 5> /vol/gone; rm /vol/gone; echo x >&5"), "");
    let holder = common::children(victim.child.id(), "atoll-server");
    kill(Pid::from_raw(holder[0]), Signal::SIGKILL).unwrap();
    wait_until("the file is gone", || watcher.does(free) == before);
    assert!(victim.does("ls /vol").ends_with('!'));
    watcher.end();
    drop(victim);
    served.stop();
}

#[test]
fn the_end_of_the_server() {
    let served = Served::start(&["a.vol", "b.vol"]);
    let mut user = served.shell("s/a:/vol");
    assert_eq!(user.does("echo kept > /vol/f; exec 5> /vol/open; rm /vol/open; echo x >&5"), "");
    // In use, its volumes and its socket are refused to others, clearly.
    let said = fails(atoll().current_dir(served.path()).args(["serve", "b.vol"]), 1);
    assert!(said.contains("in use"), "{said}");
    let said = fails(atoll().current_dir(served.path()).args(["ls", "a.vol"]), 1);
    assert!(said.contains("in use"), "{said}");
    volume(served.path(), "c.vol", "16M");
    let said =
        fails(atoll().current_dir(served.path()).args(["serve", "c.vol", "--socket", "s"]), 1);
    assert!(said.contains("another server"), "{said}");
    let said = fails(&mut served.run("s/none:/vol", "touch ran"), 125);
    assert!(said.contains("serves no volume none, but: a, b"), "{said}");
    let said = fails(&mut served.run("s:/vol", "touch ran"), 125);
    assert!(said.contains("several volumes"), "{said}");
    // Asked to end, it closes its volumes under a program that uses them; that gets errors.
    let dir = served.stop();
    assert!(user.does("cat /vol/f").ends_with('!'));
    drop(user.input.take());
    assert_eq!(user.child.wait().unwrap().code(), Some(125));
    let said =
        fails(atoll().current_dir(dir.path()).args(["run", "-v", "s:/vol", "--", "true"]), 125);
    assert!(said.contains("no server"), "{said}");
    assert!(!dir.path().join("ran").exists());
    // The next one takes the socket over. Killed, it leaves what had been written.
    let mut served = Served::again(dir, &["a.vol"]);
    assert_eq!(ok(&mut served.run("s:/vol", "cat /vol/f; echo more > /vol/g")), "kept\n");
    let mut user = served.shell("s:/vol");
    assert_eq!(user.does("cat /vol/g"), "more");
    served.child.kill().unwrap();
    served.child.wait().unwrap();
    assert!(user.does("cat /vol/g").ends_with('!'));
    drop(user);
    fsck(&served.path().join("a.vol"));
    assert_eq!(ok(atoll().current_dir(served.path()).args(["cat", "a.vol:/g"])), "more\n");
}

/// Asked to end under programs that write, it loses nothing that it has
/// acknowledged, and lets nobody wait.
#[test]
fn the_end_of_the_server_among_requests() {
    need("python3", "python3");
    let limit = ["--limit", "all,connections=1000"];
    let served = Served::start(&[&["a.vol", "b.vol", "--log-level", "info"][..], &limit].concat());
    let writers = ["1", "2", "3", "4"].map(|name| {
        // A line is acknowledged when its number is printed, outside of the volume.
        let program = "
import itertools, os, sys
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for n in itertools.count():
    try: os.write(file, b'%d\\n' % n)
    except OSError: break
    os.write(1, b'%d\\n' % n)
";
        let acknowledged = served.path().join(name);
        let mut command = atoll();
        command.current_dir(served.path()).args(["run", "-v", "s/a:/vol"]);
        command.args(["--", "python3", "-c", program, &format!("/vol/{name}")]);
        command.stdin(Stdio::null()).stderr(Stdio::null());
        let output = std::fs::File::create(&acknowledged).unwrap();
        (command.stdout(output).spawn().unwrap(), acknowledged, name)
    });
    for (_, acknowledged, name) in &writers {
        wait_until(&format!("{name} writes"), || {
            std::fs::metadata(acknowledged).unwrap().len() > 400
        });
    }
    let dir = served.stop();
    for (mut writer, acknowledged, name) in writers {
        wait_until(&format!("{name} ends"), || writer.try_wait().unwrap().is_some());
        let acknowledged = std::fs::read(dir.path().join(acknowledged)).unwrap();
        let kept = ok(atoll().current_dir(dir.path()).arg("cat").arg(format!("a.vol:/{name}")));
        assert!(kept.as_bytes().starts_with(&acknowledged), "{name} has lost lines");
        // One more may have been written, whose answer the end overtook.
        let lines = |text: &[u8]| text.iter().filter(|&&byte| byte == b'\n').count();
        assert!(lines(kept.as_bytes()) <= lines(&acknowledged) + 1, "{name}");
    }
}

/// The process that holds the session of a mount is killed: what programs had open by it is closed,
/// files without a name are given back, and locks are free.
#[test]
fn a_mount_that_is_killed_leaves_nothing() {
    need("flock", "util-linux");
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let served = Served::start(&["a.vol", "--limit", "all,connections=1000"]);
    let place = served.path().join("mnt");
    std::fs::create_dir(&place).unwrap();
    let mut watcher = served.shell("s:/vol");
    let free = "stat -f -c '%f %d' /vol";
    watcher.does("touch /vol/flock /vol/posix");
    let before = watcher.does(free);
    let mut mount = atoll()
        .current_dir(served.path())
        .args(["mount", "--foreground", "s", "mnt"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("it is mounted", || place.join("flock").exists());
    // A program of its own, so that nothing of this process waits for the mount.
    need("python3", "python3");
    let program = "
import fcntl, os, sys
gone = open('gone', 'wb'); gone.write(bytes(3000000)); gone.flush(); os.unlink('gone')
flock, posix = open('flock', 'r+b'), open('posix', 'r+b')
fcntl.flock(flock, fcntl.LOCK_EX | fcntl.LOCK_NB)
fcntl.lockf(posix, fcntl.LOCK_EX | fcntl.LOCK_NB)
print('ready', flush=True); sys.stdin.readline()
try: os.write(gone.fileno(), b'x'); sys.exit('it was written')
except OSError: pass
os.chdir('/')
";
    let mut user = Command::new("python3")
        .current_dir(&place)
        .args(["-c", program])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = [0; 6];
    user.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
    let locks = [
        "flock -n /vol/flock true",
        "python3 -c 'import fcntl; f = open(\"/vol/posix\", \"r+b\"); \
         fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)' 2> /dev/null",
    ];
    assert_ne!(watcher.does(free), before);
    for lock in locks {
        assert_eq!(watcher.does(lock), "!", "{lock}");
    }

    kill(Pid::from_raw(mount.id() as i32), Signal::SIGKILL).unwrap();
    mount.wait().unwrap();
    wait_until("the file is gone", || watcher.does(free) == before);
    for lock in locks {
        wait_until(lock, || watcher.does(lock).is_empty());
    }
    // Programs on it get errors, and it can be taken away.
    user.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(user.wait().unwrap().success());
    ok(Command::new("umount").args(["-l"]).arg(&place));
    assert!(!place.join("flock").exists());
    watcher.end();
    served.stop();
}

/// docs/PROTOCOL.md: sendfile(2) ends where the kernel last knew the end of the file to be, which
/// it learns by fstat(2).
#[test]
fn sendfile_of_what_another_client_made_longer() {
    use rustix::fs::sendfile;
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let served = Served::start(&["a.vol"]);
    let place = served.path().join("mnt");
    std::fs::create_dir(&place).unwrap();
    ok(atoll().current_dir(served.path()).args(["mount", "s", "mnt"]));
    std::fs::write(place.join("f"), "known,").unwrap();
    let file = std::fs::File::open(place.join("f")).unwrap();
    let mut out = tempfile::tempfile().unwrap();
    assert_eq!(sendfile(&out, &file, None, 100).unwrap(), 6);
    ok(&mut served.run("s:/vol", "printf more >> /vol/f"));
    let early = sendfile(&out, &file, None, 100).unwrap();
    assert!([0, 4].contains(&early), "{early} bytes");
    assert_eq!(file.metadata().unwrap().len(), 10);
    assert_eq!(sendfile(&out, &file, None, 100).unwrap(), 4 - early);
    let mut sent = String::new();
    std::io::Seek::rewind(&mut out).unwrap();
    out.read_to_string(&mut sent).unwrap();
    assert_eq!(sent, "known,more");
    println!("before fstat(2) it sent {early} of 4 bytes");
    drop(file);
    common::unmount(served.path(), "mnt");
    served.stop();
}

#[test]
fn strangers_at_the_socket_lose_only_their_own_connection() {
    let served = Served::start(&["a.vol"]);
    let mut user = served.shell("s:/vol");
    assert_eq!(user.does("echo here > /vol/f"), "");
    let dial = || served.dial();
    let answer = |message: &[u8]| served.answer(message);
    assert!(answer(b"GET / HTTP/1.1\r\n").contains("no message of Atoll"));
    assert!(answer(b"atol\x63\0\x01\x01\0\0\0\0").contains("version 99"));
    assert!(answer(b"atol\x01\0\x07\x01\0\0\0\0").contains("no meaning"));
    assert!(answer(b"atol\x01\0\x01\x01\0\0\0\0").contains("not the device of FUSE"));
    assert_eq!(answer(&[b'x'; 5000]), "");
    // Those that say nothing are many, and in nobody's way.
    let silent: Vec<_> = (0..100).map(|_| dial()).collect();
    assert_eq!(user.does("cat /vol/f"), "here");
    assert_eq!(ok(&mut served.run("s:/vol", "cat /vol/f")), "here\n");
    drop(silent);
    user.end();
    served.stop();
}

/// Clients are not refused for a limit that the server may raise by itself.
#[test]
fn a_server_takes_all_descriptors_that_it_may() {
    need("prlimit", "util-linux");
    let dir = folder();
    volume(dir.path(), "v.vol", "16M");
    let mut server = Command::new("prlimit")
        .args(["--nofile=32:1000", env!("CARGO_BIN_EXE_atoll"), "serve", "v.vol", "--socket", "s"])
        .current_dir(dir.path())
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("it serves", || dir.path().join("s").exists());
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.id())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words[3..5], ["1000", "1000"], "{line}");
    kill(Pid::from_raw(server.id() as i32), Signal::SIGTERM).unwrap();
    assert!(server.wait().unwrap().success());
}
