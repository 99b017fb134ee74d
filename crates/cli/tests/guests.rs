//! `atoll serve --vhost-user`: the real server, confined as always, and a virtual machine that is a
//! driver alone.
#![allow(missing_docs)]

mod common;

use atoll_tests::guest::{Guest, Setup};
use common::serving::Served;
use common::{atoll, fails, folder, ok, volume, wait_until};

const FUSE_GETATTR: u32 = 3;
const FUSE_MKDIR: u32 = 9;

/// Makes a directory; the error's number.
fn mkdir(guest: &mut Guest, name: &str) -> i32 {
    let words = [0o755u32, 0].map(u32::to_le_bytes).concat();
    let body = [&words[..], name.as_bytes(), b"\0"].concat();
    guest.ask(FUSE_MKDIR, 1, &body, 0).expect("an answer").0
}

#[test]
fn a_virtual_machine_is_a_client_beside_others() {
    let arguments = ["a.vol", "b=b.vol", "--vhost-user", "g=a,tag=data", "--vhost-user", "h=b:ro"];
    let served = Served::start(&arguments);
    let log = || std::fs::read_to_string(served.path().join("log")).unwrap();
    for part in
        ["vhost-user-fs-pci,chardev=fs0,tag=data", "mount -t virtiofs data", "path=/", "tag=b"]
    {
        wait_until("it says how", || log().contains(part));
    }
    for sealed in [true, false] {
        // Also after one that went away.
        let setup = Setup { sealed, ..Setup::default() };
        let mut guest = Guest::connect(&served.path().join("g"), setup);
        guest.init();
        assert_eq!(mkdir(&mut guest, &format!("by-guest-{sealed}")), 0);
        assert_eq!(
            ok(&mut served.run("s/a:/vol", "ls -d /vol/by-guest-*; mkdir /vol/by-program"))
                .lines()
                .count(),
            if sealed { 1 } else { 2 }
        );
        assert_eq!(mkdir(&mut guest, "by-program"), 17, "EEXIST");
        ok(&mut served.run("s/a:/vol", "rmdir /vol/by-program"));
    }
    let mut guest = Guest::connect(&served.path().join("h"), Setup::default());
    guest.init();
    assert_eq!(mkdir(&mut guest, "d"), 30, "EROFS");
    // One that breaks the rules is dropped, and said to be.
    guest.set_available(1, 5000);
    assert!(guest.is_dropped());
    wait_until("that is said", || log().contains("let an index of a queue run on"));
    let mut guest = Guest::connect(&served.path().join("h"), Setup::default());
    guest.init();
    served.stop();
    assert!(guest.is_dropped());
}

/// What one guest alone has, and may only look at, nobody changes: it asks nothing twice.
#[test]
fn what_nobody_changes_is_asked_for_once() {
    let served = Served::start(&["a.vol", "--vhost-user", "g=a:ro,cache=alone"]);
    let mut guest = Guest::connect(&served.path().join("g"), Setup::default());
    guest.init();
    let (error, attr) = guest.ask(FUSE_GETATTR, 1, &[0; 16], 0).expect("an answer");
    let seconds = u64::from_le_bytes(attr[..8].try_into().unwrap());
    assert_eq!((error, seconds > 1_000_000), (0, true), "{seconds}");
    assert_eq!(mkdir(&mut guest, "d"), 30, "EROFS");
    served.stop();
}

#[test]
fn what_no_device_can_be() {
    let dir = folder();
    volume(dir.path(), "a.vol", "32M");
    let say = |device: &str, why: &str| {
        let mut serve = atoll();
        serve.current_dir(dir.path()).args(["serve", "a.vol", "--vhost-user", device]);
        let said = fails(&mut serve, if why.starts_with('`') { 2 } else { 1 });
        assert!(said.contains(why.trim_start_matches('`')), "{device}: {said}");
    };
    say("g=b", "no such volume is served");
    say("g=a,tag=a-name-that-is-longer-than-any-guest-may-see", "is no tag");
    say("g,cache=some", "`a number of seconds");
    say("atoll.sock", "is given twice");
}
