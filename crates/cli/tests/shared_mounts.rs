//! Mounts of a served volume are one file system of the kernel's, where the server may make it.
#![allow(missing_docs)]

mod common;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use atoll_host::client::{Address, CachedClient, Connection, Ring};
use atoll_host::fuse::mount;
use atoll_host::server::rules::Mode;
use atoll_transport::channel::Config;
use atoll_vfs::{Context, FileSystem, Ino, Name, OpenFlags, RenameFlags, Timespec};
use common::serving::Served;
use common::{as_user, atoll, fails, ok, unmount, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::fs::{OFlags, openat};

const CX: Context = Context { uid: 0, gid: 0, now: Timespec { sec: 1, nsec: 0 } };

/// Only the superuser's server makes mounts.
fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn mounted(served: &Served, source: &str, place: &str) -> PathBuf {
    let path = served.path().join(place);
    std::fs::create_dir_all(&path).unwrap();
    ok(atoll().current_dir(served.path()).args(["mount", source, place]));
    path
}

fn device(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().dev()
}

fn ring(served: &Served) -> (Ring, CachedClient) {
    let place = Address::find(&served.path().join("s")).unwrap();
    let config = Config { lanes: 1, ..Config::default() };
    let mut ring = Connection::open(&place).unwrap().ring(Mode::Write, &config).unwrap();
    let client = ring.cached().unwrap();
    (ring, client)
}

#[test]
fn mounts_are_one_file_system() {
    if !is_root() {
        return;
    }
    let served = Served::start(&["a.vol", "b.vol"]);
    let (one, other) = (mounted(&served, "s/a", "m1"), mounted(&served, "s/a", "m2"));
    let mut shell = served.shell("s/a:/vol");
    let shown = device(&one).to_string();
    assert_eq!((device(&other).to_string(), shell.does("stat -c %d /vol")), (shown.clone(), shown));
    let third = mounted(&served, "s/b", "m3");
    assert_ne!(device(&one), device(&third));
    // Nothing comes between a change and who sees it.
    for round in 0..200 {
        let (here, there) = (one.join(format!("f{round}")), other.join(format!("f{round}")));
        assert!(!there.exists());
        std::fs::write(&here, format!("{round}")).unwrap();
        assert_eq!(std::fs::read_to_string(&there).unwrap(), format!("{round}"));
        std::fs::rename(&there, other.join("g")).unwrap();
        assert!(!here.exists() && one.join("g").exists());
    }
    assert_eq!(shell.does("cat /vol/g; echo more >> /vol/g"), "199");
    assert_eq!(std::fs::read_to_string(one.join("g")).unwrap(), "199more\n");
    // What a program has open stays when the last mount goes, and the next is another.
    shell.end();
    unmount(served.path(), "m1");
    let mut open = File::options().read(true).append(true).open(other.join("g")).unwrap();
    ok(atoll().current_dir(served.path()).args(["umount", "--lazy", "m2"]));
    assert!(!other.join("g").exists());
    let before = open.metadata().unwrap().dev();
    let again = served.path().join("m1");
    wait_until("who waited for its end has seen it", || {
        device(&mounted(&served, "s/a", "m1")) != before || {
            unmount(served.path(), "m1");
            false
        }
    });
    open.write_all(b"end").unwrap();
    assert_eq!(std::fs::read_to_string(again.join("g")).unwrap(), "199more\nend");
    std::fs::write(again.join("g"), "cut").unwrap();
    open.rewind().unwrap();
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "cut");
    drop(open);
    unmount(served.path(), "m1");
    unmount(served.path(), "m3");
    served.stop();
}

