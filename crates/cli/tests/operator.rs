//! `atoll serve` for those who run it: who gets in and takes how much, its log, its confinement,
//! its manager.
#![allow(missing_docs)]

mod common;

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use atoll_host::client::{Address, Connection};
use atoll_host::server::rules::Mode;
use atoll_transport::channel::Config;
use atoll_vfs::{Context, FileSystem, Ino, Name, OpenFlags, Timespec};
use common::serving::Served;
use common::{as_user, atoll, fails, folder, fsck, listens, ok, volume, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// In a user namespace all whom it has no number for have one and the same, here the server's own.
#[test]
fn one_who_may_be_anybody_is_let_in_by_no_rule() {
    let dir = folder();
    volume(dir.path(), "a.vol", "32M");
    let mut server = Command::new("unshare")
        .args(["-U", "--map-user=65534", "--map-group=65534", env!("CARGO_BIN_EXE_atoll")])
        .args(["serve", "a.vol", "--socket", "s", "--allow", "uid:65534=rw"])
        .current_dir(dir.path())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the server listens", || listens(&dir.path().join("s")));
    let mut client = atoll();
    client.current_dir(dir.path()).args(["run", "-v", "s:/vol", "--", "true"]);
    let said = fails(&mut client, 125);
    kill(Pid::from_raw(server.id().cast_signed()), Signal::SIGTERM).unwrap();
    assert!(server.wait().unwrap().success());
    assert!(said.contains("user namespace has no number"), "{said}");
}

/// Each socket has the rules that are for it, and those that are for all.
#[test]
fn rights_by_socket() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let served = Served::start(&[
        "a.vol",
        "--socket",
        "t",
        "--no-superuser",
        "--allow",
        "uid:65534=rw,socket=t",
        "--allow",
        "gid:65534=ro",
    ]);
    ok(&mut served.run_as_user("t:/vol", "test -d /vol"));
    ok(&mut served.run_as_user("s:/vol:ro", "test -d /vol"));
    let said = fails(&mut served.run_as_user("s:/vol", "true"), 125);
    assert!(said.contains("may only look"), "{said}");
    // Nobody lets the superuser in.
    for socket in ["s:/vol", "t:/vol"] {
        let said = fails(&mut served.run(socket, "true"), 125);
        assert!(said.contains("user 0 may not use it"), "{said}");
    }
    served.stop();
    let mut command = atoll();
    command.args(["serve", "a.vol", "--socket", "s", "--allow", "all=ro,socket=u"]);
    let said = fails(command.current_dir(folder().path()), 1);
    assert!(said.contains("neither --socket nor --vhost-user names so"), "{said}");
}

/// Who reaches only one of several sockets has shared mappings by that one.
#[test]
fn a_client_comes_again_by_its_own_socket() {
    let map = "python3 -c \"import mmap, os; f = os.open('/vol/f', os.O_RDWR | os.O_CREAT); \
               os.ftruncate(f, 8192); m = mmap.mmap(f, 8192); m[:3] = b'abc'; m.flush(); \
               print(os.pread(f, 3, 0).decode())\"";
    for rules in [&["--allow", "all=rw"][..], &[]] {
        let served = Served::start(&[&["a.vol", "--socket", "t"], rules].concat());
        for (socket, other) in [("s", "t"), ("t", "s")] {
            let [at, away] = [other, "away"].map(|name| served.path().join(name));
            std::fs::rename(&at, &away).unwrap();
            assert_eq!(ok(&mut served.run(&format!("{socket}:/vol"), map)), "abc\n", "{socket}");
            std::fs::rename(&away, &at).unwrap();
        }
        served.stop();
    }
}

