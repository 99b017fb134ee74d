//! Two images, a Linux guest and programs of the host on one file system at the same time.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;

use atoll_vm::{Guest, Image, Machine};

use crate::common::serving::Served;
use crate::common::{TempDir, atoll, folder, ok, volume};
use crate::image::{compile, newer_unikernel, run, unikernel};

/// How many files each makes, and how many numbers there are to be taken.
const COUNT: u32 = 60;

/// The content of a file by its name, as `together` has it.
fn content(name: &str) -> Vec<u8> {
    let sum =
        name.bytes().fold(5381_u32, |sum, byte| sum.wrapping_mul(33).wrapping_add(byte.into()));
    let byte = |at: u32| sum.wrapping_add(at * 7).wrapping_add(at >> 8) as u8;
    (0..sum % 20_000 + 1).map(byte).collect()
}

/// Holds what is in `dir` against what all of `names` have made, byte for byte.
#[track_caller]
fn compare(dir: &Path, names: &[&str]) {
    let listed = |path: &Path| -> BTreeSet<String> {
        let entries = fs::read_dir(path).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    let above = names.iter().copied().chain(["all"]).map(String::from).collect();
    assert_eq!(listed(dir), above);
    let all = dir.join("all");
    let mut expected: BTreeSet<String> = (0..COUNT).map(|n| format!("number{n}")).collect();
    for name in &expected {
        let taker = fs::read_to_string(all.join(name)).unwrap();
        assert!(names.contains(&taker.as_str()), "{name} is {taker:?}'s");
    }
    for name in names {
        assert_eq!(listed(&dir.join(name)), BTreeSet::new(), "{name}");
        for number in 0..COUNT {
            let file = format!("{name}-{number}");
            assert!(fs::read(all.join(&file)).unwrap() == content(&file), "{file}");
            expected.insert(file);
        }
    }
    assert_eq!(listed(&all), expected);
}

/// Serves `what` of the folder to two images, of which the second has a window and is told of what
/// others change in a volume, a Linux guest and a program with a ring or a mount, which use it at
/// once, as does `more`. Returns the folder, and all that made files.
fn at_once<'n>(
    dir: TempDir,
    what: &str,
    more: &'n [&'n str],
    here: &Path,
) -> (TempDir, Vec<&'n str>) {
    let program = compile(dir.path(), "together");
    // Nobody tells of changes of the host's own.
    let (second, used) = match more.is_empty() {
        true => ("g2,dax=8M,cache=told", "g2,dax,told"),
        false => ("g2,dax=8M", "g2,dax"),
    };
    let devices = ["--vhost-user", "g1", "--vhost-user", second, "--vhost-user", "g3,tag=v"];
    let served = Served::again(dir, &[&[what], &devices[..]].concat());
    let image = Image::new().program(&program);
    let machine = Machine::new().virtiofs("v", &served.path().join("g3"));
    let mut guest = Guest::boot(&machine, &image);
    guest.ok("mount -t virtiofs v /mnt; mkdir /mnt/all");

    let count = COUNT.to_string();
    let in_image = |socket: &str, name: &str| {
        let source = format!("{}:/data", served.path().join(socket).display());
        let is_newer = socket.contains(',');
        let mut command = match is_newer {
            true => newer_unikernel(["-v", &source]),
            false => unikernel(["-v", &source]),
        };
        run(command.arg(&program).args(["/data", name, &count]), b"").ok()
    };
    let mount = |name: &str| {
        let mut command = atoll();
        command.current_dir(served.path()).args(["run", "-v", "s:/vol", "--"]).arg(&program);
        ok(command.args(["/vol", name, &count]))
    };
    let host = |name: &str| ok(Command::new(&program).arg(here).args([name, &count]));
    let said: Vec<String> = thread::scope(|scope| {
        let mut all = vec![
            scope.spawn(|| in_image("g1", "image1")),
            scope.spawn(|| in_image(used, "image2")),
            scope.spawn(|| guest.ok(&format!("together /mnt linux {count}"))),
            scope.spawn(|| mount("mount")),
        ];
        all.extend(more.iter().map(|name| scope.spawn(|| host(name))));
        all.into_iter().map(|one| one.join().expect("it ends well")).collect()
    });
    // Each number has been taken by one.
    let taken = |said: &String| -> u32 {
        said.strip_prefix("taken ").and_then(|rest| rest.trim_end().parse().ok()).expect("a number")
    };
    assert_eq!(said.iter().map(taken).sum::<u32>(), COUNT, "{said:?}");
    guest.end();
    let names = ["image1", "image2", "linux", "mount"].into_iter().chain(more.iter().copied());
    (served.stop(), names.collect())
}

/// A folder with the volumes that the tests of servers look at.
fn with_volumes() -> TempDir {
    let dir = folder();
    for name in ["a.vol", "b.vol"] {
        volume(dir.path(), name, "64M");
    }
    dir
}

#[test]
fn a_directory_of_two_images_linux_and_the_host() {
    let dir = with_volumes();
    let host = dir.path().join("host");
    fs::create_dir(&host).unwrap();
    let (_dir, names) = at_once(dir, "host", &["host"], &host);
    compare(&host, &names);
}

#[test]
fn a_volume_of_two_images_linux_and_a_mount() {
    let (dir, names) = at_once(with_volumes(), "a.vol", &[], Path::new(""));
    let out = dir.path().join("out");
    let mut copy = atoll();
    ok(copy.current_dir(dir.path()).args(["cp", "-r", "a.vol:/"]).arg(&out));
    compare(&out, &names);
}
