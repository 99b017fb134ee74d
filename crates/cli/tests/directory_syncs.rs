//! What fsync(2) covers of a directory of the host, when the host loses its power.
#![allow(missing_docs)]

mod common;

use std::process::{Command, Stdio};

use common::{folder, need};

/// A file system of its own in `disk`, of which nothing is written back unasked, and a server of
/// it. What `disk` has when a client's fsync has returned is what a disk would have.
const SCENE: &str = r#"
options=$1 mounted=$2
truncate -s 64M disk; mkfs.ext4 -q -F $options disk; mkdir m copied
mount -o loop$mounted disk m
mkdir m/host
"$0" serve m/host --socket s 2> log & server=$!
for i in $(seq 600); do test -S s && break; sleep 0.05; done
trap 'kill $server; wait $server; umount m' EXIT
run() { "$0" run -q -v s/host:/vol $more -- sh -ec "$1"; }
lost() {
    cp disk copy; e2fsck -f -y copy > checked 2>&1 || test $? -le 2
    mount -o loop copy copied; "$@"; umount copied
}
"#;

/// The journal is not committed unasked either.
const JOURNAL: &str = ",commit=600";

fn scene(options: &str, mounted: &str, script: &str) {
    if !nix::unistd::geteuid().is_root() || !std::path::Path::new("/dev/loop-control").exists() {
        println!("skipped: only the superuser mounts files");
        return;
    }
    need("unshare", "util-linux");
    let dir = folder();
    let output = Command::new("unshare")
        .current_dir(dir.path())
        .args(["-m", "sh", "-ec", &format!("{SCENE}{script}")])
        .args([env!("CARGO_BIN_EXE_atoll"), options, mounted])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let [said, log] = [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said));
    assert!(output.status.success(), "{options}: {}\n{said}\n{log}", output.status);
}

/// A file survives with its content and every name that leads to it, also where the file system has
/// no journal in which an fsync of one file takes all names along.
#[test]
fn what_was_synced_is_found_by_its_name() {
    for (options, mounted) in [("", JOURNAL), ("-O ^has_journal", "")] {
        scene(
            options,
            mounted,
            r#"
d=d
run "mkdir -p /vol/$d/a/b; echo synced > /vol/$d/a/b/f; sync /vol/$d/a/b/f"
lost grep -q synced copied/host/$d/a/b/f
run "mkdir /vol/$d/n; mv /vol/$d/a/b/f /vol/$d/n/g; sync /vol/$d/n/g"
lost grep -q synced copied/host/$d/n/g
run "mkdir /vol/$d/e; ln -s target /vol/$d/e/l; sync /vol/$d/e"
lost test -L copied/host/$d/e/l
run "ln /vol/$d/n/g /vol/$d/e/h; sync -d /vol/$d/e/h"
lost grep -q synced copied/host/$d/e/h
run "echo all > /vol/$d/all; sync -f /vol/$d/all"
"#,
        );
    }
}

/// What others have written is not waited for.
#[test]
fn one_file_is_synced_and_no_other() {
    scene(
        "",
        JOURNAL,
        r#"
run "head -c 4M /dev/urandom > /vol/others; echo mine > /vol/mine; sync /vol/mine"
mine() { grep -q mine copied/host/mine; ! cmp -s m/host/others copied/host/others; }
lost mine
run "sync /vol/others"
lost cmp m/host/others copied/host/others
"#,
    );
}
