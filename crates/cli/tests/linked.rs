//! Programs that are linked with the C library, as clients of a server: their locks hold among all
//! who use the volume.
#![allow(missing_docs)]

mod common;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use atoll_vm::{StorageDaemon, Virtiofsd};
use common::served::Served;
use common::{atoll, folder, fsck, need, ok, serving, volume};

/// Compiles `sources` of the library's tests, with `libraries`.
fn compile(served: &Served, sources: &[&str], libraries: &[&str]) -> PathBuf {
    need("cc", "gcc libc6-dev");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../libatoll");
    let test = std::env::current_exe().unwrap();
    let library = test.parent().unwrap().join("libatoll.a");
    assert!(library.exists(), "no {}", library.display());
    let program = served.path().join("program");
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    cc.arg("-I").arg(folder.join("include")).arg("-I").arg(folder.join("sqlite"));
    cc.args(sources.iter().map(|source| folder.join(source))).arg(library);
    cc.args(["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"]).args(libraries);
    ok(&mut cc);
    program
}

#[test]
fn locks_hold_among_processes() {
    let served = Served::new();
    let program = compile(&served, &["tests/c/served.c"], &[]);
    let said = ok(Command::new(program).arg(served.socket()));
    assert_eq!(said, "refused\nexcluded\n");
}

#[test]
fn locks_of_an_unmodified_program_hold() {
    need("python3", "python3");
    let served = Served::new();
    let program = compile(&served, &["tests/c/served.c"], &[]);
    let script = "import fcntl, sys; file = open('/vol/lock', 'w')\n\
        fcntl.lockf(file, fcntl.LOCK_EX); fcntl.flock(file, fcntl.LOCK_EX)\n\
        print('has both', flush=True); sys.stdin.read()";
    let mut holder = served
        .run(&[])
        .args(["python3", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "has both\n");
    let found = ok(Command::new(program).arg(served.socket()).arg("held"));
    assert_eq!(found, "held\n");
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
}

/// The same program text on every way to files that the library has: a volume in a file, on a disk
/// that another process offers, by rings, by a virtio-fs device whose volume others use at the same
/// time, by one of a directory, and by the stock servers' devices.
#[test]
fn a_program_is_the_same_everywhere() {
    let served = Served::with(&["--vhost-user", "g,tag=v"]);
    let program = compile(&served, &["tests/c/guest.c"], &[]);
    let runs = |place: &str| assert_eq!(ok(Command::new(&program).arg(place)), "made\n", "{place}");
    let at = |name: &str| served.path().join(name).display().to_string();

    runs(&volume(served.path(), "own.vol", "16M").display().to_string());
    let disk = served.path().join("disk");
    std::fs::File::create(&disk).unwrap().set_len(16 << 20).unwrap();
    let daemon = StorageDaemon::start(&disk);
    let place = daemon.place().display().to_string();
    ok(atoll().args(["mkfs", &place]));
    runs(&place);
    drop(daemon);
    fsck(&disk);

    runs(&at("s"));
    assert_eq!(served.script("wc -c </vol/d/moved; rm -r /vol/d").trim(), "100000");
    runs(&format!("vhost-user:{}", at("g")));
    assert_eq!(served.script("wc -c </vol/d/moved").trim(), "100000");
    let dir = folder();
    std::fs::create_dir(dir.path().join("top")).unwrap();
    // The volumes that such a server has too.
    for name in ["a.vol", "b.vol"] {
        volume(dir.path(), name, "16M");
    }
    let directory = serving::Served::again(dir, &["top", "--vhost-user", "g,tag=v"]);
    runs(&format!("vhost-user:{}", directory.path().join("g").display()));
    assert_eq!(std::fs::metadata(directory.path().join("top/d/moved")).unwrap().len(), 100_000);
    let dir = folder();
    Virtiofsd::each(dir.path(), |_, server| {
        runs(&format!("vhost-user:{}", server.socket().display()));
        let made = dir.path().join("d");
        assert_eq!(std::fs::metadata(made.join("moved")).unwrap().len(), 100_000);
        std::fs::remove_dir_all(made).unwrap();
    });
    served.end();
}

#[test]
fn databases_are_shared() {
    assert!(Path::new("/usr/include/sqlite3.h").exists(), "install libsqlite3-dev");
    let served = Served::new();
    let sources = ["tests/c/inserts.c", "sqlite/atoll_sqlite.c"];
    let program = compile(&served, &sources, &["-lsqlite3"]);
    for journal in ["delete", "truncate", "persist", "wal"] {
        let said = ok(Command::new(&program).arg(served.socket()).arg(journal));
        assert_eq!(said, "whole\n");
        served.script("rm -f /vol/t.db*");
    }
}
