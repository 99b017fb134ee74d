//! Linux in virtual machines, on a directory of the host that is served.
#![allow(missing_docs)]

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use atoll_vm::{Guest, Machine, programs};
use common::serving::Served;
use common::{folder, ok, volume, wait_until, ways};
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

/// Each file below the working directory, with its content's checksum.
const SUMS: &str = "find . -type f | sort | xargs sha256sum";

/// A server of the directory `host`, whose devices are `devices`, each an argument of --vhost-user.
fn serve(devices: &[&str]) -> Served {
    serve_as("host", |_| (), devices)
}

/// The same, with options behind its name, and prepared before it is served.
fn serve_as(source: &str, prepare: impl FnOnce(&Path), devices: &[&str]) -> Served {
    let dir = folder();
    // The volumes that tests of servers look at.
    for name in ["a.vol", "b.vol"] {
        volume(dir.path(), name, "32M");
    }
    fs::create_dir(dir.path().join("host")).unwrap();
    prepare(&dir.path().join("host"));
    let devices = devices.iter().flat_map(|device| ["--vhost-user", device]);
    let arguments: Vec<&str> = [source].into_iter().chain(devices).collect();
    Served::again(dir, &arguments)
}

/// The directory that is served.
fn host(served: &Served) -> PathBuf {
    served.path().join("host")
}

/// The output of a script that the host runs in the directory, beside the server.
#[track_caller]
fn on_host(served: &Served, script: &str) -> String {
    ok(Command::new("sh").current_dir(host(served)).args(["-ec", script]))
}

/// A guest with so many processors and queues that has mounted the device at `socket`, whose tag is
/// v, at /mnt.
fn boot(served: &Served, socket: &str, count: u32) -> Guest {
    let machine = Machine::new().processors(count);
    let machine = machine.virtiofs_with("v", &served.path().join(socket), count);
    let mut guest = Guest::boot(&machine, &programs::image());
    guest.ok("mount -t virtiofs v /mnt");
    guest
}

#[test]
fn the_host_finds_what_a_guest_wrote() {
    let served = serve(&["g,tag=v"]);
    let mut guest = boot(&served, "g", 1);
    if programs::is_since(&mut guest, 6, 6) {
        programs::bytes(&mut guest, "/mnt/bytes", 600, 1);
        programs::sqlite(&mut guest, "/mnt/sqlite", "wal", 20);
    } else {
        programs::bytes_unmapped(&mut guest, "/mnt/bytes", 600, 1);
    }
    programs::names(&mut guest, "/mnt/names", 2000, 2);
    programs::postmark(&mut guest, "/mnt/postmark", 500);
    programs::sqlite(&mut guest, "/mnt/sqlite", "delete", 20);
    // Every byte, read by the host as its own.
    let sums = guest.ok(&format!("cd /mnt; {SUMS}"));
    assert!(sums.lines().count() > 2, "{sums}");
    assert_eq!(on_host(&served, SUMS), sums);
    guest.end();
    // The next machine finds what the host has changed meanwhile, and the rest as it was.
    on_host(&served, "echo between > between");
    let mut guest = boot(&served, "g", 1);
    guest.ok("umount /mnt; mount -t virtiofs v /mnt");
    assert_eq!(guest.ok("cat /mnt/between; rm /mnt/between"), "between\n");
    assert_eq!(guest.ok(&format!("cd /mnt; {SUMS}")), sums);
    guest.end();
    assert_eq!(on_host(&served, SUMS), sums);
    served.stop();
}