/// Programs of every user share memory with a server that trusts none of them, the superuser's too.
#[test]
fn strangers_have_rings() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let served = Served::start(&["a.vol", "--no-superuser", "--allow", "all=rw"]);
    ok(&mut served.run("s:/vol", "chmod 777 /vol"));
    let write = |name: &str, connections: usize| {
        let place = Address::find(&served.path().join("s")).unwrap();
        let connection = Connection::open(&place).unwrap();
        let mut ring = connection.ring(Mode::Write, &Config::default()).unwrap();
        let mut client = ring.client().unwrap();
        let cx = Context { uid: 0, gid: 0, now: Timespec::default() };
        let name = Name::new(name.as_bytes()).unwrap();
        let made = client.create(&cx, Ino::ROOT, name, 0o644, OpenFlags::WRITE);
        let (attr, handle) = made.unwrap();
        for _ in 0..3000 {
            client.write(&cx, attr.ino, handle, 0, &[0; 100]).unwrap();
        }
        assert_eq!(served.log().matches("connects to").count(), connections, "{}", served.log());
        assert!(!served.log().contains("refused"), "{}", served.log());
        attr.uid
    };
    assert_eq!(write("root", 1), 0);
    let user = || {
        // This thread alone becomes the user.
        let (uid, gid) = (Uid::from_raw(65534), Gid::from_raw(65534));
        set_thread_groups(&[]).unwrap();
        set_thread_res_gid(gid, gid, gid).unwrap();
        set_thread_res_uid(uid, uid, uid).unwrap();
        write("user", 2)
    };
    assert_eq!(std::thread::scope(|scope| scope.spawn(user).join().unwrap()), 65534);
    served.stop();
}

/// A server that another user has put where all can is not taken for the one that is meant.
#[test]
fn whose_server_it_is() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let dir = folder();
    // As /tmp: the superuser's, and anybody may make a socket there.
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o1777)).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_atoll"), dir.path().join("atoll")).unwrap();
    let script = "
        ./atoll mkfs --size 32M u.vol
        exec ./atoll serve u.vol --socket s";
    let mut server = as_user(dir.path(), "666", script).stdin(Stdio::null()).spawn().unwrap();
    wait_until("the server listens", || listens(&dir.path().join("s")));
    let client = |expected: &str| {
        let mut command = atoll();
        command.args(["run", "-v", "s:/vol", "--", "echo", "served"]);
        command.current_dir(dir.path()).env("ATOLL_SERVER_USER", expected);
        command
    };
    for expected in ["", "0", "1234"] {
        let said = fails(&mut client(expected), 125);
        assert!(said.contains("is run by user 65534"), "{said}");
    }
    let said = fails(&mut client("no-such-user"), 125);
    assert!(said.contains("which is nobody"), "{said}");
    for expected in ["65534", "nobody"] {
        assert_eq!(ok(&mut client(expected)), "served\n");
    }
    // As in a directory of its own.
    std::os::unix::fs::chown(dir.path(), Some(65534), None).unwrap();
    assert_eq!(ok(&mut client("")), "served\n");
    kill(Pid::from_raw(server.id().cast_signed()), Signal::SIGTERM).unwrap();
    assert!(server.wait().unwrap().success());
}

/// A directory takes as much as its quota says, and who has it as root sees what is left.
#[test]
fn a_quota_bounds_a_directory() {
    let dir = folder();
    volume(dir.path(), "a.vol", "32M");
    volume(dir.path(), "b.vol", "32M");
    let rule = "all=rw,path=/home/a,quota=1M,inodes=10";
    let serve = ["serve", "a.vol", "--socket", "s", "--allow", rule];
    let said = fails(atoll().current_dir(dir.path()).args(serve), 1);
    assert!(said.contains("/home/a of a cannot have a quota"), "{said}");
    ok(atoll().current_dir(dir.path()).args(["mkdir", "-p", "a.vol:/home/a"]));
    let served = Served::again(dir, &["a.vol", "--allow", rule]);
    let left = "stat -f -c '%b %f %c %d' /vol";
    assert_eq!(ok(&mut served.run("s:/vol", left)), "256 255 10 9\n");
    let fill = "dd if=/dev/zero of=/vol/file bs=64K count=64 2>&1 || stat -c %b /vol/file";
    let said = ok(&mut served.run("s:/vol", fill));
    assert!(said.contains("quota exceeded"), "{said}");
    assert!(said.ends_with("\n2040\n"), "all but a block, for names and records: {said}");
    let many = "rm /vol/file; for i in 1 2 3 4 5 6 7 8 9 10; do mkdir /vol/$i 2>&1 || break; done";
    let said = ok(&mut served.run("s:/vol", many));
    assert!(said.contains("/vol/10") && said.contains("quota exceeded"), "{said}");
    let dir = served.stop();
    // Nobody has a quota any more where no rule gives one.
    let served = Served::again(dir, &["a.vol", "--allow", "all=rw,path=/home/a"]);
    let more = "mkdir /vol/10 && dd if=/dev/zero of=/vol/file bs=64K count=64 2>/dev/null";
    ok(&mut served.run("s:/vol", more));
    served.stop();
}

