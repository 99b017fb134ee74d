//! The commands that make volumes, look into them and change them, and mount.
#![allow(missing_docs)]

mod common;

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use common::{atoll, fails, folder, fsck, ok, volume, wait_until};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).expect(text)
}

fn run(dir: &Path, args: &[&str]) -> String {
    ok(atoll().current_dir(dir).args(args))
}

fn refuse(dir: &Path, args: &[&str], status: i32) -> String {
    fails(atoll().current_dir(dir).args(args), status)
}

#[test]
fn mkfs_makes_volumes_where_nothing_is_lost() {
    let dir = folder();
    let path = dir.path();
    let made =
        json(&run(path, &["mkfs", "--json", "--size", "64M", "--label", "Données", "a.vol"]));
    assert_eq!(made["size"], 64 << 20);
    let info = json(&run(path, &["info", "--json", "a.vol"]));
    assert_eq!(info["uuid"], made["uuid"]);
    assert_eq!(info["label"], "Données");
    assert_eq!(info["size"], 64 << 20);
    assert_eq!(info["inodes"], 1);
    assert!(run(path, &["info", "a.vol"]).contains("64 MiB"));
    let meta = std::fs::metadata(path.join("a.vol")).unwrap();
    assert!(meta.blocks() * 512 < 8 << 20, "{} blocks", meta.blocks());
    fsck(&path.join("a.vol"));
    assert_ne!(
        json(&run(path, &["mkfs", "--json", "--size", "64M", "b.vol"]))["uuid"],
        made["uuid"]
    );

    // An existing volume, data of others, and what is no storage: not without being forced.
    run(path, &["mkdir", "a.vol:/kept"]);
    let said = refuse(path, &["mkfs", "a.vol"], 1);
    assert!(said.contains("is an Atoll volume already") && said.contains("--force"), "{said}");
    assert_eq!(run(path, &["ls", "a.vol"]), "kept\n");
    let mut foreign = vec![0; 3 << 20];
    foreign[2_500_000] = 1;
    std::fs::write(path.join("foreign"), &foreign).unwrap();
    let said = refuse(path, &["mkfs", "foreign"], 1);
    assert!(said.contains("holds data") && said.contains("nothing was changed"), "{said}");
    let said = refuse(path, &["mkfs", "--size", "64M", "foreign"], 1);
    assert!(said.contains("holds data"), "{said}");
    assert!(std::fs::read(path.join("foreign")).unwrap() == foreign);
    refuse(path, &["mkfs", "."], 1);
    refuse(path, &["mkfs", "--force", "."], 1);
    refuse(path, &["mkfs", "/dev/null"], 1);
    let said = refuse(path, &["mkfs", "no/such/folder"], 1);
    assert!(said.contains("no/such/folder"), "{said}");
    run(path, &["mkfs", "--force", "foreign"]);
    assert_eq!(std::fs::metadata(path.join("foreign")).unwrap().len(), 3 << 20);
    run(path, &["mkfs", "--force", "a.vol"]);
    assert_eq!(run(path, &["ls", "a.vol"]), "");

    // Empty files and files of zeros are as good as none.
    std::fs::write(path.join("empty"), "").unwrap();
    assert_eq!(json(&run(path, &["mkfs", "--json", "empty"]))["size"], 1 << 30);
    std::fs::write(path.join("zeros"), vec![0; 5 << 20]).unwrap();
    assert_eq!(json(&run(path, &["mkfs", "--json", "zeros"]))["size"], 5 << 20);
    std::fs::File::create(path.join("hole")).unwrap().set_len(1 << 40).unwrap();
    assert_eq!(
        json(&run(path, &["mkfs", "--json", "--journal", "1M", "hole"]))["size"],
        1u64 << 40
    );

    // A volume that cannot be made is not begun.
    let said = refuse(path, &["mkfs", "--size", "64K", "tiny"], 1);
    assert!(said.contains("too small"), "{said}");
    refuse(path, &["mkfs", "--label", &"l".repeat(65), "long"], 1);
    refuse(path, &["mkfs", "--size", "big", "size"], 2);
    for name in ["tiny", "long", "size"] {
        assert!(!path.join(name).exists(), "{name}");
    }
}