/// What is changed on one side is seen on the other: without a cache by the next call, with one
/// after the seconds that it was given.
#[test]
fn the_host_and_a_guest_see_each_others_changes() {
    let served = serve(&["g1,tag=v", "g2,tag=v,cache=2"]);
    let (mut none, mut seconds) = (boot(&served, "g1", 1), boot(&served, "g2", 1));
    let both = "echo $(cat /mnt/f 2> /dev/null || echo none)";
    for round in 0..20 {
        // A file that was not there, its content, its length and mode, its end.
        assert_eq!(none.ok(both), "none\n");
        let text = format!("{round:0width$}", width = 1 + round % 5 * 2000);
        fs::write(host(&served).join("f"), &text).unwrap();
        assert_eq!(none.ok(both), format!("{text}\n"), "round {round}");
        fs::set_permissions(host(&served).join("f"), PermissionsExt::from_mode(0o604)).unwrap();
        let said = none.ok("stat -c '%s %a' /mnt/f; ls /mnt");
        assert_eq!(said, format!("{} 604\nf\n", text.len()));
        fs::remove_file(host(&served).join("f")).unwrap();
        assert_eq!(none.ok("echo $(ls /mnt)"), "\n");
        // The other way round.
        none.ok(&format!("echo of the guest {round} > /mnt/g; chmod 640 /mnt/g"));
        let made = host(&served).join("g");
        assert_eq!(fs::read_to_string(&made).unwrap(), format!("of the guest {round}\n"));
        assert_eq!(fs::metadata(&made).unwrap().permissions().mode() & 0o7777, 0o640);
        none.ok("mv /mnt/g /mnt/h; truncate -s 3 /mnt/h; ln /mnt/h /mnt/i; rm /mnt/h");
        assert!(!made.exists());
        assert_eq!(fs::read_to_string(host(&served).join("i")).unwrap(), "of ");
        none.ok("rm /mnt/i");
    }
    for round in 0..3 {
        fs::write(host(&served).join("f"), format!("old {round}")).unwrap();
        seconds.ok("sleep 2.5; cat /mnt/f > /dev/null; ls /mnt/late 2> /dev/null || true");
        // As long as before, so that only the time tells that pages are stale.
        fs::write(host(&served).join("f"), format!("new {round}")).unwrap();
        fs::write(host(&served).join("late"), "there").unwrap();
        let said = seconds.ok("sleep 2.5; cat /mnt/f /mnt/late");
        assert_eq!(said, format!("new {round}there"));
        // What it writes is not kept back.
        seconds.ok("echo mine > /mnt/f; rm /mnt/late");
        assert_eq!(fs::read_to_string(host(&served).join("f")).unwrap(), "mine\n");
        assert!(!host(&served).join("late").exists());
    }
    // Locks of the host's programs hold in a guest, and the guest's for them.
    let locked = fs::File::create(host(&served).join("locked")).unwrap();
    locked.lock().unwrap();
    none.ok("(calls flock /mnt/locked; touch /tmp/had) > /dev/null 2>&1 &");
    none.ok("sleep 1; test ! -e /tmp/had");
    locked.unlock().unwrap();
    none.ok("until test -e /tmp/had; do usleep 10000; done");
    let record = |kind: i32| {
        let all = libc::flock {
            l_type: kind as i16,
            l_whence: libc::SEEK_SET as i16,
            l_start: 0,
            l_len: 0,
            l_pid: 0,
        };
        fcntl(&locked, FcntlArg::F_SETLK(&all)).is_ok()
    };
    assert!(record(libc::F_WRLCK));
    let refused = none.run("calls lock /mnt/locked");
    assert_eq!(refused.output, "fcntl: Resource temporarily unavailable\n");
    assert!(record(libc::F_UNLCK));
    none.ok(
        "calls hold /mnt/locked > /tmp/held & until grep -q held /tmp/held; do usleep 10000; done",
    );
    assert!(!record(libc::F_WRLCK));
    none.end();
    wait_until("its locks have gone", || record(libc::F_WRLCK));
    seconds.end();
    served.stop();
}

