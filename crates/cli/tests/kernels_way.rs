//! What programs rely on and only a kernel has right, in every way in which one comes to files.
#![allow(missing_docs)]

mod common;

use std::path::Path;
use std::process::{Command, Stdio};

use common::serving::Served;
use common::{atoll, need, ok, ways};
use nix::unistd::geteuid;

/// A kind of program, run in a directory of its own of the file system: its name, whether it is
/// the superuser's alone, and what it is. Each ends with 0 if all is right, and with 77 where it
/// cannot be tested.
type Kind = (&'static str, bool, Program);

enum Program {
    /// A part of tests/c/kernels_way.c.
    C,
    Shell(&'static str),
    Python(&'static str),
}
use Program::{C, Python, Shell};

const KINDS: &[Kind] = &[
    ("position", false, C),
    ("memory", false, C),
    ("cancel", false, C),
    ("limit", false, C),
    ("cut", false, C),
    ("position in fdinfo", false, Python(FDINFO)),
    ("no sockets", false, Python(NO_SOCKETS)),
    ("watched", false, Python(WATCHED)),
    ("mapped in turn", false, Python(MAPPED_IN_TURN)),
    ("mapped by others", true, Python(MAPPED_BY_OTHERS)),
    ("removed directory", false, Python(REMOVED)),
    ("removed file", false, Python(REMOVED_FILE)),
    ("places of listings", false, Python(PLACES)),
    ("names of attributes", false, Python(ATTRIBUTES)),
    ("chroot", true, Shell(CHROOT)),
    ("overlay", true, Shell(OVERLAY)),
    ("devices", true, Shell(DEVICES)),
];

/// How far a descriptor has come is told to others.
const FDINFO: &str = "
import os, re
fd = os.open('big', os.O_RDWR | os.O_CREAT)
for n in range(100): os.write(fd, b'x' * 1000)
assert re.search(r'pos:\\s*(\\d+)', open('/proc/self/fdinfo/%d' % fd).read())[1] == '100000'
";

/// A filter that kills who makes a socket lets through who reads and writes files.
const NO_SOCKETS: &str = "
import ctypes, os, struct, sys
rows = [(0x20, 0, 0, 0), (0x15, 1, 0, 41), (0x15, 0, 1, 42), (6, 0, 0, 0x80000000), (6, 0, 0, 0x7fff0000)]
code = ctypes.create_string_buffer(b''.join(struct.pack('<HBBI', *row) for row in rows))
filter = ctypes.create_string_buffer(struct.pack('<HxxxxxxQ', len(rows), ctypes.addressof(code)))
libc = ctypes.CDLL(None)
libc.prctl(38, 1, 0, 0, 0)
if os.uname().machine != 'x86_64' or libc.prctl(22, 2, filter, 0, 0): sys.exit(77)
os.execvp('sh', ['sh', '-ec', 'for i in 1 2 3 4 5 6 7 8 9; do echo $i > s; test $(cat s) = $i; done'])
";

/// Each write and each read of an open file is seen by who watches it.
const WATCHED: &str = "
import ctypes, os, select, struct
libc = ctypes.CDLL(None)
fd = os.open('log', os.O_RDWR | os.O_CREAT | os.O_APPEND)
watch = libc.inotify_init1(0)
assert libc.inotify_add_watch(watch, b'log', 3) >= 0
def seen(bit):
    assert select.select([watch], [], [], 30)[0], 'nothing was seen'
    data = os.read(watch, 16)
    assert struct.unpack('iIII', data)[1] == bit
for n in range(50): os.write(fd, b'line'); seen(2)
for n in range(50): assert os.pread(fd, 4, n) ; seen(1)
";

/// Of large files that are mapped one after the other there is never more than one.
const MAPPED_IN_TURN: &str = "
import mmap, os
for name in 'abcd':
    fd = os.open(name, os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 700 << 20)
    with mmap.mmap(fd, 700 << 20) as map: map[5:8] = b'abc'
    assert os.pread(fd, 3, 5) == b'abc'
    os.close(fd); os.unlink(name)
";

/// A service gives up rights, or goes into a directory, and maps a file of its own.
const MAPPED_BY_OTHERS: &str = "
import mmap, os, sqlite3
os.chmod('.', 0o777)
os.mkdir('jail'); os.chmod('jail', 0o777)
with open('jail/f', 'wb') as f: f.write(b'x' * 4096)
os.chmod('jail/f', 0o666)
def drop(): os.setgroups([]); os.setgid(1000); os.setuid(1000)
def jail(): os.chroot('jail'); os.chdir('/')
def map(name):
    fd = os.open(name, os.O_RDWR)
    with mmap.mmap(fd, 4096) as m: m[:3] = b'new'
    assert os.pread(fd, 3, 0) == b'new'
def database():
    db = sqlite3.connect('jail/db')
    assert db.execute('pragma journal_mode=wal').fetchone() == ('wal',)
    db.execute('create table t(a)'); db.execute('insert into t values(1)'); db.commit(); db.close()
for acts in [(drop, lambda: map('jail/f'), database), (jail, lambda: map('f'))]:
    if os.fork() == 0:
        try: [act() for act in acts]; os._exit(0)
        finally: os._exit(1)
    assert os.wait()[1] == 0
";

/// A directory that has lost its last name is there for who is in it.
const REMOVED: &str = "
import os, subprocess
top = os.getcwd()
for way in [lambda: os.rmdir('../d'), lambda: os.rename('../e', '../d')]:
    for name in 'de':
        os.chdir(top); os.makedirs(name, exist_ok=True)
    os.chdir('d'); way()
    assert os.stat('.').st_nlink == 0 and os.listdir('.') == []
    assert subprocess.run(['ls', '-la']).returncode == 0
    try: open('new', 'w'); assert False, 'a name was made'
    except FileNotFoundError: pass
    os.chdir(top)
";

/// A file is so for who knows it otherwise than by an open file.
const REMOVED_FILE: &str = "
import os
def known(): return os.stat('/proc/self/fd/%d' % p).st_nlink, open('/proc/self/fd/%d' % p, 'rb').read()
for way in [lambda: os.unlink('f'), lambda: os.rename('g', 'f')]:
    for name in 'fg':
        with open(name, 'wb') as f: f.write(name.encode() * 9)
    p = os.open('f', os.O_PATH); way()
    assert known() == (0, b'f' * 9)
    os.close(p)
";

/// The position after each entry leads to the next one, in any order, whatever is removed
/// meanwhile, before and after the kernel has seen all.
const PLACES: &str = "
import ctypes, os, random, struct
libc = ctypes.CDLL(None)
os.mkdir('many')
for i in range(500): open('many/%040d' % i, 'w').close()
fd, room = os.open('many', os.O_RDONLY), ctypes.create_string_buffer(32768)
def entries(at):
    os.lseek(fd, at, 0)
    found = []
    while (n := libc.syscall(217, fd, room, 32768)) > 0:
        at = 0
        while at < n:
            _, after, length = struct.unpack_from('<QqH', room.raw, at)
            found.append((room.raw[at + 19:at + length].split(b'\\0')[0], after)); at += length
    return found
if os.uname().machine == 'x86_64':
    all = entries(0)
    assert len(all) == len(set(all)) == 502
    random.seed(1)
    for i in random.sample(range(501), 100): assert entries(all[i][1]) == all[i + 1:], i
    gone = set(name for name, _ in all[2::3])
    for name in gone: os.unlink(b'many/' + name)
    for i in random.sample(range(501), 100):
        left = [entry[0] for entry in all[i + 1:] if entry[0] not in gone]
        assert [name for name, _ in entries(all[i][1]) if name not in gone] == left, i
    os.close(fd); fd = os.open('many', os.O_RDONLY)
    assert entries(all[-1][1]) == []
";

/// Namespaces of attributes that are nobody's are refused.
const ATTRIBUTES: &str = "
import errno, os
open('f', 'w').close()
os.setxattr('f', 'user.a', b'1')
assert os.listxattr('f') == ['user.a'] and os.getxattr('f', 'user.a') == b'1'
for name in ['nothing.a', 'a', 'atoll.node', 'system.a', 'user']:
    for act in [lambda: os.setxattr('f', name, b'1'), lambda: os.getxattr('f', name), lambda: os.removexattr('f', name)]:
        try: act(); assert False, name
        except OSError as e: assert e.errno == errno.EOPNOTSUPP, (name, e)
assert os.listxattr('f') == ['user.a']
";

/// Programs in a chroot say nothing that they do not say elsewhere.
const CHROOT: &str = "
mkdir -p cr/bin
cp /bin/cat cr/bin
ldd /bin/cat | grep -o '/[^ ]*' | while read -r lib; do
    mkdir -p \"cr$(dirname $lib)\"; cp -L $lib cr$lib
done
echo hi > cr/a
test \"$(chroot cr /bin/cat /a 2>&1)\" = hi
";

/// overlayfs with all of its directories here: what is removed, replaced and moved is so.
const OVERLAY: &str = "
grep -q overlay /proc/filesystems || modprobe overlay 2> /dev/null || exit 77
mkdir -p l/d l/gone l/opaque/below u w m
for f in f g d/in gone/a opaque/below/b; do echo low > l/$f; done
ln -s f l/link
mount -t overlay ov -o lowerdir=l,upperdir=u,workdir=w m
trap 'umount m' EXIT
echo up >> m/f; rm m/g; rm -r m/gone m/opaque; mkdir m/opaque; echo new > m/opaque/n; mv m/link m/moved
mv m/d/in m/d/out; chmod 700 m/d; touch m/g2; mv m/g2 m/g
ls -R m > /dev/null
test \"$(cat m/f | tr '\\n' ' ')\" = 'low up '
test \"$(cd m; find . | sort | tr '\\n' ' ')\" = '. ./d ./d/out ./f ./g ./moved ./opaque ./opaque/n '
umount m
test -c u/gone; test \"$(stat -c %t,%T u/gone)\" = 0,0; test -c u/link; test -f u/g; test ! -e u/opaque/below
test \"$(find u -type c | sort | tr '\\n' ' ')\" = 'u/d/in u/gone u/link '
mount -t overlay ov -o lowerdir=l,upperdir=u,workdir=w m
test \"$(cd m; find . | sort | tr '\\n' ' ')\" = '. ./d ./d/out ./f ./g ./moved ./opaque ./opaque/n '
rm -r m/*
test -z \"$(ls m)\"
";

/// Device nodes are kept as they are, shown, taken out by tar, and opened by nobody.
const DEVICES: &str = "
mkdir in out
mknod -m 640 in/c c 1 3; mknod in/b b 7 300; mkfifo in/p; mknod in/w c 0 0
chown 12:34 in/c; chmod 4611 in/c; chown 5:6 in/b; touch -d @1000 in/b; mv in/b in/moved
shown() { stat -c '%n %F %a %u:%g %t,%T %s %h' *; find . -type c -o -type b | sort; }
is=\"$(cd in; shown)\"
test \"$is\" = 'c character special file 4611 12:34 1,3 0 1
moved block special file 644 5:6 7,12c 0 1
p fifo 644 0:0 0,0 0 1
w character special file 644 0:0 0,0 0 1
./c
./moved
./w'
tar -C in -cf t.tar .; tar -C out -xf t.tar
test \"$(cd out; shown)\" = \"$is\"
test $(stat -c %Y out/moved) = 1000
ln in/c in/d; test $(stat -c %t,%h in/d) = 1,2
if cat in/c 2> /dev/null || (echo x > in/c) 2> /dev/null; then exit 1; fi
rm -r in; test ! -e in
";

/// Runs the kinds in the directory `at`, in commands that `with` begins; gives the names of what is
/// wrong.
fn wrong(program: &Path, at: &str, with: impl Fn() -> Command) -> Vec<&'static str> {
    let mut wrong = Vec::new();
    for (number, (name, roots, kind)) in KINDS.iter().enumerate() {
        if *roots && !geteuid().is_root() {
            continue;
        }
        let enter = format!("umask 022; mkdir -p {at}/k{number}; cd {at}/k{number}; exec \"$@\"");
        let mut command = with();
        command.args(["timeout", "-s", "KILL", "120", "sh", "-ec", &enter, "sh"]);
        match kind {
            C => command.arg(program).arg(name),
            Shell(text) => command.args(["sh", "-ec", text]),
            Python(text) => command.args(["python3", "-c", text]),
        };
        let output = command.stdin(Stdio::null()).output().unwrap();
        match output.status.code() {
            Some(0) => {}
            Some(77) => println!("{name}: cannot be tested here"),
            _ => {
                let said = [output.stdout, output.stderr].concat();
                println!("{name}: {}: {}", output.status, String::from_utf8_lossy(&said));
                wrong.push(*name);
            }
        }
    }
    wrong
}

#[test]
fn all_kinds_are_right_in_every_way() {
    for (program, package) in [("gcc", "gcc"), ("python3", "python3"), ("tar", "tar")] {
        need(program, package);
    }
    let dir = common::folder();
    for name in ["a.vol", "b.vol", "own.vol"] {
        common::volume(dir.path(), name, "64M");
    }
    std::fs::create_dir(dir.path().join("host")).unwrap();
    let program = ways::compile("kernels_way.c", dir.path(), "kinds", &["-pthread"]);
    let served = Served::again(dir, &["a.vol", "b.vol", "host"]);
    let mut found = Vec::new();
    for volume in ["own.vol", "s/a", "s/host"] {
        let with = || {
            let mut run = atoll();
            run.current_dir(served.path()).args(["run", "-q"]);
            run.args(["-v", &format!("{volume}:/vol"), "--"]);
            run
        };
        found.push((format!("run {volume}"), wrong(&program, "/vol/run", with)));
    }
    if geteuid().is_root() {
        std::fs::create_dir(served.path().join("m")).unwrap();
        for volume in ["own.vol", "s/a", "s/host"] {
            ok(atoll().current_dir(served.path()).args(["mount", volume, "m"]));
            let with = || {
                let mut plain = Command::new("env");
                plain.current_dir(served.path());
                plain
            };
            found.push((format!("mount {volume}"), wrong(&program, "m/mount", with)));
            common::unmount(served.path(), "m");
        }
    }
    found.retain(|(_, wrong)| !wrong.is_empty());
    assert!(found.is_empty(), "{found:#?}");
    common::fsck(&served.path().join("own.vol"));
    served.stop();
}