#[test]
fn files_that_are_no_volumes_are_refused_by_all() {
    let dir = folder();
    let path = dir.path();
    let bytes: Vec<u8> = (0..1_000_000u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(path.join("foreign"), &bytes).unwrap();
    let whole = volume(path, "cut", "32M");
    std::fs::File::options().write(true).open(&whole).unwrap().set_len(20 << 20).unwrap();
    let cut = std::fs::read(&whole).unwrap();
    for (name, says) in
        [("foreign", "not an Atoll volume"), ("cut", "cut off"), ("none", "no such file")]
    {
        let inside = format!("{name}:/x");
        for args in [
            &["ls", name][..],
            &["info", name],
            &["fsck", name],
            &["fsck", "--repair", name],
            &["cat", &inside],
            &["rm", &inside],
            &["mkdir", &inside],
            &["cp", "/etc/passwd", &inside],
            &["cp", &inside, "."],
            &["mount", name, "."],
        ] {
            let said = refuse(path, args, if args[0] == "fsck" { 8 } else { 1 });
            assert!(said.contains(says), "{args:?} said: {said}");
        }
    }
    assert!(std::fs::read(path.join("foreign")).unwrap() == bytes);
    assert!(std::fs::read(&whole).unwrap() == cut);
    assert!(!path.join("none").exists() && !path.join("x").exists());
}

#[test]
fn copying_in_and_out_keeps_everything() {
    let dir = folder();
    let path = dir.path();
    let tree = path.join("tree");
    std::fs::create_dir_all(tree.join("a/b/c")).unwrap();
    std::fs::write(tree.join("a/file"), "content\n").unwrap();
    std::fs::write(tree.join("empty"), "").unwrap();
    let large: Vec<u8> = (0..1_500_000u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(tree.join("a/b/large"), &large).unwrap();
    std::fs::hard_link(tree.join("a/file"), tree.join("a/b/second name")).unwrap();
    std::os::unix::fs::symlink("../file", tree.join("a/b/link")).unwrap();
    std::os::unix::fs::symlink("/nowhere", tree.join("dangling")).unwrap();
    let odd = OsString::from_vec(b"odd\xffname\n".to_vec());
    std::fs::write(tree.join(&odd), "odd").unwrap();
    let sparse = std::fs::File::create(tree.join("sparse")).unwrap();
    sparse.write_all_at(b"middle", 5 << 20).unwrap();
    sparse.set_len(100 << 20).unwrap();
    rustix::fs::mknodat(
        CWD,
        tree.join("fifo"),
        rustix::fs::FileType::Fifo,
        Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    std::fs::set_permissions(tree.join("empty"), PermissionsExt::from_mode(0o4711)).unwrap();
    std::fs::set_permissions(tree.join("a/b/c"), PermissionsExt::from_mode(0o500)).unwrap();
    ok(Command::new("touch")
        .args(["-h", "-d", "2001-02-03 04:05:06.789"])
        .arg(tree.join("a/b/link")));
    ok(Command::new("touch").args(["-d", "1969-12-31 23:59:58.5 UTC"]).arg(tree.join("empty")));
    ok(Command::new("touch").args(["-d", "2001-02-03 04:05:06"]).arg(tree.join("a")));
    let attributes = rustix::fs::setxattr(
        tree.join("a/file"),
        "user.note",
        b"kept",
        rustix::fs::XattrFlags::empty(),
    );

    volume(path, "one.vol", "64M");
    volume(path, "two.vol", "64M");
    run(path, &["cp", "-r", "tree", "one.vol:/"]);
    fsck(&path.join("one.vol"));
    run(path, &["cp", "-r", "one.vol:/tree", "two.vol:/copy"]);
    run(path, &["cp", "-r", "two.vol:/copy", "back"]);
    fsck(&path.join("two.vol"));
    let list = |dir: &str| {
        let format = "%P %y %m %n %s %T@ %l %U:%G\\n";
        let mut find = Command::new("find");
        find.current_dir(path.join(dir)).args([".", "-type", "d", "-printf"]);
        find.arg("%P %m %T@ %U:%G\\n").args(["-o", "-printf", format]);
        let text = ok(&mut find);
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(list("back"), list("tree"));
    ok(Command::new("diff").current_dir(path).args([
        "-r",
        "--no-dereference",
        "tree",
        "back",
        "--exclude=fifo",
    ]));
    let back = path.join("back");
    assert!(std::fs::read(back.join("a/b/large")).unwrap() == large);
    assert_eq!(std::fs::read(back.join(&odd)).unwrap(), b"odd");
    assert!(std::fs::metadata(back.join("sparse")).unwrap().blocks() < 100);
    assert_eq!(
        std::fs::metadata(back.join("a/file")).unwrap().ino(),
        std::fs::metadata(back.join("a/b/second name")).unwrap().ino()
    );
    if attributes.is_ok() {
        let mut value = [0; 10];
        let len = rustix::fs::getxattr(back.join("a/file"), "user.note", &mut value).unwrap();
        assert_eq!(&value[..len], b"kept");
    }

    // Over what is there; into a directory or as a name; several at once.
    std::fs::write(path.join("new"), "newer").unwrap();
    run(path, &["cp", "new", "one.vol:/tree/a/file"]);
    assert_eq!(run(path, &["cat", "one.vol:/tree/a/file"]), "newer");
    assert_eq!(run(path, &["cat", "one.vol:/tree/a/b/second name"]), "content\n");
    run(path, &["cp", "new", "tree/a/file", "one.vol:/tree/a/b/"]);
    assert_eq!(
        run(path, &["cat", "one.vol:/tree/a/b/new", "one.vol:/tree/a/b/file"]),
        "newercontent\n"
    );
    run(path, &["cp", "-r", "tree", "one.vol:/"]);
    assert_eq!(run(path, &["cat", "one.vol:/tree/a/file"]), "content\n");
    run(path, &["cp", "-r", "one.vol:/tree/a", "one.vol:/a2"]);
    assert_eq!(run(path, &["cat", "one.vol:/a2/b/second name"]), "content\n");
    // Commands that make no sense are refused.
    assert!(refuse(path, &["cp", "tree", "one.vol:/"], 1).contains("-r"));
    assert!(
        refuse(path, &["cp", "-r", "one.vol:/tree", "one.vol:/tree/a"], 1).contains("into itself")
    );
    assert!(refuse(path, &["cp", "one.vol:/none", "."], 1).contains("No such file"));
    assert!(
        refuse(path, &["cp", "new", "tree/empty", "one.vol:/missing"], 1).contains("no directory")
    );
    assert!(refuse(path, &["cp", "one.vol:/a2/file", "one.vol:/a2/file"], 1).contains("same file"));
    fsck(&path.join("one.vol"));
    // A volume that fills up: said once, and consistent.
    volume(path, "small.vol", "3M");
    let said = refuse(path, &["cp", "-r", "tree", "small.vol:/"], 1);
    assert!(said.contains("No space left"), "{said}");
    fsck(&path.join("small.vol"));
}

#[test]
fn looking_and_removing() {
    let dir = folder();
    let path = dir.path();
    volume(path, "v.vol", "16M");
    run(path, &["mkdir", "-p", "v.vol:/a/b/c"]);
    assert!(refuse(path, &["mkdir", "v.vol:/x/y"], 1).contains("-p"));
    refuse(path, &["mkdir", "v.vol:/a"], 1);
    std::fs::write(path.join("f"), "12345").unwrap();
    std::fs::set_permissions(path.join("f"), PermissionsExt::from_mode(0o640)).unwrap();
    run(path, &["cp", "f", "v.vol:/a/f"]);
    run(path, &["cp", "f", "v.vol:/a/.hidden"]);
    assert_eq!(run(path, &["ls", "v.vol:/a"]), "b\nf\n");
    assert_eq!(run(path, &["ls", "-a", "v.vol:/a"]), ".hidden\nb\nf\n");
    assert_eq!(run(path, &["ls", "-d", "v.vol:/a"]), "/a\n");
    assert_eq!(run(path, &["ls", "-R", "v.vol"]), "/:\na\n\n/a:\nb\nf\n\n/a/b:\nc\n\n/a/b/c:\n");
    let long = run(path, &["ls", "-l", "v.vol:/a/f"]);
    assert!(
        long.starts_with("-rw-r-----   1 ") && long.contains(" 5 ") && long.ends_with("/a/f\n"),
        "{long}"
    );
    let listed = json(&run(path, &["ls", "--json", "v.vol:/a", "v.vol:/a/b"]));
    let names: Vec<_> =
        listed.as_array().unwrap().iter().map(|l| l["path"].as_str().unwrap()).collect();
    assert_eq!(names, ["/a/b", "/a/f", "/a/b/c"]);
    assert_eq!((&listed[1]["size"], &listed[1]["mode"]), (&5.into(), &"0640".into()));
    assert_eq!(listed[1]["type"], "file");
    assert!(refuse(path, &["ls", "v.vol:/none"], 1).contains("/none"));

    assert!(refuse(path, &["rm", "v.vol:/a"], 1).contains("-r"));
    refuse(path, &["rm", "v.vol:/none"], 1);
    run(path, &["rm", "-f", "v.vol:/none"]);
    run(path, &["rm", "v.vol:/a/f"]);
    assert_eq!(run(path, &["ls", "v.vol:/a"]), "b\n");
    run(path, &["rm", "-r", "v.vol:/a"]);
    assert_eq!(run(path, &["ls", "v.vol"]), "");
    fsck(&path.join("v.vol"));

    // Output into a pipe that closes early is no failure worth words.
    let large = vec![b'x'; 3 << 20];
    std::fs::write(path.join("large"), &large).unwrap();
    run(path, &["cp", "large", "v.vol:/large"]);
    let mut cat = atoll()
        .current_dir(path)
        .args(["cat", "v.vol:/large"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut start = [0; 10];
    cat.stdout.take().unwrap().read_exact(&mut start).unwrap();
    let output = cat.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn growing_and_dumping() {
    let dir = folder();
    let path = dir.path();
    volume(path, "v.vol", "16M");
    std::fs::write(path.join("f"), "some content").unwrap();
    run(path, &["cp", "f", "v.vol:/a name"]);
    let said = refuse(path, &["grow", "--size", "8M", "v.vol"], 1);
    assert!(said.contains("cannot be made smaller"), "{said}");
    assert!(run(path, &["grow", "v.vol"]).contains("as before"));
    let grown = json(&run(path, &["grow", "--json", "--size", "640M", "v.vol"]));
    assert_eq!((&grown["before"], &grown["after"]), (&(16 << 20).into(), &(640 << 20).into()));
    fsck(&path.join("v.vol"));
    let info = json(&run(path, &["info", "--json", "v.vol"]));
    assert_eq!(info["size"], 640 << 20);
    // The journal has grown with it, to a sixteenth.
    assert!(info["free"].as_u64().unwrap() > 595 << 20);
    assert_eq!(run(path, &["cat", "v.vol:/a name"]), "some content");
    // The added space can be used.
    std::fs::write(path.join("large"), vec![7; 100 << 20]).unwrap();
    run(path, &["cp", "large", "v.vol:/large"]);
    fsck(&path.join("v.vol"));
    // A file that was made longer already.
    std::fs::File::options()
        .write(true)
        .open(path.join("v.vol"))
        .unwrap()
        .set_len(700 << 20)
        .unwrap();
    assert!(run(path, &["grow", "v.vol"]).contains("700 MiB"));
    fsck(&path.join("v.vol"));

    let dump = run(path, &["dump", "v.vol"]);
    assert!(dump.contains("a name"), "{dump}");
    let lines = run(path, &["dump", "--json", "--items", "v.vol"]);
    let items: Vec<_> =
        lines.lines().map(json).filter(|element| element["kind"] == "item").collect();
    assert!(items.iter().any(|item| item["item"] == "directory entry"), "{lines}");
    assert!(items.iter().any(|item| item["item"] == "extent" && item["start"].is_u64()), "{lines}");
    assert!(lines.lines().map(json).all(|element| element["kind"] != "map"), "{lines}");
    assert!(refuse(path, &["dump", "f"], 1).contains("not an Atoll volume"));
    assert!(refuse(path, &["grow", "--size", "64M", "f"], 1).contains("not an Atoll volume"));
    assert_eq!(std::fs::read(path.join("f")).unwrap(), b"some content");
}

#[test]
fn fsck_finds_and_repairs() {
    let dir = folder();
    let path = dir.path();
    let vol = volume(path, "v.vol", "16M");
    std::fs::create_dir(path.join("tree")).unwrap();
    for i in 0..300 {
        std::fs::write(path.join(format!("tree/{i}")), format!("content of {i}")).unwrap();
    }
    run(path, &["cp", "-r", "tree", "v.vol:/"]);
    assert!(run(path, &["fsck", "v.vol"]).contains("v.vol is clean"));
    assert_eq!(run(path, &["fsck", "--quiet", "v.vol"]), "");
    let report = json(&run(path, &["fsck", "--json", "v.vol"]));
    assert_eq!((&report["status"], &report["files"]), (&"clean".into(), &300.into()));
    let sound = std::fs::read(&vol).unwrap();
    assert!(run(path, &["fsck", "--repair", "v.vol"]).contains("clean"));
    assert!(std::fs::read(&vol).unwrap() == sound, "a sound volume was written to");

    // A leaf of the tree is overwritten.
    let nodes = run(path, &["dump", "--json", "--nodes", "v.vol"]);
    let leaf = nodes
        .lines()
        .map(json)
        .filter(|element| element["kind"] == "node" && element["level"] == 0)
        .nth(1)
        .expect("a second leaf")["block"]
        .as_u64()
        .unwrap();
    let file = std::fs::File::options().write(true).open(&vol).unwrap();
    file.write_all_at(&[0x55; 4096], leaf * 4096).unwrap();
    let damaged = std::fs::read(&vol).unwrap();
    let found = atoll().current_dir(path).args(["fsck", "v.vol"]).output().unwrap();
    assert_eq!(found.status.code(), Some(4));
    let text = String::from_utf8_lossy(&found.stdout).into_owned();
    assert!(text.contains(&format!("block {leaf}")) && text.contains("--repair"), "{text}");
    let found = atoll().current_dir(path).args(["fsck", "-n", "--json", "v.vol"]).output().unwrap();
    assert_eq!(found.status.code(), Some(4));
    let report = json(&String::from_utf8_lossy(&found.stdout));
    assert_eq!(report["status"], "damaged");
    assert!(report["findings"].as_array().unwrap().iter().any(|f| f["kind"] == "Node"), "{report}");
    assert!(std::fs::read(&vol).unwrap() == damaged, "looking wrote");
    let mended = atoll().current_dir(path).args(["fsck", "-y", "v.vol"]).output().unwrap();
    assert_eq!(mended.status.code(), Some(1), "{}", String::from_utf8_lossy(&mended.stderr));
    fsck(&vol);
    // It can be used again.
    run(path, &["ls", "-R", "v.vol"]);
    run(path, &["cp", "tree/7", "v.vol:/again"]);
    assert_eq!(run(path, &["cat", "v.vol:/again"]), "content of 7");
    fsck(&vol);
    refuse(path, &["fsck"], 16);
    refuse(path, &["fsck", "--nonsense", "v.vol"], 16);
}

#[test]
fn mounting_for_all() {
    if !nix::unistd::geteuid().is_root() {
        common::need("fusermount3", "fuse3");
    }
    let dir = folder();
    let path = dir.path();
    volume(path, "v.vol", "32M");
    std::fs::create_dir(path.join("point")).unwrap();
    run(path, &["mount", "v.vol", "point"]);
    // As soon as the command has returned.
    std::fs::write(path.join("point/file"), "there").unwrap();
    // A file without a name, which gets one.
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let nameless = rustix::fs::open(path.join("point"), flags, Mode::from_raw_mode(0o600)).unwrap();
    rustix::io::write(&nameless, b"named").unwrap();
    let place = format!("/proc/self/fd/{}", nameless.as_raw_fd());
    let named = path.join("point/named");
    rustix::fs::linkat(CWD, place, CWD, &named, AtFlags::SYMLINK_FOLLOW).unwrap();
    drop(nameless);
    assert_eq!(std::fs::read(&named).unwrap(), b"named");
    std::fs::remove_file(&named).unwrap();
    assert!(refuse(path, &["ls", "v.vol"], 1).contains("in use"));
    let said = refuse(path, &["serve", "v.vol", "--socket", "s"], 1);
    assert!(said.contains("in use by process"), "{said}");
    assert!(refuse(path, &["run", "-v", "v.vol:/vol", "true"], 125).contains("in use by process"));
    assert!(refuse(path, &["mount", "v.vol", "point"], 1).contains("in use"));
    let open = std::fs::File::open(path.join("point/file")).unwrap();
    let said = refuse(path, &["umount", "point"], 1);
    let this = format!("({})", std::process::id());
    assert!(said.contains("programs use it: ") && said.contains(&this), "{said}");
    drop(open);
    common::unmount(path, "point");
    // It is closed when that has returned.
    assert_eq!(run(path, &["cat", "v.vol:/file"]), "there");
    assert!(refuse(path, &["umount", "point"], 1).contains("no volume is mounted"));
    assert!(!path.join("point/file").exists());

    // Taken out of sight while in use, it closes with the last file.
    run(path, &["mount", "v.vol", "point"]);
    let mut open = std::fs::File::create(path.join("point/open")).unwrap();
    run(path, &["umount", "--lazy", "point"]);
    assert!(!path.join("point/open").exists());
    open.write_all(b"after").unwrap();
    assert!(refuse(path, &["ls", "v.vol"], 1).contains("in use"));
    drop(open);
    wait_until("the volume is closed", || {
        atoll().current_dir(path).args(["ls", "v.vol"]).output().unwrap().status.success()
    });
    assert_eq!(run(path, &["cat", "v.vol:/open"]), "after");

    // For looking only.
    run(path, &["mount", "--read-only", "v.vol", "point"]);
    assert_eq!(std::fs::read(path.join("point/file")).unwrap(), b"there");
    let error = std::fs::write(path.join("point/file"), "x").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
    assert_eq!(run(path, &["ls", "v.vol"]), "file\nopen\n");
    common::unmount(path, "point");

    // A process elsewhere that has it still is waited for, named, and not for ever.
    if nix::unistd::geteuid().is_root() {
        run(path, &["mount", "v.vol", "point"]);
        let mut elsewhere = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", "echo in; read end"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        elsewhere.stdout.as_mut().unwrap().read_exact(&mut [0; 3]).unwrap();
        let said = refuse(path, &["umount", "point"], 1);
        let who = format!("sh ({}) still has", elsewhere.id());
        assert!(said.contains("waiting until") && said.contains(&who), "{said}");
        drop(elsewhere.stdin.take());
        elsewhere.wait().unwrap();
        wait_until("the volume is closed", || {
            atoll().current_dir(path).args(["ls", "v.vol"]).output().unwrap().status.success()
        });
    }

    // In the foreground, a signal unmounts and closes it.
    let mut served = atoll()
        .current_dir(path)
        .args(["mount", "--foreground", "v.vol", "point"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("it is mounted", || path.join("point/file").exists());
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(served.id() as i32),
        nix::sys::signal::Signal::SIGTERM,
    )
    .unwrap();
    assert!(served.wait().unwrap().success());
    assert!(!path.join("point/file").exists());
    fsck(&path.join("v.vol"));
    let said = refuse(path, &["mount", "v.vol", "nowhere"], 1);
    assert!(said.contains("mkdir -p"), "{said}");
    refuse(path, &["mount", "v.vol", "v.vol"], 1);
}

#[test]
fn mounting_by_an_ordinary_user() {
    if !nix::unistd::geteuid().is_root() {
        // The test above is this one then.
        return;
    }
    common::need("fusermount3", "fuse3");
    let dir = folder();
    let path = dir.path();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_atoll"), path.join("atoll")).unwrap();
    let script = "./atoll mkfs --size 16M v.vol; mkdir point; ./atoll mount v.vol point
        echo mine > point/file; (cd point; exec sleep 100) & sleeper=$!
        until [ -e /proc/$sleeper/cwd/file ]; do sleep 0.05; done
        ! ./atoll umount point 2> said; grep -q 'programs use it' said; ./atoll umount --lazy point
        kill $sleeper; wait || true; until ./atoll ls v.vol 2> /dev/null; do sleep 0.05; done
        ./atoll mount v.vol point; cat point/file; ./atoll umount point; ./atoll cat v.vol:/file; ./atoll fsck -q v.vol
        for name in 'a,b' 'a\\b' 'a b' \"$(printf 'a\\377')\"; do
            mv v.vol \"$name\"; ln -s point link; ./atoll mount \"$name\" link; ln point/file point/another
            ./atoll umount link; ./atoll rm \"$name:/another\"; rm link; mv \"$name\" v.vol
        done; ./atoll fsck -q v.vol";
    let printed = ok(&mut common::as_user(path, "666", script));
    assert_eq!(printed, "v.vol: a volume of 16 MiB\nfile\nmine\nmine\n");
}

#[test]
fn completions_and_manual_pages() {
    let dir = folder();
    for (shell, has) in
        [("bash", "_atoll"), ("zsh", "#compdef atoll"), ("fish", "complete -c atoll")]
    {
        assert!(run(dir.path(), &["completions", shell]).contains(has), "{shell}");
    }
    refuse(dir.path(), &["completions", "none"], 2);
    run(dir.path(), &["man", "pages"]);
    let mut pages: Vec<_> = std::fs::read_dir(dir.path().join("pages"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    pages.sort();
    for page in ["atoll.1", "atoll-run.1", "atoll-fsck.1", "atoll-mkfs.1"] {
        assert!(pages.iter().any(|name| name == page), "{pages:?}");
    }
    let run_page = std::fs::read_to_string(dir.path().join("pages/atoll-run.1")).unwrap();
    assert!(run_page.contains(".TH") && run_page.contains("COMMAND"), "{run_page}");
    let help = run(dir.path(), &["--help"]);
    for command in ["run", "mkfs", "fsck", "info", "ls", "cat", "cp", "rm", "mount", "umount"] {
        assert!(help.contains(&format!("\n  {command} ")), "{help}");
    }
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let dir = folder();
    for arguments in
        [&["--help"][..], &["--version"], &["mkfs", "--help"], &["completions", "bash"]]
    {
        let mut command = atoll();
        command
            .args(arguments)
            .stdout(std::fs::File::options().write(true).open("/dev/full").unwrap());
        let output = command.current_dir(dir.path()).stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.contains("No space left"), "{arguments:?}: {said}");
    }
}
