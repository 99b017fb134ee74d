//! A Linux guest in QEMU with a volume that `atoll serve` serves.
#![allow(missing_docs)]

mod common;

use std::path::Path;

use atoll_vm::{Guest, Machine, programs};
use common::serving::Served;
use common::{ok, wait_until};

#[test]
fn a_guest_uses_a_volume() {
    let devices = ["--vhost-user", "g=a,tag=data", "--vhost-user", "h=b,tag=own,cache=alone"];
    let served = Served::start(&[&["a.vol", "b.vol"], &devices[..]].concat());
    let at = |socket: &str| served.path().join(socket);
    let machine = Machine::new().virtiofs("data", &at("g")).virtiofs("own", &at("h"));
    // That of busybox is none that every build of it has.
    let image = || programs::image().program(Path::new("/usr/bin/flock"));
    let mut guest = Guest::boot(&machine, &image());
    guest.ok("mount -t virtiofs data /mnt");
    // What one does the other sees, at its next call.
    let mut program = served.shell("s/a:/vol");
    guest.ok("echo guest > /mnt/f; ln -s f /mnt/l; mkdir /mnt/d");
    assert_eq!(program.does("cat /vol/l; echo more >> /vol/f; mv /vol/f /vol/d/g"), "guest");
    assert_eq!(
        guest.ok("cat /mnt/d/g; ls -1 /mnt; stat -c %s /mnt/d/g"),
        "guest\nmore\nd\nl\n11\n"
    );
    // Locks hold among both.
    assert_eq!(program.does("exec 6> /vol/lock; flock -n 6"), "");
    assert_eq!(guest.run("flock -n /mnt/lock true").status, 1);
    guest.ok("(flock /mnt/lock touch /mnt/locked) > /dev/null 2>&1 &");
    assert_eq!(guest.ok("stat -c %s /mnt/d/g"), "11\n", "one that waits holds up nobody");
    assert_eq!(program.does("test ! -e /vol/locked; flock -u 6"), "");
    wait_until("the guest has the lock", || program.does("ls /vol").contains("locked"));
    guest.ok("wait; umount /mnt; mount -t virtiofs data /mnt; cat /mnt/d/g");
    programs::names(&mut guest, "/mnt/names", 2000, 2);
    programs::postmark(&mut guest, "/mnt/postmark", 500);
    programs::sqlite(&mut guest, "/mnt/sqlite", "delete", 30);
    // A volume that is its own alone, which it caches.
    guest.ok("mkdir /own; mount -t virtiofs own /own");
    programs::bytes(&mut guest, "/own/bytes", 1000, 1);
    programs::names(&mut guest, "/own/names", 2000, 2);
    programs::postmark(&mut guest, "/own/postmark", 500);
    programs::sqlite(&mut guest, "/own/sqlite", "wal", 30);
    // One that is cut off keeps no lock, and the next finds what had been acknowledged.
    guest.ok("echo kept > /mnt/kept; flock /mnt/lock sleep 1000 > /dev/null 2>&1 &");
    wait_until("the guest has the lock", || {
        program.does("exec 6> /vol/lock; flock -n 6 || echo taken; flock -u 6") == "taken"
    });
    guest.kill();
    assert_eq!(program.does("flock 6; cat /vol/kept"), "kept");
    program.end();
    let mut guest = Guest::boot(&machine, &image());
    assert_eq!(guest.ok("mount -t virtiofs data /mnt; cat /mnt/kept"), "kept\n");
    guest.ok("umount /mnt");
    guest.end();
    assert_eq!(ok(&mut served.run("s/a:/vol", "cat /vol/kept")), "kept\n");
    served.stop();
}