/// A user has as many connections as a limit says.
#[test]
fn limits_of_users() {
    let served = Served::start(&["a.vol", "--limit", "all,connections=1"]);
    let mut user = served.shell("s:/vol");
    assert_eq!(user.does("echo in"), "in");
    let refused = || served.run("s:/vol", "true").output().unwrap().status.code() == Some(125);
    assert!(refused());
    user.end();
    wait_until("it has given it back", || !refused());
    let dir = served.stop();
    let mut command = atoll();
    command.args(["serve", "a.vol", "--limit", "all,colour=1"]).current_dir(dir.path());
    let said = fails(&mut command, 2);
    assert!(said.contains("none of connections, memory, open-files"), "{said}");
}

/// A server with rights leaves the system's files and network, and serves rings and mounts.
#[test]
fn a_server_in_a_jail() {
    if !nix::unistd::geteuid().is_root() {
        let dir = folder();
        volume(dir.path(), "a.vol", "32M");
        let mut command = atoll();
        command.args(["serve", "a.vol", "--socket", "s", "--jail=require"]);
        let said = fails(command.current_dir(dir.path()), 1);
        assert!(said.contains("--jail=require"), "{said}");
        return;
    }
    let served = Served::start(&["a.vol", "--jail=require"]);
    let of = |process: &str, file: &str| PathBuf::from(format!("/proc/{process}/{file}"));
    let server = served.child.id().to_string();
    assert_eq!(std::fs::read_dir(of(&server, "root")).unwrap().count(), 0);
    for namespace in ["ns/mnt", "ns/net", "ns/ipc", "ns/uts"] {
        let link = |process| std::fs::read_link(of(process, namespace)).unwrap();
        assert_ne!(link(&server), link("self"), "{namespace}");
    }
    let script = "head -c 300000 /dev/zero > /vol/f; sync /vol/f; stat -c %s /vol/f";
    assert_eq!(ok(&mut served.run("s:/vol", script)), "300000\n");
    served.stop();

    let served = Served::start(&["a.vol", "--jail=off"]);
    let link = |process: &str| std::fs::read_link(of(process, "ns/mnt")).unwrap();
    assert_eq!(link(&served.child.id().to_string()), link("self"));
    served.stop();
}

/// It serves with all of Landlock or not at all.
#[test]
fn landlock_can_be_required() {
    let dir = folder();
    let path = volume(dir.path(), "a.vol", "32M");
    let mut command = atoll();
    command.args(["serve", "a.vol", "--socket", "s", "--require-landlock"]).current_dir(dir.path());
    let mut server = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    let mut pipe = std::io::BufReader::new(server.stderr.take().unwrap());
    // The first line says that it serves; the second is the refusal, or there is none.
    wait_until("the server listens or refuses", || {
        server.try_wait().unwrap().is_some()
            || atoll()
                .args(["run", "-v", "s:/vol", "--", "true"])
                .current_dir(dir.path())
                .output()
                .unwrap()
                .status
                .success()
    });
    if server.try_wait().unwrap().is_none() {
        kill(Pid::from_raw(server.id().cast_signed()), Signal::SIGTERM).unwrap();
        assert!(server.wait().unwrap().success());
        pipe.read_to_string(&mut said).unwrap();
        assert!(!said.contains("Landlock"), "{said}");
    } else {
        pipe.read_to_string(&mut said).unwrap();
        assert_eq!(server.wait().unwrap().code(), Some(1));
        assert!(said.contains("--require-landlock"), "{said}");
        fsck(&path);
    }
}