/// Two guests, programs with rings, the kernel of a mount and programs of the host.
#[test]
fn guests_share_a_directory_with_clients_mounts_and_the_host() {
    let served = serve(&["g1,tag=v", "g2,tag=v,queues=2"]);
    let names = ways::compile("../../../../vm/c/names.c", served.path(), "names", &[]);
    let calls = ways::compile("../../../../vm/c/calls.c", served.path(), "calls", &[]);
    let (mut first, mut second) = (boot(&served, "g1", 1), boot(&served, "g2", 2));
    first.ok("touch /mnt/lines");

    // All at once: each in a directory of its own, and the clients of the server in one file.
    let in_guest = |guest: &mut Guest, name: &str, seed: u64| {
        programs::names(guest, &format!("/mnt/{name}"), 1000, seed);
        guest.ok(&format!("calls append /mnt/lines {name}"));
        programs::bytes_unmapped(guest, &format!("/mnt/{name}"), 300, seed);
        programs::sqlite(guest, &format!("/mnt/{name}.db"), "delete", 5);
    };
    let script = |at: &str, name: &str, seed: u64| {
        let (names, calls) = (names.display(), calls.display());
        let append = format!("{calls} append {at}/lines {name}");
        let append = if name == "host" { String::new() } else { append };
        format!("mkdir {at}/{name}; {names} {at}/{name} 10000 {seed}; {append}")
    };
    let run = |name: &str, seed: u64| {
        let mut command = common::atoll();
        command.current_dir(served.path()).args(["run", "-v", "s/host:/vol"]);
        command.args(["--", "sh", "-ec", &script("/vol", name, seed)]);
        assert!(ok(&mut command).starts_with("end\n"));
    };
    thread::scope(|scope| {
        scope.spawn(|| in_guest(&mut first, "first", 11));
        scope.spawn(|| in_guest(&mut second, "second", 12));
        scope.spawn(|| run("mount", 13));
        scope.spawn(|| {
            assert!(on_host(&served, &script(".", "host", 15)).starts_with("end\n"));
        });
    });

    // Each reads what all wrote.
    let sums = on_host(&served, SUMS);
    assert_eq!(first.ok(&format!("cd /mnt; {SUMS}")), sums);
    assert_eq!(second.ok(&format!("cd /mnt; {SUMS}")), sums);
    assert_eq!(ok(&mut served.run("s/host:/vol", &format!("cd /vol; {SUMS}"))), sums);
    for name in ["first", "second", "mount"] {
        assert_eq!(on_host(&served, &format!("grep -c -x {name} lines")), "100\n", "{name}");
    }

    // One after the other, in one file.
    first.ok("echo first > /mnt/new");
    assert_eq!(second.ok("echo second >> /mnt/new; cat /mnt/new"), "first\nsecond\n");
    on_host(&served, "echo host >> new");
    let said = ok(&mut served.run("s/host:/vol", "echo ring >> /vol/new; cat /vol/new"));
    assert_eq!(said, "first\nsecond\nhost\nring\n");
    assert_eq!(first.ok("mv /mnt/new /mnt/moved; cat /mnt/moved"), said);
    assert_eq!(on_host(&served, "cat moved"), said);
    first.end();
    second.end();
    served.stop();
}

/// Users and groups of a guest stand for others on the host, both ways.
#[test]
fn a_guest_has_users_of_its_own() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: only the superuser makes files for others");
        return;
    }
    let served = serve(&["g,tag=v,ids=0:100000:2000+5000:7:1"]);
    let mut guest = boot(&served, "g", 1);
    let owner = |name: &str| {
        let attr = fs::symlink_metadata(host(&served).join(name)).unwrap();
        (attr.uid(), attr.gid())
    };
    guest.ok("chmod 777 /mnt; mkdir /mnt/d; touch /mnt/d/f; ln -s f /mnt/d/l; mkfifo /mnt/d/p");
    assert_eq!(guest.ok("stat -c '%u %g' /mnt/d /mnt/d/f /mnt/d/l /mnt/d/p"), "0 0\n".repeat(4));
    for name in ["d", "d/f", "d/l", "d/p"] {
        assert_eq!(owner(name), (100_000, 100_000), "{name}");
    }
    guest.ok("chown 5:1999 /mnt/d/f; chown -h 5000 /mnt/d/l; chown 1000:1000 /mnt/d");
    assert_eq!(guest.ok("stat -c '%u %g' /mnt/d/f /mnt/d/l"), "5 1999\n5000 0\n");
    assert_eq!((owner("d/f"), owner("d/l")), ((100_005, 101_999), (7, 100_000)));
    // One of its users makes files as that user, if that is somebody here.
    guest.ok("mkdir -p /etc
         for id in 1000 2000; do
             echo u$id:x:$id:$id::/:/bin/sh >> /etc/passwd; echo u$id:x:$id: >> /etc/group
         done");
    let touch = |id: u32, path: &str| {
        format!("start-stop-daemon -S -c u{id}:u{id} -x /bin/touch -- {path} 2>&1")
    };
    guest.ok(&touch(1000, "/mnt/d/hers"));
    assert_eq!(owner("d/hers"), (101_000, 101_000));
    let refused = guest.run(&touch(2000, "/mnt/nobodys"));
    assert!(refused.status != 0 && refused.output.contains("too large"), "{}", refused.output);
    assert!(!host(&served).join("nobodys").exists());
    for id in ["2000", "4999", "65534", ":2000", "7"] {
        let refused = guest.run(&format!("chown {id} /mnt/d/f 2>&1"));
        assert_eq!(refused.status == 0, id == "7", "{id}");
        assert!(id == "7" || refused.output.contains("too large"), "{}", refused.output);
    }
    assert_eq!(owner("d/f"), (100_007, 101_999));
    // Whoever is nobody in the guest is shown as such, and keeps what is theirs.
    on_host(&served, "touch roots; chown 0:100001 roots; touch eight; chown 8:8 eight");
    let said = guest.ok("stat -c '%u %g' /mnt/roots /mnt/eight");
    assert_eq!(said, "65534 1\n65534 65534\n");
    for name in ["roots", "eight"] {
        let refused = guest.run(&format!("chown 0:0 /mnt/{name} 2>&1"));
        let denied = refused.status != 0 && refused.output.contains("not permitted");
        assert!(denied, "{name}: {}", refused.output);
    }
    assert_eq!((owner("roots"), owner("eight")), ((0, 100_001), (8, 8)));
    guest.end();
    served.stop();
}

