//! Every call that takes a path, on every kind of path, answers as Linux does and leaves the same
//! tree behind.

mod common;

use common::{Answer, Calls, Host, Layer};

/// The tree that every case finds.
fn plant(calls: &mut dyn Calls) {
    let fd = calls.open(b"f", 0o102, 0o644).expect("a new file");
    calls.write(fd, b"content").expect("room");
    calls.close(fd).expect("it is open");
    let fd = calls.open(b"x", 0o102, 0o755).expect("a new file");
    calls.close(fd).expect("it is open");
    calls.mkdir(b"d", 0o755).expect("a new directory");
    calls.mkdir(b"d/sub", 0o755).expect("a new directory");
    calls.mkdir(b"empty", 0o755).expect("a new directory");
    let fd = calls.open(b"d/inner", 0o102, 0o600).expect("a new file");
    calls.close(fd).expect("it is open");
    calls.link(b"f", b"hard", 0).expect("a new link");
    calls.mknod(b"fifo", 0o010644).expect("a new pipe");
    for (target, path) in [
        (&b"f"[..], &b"lf"[..]),
        (b"d", b"ld"),
        (b"d/", b"lds"),
        (b"f/", b"lfs"),
        (b"nowhere", b"dangling"),
        (b"empty/new", b"lnew"),
        (b"loop", b"loop"),
        (b"lf", b"llf"),
        (b"../w/d/../lf", b"lround"),
        (b".", b"ldot"),
    ] {
        calls.symlink(target, path).expect("a new link");
    }
}

const PATHS: &[&str] = &[
    "",
    ".",
    "./",
    "..",
    "../w",
    "f",
    "f/",
    "f/.",
    "f/..",
    "f/x",
    "d",
    "d/",
    "d//",
    "d/.",
    "d/..",
    "d/./inner",
    "d//inner",
    "d/sub",
    "d/sub/",
    "d/sub/..",
    "d/sub/../inner",
    "d/none",
    "d/none/",
    "empty",
    "empty/",
    "empty/new",
    "hard",
    "fifo",
    "fifo/",
    "lf",
    "lf/",
    "ld",
    "ld/",
    "ld/.",
    "ld/..",
    "ld/inner",
    "lds",
    "lfs",
    "dangling",
    "dangling/",
    "dangling/x",
    "lnew",
    "loop",
    "loop/",
    "loop/x",
    "llf",
    "lround",
    "ldot",
    "ldot/f",
    "none",
    "none/",
    "none/x",
    "x",
];

fn paths() -> Vec<Vec<u8>> {
    let mut paths: Vec<Vec<u8>> = PATHS.iter().map(|p| p.as_bytes().to_vec()).collect();
    paths.push(vec![b'n'; 255]);
    paths.push(vec![b'n'; 256]);
    paths.push([&vec![b'n'; 256][..], b"/x"].concat());
    paths.push([&b"./".repeat(2047)[..], b"f"].concat());
    paths.push([&b"./".repeat(2047)[..], b"ff"].concat());
    paths
}

type Case = (String, Box<dyn Fn(&mut dyn Calls) -> Answer>);

fn unary(path: &[u8]) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    let shown = String::from_utf8_lossy(path).chars().take(40).collect::<String>();
    let mut add = |name: String, case: fn(&mut dyn Calls, &[u8]) -> Answer| {
        let path = path.to_vec();
        let run = Box::new(move |calls: &mut dyn Calls| case(calls, &path));
        cases.push((format!("{name} {shown:?}"), run));
    };
    add("stat".into(), |c, p| c.stat(p, true));
    add("lstat".into(), |c, p| c.stat(p, false));
    add("access F".into(), |c, p| c.access(p, 0));
    add("mkdir".into(), |c, p| c.mkdir(p, 0o7777));
    add("mknod file".into(), |c, p| c.mknod(p, 0o100666));
    add("mknod pipe".into(), |c, p| c.mknod(p, 0o010666));
    add("mknod directory".into(), |c, p| c.mknod(p, 0o040755));
    add("mknod nothing".into(), |c, p| c.mknod(p, 0o030755));
    add("symlink".into(), |c, p| c.symlink(b"t", p));
    add("symlink to nothing".into(), |c, p| c.symlink(b"", p));
    add("readlink".into(), |c, p| c.readlink(p, &mut [0; 64]));
    add("readlink short".into(), |c, p| c.readlink(p, &mut [0; 3]));
    add("unlink".into(), |c, p| c.unlink(p));
    add("rmdir".into(), |c, p| c.rmdir(p));
    add("chmod".into(), |c, p| c.chmod(p, 0o751));
    add("utimens".into(), |c, p| c.utimens(p, true));
    add("lutimens".into(), |c, p| c.utimens(p, false));
    if path.len() < 4000 {
        // Longer paths do not fit behind what the host's side puts before them.
        add("truncate".into(), |c, p| c.truncate(p, 3));
        add("truncate negative".into(), |c, p| c.truncate(p, -1));
    }
    add("chdir".into(), |c, p| c.chdir_and_back(p));
    // SAFETY: the call takes nothing and cannot fail.
    if unsafe { libc::geteuid() } == 0 {
        add("access X".into(), |c, p| c.access(p, 1));
        add("access RW".into(), |c, p| c.access(p, 6));
        add("chown".into(), |c, p| c.chown(p, 3, 4, true));
        add("lchown".into(), |c, p| c.chown(p, 3, 4, false));
        add("chown set-id".into(), |c, p| {
            c.chmod(p, 0o6755)?;
            c.chown(p, 3, 4, true)
        });
    }
    for flags in open_flags() {
        let path = path.to_vec();
        let name = format!("open {flags:#o} {shown:?}");
        cases.push((name, Box::new(move |calls| open_use_close(calls, &path, flags))));
    }
    cases
}

