//! Runs of this program in the image, on all that a volume can be there.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use crate::common::serving::Served;
use atoll_tests::hostdir::quirks_of;

use crate::common::{TempDir, folder, fsck, ok, volume};
use crate::image::{newer_unikernel, run_within, unikernel};

/// How long all of the suite may take: many times what it does.
const BOUND: Duration = Duration::from_mins(10);

/// Demands of tens of thousands of files, each of which takes several messages to a server: an
/// emulated machine takes minutes. They are tried in memory and on a disk.
const MANY: [&str; 1] = ["::many_"];

/// This program, without what only a debugger reads.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let own = std::env::current_exe().expect("this program");
        // Another name than a test's program has, and the same for the same one.
        let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join("by-calls-in-the-image");
        let unfinished = to.with_extension(std::process::id().to_string());
        ok(Command::new("strip").arg("-o").arg(&unfinished).arg(own));
        std::fs::rename(&unfinished, &to).expect("a name");
        to
    })
}

/// Runs the tests of this program whose names begin so in the image, with `source` at /data, which
/// is of this kind. At least so many have to pass.
#[track_caller]
fn inside(source: &str, of: &str, tests: &str, least: usize) {
    inside_but(source, of, tests, &[], least);
}

/// The same without those whose names have one of `skipped` in them.
#[track_caller]
fn inside_but(source: &str, of: &str, tests: &str, skipped: &[&str], least: usize) {
    let place = format!("ATOLL_PLACE_OF={of}");
    let options = ["-m", "2G", "-v", source, "-e", "ATOLL_PLACE=/data", "-e", &place];
    // A device with more than requests takes a newer QEMU.
    let is_newer = source.contains(",dax") || source.contains(",told");
    let mut command = if is_newer { newer_unikernel(options) } else { unikernel(options) };
    command.arg(program()).args(["--test-threads=1", tests]);
    command.args(skipped.iter().flat_map(|part| ["--skip", part]));
    let ran = run_within(&mut command, b"", BOUND);
    println!("{}", ran.output.lines().last().unwrap_or_default());
    assert!(ran.status.success(), "{}\n{}", ran.output, ran.errors);
    let passed = ran.output.lines().filter(|line| line.ends_with(" ... ok")).count();
    assert!(passed >= least, "{passed} tests: {}", ran.output);
}

#[test]
fn in_the_image_in_memory() {
    inside("ram,1000M:/data", "volume", "conformance", 110);
    inside("ram,256M:/data", "volume", "differential", 1);
}

#[test]
fn in_the_image_on_a_disk() {
    let dir = folder();
    let volume = volume(dir.path(), "v", "1G");
    let source = format!("{}:/data", volume.display());
    inside(&source, "volume", "conformance", 110);
    inside(&source, "volume", "differential", 1);
    fsck(&volume);
}

/// A server of `what` in the folder `dir`, and the place of its device, which has these options,
/// and what the image uses of them.
fn serve(dir: TempDir, what: &str, options: &str, used: &str) -> (Served, String) {
    let served = Served::again(dir, &[what, "--vhost-user", &format!("g{options}")]);
    let source = format!("{}{used}:/data", served.path().join("g").display());
    (served, source)
}

#[test]
fn in_the_image_on_a_volume_that_is_served() {
    on_a_volume("", "");
}

#[test]
fn in_the_image_on_a_volume_with_a_window_and_notices() {
    on_a_volume(",dax=16M,cache=told", ",dax,told");
}

#[test]
fn in_the_image_on_a_volume_with_a_window_and_seconds() {
    on_a_volume(",dax=16M,cache=1", ",dax");
}

#[test]
fn in_the_image_on_a_directory_of_the_host() {
    on_a_directory("", "");
}

#[test]
fn in_the_image_on_a_directory_with_a_window() {
    on_a_directory(",dax=16M,cache=1", ",dax");
}

fn on_a_volume(options: &str, used: &str) {
    let dir = folder();
    volume(dir.path(), "a.vol", "1G");
    volume(dir.path(), "b.vol", "32M");
    let (served, source) = serve(dir, "a.vol", options, used);
    inside_but(&source, "volume", "conformance", &MANY, 105);
    inside(&source, "volume", "differential", 1);
    served.stop();
}

fn on_a_directory(options: &str, used: &str) {
    let dir = folder();
    for name in ["a.vol", "b.vol"] {
        volume(dir.path(), name, "32M");
    }
    let host = dir.path().join("host");
    std::fs::create_dir(&host).unwrap();
    if let Err(why) = quirks_of(&host) {
        println!("skipped: {why}");
        return;
    }
    let of = rustix::fs::statfs(&host).unwrap().f_type.to_string();
    let (served, source) = serve(dir, "host", options, used);
    inside_but(&source, &of, "conformance", &MANY, 105);
    inside(&source, &of, "differential", 1);
    assert_eq!(std::fs::read_dir(host).unwrap().count(), 0, "all has been removed");
    served.stop();
}