/// A file system that is served with the directory in which it is mounted is a mount of its own in
/// a guest.
#[test]
fn a_guest_mounts_what_is_mounted() {
    const NONE: Option<&str> = None;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    let may =
        unshare(CloneFlags::CLONE_NEWNS).is_ok() && mount(NONE, "/", NONE, private, NONE).is_ok();
    if !may {
        println!("skipped: this needs a mount namespace of its own");
        return;
    }
    let tmpfs = |at: PathBuf| {
        fs::create_dir(&at).unwrap();
        mount(Some("t"), &at, Some("tmpfs"), MsFlags::empty(), NONE).unwrap();
        fs::write(at.join("same"), at.file_name().unwrap().as_encoded_bytes()).unwrap();
    };
    let prepare = |host: &Path| {
        fs::write(host.join("same"), "host").unwrap();
        tmpfs(host.join("t"));
        tmpfs(host.join("t/u"));
    };
    let served = serve_as("host:submounts", prepare, &["g,tag=v", "h,tag=v,cache=60"]);
    for socket in ["g", "h"] {
        let mut guest = boot(&served, socket, 1);
        assert_eq!(guest.ok("cat /mnt/same /mnt/t/same /mnt/t/u/same"), "hosttu");
        let devices = "stat -c %d /mnt /mnt/same /mnt/t /mnt/t/same /mnt/t/u /mnt/t/u/same";
        let said = guest.ok(devices);
        let said: Vec<&str> = said.lines().collect();
        assert!(said[0] == said[1] && said[2] == said[3] && said[4] == said[5], "{said:?}");
        assert!(said[0] != said[2] && said[2] != said[4] && said[0] != said[4], "{said:?}");
        let mounts = guest.ok("grep -c virtiofs /proc/mounts");
        assert_eq!(mounts, "3\n");
        assert_eq!(guest.ok("find /mnt -xdev -name same"), "/mnt/same\n");
        guest.ok("echo of a guest > /mnt/t/u/made; mv /mnt/t/u/made /mnt/t/moved; sync
             mkdir /mnt/t/u/d; ln /mnt/t/moved /mnt/t/linked; ls -lR /mnt > /dev/null");
        let crossed = guest.run("ln /mnt/t/moved /mnt/linked 2>&1");
        assert!(
            crossed.status != 0 && crossed.output.contains("ross-device"),
            "{}",
            crossed.output
        );
        guest.ok("rm /mnt/t/linked; rmdir /mnt/t/u/d; umount /mnt/t/u; cat /mnt/t/u/same");
        guest.end();
        let moved = host(&served).join("t/moved");
        assert_eq!(fs::read_to_string(&moved).unwrap(), "of a guest\n");
        fs::remove_file(moved).unwrap();
    }
    let mounted = host(&served).join("t");
    let _dir = served.stop();
    umount2(&mounted, MntFlags::MNT_DETACH).unwrap();
}
