//! What the image keeps of a file system whose device tells of changes, and its window.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use crate::common::served::Served;
use crate::common::serving::Served as Serving;
use crate::common::{fails, folder, ok, volume};
use crate::image::{compile, newer_unikernel, run, unikernel};

/// A volume that is served with a window and notices, with the file `f`; the program that looks at
/// it, and the place of the device.
fn kept() -> (Served, PathBuf, String) {
    let served = Served::with(&["--vhost-user", "g,dax=16M,cache=told"]);
    served.script("echo hello > /vol/f");
    let program = compile(served.path(), "kept");
    let source = format!("{},dax,told:/data", served.path().join("g").display());
    (served, program, source)
}

/// How often the machine was left for its device, as the image reports.
#[track_caller]
fn exits(report: &str) -> u64 {
    let (_, rest) = report.split_once("for anything else ").expect("a report");
    rest.trim_end().parse().expect("a number")
}

#[test]
fn what_is_known_is_answered_without_an_exit() {
    let (served, program, source) = kept();
    let exits = |calls: &str| {
        let mut command = newer_unikernel(["--report", "-v", &source]);
        let ran = run(command.arg(&program).args(["calls", "/data/f", calls]), b"");
        assert!(ran.status.success() && ran.output == "done\n", "{ran:#?}");
        exits(&ran.errors)
    };
    let (few, many) = (exits("10"), exits("20000"));
    println!("{few} and {many} exits");
    // Attributes hold for a second each.
    assert!(many < few + 200, "{few} exits for 10 rounds of calls, {many} for 20,000");
    served.end();
}

/// Runs `kept` with `arguments` in the image; once it has learnt all, another client changes the
/// file. Returns the machine, and its output that follows.
fn changed(
    served: &Served,
    program: &Path,
    source: &str,
    arguments: &[&str],
) -> (Child, BufReader<impl Read + use<>>) {
    let mut command = newer_unikernel(["-v", source]);
    command.arg(program).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut machine = command.spawn().unwrap();
    let mut output = BufReader::new(machine.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "kept\n");
    served.script("echo more >> /vol/f");
    (machine, output)
}

/// It sees the change, and has its session: all calls would be EIO otherwise.
#[track_caller]
fn seen(mut machine: Child, mut output: impl BufRead) {
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "seen\n");
    assert!(machine.wait().unwrap().success());
}

#[test]
fn a_program_that_calls_nothing_takes_notices() {
    let (served, program, source) = kept();
    // A server waits for a second.
    let arguments = ["alone", "/data/f", "10000"];
    let (machine, output) = changed(&served, &program, &source, &arguments);
    seen(machine, output);
    served.end();
}

#[test]
fn a_program_that_waits_for_input_takes_notices() {
    let (served, program, source) = kept();
    let (mut machine, output) = changed(&served, &program, &source, &["reads", "/data/f"]);
    // The change has returned: all notices of it have been taken, or the session has ended.
    machine.stdin.take().unwrap().write_all(b"\n").unwrap();
    seen(machine, output);
    served.end();
}

/// The sum of a file's bytes, as `window` says it.
fn sum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(5381, |sum: u32, byte| sum.wrapping_mul(33).wrapping_add((*byte).into()))
}

/// Four thousand reads and writes, most of which are copies: the window has room for the file, and
/// the length is known.
#[test]
fn files_are_read_and_written_by_the_window() {
    let devices = ["g,dax=16M,cache=told", "h,cache=told"];
    let served = Served::with(&["--vhost-user", devices[0], "--vhost-user", devices[1]]);
    let program = compile(served.path(), "window");
    let exits = |device: &str, file: &str| {
        let source = format!("{}:/data", served.path().join(device).display());
        let mut command = newer_unikernel(["--report", "-v", &source]);
        let ran = run(command.arg(&program).arg(format!("/data/{file}")), b"");
        assert!(ran.status.success(), "{ran:#?}");
        let place = served.path().join(file);
        served.script(&format!("cp /vol/{file} {}", place.display()));
        assert_eq!(ran.output, format!("{}\n", sum(&fs::read(place).unwrap())), "{device}");
        exits(&ran.errors)
    };
    let all = [exits("g,dax,told", "a"), exits("g,dax", "b"), exits("h,told", "c")];
    println!("{all:?} exits: with both, without notices, without a window");
    // A server that is awake needs no ring, so that messages may take few exits.
    assert!(all[0] < 1000 && all[0] < all[1] && all[0] < all[2], "{all:?}");
    served.end();
}

