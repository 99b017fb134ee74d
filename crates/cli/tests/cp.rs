//! `atoll cp` loses nothing: neither what is copied, nor what a copy would replace.
#![allow(missing_docs)]

mod common;

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use common::{atoll, fails, folder, fsck, need, ok, volume};

fn run(dir: &Path, args: &[&str]) -> String {
    ok(atoll().current_dir(dir).args(args))
}

fn refuse(dir: &Path, args: &[&str]) -> String {
    fails(atoll().current_dir(dir).args(args), 1)
}

/// The files below `dir` that are no volumes, with what is in them.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut ahead = vec![dir.to_owned()];
    while let Some(at) = ahead.pop() {
        for entry in at.read_dir().unwrap().flatten() {
            let kind = entry.file_type().unwrap();
            let name = entry.path().strip_prefix(dir).unwrap().display().to_string();
            if kind.is_dir() {
                ahead.push(entry.path());
            } else if !name.ends_with(".vol") {
                let link =
                    std::fs::read_link(entry.path()).map(|link| link.into_os_string().into_vec());
                found.insert(name, link.or_else(|_| std::fs::read(entry.path())).unwrap());
            }
        }
    }
    found
}

/// However a file is named twice, on the host and in a volume.
#[test]
fn nothing_is_copied_onto_itself() {
    let dir = folder();
    let path = dir.path();
    std::fs::create_dir_all(path.join("d/sub")).unwrap();
    std::fs::write(path.join("f"), "precious").unwrap();
    std::fs::write(path.join("d/1"), "1").unwrap();
    std::fs::write(path.join("d/sub/2"), "2").unwrap();
    std::fs::hard_link(path.join("f"), path.join("hard")).unwrap();
    symlink("f", path.join("link")).unwrap();
    symlink(".", path.join("here")).unwrap();
    volume(path, "v.vol", "16M");
    run(path, &["cp", "-r", "f", "hard", "d", "v.vol:/"]);
    let script = "cd /vol; rm hard; ln f hard; ln -s f link; ln -s . here";
    run(path, &["run", "-q", "-v", "v.vol:/vol", "--", "sh", "-c", script]);
    let before = files(path);
    let inside = || {
        let mut listed = run(path, &["ls", "-R", "v.vol"]);
        for name in ["f", "hard", "d/1", "d/sub/2"] {
            listed += &run(path, &["cat", &format!("v.vol:/{name}")]);
        }
        listed
    };
    let before_inside = inside();
    let absolute = path.join("f");
    for (source, target) in [
        ("f", "."),
        ("./f", "f"),
        ("f", "d/../f"),
        ("f", "here/f"),
        ("here/here/f", "."),
        (absolute.to_str().unwrap(), "f"),
        ("f", "hard"),
        ("link", "f"),
        ("f", "link"),
        ("d", "."),
        ("here/d", "."),
        ("d", "here"),
    ] {
        let said = refuse(path, &["cp", "-r", source, target]);
        assert!(said.contains("same file"), "{source} to {target}: {said}");
        if source.starts_with('/') {
            continue;
        }
        let (source, target) = (format!("v.vol:/{source}"), format!("v.vol:/{target}"));
        let said = refuse(path, &["cp", "-r", &source, &target]);
        assert!(said.contains("same file"), "{source} to {target}: {said}");
    }
    for (source, target) in [("d", "d"), ("d", "d/sub"), ("d", "d/new"), ("here/d", "d/sub/x")] {
        let said = refuse(path, &["cp", "-r", source, target]);
        assert!(said.contains("into itself"), "{source} to {target}: {said}");
        let (source, target) = (format!("v.vol:/{source}"), format!("v.vol:/{target}"));
        let said = refuse(path, &["cp", "-r", &source, &target]);
        assert!(said.contains("into itself"), "{source} to {target}: {said}");
    }
    assert_eq!(files(path), before);
    assert_eq!(inside(), before_inside);
    // The file that is copied first does not hide that another is itself.
    let said = refuse(path, &["cp", "f", "none", "d/1", "v.vol:/f", "d"]);
    assert!(said.contains("none") && said.contains("d/1 and d/1 are the same"), "{said}");
    assert_eq!(std::fs::read(path.join("d/f")).unwrap(), b"precious");
    fsck(&path.join("v.vol"));
}

/// A copy that fails leaves what it would have replaced, and no half of itself.
#[test]
fn what_is_there_stays_until_its_copy_is_whole() {
    let dir = folder();
    let path = dir.path();
    volume(path, "v.vol", "3M");
    std::fs::write(path.join("kept"), "old").unwrap();
    std::fs::write(path.join("large"), vec![b'x'; 8 << 20]).unwrap();
    run(path, &["cp", "kept", "v.vol:/kept"]);
    let said = refuse(path, &["cp", "large", "v.vol:/kept"]);
    assert!(said.contains("large to v.vol:/kept: No space left"), "{said}");
    refuse(path, &["cp", "large", "v.vol:/new"]);
    // A source that is gone, and one that cannot be read: a directory's bytes, for the superuser.
    refuse(path, &["cp", "v.vol:/none", "kept"]);
    let memory = format!("/proc/{}/mem", std::process::id());
    let said = refuse(path, &["cp", &memory, "kept"]);
    assert!(said.contains("/mem to kept"), "{said}");
    refuse(path, &["cp", &memory, "v.vol:/kept"]);
    assert_eq!(std::fs::read(path.join("kept")).unwrap(), b"old");
    assert_eq!(run(path, &["cat", "v.vol:/kept"]), "old");
    assert_eq!(run(path, &["ls", "-a", "v.vol"]), "kept\n");
    assert_eq!(files(path).len(), 2);
    fsck(&path.join("v.vol"));
}

