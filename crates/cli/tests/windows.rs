//! Linux in virtual machines that map files of volumes and of directories (DAX).
#![allow(missing_docs)]

mod common;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use atoll_vm::{Guest, Machine, programs};
use common::serving::Served as Serving;
use common::{TempDir, atoll, folder, ok};
use nix::sys::signal::{Signal, kill};

/// Each file below the working directory, with its content's checksum.
const SUMS: &str = "find . -type f | sort | xargs sha256sum";

/// A guest with the device at `socket`, whose tag is v, mounted at /mnt with these options.
fn boot(folder: &Path, socket: &str, options: &str) -> Guest {
    let machine = Machine::new().virtiofs_with_window(&folder.join(socket));
    let mut guest = Guest::boot(&machine, &programs::image());
    guest.ok(&format!("mount -t virtiofs -o {options} v /mnt"));
    guest
}

/// How many ranges of files guests were shown, of those that have gone.
fn shown(folder: &Path) -> u64 {
    let log = fs::read_to_string(folder.join("log")).unwrap();
    let lines = log.lines().filter_map(|line| line.split_once("ranges of files were shown: "));
    lines.map(|(_, count)| count.trim().parse::<u64>().unwrap()).sum()
}

/// A folder with a directory `host`, in which the file `f` has these bytes.
fn with_directory(content: &[u8]) -> TempDir {
    let dir = folder();
    fs::create_dir(dir.path().join("host")).unwrap();
    fs::write(dir.path().join("host/f"), content).unwrap();
    dir
}

fn bytes(len: u32) -> Vec<u8> {
    (0..len).map(|at| (at / 4096 + at * 7 % 251) as u8).collect()
}

/// The window has two ranges: what is mapped is given back all the time.
#[test]
fn a_guest_maps_files_of_a_volume() {
    let served = common::served::Served::with(&["--vhost-user", "g,tag=v,dax=4M"]);
    let mut guest = boot(served.path(), "g", "dax=always");
    guest.ok("dd if=/dev/urandom of=/mnt/f bs=1M count=12; calls map /mnt/f");
    programs::bytes(&mut guest, "/mnt/bytes", 600, 1);
    // More files than a client may have mapped.
    programs::postmark(&mut guest, "/mnt/postmark", 500);
    let sums = guest.ok(&format!("cd /mnt; {SUMS}"));
    assert_eq!(served.script(&format!("cd /vol; {SUMS}")), sums);
    // Others see what a guest stores, and it sees what they write.
    served.script("printf 'by a program' | dd of=/vol/f bs=1 seek=5000000 conv=notrunc");
    let seen = guest.ok("dd if=/mnt/f bs=1 skip=5000000 count=12 2> /dev/null");
    assert_eq!(seen, "by a program");
    guest.end();
    assert!(shown(served.path()) > 100, "{}", shown(served.path()));
    served.end();
}

/// What a guest has made durable by its window outlives the server, whatever ends that.
#[test]
fn what_a_guest_has_synced_outlives_the_server() {
    let served = common::served::Served::with(&["--vhost-user", "g,tag=v,dax=64M"]);
    let mut guest = boot(served.path(), "g", "dax=inode");
    // It stores into each page and calls msync.
    guest.ok("dd if=/dev/urandom of=/mnt/f bs=1M count=9; calls map /mnt/f");
    let sum = guest.ok("sha256sum < /mnt/f");
    kill(served.pid(), Signal::SIGKILL).unwrap();
    let folder = served.was_killed();
    let mut run = atoll();
    run.current_dir(folder.path()).args(["run", "-q", "-v", "a.vol:/vol", "--"]);
    assert_eq!(ok(run.args(["sh", "-c", "sha256sum < /vol/f"])), sum);
    guest.kill();
}

/// Files of any length, the ends of which are mapped as copies, and files that may be cut short,
/// all of which is.
#[test]
fn a_guest_maps_files_of_a_directory() {
    let mut content = bytes(5_000_000);
    let devices = ["g,tag=v,dax=4M", "copies,tag=v,dax=16M,copies"];
    let mut arguments = vec!["host"];
    arguments.extend(devices.iter().flat_map(|device| ["--vhost-user", device]));
    let served = Serving::again(with_directory(&content), &arguments);
    let file = served.path().join("host/f");
    for (number, (socket, options)) in
        [("g", "dax=always"), ("copies", "dax=inode")].iter().enumerate()
    {
        let mut guest = boot(served.path(), socket, options);
        guest.ok("calls map /mnt/f");
        content.iter_mut().step_by(4096).for_each(|byte| *byte = byte.wrapping_add(1));
        assert!(fs::read(&file).unwrap() == content, "{socket}");
        programs::bytes(&mut guest, "/mnt/bytes", 600, number as u64);
        // A program of the host changes the beginning and the end, and what is there is opened.
        for at in [1, 4_999_990] {
            content[at] ^= 0xff;
        }
        let host = fs::File::options().write(true).open(&file).unwrap();
        host.write_all_at(&content[..2], 0).unwrap();
        host.write_all_at(&content[4_999_990..], 4_999_990).unwrap();
        let sum = ok(Command::new("sh").args(["-c", "sha256sum < $0"]).arg(&file));
        assert_eq!(guest.ok("sha256sum < /mnt/f"), sum, "{socket}");
        let sums = guest.ok(&format!("cd /mnt; {SUMS}"));
        guest.end();
        let mut here = Command::new("sh");
        here.current_dir(served.path().join("host")).env("LC_ALL", "C").args(["-c", SUMS]);
        assert_eq!(ok(&mut here), sums, "{socket}");
    }
    assert!(shown(served.path()) > 6, "{}", shown(served.path()));
}

/// A guest that may only read maps copies.
#[test]
fn a_guest_that_may_only_read_maps_files() {
    let dir = with_directory(&bytes(5_000_000));
    common::volume(dir.path(), "a.vol", "32M");
    let arguments = ["host", "a.vol", "--vhost-user", "g=host:ro,tag=v,dax=4M"];
    let served =
        Serving::again(dir, &[&arguments[..], &["--vhost-user", "h=a:ro,tag=v,dax=4M"]].concat());
    let mut run = atoll();
    run.current_dir(served.path()).args(["run", "-q", "-v", "s/a:/vol", "--"]);
    let copied = "cp host/f /vol/f; sha256sum < /vol/f";
    let sum = ok(run.args(["sh", "-ec", copied]));
    for socket in ["g", "h"] {
        let mut guest = boot(served.path(), socket, "dax=always");
        assert_eq!(guest.ok("sha256sum < /mnt/f"), sum, "{socket}");
        let refused = guest.run("echo x > /mnt/f");
        assert!(refused.output.contains("Read-only file system"), "{}", refused.output);
        assert_eq!(guest.ok("sha256sum < /mnt/f"), sum, "{socket}");
        guest.end();
    }
    assert!(shown(served.path()) >= 6, "{}", shown(served.path()));
}