/// On a volume with all that a device has, with a window alone, and on a directory: there the range
/// in which a file ends is a copy.
#[test]
fn files_are_mapped_by_the_window() {
    let dir = folder();
    fs::create_dir(dir.path().join("host")).unwrap();
    for name in ["a.vol", "b.vol"] {
        volume(dir.path(), name, "64M");
    }
    let devices = ["g=a,dax=16M,cache=told", "n=a,dax=16M", "h=host,dax=16M", "r=a"];
    let mut arguments = vec!["a.vol", "b.vol", "host"];
    arguments.extend(devices.iter().flat_map(|device| ["--vhost-user", device]));
    let served = Serving::again(dir, &arguments);
    let program = compile(served.path(), "mapped");
    let source = |device: &str| format!("{}:/data", served.path().join(device).display());
    for device in ["g,dax,told", "n,dax", "h,dax"] {
        let source = source(device);
        let inside = |arguments: &[&str]| {
            let mut command = newer_unikernel(["-v", &source]);
            run(command.arg(&program).arg("/data").args(arguments), b"")
        };
        assert_eq!(inside(&[]).ok(), "done\n", "{device}");
        // The program ends with its file mapped.
        assert_eq!(inside(&["kept"]).ok(), "began\n", "{device}");
        let bus = inside(&["bus"]);
        assert!(bus.code() == 135 && bus.errors.contains("has no such page"), "{device}: {bus:#?}");
        // A page that is there and may not be used is another fault.
        let none = inside(&["none"]);
        assert!(none.code() == 139 && !none.errors.contains("such page"), "{device}: {none:#?}");
        let script = "pragma journal_mode=wal; create table t (i); insert into t values (1), (2);
            insert into t select i + 2 from t; pragma wal_checkpoint; insert into t values (7);";
        let sqlite = |script: &str| {
            let mut command = newer_unikernel(["-v", &source, "-e", "HOME=/"]);
            run(command.args(["sqlite3", "/data/db"]), script.as_bytes()).ok()
        };
        assert_eq!(sqlite(script), "wal\n0|4|4\n", "{device}");
        let script = "pragma journal_mode; select sum(i) from t; pragma integrity_check;";
        assert_eq!(sqlite(script), "wal\n17\nok\n", "{device}");
        // Others read what was stored; the next device finds nothing.
        let place = if device.starts_with('h') { "host" } else { "a" };
        let mut look =
            served.run(&format!("s/{place}:/x"), "od -An -c -N 6 -j 8192 /x/kept; rm /x/*");
        assert_eq!(ok(&mut look).trim(), "s   t   o   r   e   d", "{device}");
    }
    // Without a window there are no such pages.
    let ran = run(unikernel(["-v", &source("r")]).arg(&program).args(["/data", "kept"]), b"");
    assert!(ran.code() == 1 && ran.errors.contains("errno 19"), "{ran:#?}");
    served.stop();
}

/// With a cache of seconds lengths count for as long, and no longer, also for a program that does
/// nothing but read.
#[test]
fn a_file_that_grows_is_seen_to() {
    let served = Served::with(&["--vhost-user", "g,dax=16M,cache=1"]);
    served.script("dd if=/dev/urandom of=/vol/f bs=1M count=4 2> /dev/null");
    let program = compile(served.path(), "window");
    let source = format!("{},dax:/data", served.path().join("g").display());
    let mut command = newer_unikernel(["-v", &source]);
    command.arg(program).args(["/data/f", "grows"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut machine = command.spawn().unwrap();
    let mut output = BufReader::new(machine.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "shown\n");
    served.script("dd if=/dev/urandom bs=1M count=1 2> /dev/null >> /vol/f");
    seen(machine, output);
    served.end();
}

#[test]
fn what_a_device_or_the_emulator_lacks_is_said() {
    let dir = folder();
    let volume = volume(dir.path(), "v", "32M");
    let source = format!("{},dax:/data", volume.display());
    let said = fails(unikernel(["-v", &source]).args(["busybox", "true"]), 125);
    assert!(said.contains("are for the socket of a server"), "{said}");
    let listener = std::os::unix::net::UnixListener::bind(dir.path().join("g")).unwrap();
    let source = format!("{},told:/data", dir.path().join("g").display());
    let mut command = unikernel(["--qemu", "true", "-v", &source]);
    let said = fails(command.args(["busybox", "true"]), 125);
    assert!(said.contains("true has no vhost-user-test-device,"), "{said}");
    drop(listener);
}