#[test]
fn rings_and_mounts_see_each_other_at_the_next_call() {
    if !is_root() {
        return;
    }
    let served = Served::start(&["a.vol"]);
    let mount = mounted(&served, "s", "m");
    let at = |text: &str| mount.join(text);
    // While nobody else is there all of this is the kernel's to keep.
    std::fs::write(at("f"), vec![b'a'; 10_000]).unwrap();
    let open = File::options().read(true).write(true).open(at("f")).unwrap();
    let mut text = vec![0; 10_000];
    open.read_exact_at(&mut text, 0).unwrap();
    assert!(!at("missing").exists() && at("f").exists());
    let (_ring, mut client) = ring(&served);
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let attr = client.lookup(&CX, Ino::ROOT, name("f")).unwrap();
    let handle = client.open(&CX, attr.ino, flags).unwrap();
    for round in 0..100u64 {
        // Names, there and not.
        client.create(&CX, Ino::ROOT, name("missing"), 0o644, flags).unwrap();
        assert!(at("missing").exists());
        let none = RenameFlags::empty();
        client.rename(&CX, Ino::ROOT, name("missing"), Ino::ROOT, name("moved"), none).unwrap();
        assert!(!at("missing").exists() && at("moved").exists());
        std::fs::remove_file(at("moved")).unwrap();
        assert!(client.lookup(&CX, Ino::ROOT, name("moved")).is_err());
        // Bytes, by a file that was open before and one that is opened now.
        let byte = [round as u8];
        client.write(&CX, attr.ino, handle, 5000 + round, &byte).unwrap();
        let mut seen = [0];
        open.read_exact_at(&mut seen, 5000 + round).unwrap();
        assert_eq!(seen, byte);
        open.write_all_at(&[!byte[0]], round).unwrap();
        client.read(&CX, attr.ino, handle, round, &mut seen).unwrap();
        assert_eq!(seen, [!byte[0]]);
        File::open(at("f")).unwrap().read_exact_at(&mut seen, 5000 + round).unwrap();
        assert_eq!(seen, byte);
        // Lengths.
        let long = 10_000 + round;
        client.write(&CX, attr.ino, handle, long, &byte).unwrap();
        assert_eq!(open.metadata().unwrap().len(), long + 1);
        let mut end = Vec::new();
        let mut again = File::open(at("f")).unwrap();
        again.seek(std::io::SeekFrom::Start(long)).unwrap();
        again.read_to_end(&mut end).unwrap();
        assert_eq!(end, byte);
    }
    // One that is cut ends where it was cut, for who has it open.
    let set = atoll_vfs::SetAttr { size: Some(4100), ..atoll_vfs::SetAttr::default() };
    client.setattr(&CX, attr.ino, None, &set).unwrap();
    assert_eq!(open.read_at(&mut text[..10], 4095).unwrap(), 5);
    drop(open);
    unmount(served.path(), "m");
    served.stop();
}

