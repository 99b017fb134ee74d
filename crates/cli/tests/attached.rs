//! Commands and programs that are the guests of a virtio-fs device: ours, and the C virtiofsd's.
#![allow(missing_docs)]

mod common;

use std::path::Path;

use atoll_vm::Virtiofsd;
use common::serving::Served;
use common::{atoll, fails, folder, ok};

/// Uses the file system at `socket` by each command that takes one, and by programs.
fn use_all(socket: &Path) {
    let dir = folder();
    let place = format!("vhost-user:{}", socket.display());
    let at = |path: &str| format!("{place}:{path}");
    std::fs::create_dir(dir.path().join("tree")).unwrap();
    let data: Vec<u8> = (0..3_000_000u32).map(|at| (at / 7) as u8).collect();
    std::fs::write(dir.path().join("tree/large"), &data).unwrap();
    std::fs::write(dir.path().join("tree/small"), b"some words\n").unwrap();

    ok(atoll().args(["cp", "-r"]).arg(dir.path().join("tree")).arg(at("/")));
    assert_eq!(ok(atoll().args(["cat", &at("/tree/small")])), "some words\n");
    assert_eq!(ok(atoll().args(["ls", &at("/tree")])), "large\nsmall\n");
    ok(atoll().args(["cp", &at("/tree/large")]).arg(dir.path().join("back")));
    assert!(std::fs::read(dir.path().join("back")).unwrap() == data, "what was copied there");
    fails(atoll().args(["cat", &at("/tree/nothing")]), 1);

    let script = "set -e; cd /vol; echo one >made; echo two >>made; mkdir d; mv made d/moved; \
                  cp tree/large d/copy; cmp tree/large d/copy; rm d/copy; cat d/moved; ls d";
    let said = ok(atoll().args(["run", "-v", &place, "--", "sh", "-c", script]));
    assert_eq!(said, "one\ntwo\nmoved\n");
    assert_eq!(ok(atoll().args(["cat", &at("/d/moved")])), "one\ntwo\n");
}

#[test]
fn of_a_volume_that_is_served() {
    let served = Served::start(&["a.vol", "--vhost-user", "g,tag=v"]);
    use_all(&served.path().join("g"));
    // Another client finds what they made.
    assert_eq!(ok(&mut served.run("s/a:/vol", "cat /vol/d/moved")), "one\ntwo\n");
    served.stop();
}

/// The server of QEMU's packages ends with each guest.
#[test]
fn of_a_directory_that_the_c_virtiofsd_has() {
    let dir = folder();
    std::fs::write(dir.path().join("there"), b"before\n").unwrap();
    let attached = |arguments: &[&str]| {
        let server = Virtiofsd::start(dir.path(), &["cache=none"]);
        let place = format!("vhost-user:{}", server.socket().display());
        let arguments: Vec<String> = arguments.iter().map(|a| a.replace("{}", &place)).collect();
        ok(atoll().args(arguments))
    };
    assert_eq!(attached(&["cat", "{}:/there"]), "before\n");
    let script = "set -e; cd /vol; echo one >made; echo two >>made; cat made; rm there; ls";
    let said = attached(&["run", "-v", "{}", "--", "sh", "-c", script]);
    assert_eq!(said, "one\ntwo\nmade\n");
    assert_eq!(std::fs::read(dir.path().join("made")).unwrap(), b"one\ntwo\n");
}
