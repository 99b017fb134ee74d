//! Files of the host take descriptors of the server's, of which it has so many: a test of its own,
//! since the limit is the process's.
#![allow(missing_docs)]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use atoll_tests::guest::{Guest, Setup};
use common::serving::Served;
use common::{folder, ok, volume, wait_until};
use rustix::process::{Resource, Rlimit, setrlimit};

const FUSE_LOOKUP: u32 = 1;
const FUSE_OPEN: u32 = 14;
const FUSE_OPENDIR: u32 = 27;
const EMFILE: i32 = 24;
const DESCRIPTORS: u64 = 1024;

/// Guests that open all that they may leave enough for others, who come and open files.
#[test]
fn a_guest_leaves_descriptors_to_others() {
    let limit = Some(DESCRIPTORS);
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit }).unwrap();
    let dir = folder();
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    for name in ["a.vol", "b.vol"] {
        volume(dir.path(), name, "32M");
    }
    fs::create_dir(dir.path().join("host")).unwrap();
    fs::write(dir.path().join("host/f"), b"there\n").unwrap();
    fs::copy(env!("CARGO_BIN_EXE_atoll"), dir.path().join("atoll")).unwrap();
    // Directories that are known take descriptors too.
    for number in 0..DESCRIPTORS {
        fs::create_dir(dir.path().join(format!("host/d{number}"))).unwrap();
        fs::write(dir.path().join(format!("host/f{number}")), b"").unwrap();
    }
    let arguments = ["host", "a.vol", "--vhost-user", "g=host", "--vhost-user", "h=host"];
    let served = Served::again(dir, &arguments);
    let descriptors = || {
        let of_server = format!("/proc/{}/fd", served.child.id());
        fs::read_dir(of_server).unwrap().count() as u64
    };
    let before = descriptors();
    let mut guests = ["g", "h"].map(|socket| {
        let mut guest = Guest::connect(&served.path().join(socket), Setup::default());
        guest.init();
        guest
    });
    for (guest, (kind, opcode)) in guests.iter_mut().zip([('f', FUSE_OPEN), ('d', FUSE_OPENDIR)]) {
        let opened = (0..DESCRIPTORS).find_map(|number| {
            let name = format!("{kind}{number}\0");
            let found = guest.ask(FUSE_LOOKUP, 1, name.as_bytes(), 0).unwrap();
            assert_eq!(found.0, 0);
            let ino = u64::from_le_bytes(found.1[..8].try_into().unwrap());
            let (error, _) = guest.ask(opcode, ino, &[0; 8], 0).unwrap();
            (error != 0).then_some((number, error))
        });
        // Each of these is another file, which is known by a descriptor too.
        assert_eq!(opened, Some((DESCRIPTORS / 16, EMFILE)));
    }
    let script = "cat /vol/f; for n in $(seq 50); do cat /vol/f >/dev/null; done; ls /vol | wc -l";
    for _ in 0..3 {
        let said = ok(&mut served.run("s/host:/vol", script));
        let names = (2 * DESCRIPTORS + 1).to_string();
        assert_eq!(said.split_whitespace().collect::<Vec<_>>(), ["there", &names]);
    }
    assert!(descriptors() < DESCRIPTORS * 7 / 8, "{}", descriptors());
    drop(guests);
    // But for the directories that stay known.
    wait_until("they come back", || descriptors() < before + DESCRIPTORS / 4);
    served.stop();
}