#[test]
fn each_user_has_the_rights_of_a_rule() {
    if !is_root() {
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
    let (a, b) = (mounted(&served, "s/a", "m1"), mounted(&served, "s/b", "m2"));
    std::fs::create_dir(a.join("home")).unwrap();
    std::fs::set_permissions(a.join("home"), PermissionsExt::from_mode(0o777)).unwrap();
    std::fs::write(a.join("home/hers"), "hers").unwrap();
    std::fs::set_permissions(a.join("home/hers"), PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::write(b.join("f"), "b").unwrap();
    // This user may not open the kernel's device: what it sees was handed to it.
    let user = |place: &str, script: &str| {
        let run = format!("./atoll run -v {place} -- sh -ec '{script}'");
        as_user(served.path(), "600", &run)
    };
    let script = "ls -a /vol; echo mine > /vol/mine; ! cat /vol/hers 2>/dev/null; stat -c %d /vol";
    let said = ok(&mut user("s/a:/vol", script));
    assert_eq!(said, format!(".\n..\nhers\n{}\n", device(&a)));
    let made = std::fs::metadata(a.join("home/mine")).unwrap();
    assert_eq!((made.uid(), made.gid()), (65534, 65534));
    let script = "cat /vol/f; ! touch /vol/g 2>&1; ! rm -f /vol/f 2>/dev/null";
    let said = ok(&mut user("s/b:/vol:ro", script));
    assert!(said.starts_with('b') && said.contains("Read-only file system"), "{said}");
    let said = fails(&mut user("s/b:/vol", "true"), 125);
    assert!(said.contains(":ro"), "{said}");
    let socket = served.path().join("s");
    // Who has no rule, or would have to be told apart, has nothing of it.
    let stranger = |uid: &str| {
        let mut command = Command::new("setpriv");
        command.current_dir(served.path());
        let ids = [format!("--reuid={uid}"), format!("--regid={uid}")];
        command.args(ids).args(["--clear-groups", "./atoll", "run", "-v", "s/a:/vol", "true"]);
        command
    };
    assert!(socket.exists());
    let said = fails(&mut stranger("1234"), 125);
    assert!(said.contains("user 1234 may not use it"), "{said}");
    unmount(served.path(), "m1");
    unmount(served.path(), "m2");
    served.stop();
}

/// What a mount is handed out with cannot be taken back by who is master of a user namespace.
#[test]
fn a_mount_that_is_handed_out_stays_as_it_is() {
    if !is_root() {
        return;
    }
    let served = Served::start(&["a.vol", "--allow", "uid:65534=ro"]);
    let mount = mounted(&served, "s", "m");
    std::fs::set_permissions(&mount, PermissionsExt::from_mode(0o777)).unwrap();
    std::fs::copy(std::env::current_exe().unwrap(), served.path().join("test")).unwrap();
    let inner = "ATOLL_TEST_INNER=1 unshare --map-root-user --mount ./test --exact \
                 inner_master_of_a_namespace --include-ignored --nocapture";
    let said = ok(&mut as_user(served.path(), "600", inner));
    assert!(said.contains("1 passed"), "{said}");
    assert!(!mount.join("made").exists());
    unmount(served.path(), "m");
    served.stop();
}

#[test]
#[ignore = "run by a_mount_that_is_handed_out_stays_as_it_is"]
fn inner_master_of_a_namespace() {
    assert!(std::env::var_os("ATOLL_TEST_INNER").is_some());
    let place = Address::find(Path::new("s")).unwrap();
    let connection = Connection::open_with(&place, Default::default()).unwrap();
    let handed = connection.attached(Mode::Read).unwrap().unwrap();
    mount::attach(handed.as_fd(), Path::new("/mnt")).unwrap();
    for options in ["rw", "ro,suid", "ro,dev", "rw,suid,dev"] {
        let mut command = Command::new("mount");
        command.args(["-o", &format!("remount,bind,{options}"), "/mnt"]).stderr(Stdio::null());
        assert!(!command.status().unwrap().success(), "{options}");
    }
    assert_eq!(File::create("/mnt/made").unwrap_err().raw_os_error(), Some(30));
    assert!(connection.attached(Mode::Read).is_err(), "one mount for a connection");
}

#[test]
fn who_has_limits_has_a_mount_of_its_own() {
    if !is_root() {
        return;
    }
    let served = Served::start(&["a.vol", "--limit", "all,connections=50"]);
    let (one, other) = (mounted(&served, "s", "m1"), mounted(&served, "s", "m2"));
    assert_ne!(device(&one), device(&other));
    std::fs::write(one.join("f"), "f").unwrap();
    assert_eq!(std::fs::read_to_string(other.join("f")).unwrap(), "f");
    unmount(served.path(), "m1");
    unmount(served.path(), "m2");
    served.stop();
}

/// What is handed to the connection that asks for a mount, if that is made.
fn handed(served: &Served) -> Option<File> {
    let place = Address::find(&served.path().join("s")).unwrap();
    let connection = Connection::open_with(&place, Default::default()).unwrap();
    connection.attached(Mode::Write).unwrap().map(File::from)
}

/// Who keeps mounts without a connection keeps few file systems.
#[test]
fn few_are_left_without_clients() {
    if !is_root() {
        return;
    }
    let served = Served::start(&["a.vol"]);
    let mut kept = Vec::<File>::new();
    let devices = |kept: &[File]| {
        let device = |mount: &File| mount.metadata().unwrap().dev();
        kept.iter().map(device).collect::<BTreeSet<u64>>().len()
    };
    wait_until("the server makes another", || {
        kept.push(handed(&served).unwrap());
        devices(&kept) >= 2
    });
    for _ in 0..40 {
        kept.push(handed(&served).unwrap());
        // Time for the server to see that the connection is gone.
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(devices(&kept) <= 5, "{} file systems", devices(&kept));
    // All are of the volume.
    std::fs::write(mounted(&served, "s", "m").join("f"), "f").unwrap();
    for mount in &kept {
        let found = openat(mount, "f", OFlags::RDONLY, rustix::fs::Mode::empty());
        assert!(found.is_ok(), "{found:?}");
    }
    drop(kept);
    unmount(served.path(), "m");
    served.stop();
}

/// The superuser opens any file by its handle: one who is to have a directory alone gets a mount in
/// which there is nothing else.
#[test]
fn the_superuser_of_a_directory_has_a_mount_of_its_own() {
    if !is_root() {
        return;
    }
    let served = Served::start(&["a.vol"]);
    std::fs::create_dir(mounted(&served, "s", "m").join("home")).unwrap();
    unmount(served.path(), "m");
    let dir = served.stop();
    let served = Served::again(dir, &["a.vol", "--allow", "uid:0=rw,path=/home"]);
    assert!(handed(&served).is_none());
    std::fs::write(mounted(&served, "s", "m").join("f"), "f").unwrap();
    unmount(served.path(), "m");
    served.stop();
}

/// A mount is the kernel's and the server's: who has attached it may be killed.
#[test]
fn who_waits_for_the_end_of_a_mount_may_be_killed() {
    if !is_root() {
        return;
    }
    let served = Served::start(&["a.vol"]);
    let place = served.path().join("m1");
    std::fs::create_dir(&place).unwrap();
    let mut mount = atoll();
    mount.current_dir(served.path()).args(["mount", "--foreground", "s", "m1"]);
    let mut mount = mount.stderr(Stdio::null()).spawn().unwrap();
    let below = device(served.path());
    wait_until("it is mounted", || device(&place) != below);
    kill(Pid::from_raw(mount.id() as i32), Signal::SIGKILL).unwrap();
    mount.wait().unwrap();
    // One that comes later may be another file system, but not another volume.
    let (before, later) = (device(&place), served.path().join("m2"));
    wait_until("the server knows", || {
        device(&mounted(&served, "s", "m2")) != before || {
            unmount(served.path(), "m2");
            false
        }
    });
    for round in 0..20 {
        std::fs::write(place.join("f"), format!("{round}")).unwrap();
        assert_eq!(std::fs::read_to_string(later.join("f")).unwrap(), format!("{round}"));
        std::fs::rename(later.join("f"), later.join("g")).unwrap();
        assert!(!place.join("f").exists() && place.join("g").exists());
    }
    unmount(served.path(), "m1");
    assert_eq!(device(&place), below);
    unmount(served.path(), "m2");
    served.stop();
}

#[test]
fn with_the_server_its_mounts_end() {
    if !is_root() {
        return;
    }
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let mut served = Served::start(&["a.vol"]);
        let mount = mounted(&served, "s", "m");
        let below = device(served.path());
        let file = File::create(mount.join("f")).unwrap();
        kill(Pid::from_raw(served.child.id() as i32), signal).unwrap();
        served.child.wait().unwrap();
        wait_until("it fails", || file.metadata().is_err());
        wait_until("it is unmounted", || std::fs::metadata(&mount).is_ok_and(|m| m.dev() == below));
        common::fsck(&served.path().join("a.vol"));
    }
}
