//! Linux in virtual machines that have a volume alone, and so write back what programs have
//! written: what arrives, when, and what is said of what cannot.
#![allow(missing_docs)]

mod common;

use std::path::Path;

use atoll_vm::{Guest, Machine, programs};
use common::served::Served;
use common::{atoll, folder, ok, serving, volume};
use nix::sys::signal::{Signal, kill};

const DEVICE: [&str; 2] = ["--vhost-user", "g,tag=v,cache=alone"];
/// Each file below the working directory, with its content's checksum.
const SUMS: &str = "find . -type f | sort | xargs sha256sum";
/// The same with length, time of the last change and mode.
const TIMES: &str = "find . -type f | sort | xargs stat -c '%n %s %Y %a'";
const FORGET: &str = "sync; echo 3 > /proc/sys/vm/drop_caches";

/// A guest that has mounted the volume of the device in `folder` at /mnt.
fn boot(folder: &Path) -> Guest {
    let machine = Machine::new().virtiofs("v", &folder.join("g"));
    let mut guest = Guest::boot(&machine, &programs::image());
    guest.ok("mount -t virtiofs v /mnt; head -c 20000 /dev/urandom > /tmp/base");
    guest
}

/// What a script finds in the volume a.vol in `folder`, which nobody has.
fn at_host(folder: &Path, script: &str) -> String {
    let mut run = atoll();
    run.current_dir(folder).args(["run", "-q", "-v", "a.vol:/vol", "--", "sh", "-ec"]);
    ok(run.env("LC_ALL", "C").arg(format!("cd /vol; {script}")))
}

/// Whatever is done while pages are kept back, the host reads each byte, and sees each file as long
/// and as old as the guest does.
#[test]
fn what_is_kept_back_arrives() {
    let served = Served::with(&DEVICE);
    let mut guest = boot(served.path());
    // Programs append at once.
    guest.ok("touch /mnt/lines
        calls append /mnt/lines first & calls append /mnt/lines second & wait
        test $(wc -l < /mnt/lines) = 200; test $(grep -c -x first /mnt/lines) = 100");
    // A handle that is for writing alone, and parts of pages that the kernel does not have.
    guest.ok(&format!(
        "cp /tmp/base /tmp/parts; cp /tmp/base /mnt/parts; {FORGET}
        for at in 100 5000 8190 19990 30000; do
            head -c 37 /dev/urandom > /tmp/piece
            for file in /tmp/parts /mnt/parts; do
                dd if=/tmp/piece of=$file bs=1 seek=$at conv=notrunc 2> /dev/null
            done
        done
        cmp /tmp/parts /mnt/parts; {FORGET}; cmp /tmp/parts /mnt/parts"
    ));
    // A file is cut, and renamed over another, before its pages have gone.
    guest.ok("for at in /tmp /mnt; do
            (dd bs=5000 count=2 2> /dev/null; truncate -s 3000 $at/cut; echo end) \
                >> $at/cut < /tmp/base
            echo old > $at/name
            (dd bs=5000 count=2 2> /dev/null; mv $at/new $at/name; echo end) > $at/new < /tmp/base
            (dd bs=5000 count=2 2> /dev/null; rm $at/gone; echo end) > $at/gone < /tmp/base
        done
        cmp /tmp/cut /mnt/cut; cmp /tmp/name /mnt/name; test ! -e /mnt/new");
    // Times that programs set, and the time of a write(2) that goes when the file is closed.
    guest.ok("cd /mnt; echo x > dated; touch -d '2001-02-03 04:05:06' dated
        cp -p dated copied; mkdir unpacked; tar cf - dated parts | tar xf - -C unpacked
        (echo early; usleep 2500000) > early; test $(stat -c %Y dated) = $(stat -c %Y copied)
        test $(stat -c %Y dated) = $(stat -c %Y unpacked/dated)");
    // A write takes set-ID bits.
    guest.ok("mkdir -p /etc; echo 'user:x:1000:1000::/:/bin/sh' > /etc/passwd
        echo x > /mnt/program; chown 1000:1000 /mnt/program; chmod 6755 /mnt/program
        su user -c 'echo y >> /mnt/program'; sleep 2; test $(stat -c %a /mnt/program) = 755");
    let (sums, times) = (format!("cd /mnt; {SUMS}"), format!("cd /mnt; {TIMES}"));
    let before = [guest.ok(&sums), guest.ok(&times)];
    guest.ok("cd /; umount /mnt; mount -t virtiofs v /mnt");
    assert_eq!([guest.ok(&sums), guest.ok(&times)], before);
    guest.end();
    let folder = served.ended();
    assert_eq!([SUMS, TIMES].map(|script| at_host(folder.path(), script)), before);
}

/// What has no room, in the volume or in a directory with a quota, is said by fsync(2) or by
/// close(2), if not by write(2).
#[test]
fn what_has_no_room_is_told() {
    let dir = folder();
    for name in ["a.vol", "b.vol"] {
        volume(dir.path(), name, "32M");
    }
    at_host(dir.path(), "mkdir few");
    let quota = ["--allow", "uid:1234=rw,path=/few,quota=1M"];
    let served = serving::Served::again(dir, &[&["a.vol"], &DEVICE[..], &quota].concat());
    let mut guest = boot(served.path());
    guest.ok("cp /tmp/base /mnt/whole");
    // Linux has close(2) say of all but a full volume that it is an error of input or output.
    let cases = [
        ("/mnt/full", "conv=fsync", "No space left"),
        ("/mnt/full", "", "No space left"),
        ("/mnt/few/full", "conv=fsync", "uota exceeded"),
        ("/mnt/few/full", "", "Input/output error"),
    ];
    for (file, how, says) in cases {
        let ran = guest.run(&format!("dd if=/dev/zero of={file} bs=64k count=1024 {how}"));
        let said = ran.output;
        assert!(ran.status != 0 && said.contains(says), "{file}, {how}: {said}");
        guest.ok(&format!("rm {file}; cp /tmp/base {file}.2; cmp /tmp/base {file}.2"));
    }
    let sums = guest.ok(&format!("cd /mnt; {SUMS}"));
    guest.end();
    let folder = served.stop();
    assert_eq!(at_host(folder.path(), SUMS), sums);
}

/// What fsync(2) has returned for is there, whoever is killed then.
#[test]
fn what_was_synced_stays() {
    for server in [false, true] {
        let served = Served::with(&DEVICE);
        let mut guest = boot(served.path());
        let sum = guest.ok("sha256sum < /tmp/base");
        guest.ok("dd if=/tmp/base of=/mnt/part bs=1000 conv=fsync 2> /dev/null
            (dd bs=7000 count=1 2> /dev/null; sleep 1000) >> /mnt/part < /tmp/base & sleep 1
            dd if=/tmp/base of=/mnt/synced bs=1000 conv=fsync 2> /dev/null");
        let folder = if server {
            kill(served.pid(), Signal::SIGKILL).unwrap();
            let folder = served.was_killed();
            guest.kill();
            folder
        } else {
            guest.kill();
            served.ended()
        };
        for name in ["synced", "part"] {
            let found = at_host(folder.path(), &format!("head -c 20000 {name} | sha256sum"));
            assert_eq!(found, sum, "{name}, killed server {server}");
        }
    }
}
