//! A guest with what every distribution has: the machine itself works, and a peer is there.
#![allow(missing_docs)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use atoll_vm::{Guest, Image, Machine, Virtiofsd, programs};

/// Whether the stock server can be run: it takes another root directory.
fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    let root = std::fs::metadata("/proc/self").expect("/proc").uid() == 0;
    if !root {
        println!("skipped: the stock virtiofsd needs root");
    }
    root
}

#[test]
fn a_guest_runs_scripts() {
    let mut guest = Guest::boot(&Machine::new(), &Image::new().file("/etc/hello", "hello\n"));
    assert_eq!(guest.ok("cat /etc/hello; echo there >&2"), "hello\nthere\n");
    let ran = guest.run("echo before; false; echo behind");
    assert_eq!((ran.status, ran.output.as_str()), (1, "before\n"));
    assert_eq!(guest.run("exit 7").status, 7);
    // More than any buffer on the way.
    let long = "x".repeat(20_000);
    assert_eq!(guest.ok(&format!("printf %s {long}")), long);
    guest.end();
}

#[test]
fn a_guest_uses_a_directory_that_the_stock_server_has() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let text = "from the host\n".repeat(10_000);
    std::fs::write(folder.path().join("host"), &text).unwrap();
    let server = Virtiofsd::start(folder.path(), &[]);
    let mut guest =
        Guest::boot(&Machine::new().virtiofs("folder", &server.socket()), &Image::new());
    guest.ok("mount -t virtiofs folder /mnt");
    let sum = guest.ok("sha256sum < /mnt/host");
    guest.ok(
        "mkdir /mnt/d; seq 100000 > /mnt/d/guest; ln -s d/guest /mnt/l; mv /mnt/host /mnt/moved",
    );
    assert_eq!(guest.ok("sha256sum < /mnt/moved"), sum);
    guest.ok("umount /mnt");
    guest.end();
    let numbers: String = (1..=100_000).map(|number| format!("{number}\n")).collect();
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    assert!(read("d/guest") == numbers, "what the guest wrote");
    assert!(read("moved") == text, "what the host wrote");
    assert_eq!(std::fs::read_link(folder.path().join("l")).unwrap(), Path::new("d/guest"));
}

#[test]
fn what_runs_in_a_guest_finds_what_it_wrote() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Virtiofsd::start(folder.path(), &[]);
    let machine = Machine::new().virtiofs("folder", &server.socket());
    let mut guest = Guest::boot(&machine, &programs::image());
    guest.ok("mount -t virtiofs folder /mnt");
    programs::bytes(&mut guest, "/mnt/bytes", 1000, 1);
    programs::names(&mut guest, "/mnt/names", 2000, 2);
    programs::postmark(&mut guest, "/mnt/postmark", 500);
    programs::sqlite(&mut guest, "/mnt/sqlite", "delete", 30);
    programs::sqlite(&mut guest, "/mnt/sqlite", "wal", 30);
    guest.end();
}

#[test]
fn a_machine_ends_with_its_value_and_a_script_with_its_time() {
    let is_there = |pid: u32| Path::new(&format!("/proc/{pid}/cmdline")).exists();
    let mut guest = Guest::boot(&Machine::new(), &Image::new());
    let pid = guest.pid();
    assert!(is_there(pid));
    let run =
        AssertUnwindSafe(|| guest.run_within(Duration::from_secs(1), "echo began; sleep 1000"));
    let said = *catch_unwind(run).unwrap_err().downcast::<String>().unwrap();
    assert!(said.contains("1s have passed") && said.contains("began\n"), "{said}");
    drop(guest);
    assert!(!is_there(pid));
    // One that ends by itself is not waited for, and its kernel's last words are shown.
    let mut guest = Guest::boot(&Machine::new(), &Image::new());
    let run = AssertUnwindSafe(|| guest.run("echo c > /proc/sysrq-trigger"));
    let said = *catch_unwind(run).unwrap_err().downcast::<String>().unwrap();
    assert!(said.contains("QEMU has ended") && said.contains("sysrq triggered crash"), "{said}");
}
