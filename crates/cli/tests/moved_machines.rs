//! Linux in virtual machines that QEMU moves to another QEMU while they run: from one socket of a
//! server to another one.
#![allow(missing_docs)]

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use atoll_vm::{Guest, Image, Machine, Moved, parts, programs};
use common::serving::Served as Serving;
use common::{folder, ok, served, volume, ways};

/// Each file below the working directory, with its content's checksum.
const SUMS: &str = "find . -type f | sort | xargs sha256sum";
/// How often the guest's memory is gone over while it works: what is marked as written when its
/// pages have gone has to go again. One that does nothing for a moment has it earlier.
const ROUNDS: u64 = 4;
const ROUNDS_MIN: u64 = 3;

/// A program of guests that waits until a file says something.
const SAYS: &str = "#!/bin/sh
for i in $(seq 2000); do
    if grep -q $2 $1 2> /dev/null; then exit 0; fi
    usleep 100000
done
cat $1
exit 1
";

/// The machine with the device at `socket`, whose tag is v, in the QEMU that moves it.
fn machine(folder: &Path, socket: &str) -> Machine {
    Machine::new().emulated_by(parts::newer_qemu()).virtiofs("v", &folder.join(socket))
}

fn image() -> Image {
    programs::image().file("/bin/says", SAYS)
}

/// A guest with the device at `socket` at /mnt, which writes and reads the file `blocks` there.
fn boot(folder: &Path, socket: &str, image: &Image) -> Guest {
    let mut guest = Guest::boot(&machine(folder, socket), image);
    guest.ok("chmod 755 /bin/says; mount -t virtiofs v /mnt");
    guest.ok("blocks /mnt/blocks /tmp/stop > /tmp/blocks 2>&1 & says /tmp/blocks runs");
    guest
}

/// The guest at the device at `socket`; its first emulator has gone.
fn moved(guest: Guest, folder: &Path, socket: &str, image: &Image) -> Guest {
    let log = || fs::read_to_string(folder.join("log")).unwrap();
    let moved = guest.move_to(&machine(folder, socket), image, ROUNDS);
    let Moved { guest, rounds, left } =
        moved.unwrap_or_else(|(_, why)| panic!("it stays: {why}\n--- the server\n{}", log()));
    assert!(rounds >= ROUNDS_MIN, "{rounds}");
    left.kill();
    guest
}

/// Ends what [`boot`] has begun: each byte in the guest's memory and in the file is right.
fn stop(guest: &mut Guest) {
    guest.ok("touch /tmp/stop; says /tmp/blocks 'sum\\|of block'; cat /tmp/blocks
        grep -q sum /tmp/blocks");
}

/// It has files open, has locks and waits for one, while programs of it make and remove files; a
/// move that is refused changes nothing, and it comes back to where it was.
#[test]
fn a_guest_moves_while_it_works() {
    let devices = ["here,tag=v", "there,tag=v", "keeps,tag=v,cache=5"];
    let arguments: Vec<&str> = devices.iter().flat_map(|device| ["--vhost-user", device]).collect();
    let served = served::Served::with(&arguments);
    let calls = ways::compile("../../../../vm/c/calls.c", served.path(), "calls", &[]);
    let calls = calls.display();
    let image = image();
    let mut guest = boot(served.path(), "here", &image);
    guest.ok("touch /mnt/held; mkdir /mnt/names
        calls hold /mnt/held > /tmp/held & echo $! > /tmp/holder; says /tmp/held held
        calls wait /mnt/held > /tmp/waits &
        while ! test -e /tmp/stop; do touch /mnt/names/a /mnt/names/b
            mv /mnt/names/a /mnt/names/c; rm /mnt/names/b; done > /tmp/names 2>&1 &
        echo before > /mnt/lines; tail -f /dev/null >> /mnt/lines & echo $! > /tmp/writer");
    let refused = |served: &served::Served| {
        served.script(&format!("! {calls} lock /vol/held"));
        served.script(&format!("! {calls} lock /vol/blocks"));
    };
    refused(&served);

    // The device at the other socket lets a kernel keep more.
    let (guest, _) = guest
        .move_to(&machine(served.path(), "keeps"), &image, 1)
        .err()
        .expect("its kernel would keep more there");
    let said = fs::read_to_string(served.path().join("log")).unwrap();
    assert!(said.contains("it may keep less, or more, here"), "{said}");
    refused(&served);

    let guest = moved(guest, served.path(), "there", &image);
    refused(&served);
    let mut guest = moved(guest, served.path(), "here", &image);
    refused(&served);
    guest.ok("! grep -q held /tmp/waits; kill $(cat /tmp/holder); says /tmp/waits held");
    // The one that waited ends by itself.
    served.script(&format!("timeout 60 sh -c 'until {calls} lock /vol/held; do sleep 0.1; done'"));
    stop(&mut guest);
    guest.ok("kill $(cat /tmp/writer); cat /mnt/lines; ! test -s /tmp/names");
    let sums = guest.ok(&format!("cd /mnt; {SUMS}"));
    assert_eq!(served.script(&format!("cd /vol; {SUMS}")), sums);
    guest.end();
    served.end();
}

/// The inodes of a directory are found again by their names.
#[test]
fn a_guest_of_a_directory_moves() {
    let dir = folder();
    // The volumes that tests of servers look at.
    for name in ["a.vol", "b.vol"] {
        volume(dir.path(), name, "32M");
    }
    fs::create_dir_all(dir.path().join("host/a/b")).unwrap();
    fs::write(dir.path().join("host/a/b/f"), "of the host").unwrap();
    let arguments = ["host", "--vhost-user", "here,tag=v", "--vhost-user", "there,tag=v"];
    let served = Serving::again(dir, &arguments);
    let image = image();
    let mut guest = boot(served.path(), "here", &image);
    guest.ok("cd /mnt/a/b; tail -f /dev/null >> f & echo $! > /tmp/tail");
    let mut guest = moved(guest, served.path(), "there", &image);
    assert_eq!(guest.ok("cat /mnt/a/b/f"), "of the host");
    stop(&mut guest);
    let sums = guest.ok(&format!("cd /mnt; {SUMS}"));
    let mut here = Command::new("sh");
    here.current_dir(served.path().join("host")).env("LC_ALL", "C").args(["-c", SUMS]);
    assert_eq!(ok(&mut here), sums);
    guest.ok("kill $(cat /tmp/tail)");
    guest.end();
    served.stop();
}