/// Access modes with each interesting set of other flags, in the numbers of the generic ABI.
fn open_flags() -> Vec<u32> {
    let sets = [
        0o0, 0o100, 0o300, 0o1000, 0o1100, 0o2000, 0o2100, 0o200000, 0o400000, 0o600000, 0o400100,
        0o400300, 0o200100, 0o200300, 0o20200000, 0o20000000, 0o10000000, 0o10400000, 0o10200000,
        0o10600000, 0o10000100, 0o200,
    ];
    // Opening a pipe would wait for its other end; O_NONBLOCK does not.
    sets.iter().flat_map(|set| [0, 1, 2].map(|access| access | set | 0o4000)).collect()
}

/// The rights of the descriptor are compared, and not only that it is given.
fn open_use_close(calls: &mut dyn Calls, path: &[u8], flags: u32) -> Answer {
    let fd = calls.open(path, flags, 0o6777)?;
    let code = |answer: Answer| answer.unwrap_or_else(|error| -i64::from(error));
    let mut seen = 0i64;
    let mut mix = |answer: Answer| seen = (seen * 131 + code(answer)) & 0xffff_ffff;
    mix(calls.read(fd, &mut [0; 4]));
    mix(calls.write(fd, b"0123456789"));
    mix(calls.lseek(fd, 0, libc::SEEK_CUR).map(|at| if at > 100 { 100 } else { at }));
    mix(calls.pwrite(fd, b"", 0));
    mix(calls.ftruncate(fd, 5));
    mix(calls.fsync(fd));
    mix(calls.fchmod(fd, 0o640));
    mix(calls.getdents(fd, &mut [0; 4096]));
    mix(calls.fallocate(fd, 0, 0, 8));
    calls.close(fd)?;
    Ok(seen)
}

fn binary(old: &[u8], new: &[u8]) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    let show = |p: &[u8]| String::from_utf8_lossy(p).chars().take(40).collect::<String>();
    let shown = format!("{:?} {:?}", show(old), show(new));
    for flags in [0, 1, 2, 3] {
        let (old, new) = (old.to_vec(), new.to_vec());
        let run = Box::new(move |calls: &mut dyn Calls| calls.rename(&old, &new, flags));
        cases.push((format!("rename {flags} {shown}"), run));
    }
    for flags in [0, 0x400, 0x100] {
        let (old, new) = (old.to_vec(), new.to_vec());
        let run = Box::new(move |calls: &mut dyn Calls| calls.link(&old, &new, flags));
        cases.push((format!("link {flags:#x} {shown}"), run));
    }
    cases
}

/// The tree after the call: every path that a case may have made or changed.
fn tree(calls: &mut dyn Calls) -> Vec<(String, Answer)> {
    let paths = paths().into_iter().filter(|p| p.len() < 100);
    paths
        .flat_map(|p| {
            let name = String::from_utf8_lossy(&p).into_owned();
            [(name.clone(), calls.stat(&p, true)), (name, calls.stat(&p, false))]
        })
        .collect()
}

/// Where answers differ on purpose, or POSIX allows several.
fn is_choice(name: &str, linux: Answer, here: Answer) -> bool {
    // The other end of a pipe would be another process, which the volume does not have.
    let opens_pipe = name.starts_with("open") && name.contains("\"fifo\"");
    // A file takes the place of a directory that it lies in.
    let file_over_ancestor =
        name.starts_with("rename 0") && linux == Err(libc::ENOTEMPTY) && here == Err(libc::EISDIR);
    opens_pipe && here == Err(libc::ENXIO) || file_over_ancestor
}

fn compare(cases: Vec<Case>) {
    let mut host = Host::new();
    let mut differences = Vec::new();
    let count = cases.len();
    for (i, (name, case)) in cases.into_iter().enumerate() {
        host.reset(&i.to_string());
        let mut layer = Layer::new();
        plant(&mut host);
        plant(&mut layer);
        let (expected, got) = (case(&mut host), case(&mut layer));
        if expected != got && !is_choice(&name, expected, got) {
            differences.push(format!("{name}: Linux {expected:?}, here {got:?}"));
            continue;
        }
        if expected != got {
            continue;
        }
        for (theirs, ours) in tree(&mut host).into_iter().zip(tree(&mut layer)) {
            if theirs != ours {
                differences.push(format!("{name}, then stat: Linux {theirs:?}, here {ours:?}"));
            }
        }
    }
    let shown = differences.iter().take(60).cloned().collect::<Vec<_>>().join("\n");
    assert!(differences.is_empty(), "{} of {count} differ:\n{shown}", differences.len());
}

#[test]
fn calls_with_one_path() {
    compare(paths().iter().flat_map(|path| unary(path)).collect());
}

#[test]
fn calls_with_two_paths() {
    let some: Vec<Vec<u8>> = paths();
    let pairs = some.iter().flat_map(|old| some.iter().map(move |new| (old, new)));
    // Every third pair keeps the test short; the step is prime to the number of paths.
    let chosen = pairs.enumerate().filter(|(i, _)| i % 3 == 0).map(|(_, pair)| pair);
    compare(chosen.flat_map(|(old, new)| binary(old, new)).collect());
}
