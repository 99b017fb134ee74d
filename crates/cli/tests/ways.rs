//! The behaviour of files for programs, in every way in which programs come to a volume.
#![allow(missing_docs)]

mod common;

use common::served::Served;
use common::ways::{self, Way, Ways};
use common::{as_user, atoll, fails, ok};
use nix::unistd::geteuid;

/// How many operations the long form does in each way: `ATOLL_OPERATIONS`.
fn operations() -> Option<u64> {
    let said = std::env::var("ATOLL_OPERATIONS").ok()?;
    Some(said.parse().expect("ATOLL_OPERATIONS is a number"))
}

#[test]
fn copies_are_whole_however_they_are_made() {
    Ways::new("copies.c").all("end\n", &["{}"]);
}

/// The kernel of such a user's mount gets no notices to invalidate pages.
#[test]
fn copies_of_a_user_without_rights_are_whole() {
    if !geteuid().is_root() {
        println!("skipped: only the superuser can be several users");
        return;
    }
    let served = Served::with(&["--allow", "uid:65534=rw,path=/home"]);
    served.let_others_in();
    served.script("mkdir -m 777 /vol/home");
    let program = ways::compile("copies.c", served.path(), "usual", &[]);
    let script =
        format!("timeout -s KILL 60 ./atoll run -q -v s:/vol -- {} /vol", program.display());
    assert_eq!(ok(&mut as_user(served.path(), "666", &script)), "end\n");
    served.end();
}

#[test]
fn any_sequence_of_operations_is_as_in_memory() {
    let long = operations();
    let count = long.unwrap_or(2000);
    // A way a seed: one that fails says how it is done again.
    let ways = Ways::long("fsx.c", 60 + count / 200);
    for (seed, way) in ways::all().into_iter().enumerate() {
        for kind in ["", "more"] {
            let seed = (2 * seed + kind.len() % 2 + 1).to_string();
            if kind == "more" && long.is_some() {
                continue;
            }
            let printed = ways.run(way, &["{}", &count.to_string(), &seed]);
            assert!(printed.starts_with("end\n"), "{way:?}, seed {seed}: {printed}");
        }
    }
    ways.end();
}

#[test]
fn locks_go_with_whoever_has_them() {
    let ways = Ways::new("locks.c");
    // Once more, where the first may have left some.
    for way in ways::all() {
        for _ in 0..2 {
            assert_eq!(ways.run(way, &["{}"]), "end\n", "{way:?}");
        }
    }
    ways.end();
}

#[test]
fn file_handles_are_good_for_kernels_that_never_saw_the_file() {
    if !geteuid().is_root() {
        println!("skipped: only the superuser opens file handles");
        return;
    }
    let ways = Ways::new("handles.c");
    for (i, way) in ways::all().into_iter().enumerate() {
        // The files of one way lie in a directory that the next does not see: it is mounted anew
        // each time.
        let kept = ways.path().join(format!("kept{i}")).display().to_string();
        let make = ways.run(way, &["make", "{}", &kept]);
        assert_eq!(make, "end\n", "{way:?}");
        assert_eq!(ways.run(way, &["open", "{}", &kept]), "end\n", "{way:?}");
    }
    ways.end();
}

#[test]
fn times_of_last_access_are_set_as_the_option_says() {
    let ways = Ways::with("atime.c", &["--atime", "relatime"]);
    for way in ways::all() {
        // Who mounts what a server serves does not know what that does; a server that makes the
        // mount does.
        let own = matches!(way, Way::Run | Way::WrittenBack | Way::Static | Way::MountedFile);
        let shown = own || geteuid().is_root();
        // There the kernel reads what is open already without a word.
        let kind = if shown { "cached" } else { "relatime" };
        let arguments = [kind, "{}", "shown"];
        assert_eq!(ways.run(way, &arguments[..2 + usize::from(shown)]), "end\n", "{way:?}");
    }
    // A time that one mount sets, the others show; they keep their pages.
    let two = ["-v", "s:/other"];
    assert_eq!(ways.run_with(Way::Served, &two, &["two", "{}", "/other"]), "end\n");
    ways.end();
    Ways::new("atime.c").all("end\n", &["noatime", "{}"]);
}

#[test]
fn who_serves_a_volume_says_what_reading_does() {
    let served = Served::new();
    let mut run = atoll();
    run.args(["run", "--atime", "noatime", "-v", "s:/vol", "--", "true"]);
    let mut mount = atoll();
    mount.args(["mount", "--atime", "relatime", "s", "."]);
    for (mut command, status) in [(run, 125), (mount, 1)] {
        let said = fails(command.current_dir(served.path()), status);
        assert!(said.contains("s is a server's: give it to `atoll serve`"), "{said}");
    }
    served.end();
}