#[test]
fn the_log_cannot_be_flooded() {
    let served = Served::start(&["a.vol"]);
    for _ in 0..500 {
        served.answer(b"GET / HTTP/1.1\r\n");
    }
    let dir = served.stop();
    let log = std::fs::read_to_string(dir.path().join("log")).unwrap();
    assert!(log.lines().count() < 300, "{log}");
    assert!(log.contains("more messages were left out like: process"), "{log}");
}

/// The process that is to read the log does not, and the pipe is full.
#[test]
fn nobody_waits_for_the_log() {
    let dir = folder();
    for name in ["a.vol", "b.vol"] {
        volume(dir.path(), name, "32M");
    }
    let (unread, mut pipe) = std::io::pipe().unwrap();
    let served = Served::logging(dir, &["a.vol"], pipe.try_clone().unwrap().into());
    // It waits for ever: when it has room, the pipe has none any more.
    std::thread::spawn(move || while pipe.write_all(b".").is_ok() {});
    let room = nix::fcntl::fcntl(&unread, nix::fcntl::FcntlArg::F_GETPIPE_SZ).unwrap();
    wait_until("the pipe is full", || {
        rustix::io::ioctl_fionread(&unread).unwrap() >= room.unsigned_abs().into()
    });
    for _ in 0..50 {
        served.answer(b"GET / HTTP/1.1\r\n");
    }
    assert_eq!(ok(&mut served.run("s:/vol", "echo served")), "served\n");
    served.stop();
    drop(unread);
}

/// The service manager hears that the server lives, again and again.
#[test]
fn the_watchdog() {
    let dir = folder();
    let path = volume(dir.path(), "a.vol", "32M");
    let notify = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    notify.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut server = atoll()
        .args(["serve", "a.vol", "--socket", "s"])
        .current_dir(dir.path())
        .env("NOTIFY_SOCKET", dir.path().join("notify"))
        .env("WATCHDOG_USEC", "300000")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let said = || {
        let mut said = [0; 256];
        let length = notify.recv(&mut said).unwrap();
        String::from_utf8_lossy(&said[..length]).into_owned()
    };
    assert!(said().starts_with("READY=1"));
    for _ in 0..5 {
        assert_eq!(said(), "WATCHDOG=1");
    }
    kill(Pid::from_raw(server.id().cast_signed()), Signal::SIGTERM).unwrap();
    assert!(server.wait().unwrap().success());
    fsck(&path);
}

/// The unit file, as systemd reads it, and where there is none, by its form.
#[test]
fn the_unit_file() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/atoll@.service");
    let text = std::fs::read_to_string(path).unwrap();
    let mut section = "";
    let mut start = "";
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[') {
            section = name.strip_suffix(']').unwrap();
            assert!(["Unit", "Service", "Install"].contains(&section), "{line}");
            continue;
        }
        let (key, value) = line.split_once('=').unwrap_or_else(|| panic!("{line}"));
        assert!(key.chars().all(|c| c.is_ascii_alphanumeric()) && !section.is_empty(), "{line}");
        if key == "ExecStart" {
            start = value;
        }
    }
    // Its command line is one of ours: the volume, which is not there, is all that is wrong.
    let arguments: Vec<_> = start
        .split(' ')
        .skip(1)
        .map(|arg| arg.replace("%i", "x").replace("${RULES}", "/dev/null"))
        .collect();
    let said = fails(atoll().args(&arguments), 1);
    assert!(said.contains("cannot open the volume /var/lib/atoll/x.vol"), "{said}");

    let dir = folder();
    let unit = dir.path().join("atoll@.service");
    std::fs::write(&unit, text.replace("/usr/bin/atoll", env!("CARGO_BIN_EXE_atoll"))).unwrap();
    let Ok(output) = Command::new("systemd-analyze").arg("verify").arg(&unit).output() else {
        println!("no systemd here");
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
}
