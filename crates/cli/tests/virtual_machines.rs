//! Linux in virtual machines, with volumes of a server.
#![allow(missing_docs)]

mod common;

use std::process::Command;
use std::thread;

use atoll_vm::{Guest, Machine, programs};
use common::served::Served;
use common::{atoll, ok, ways};

/// Each file below the working directory, with its content's checksum.
const SUMS: &str = "find . -type f | sort | xargs sha256sum";

/// Takes a lock of the file moved, and keeps it.
const HOLD: &str = "rm -f /tmp/held; \
     calls hold /mnt/moved > /tmp/held & echo $! > /tmp/holder; until_held /tmp/held";
/// Waits for that lock.
const WAIT: &str = "rm -f /tmp/waits; calls wait /mnt/moved > /tmp/waits &";
/// A program of guests that waits until a file says that a lock is held.
const UNTIL_HELD: &str = "#!/bin/sh
for i in $(seq 600); do
    if grep -q held $1 2> /dev/null; then exit 0; fi
    usleep 100000
done
exit 1
";

/// A server whose devices are `devices`, each an argument of --vhost-user.
fn serve(devices: &[&str]) -> Served {
    let arguments: Vec<&str> = devices.iter().flat_map(|device| ["--vhost-user", device]).collect();
    Served::with(&arguments)
}

/// A guest that has mounted the volume of the device at `socket`, whose tag is v, at /mnt.
fn boot(served: &Served, socket: &str) -> Guest {
    boot_with(served, socket, 1)
}

/// The same with so many processors, and a queue for each.
fn boot_with(served: &Served, socket: &str, count: u32) -> Guest {
    let machine = Machine::new().processors(count);
    let machine = machine.virtiofs_with("v", &served.path().join(socket), count);
    let image = programs::image().file("/bin/until_held", UNTIL_HELD);
    let mut guest = Guest::boot(&machine, &image);
    guest.ok("chmod 755 /bin/until_held");
    guest.ok("mount -t virtiofs v /mnt");
    guest
}

#[test]
fn a_guest_finds_what_it_wrote() {
    let served = serve(&["g,tag=v"]);
    let mut guest = boot(&served, "g");
    if programs::is_since(&mut guest, 6, 6) {
        programs::bytes(&mut guest, "/mnt/bytes", 600, 1);
        programs::sqlite(&mut guest, "/mnt/sqlite", "wal", 20);
    } else {
        programs::bytes_unmapped(&mut guest, "/mnt/bytes", 600, 1);
    }
    programs::names(&mut guest, "/mnt/names", 2000, 2);
    programs::postmark(&mut guest, "/mnt/postmark", 500);
    programs::sqlite(&mut guest, "/mnt/sqlite", "delete", 20);
    let sums = guest.ok(&format!("cd /mnt; {SUMS}"));
    assert_eq!(served.script(&format!("cd /vol; {SUMS}")), sums);
    // Another machine comes after it, and another mount of one.
    guest.end();
    let mut guest = boot(&served, "g");
    guest.ok("umount /mnt; mount -t virtiofs v /mnt");
    assert_eq!(guest.ok(&format!("cd /mnt; {SUMS}")), sums);
    guest.end();
    served.end();
}

#[test]
fn a_guest_that_is_alone_caches_and_maps() {
    let served = serve(&["g,tag=v,cache=alone"]);
    let mut guest = boot(&served, "g");
    programs::bytes(&mut guest, "/mnt/bytes", 2000, 3);
    programs::names(&mut guest, "/mnt/names", 4000, 4);
    programs::postmark(&mut guest, "/mnt/postmark", 1000);
    programs::sqlite(&mut guest, "/mnt/sqlite", "delete", 30);
    programs::sqlite(&mut guest, "/mnt/sqlite", "wal", 30);
    let sums = guest.ok(&format!("cd /mnt; {SUMS}"));
    guest.end();
    // The volume is this guest's as long as the server lives.
    let folder = served.ended();
    let mut run = atoll();
    run.current_dir(folder.path()).args(["run", "-q", "-v", "a.vol:/vol", "--", "sh", "-ec"]);
    assert_eq!(ok(run.arg(format!("cd /vol; {SUMS}"))), sums);
}

/// Two guests, programs with rings, and the kernel of a mount.
#[test]
fn guests_share_a_volume_with_clients_and_mounts() {
    let served = serve(&["g1,tag=v", "g2,tag=v,queues=2"]);
    let names = ways::compile("../../../../vm/c/names.c", served.path(), "names", &[]);
    let calls = ways::compile("../../../../vm/c/calls.c", served.path(), "calls", &[]);
    let (mut first, mut second) = (boot(&served, "g1"), boot_with(&served, "g2", 2));
    first.ok("touch /mnt/lines");

    // All at once: each in a directory of its own, and in one file.
    let in_guest = |guest: &mut Guest, name: &str, seed: u64| {
        programs::names(guest, &format!("/mnt/{name}"), 1000, seed);
        guest.ok(&format!("calls append /mnt/lines {name}"));
        programs::bytes_unmapped(guest, &format!("/mnt/{name}"), 300, seed);
    };
    let here = |name: &str, seed: u64| {
        let (names, calls) = (names.display(), calls.display());
        let script = format!(
            "mkdir /vol/{name}; {names} /vol/{name} 20000 {seed}; {calls} append /vol/lines {name}"
        );
        let mut command: Command = served.run(&[]);
        assert!(ok(command.args(["sh", "-ec", &script])).starts_with("end\n"));
    };
    thread::scope(|scope| {
        scope.spawn(|| in_guest(&mut first, "first", 11));
        scope.spawn(|| in_guest(&mut second, "second", 12));
        scope.spawn(|| here("mount", 13));
    });

    // Each reads what all wrote.
    let sums = first.ok(&format!("cd /mnt; {SUMS}"));
    assert_eq!(second.ok(&format!("cd /mnt; {SUMS}")), sums);
    assert_eq!(served.script(&format!("cd /vol; {SUMS}")), sums);
    for name in ["first", "second", "mount"] {
        assert_eq!(first.ok(&format!("grep -c -x {name} /mnt/lines")), "100\n", "{name}");
    }

    // A file that one makes the other finds at once, and does not make again though it did not know
    // it.
    first.ok("! cat /mnt/new 2> /dev/null");
    second.ok("echo second > /mnt/new");
    assert_eq!(first.ok("echo first >> /mnt/new; cat /mnt/new"), "second\nfirst\n");
    assert_eq!(served.script("cat /vol/new; mv /vol/new /vol/moved"), "second\nfirst\n");
    assert_eq!(
        second.ok("cat /mnt/moved; ls /mnt/new 2>&1 || true"),
        "second\nfirst\nls: /mnt/new: No such file or directory\n"
    );

    // A lock of one holds for the other, until it drops it, or its power fails.
    first.ok(HOLD);
    let refused = second.run("calls lock /mnt/moved");
    assert_eq!(refused.output, "fcntl: Resource temporarily unavailable\n");
    second.ok(WAIT);
    first.ok("kill $(cat /tmp/holder)");
    second.ok("until_held /tmp/waits");
    first.ok(HOLD);
    second.ok(WAIT);
    first.kill();
    second.ok("until_held /tmp/waits");
    second.end();
    served.end();
}
