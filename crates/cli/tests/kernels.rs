//! The kernel's way by another kernel than this machine's: the commands run in a virtual machine.
#![allow(missing_docs)]

mod common;

use std::path::{Path, PathBuf};

use atoll_vm::{Guest, Machine, parts, programs};

/// Makes a volume and mounts it at /mnt, by a server's mount or by one of its own.
fn mount(guest: &mut Guest, served: bool) {
    guest.ok("rm -f /tmp/v; atoll mkfs --size 96M /tmp/v > /dev/null");
    guest.ok(match served {
        true => {
            "ATOLL_LOG=debug atoll serve --socket /tmp/s /tmp/v > /tmp/log 2>&1 & echo $! > /tmp/pid
             for i in $(seq 600); do test -S /tmp/s && break; usleep 100000; done
             atoll mount /tmp/s /mnt; grep -q 'clients mount by themselves' /tmp/log && exit 1; true"
        }
        false => "atoll mount /tmp/v /mnt",
    });
}

fn unmount(guest: &mut Guest, served: bool) {
    guest.ok("atoll umount /mnt");
    if served {
        guest.ok("kill $(cat /tmp/pid); while kill -0 $(cat /tmp/pid) 2> /dev/null; do usleep 100000; done");
    }
    guest.ok("atoll fsck /tmp/v");
}

/// What the programs of a guest with the kernel in `linux` find.
fn programs_find_what_they_wrote(linux: PathBuf) {
    let machine = Machine::new().linux(linux).memory(1024).processors(2);
    let atoll = Path::new(env!("CARGO_BIN_EXE_atoll"));
    let image = programs::image().module("fuse").program(atoll);
    let mut guest = Guest::boot(&machine, &image);
    for served in [false, true] {
        mount(&mut guest, served);
        // What is mapped is the kernel's, which is right on all that there are.
        programs::bytes(&mut guest, "/mnt/bytes", 250, 1);
        programs::names(&mut guest, "/mnt/names", 400, 2);
        programs::postmark(&mut guest, "/mnt/postmark", 500);
        for mode in ["delete", "wal"] {
            programs::sqlite(&mut guest, &format!("/mnt/sqlite-{mode}"), mode, 10);
        }
        let sums = guest.ok(SUMS);
        unmount(&mut guest, served);
        guest.ok("atoll mount --read-only /tmp/v /mnt");
        assert_eq!(guest.ok(SUMS), sums, "{served}");
        unmount(&mut guest, false);
    }
    let said = guest.ok(
        "atoll run -v /tmp/v:/vol -- sh -c 'echo $$ > /vol/f; test -s /vol/f && echo is there'",
    );
    assert_eq!(said, "is there\n");
    guest.end();
}

/// Linux 6.1 maps no file that passes the page cache by, and has fewer features of FUSE.
#[test]
fn by_linux_6_1() {
    programs_find_what_they_wrote(parts::linux());
}

/// Some of Linux 6.12 may not be left to open files by themselves.
#[test]
fn by_linux_6_12() {
    programs_find_what_they_wrote(parts::newer_linux());
}

/// Each file of the volume, with its content's checksum.
const SUMS: &str = "cd /mnt; find . -type f | sort | xargs sha256sum";