/// Files are copied as far as they can be read, whatever length they say they have.
#[test]
fn lengths_that_are_not_true() {
    let dir = folder();
    let path = dir.path();
    volume(path, "v.vol", "16M");
    for source in
        ["/proc/version", "/proc/filesystems", "/sys/kernel/mm/transparent_hugepage/enabled"]
    {
        let Ok(content) = std::fs::read(source) else { continue };
        assert!(!content.is_empty());
        for target in ["v.vol:/copy", "copy"] {
            run(path, &["cp", source, target]);
        }
        assert_eq!(run(path, &["cat", "v.vol:/copy"]).into_bytes(), content, "{source}");
        assert_eq!(std::fs::read(path.join("copy")).unwrap(), content, "{source}");
    }
    // Holes are kept all the same: between data, at the end, and nothing else.
    for (name, data, len) in [("mid", 3u64 << 20, 9u64 << 20), ("end", 0, 9 << 20)] {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::create(path.join(name)).unwrap();
        file.write_all_at(b"data", data).unwrap();
        file.set_len(len).unwrap();
        run(path, &["cp", name, "v.vol:/sparse"]);
        run(path, &["cp", "v.vol:/sparse", "back"]);
        assert_eq!(
            std::fs::read(path.join("back")).unwrap(),
            std::fs::read(path.join(name)).unwrap()
        );
        assert!(std::fs::metadata(path.join("back")).unwrap().blocks() < 100);
    }
    fsck(&path.join("v.vol"));
}

/// A volume is replaced by no copy that does not say so, in use not at all, and emptied by nobody
/// who does not name what is in it.
#[test]
fn volumes_are_not_taken_for_files() {
    let dir = folder();
    let path = dir.path();
    std::fs::write(path.join("note"), "note").unwrap();
    let vol = volume(path, "v.vol", "16M");
    symlink("v.vol", path.join("l.vol")).unwrap();
    std::fs::create_dir(path.join("tree")).unwrap();
    std::fs::write(path.join("tree/v.vol"), "note").unwrap();
    run(path, &["cp", "note", "v.vol:/precious"]);
    for args in [
        &["cp", "note", "v.vol"][..],
        &["cp", "note", "./v.vol"],
        &["cp", "note", "l.vol"],
        &["cp", "v.vol:/precious", "v.vol"],
        &["cp", "tree/v.vol", "."],
    ] {
        let said = refuse(path, args);
        assert!(said.contains("is an Atoll volume"), "{args:?}: {said}");
    }
    // Also where more than its mark is lost, or another version made it.
    let damaged = path.join("damaged.vol");
    std::fs::copy(&vol, &damaged).unwrap();
    std::os::unix::fs::FileExt::write_all_at(
        &std::fs::File::options().write(true).open(&damaged).unwrap(),
        &[0x55; 100],
        100,
    )
    .unwrap();
    assert!(refuse(path, &["cp", "note", "damaged.vol"]).contains("is an Atoll volume"));
    for args in [&["rm", "v.vol"][..], &["rm", "-r", "v.vol"], &["rm", "-rf", "./v.vol"]] {
        let said = refuse(path, args);
        assert!(said.contains(":/"), "{args:?}: {said}");
    }
    assert_eq!(run(path, &["cat", "v.vol:/precious"]), "note");
    fsck(&vol);
    // With its colon it is the volume.
    run(path, &["cp", "note", "v.vol:"]);
    assert_eq!(run(path, &["cat", "v.vol:/note"]), "note");
    assert!(!path.join("v.vol:").exists());
    // In use, not even when told to.
    let held = std::fs::File::open(&vol).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockShared).unwrap();
    let said = refuse(path, &["cp", "--force", "note", "v.vol"]);
    assert!(said.contains("in use"), "{said}");
    drop(held);
    assert!(refuse(path, &["cp", "--force", "v.vol:/note", "v.vol"]).contains("in use"));
    fsck(&vol);
    run(path, &["cp", "--force", "note", "v.vol"]);
    assert_eq!(std::fs::read(&vol).unwrap(), b"note");
}

/// The file that the last place leads to is written over; links and devices stay what they are.
#[test]
fn links_and_devices_that_are_named() {
    let dir = folder();
    let path = dir.path();
    std::fs::write(path.join("f"), "new").unwrap();
    std::fs::write(path.join("aim"), "older and longer").unwrap();
    symlink("aim", path.join("link")).unwrap();
    symlink("/dev/null", path.join("null")).unwrap();
    symlink("nowhere", path.join("dangling")).unwrap();
    run(path, &["cp", "f", "link"]);
    assert!(path.join("link").is_symlink());
    assert_eq!(std::fs::read(path.join("aim")).unwrap(), b"new");
    run(path, &["cp", "f", "null"]);
    assert!(path.join("null").is_symlink());
    // Standard output is a pipe here.
    symlink("/dev/stdout", path.join("out")).unwrap();
    assert_eq!(run(path, &["cp", "f", "out"]), "new");
    ok(Command::new("mkfifo").arg(path.join("pipe")));
    let pipe = path.join("pipe");
    let reader = std::thread::spawn(move || std::fs::read(pipe).unwrap());
    run(path, &["cp", "f", "pipe"]);
    assert!(std::fs::metadata(path.join("pipe")).unwrap().file_type().is_fifo());
    assert_eq!(reader.join().unwrap(), b"new");
    let said = refuse(path, &["cp", "f", "dangling"]);
    assert!(said.contains("leads nowhere"), "{said}");
    assert!(path.join("dangling").is_symlink() && !path.join("nowhere").exists());
    // Below a directory that is named they are replaced like files.
    std::fs::create_dir(path.join("d")).unwrap();
    symlink("../aim", path.join("d/f")).unwrap();
    std::fs::write(path.join("f"), "newest").unwrap();
    run(path, &["cp", "f", "d"]);
    assert!(!path.join("d/f").is_symlink());
    assert_eq!(std::fs::read(path.join("aim")).unwrap(), b"new");
}

/// A copy that cannot take the name of what is there does not stay beside it, nor are the other
/// names of its original made names of what is there.
#[test]
fn a_copy_that_gets_no_name_leaves_nothing() {
    let dir = folder();
    let path = dir.path();
    std::fs::create_dir_all(path.join("from/d")).unwrap();
    std::fs::create_dir_all(path.join("to/d")).unwrap();
    std::fs::write(path.join("from/d/first"), "new").unwrap();
    std::fs::hard_link(path.join("from/d/first"), path.join("from/d/second")).unwrap();
    for name in ["first", "second"] {
        std::fs::write(path.join("to/d").join(name), "old").unwrap();
    }
    need("unshare", "util-linux");
    let mut command = Command::new("unshare");
    command.current_dir(path).args(["--user", "--map-root-user", "--mount", "sh", "-ec"]);
    // A file with a mount on it keeps its name.
    command.arg("mount --bind to/d/first to/d/first; exec \"$0\" cp -r from/d to");
    let said = fails(command.arg(env!("CARGO_BIN_EXE_atoll")), 1);
    assert!(said.contains("d/first: ") && said.contains("busy"), "{said}");
    assert!(!said.contains("second"), "{said}");
    let expected = [("first", "old"), ("second", "new")];
    let expected = expected.map(|(name, content)| (name.to_owned(), content.as_bytes().to_vec()));
    assert_eq!(files(&path.join("to/d")), BTreeMap::from(expected));
}

/// Nobody's volume is a file that the user may not read: it is replaced like any other.
#[test]
fn a_file_that_cannot_be_read_is_replaced() {
    let dir = folder();
    let path = dir.path();
    std::fs::write(path.join("f"), "new").unwrap();
    std::fs::write(path.join("secret"), "old").unwrap();
    std::fs::set_permissions(path.join("secret"), PermissionsExt::from_mode(0o200)).unwrap();
    let script = "exec \"$0\" cp f secret";
    let mut command = if rustix::process::geteuid().is_root() {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
        need("setpriv", "util-linux");
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", script]);
        command
    } else {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    };
    // Where the binary lies may be no place of that user's.
    let atoll = path.join("atoll");
    std::fs::copy(env!("CARGO_BIN_EXE_atoll"), &atoll).unwrap();
    ok(command.current_dir(path).arg("./atoll"));
    assert_eq!(std::fs::read(path.join("secret")).unwrap(), b"new");
}

/// Names are others' choice: in what is said of them nothing steers a terminal or begins a line.
#[test]
fn names_in_messages_are_plain() {
    let dir = folder();
    let path = dir.path();
    volume(path, "v.vol", "16M");
    let name = "a\x1b[2J\nb\u{9b}c";
    std::fs::create_dir(path.join("d")).unwrap();
    std::fs::write(path.join("d").join(name), "").unwrap();
    let inside = format!("v.vol:/{name}");
    for args in [
        &["ls", &inside][..],
        &["cat", &inside],
        &["rm", &inside],
        &["mkdir", &format!("{inside}/x")],
        &["cp", &inside, "x"],
        &["cp", &format!("d/{name}"), "v.vol:/none/"],
        &["cp", &format!("d/{name}"), &format!("v.vol:/none/{name}")],
        &["info", name],
    ] {
        let said = refuse(path, args);
        let (line, end) = said.split_at(said.len() - 1);
        assert!(end == "\n" && !line.contains(char::is_control), "{args:?}: {line:?}");
        let names = args.iter().any(|arg| *arg == inside || *arg == name);
        let plain = "a\\x1b[2J\\x0ab\\xc2\\x9bc";
        assert!(!names || line.contains(plain), "{args:?}: {line:?}");
    }
}
