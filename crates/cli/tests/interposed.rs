//! The interposer where things are not as usual: Views, servers that die, users without rights, no
//! room.
#![allow(missing_docs)]

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use common::served::Served;
use common::{as_user, atoll, folder, fsck, need, ok, script_ok, volume};
use nix::sys::signal::{Signal, kill};
use rustix::process::{Resource, Rlimit, getrlimit, prlimit};

/// The beginning of the programs of these tests: which memory of the server's the process has, and
/// calls until it must have a View.
const BEGIN: &str = r#"
import errno, os, resource, socket, sys, threading, time
def has(what): return 'memfd:atoll-' + what in open('/proc/self/maps').read()
def page(fd, at=0): return os.pread(fd, 4096, at)
def often(fd, byte, size=8192):
    for i in range(600):
        assert page(fd, i % 2 * 4096) == byte * 4096
        assert os.fstat(fd).st_size == size and os.lseek(fd, 0, os.SEEK_END) == size
def make(path, byte):
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    assert os.write(fd, byte * 8192) == 8192
    return fd
"#;

/// Descriptors of this process, but for those `known`, that belong to connections.
const INHERITED: &str = r#"
def strange(known):
    found = []
    for n in os.listdir('/proc/self/fd'):
        try: what = os.readlink('/proc/self/fd/' + n)
        except FileNotFoundError: continue
        if int(n) not in known and ('socket:' in what or 'atoll-' in what): found.append(n + ' ' + what)
    return found
"#;

/// `text` as a program of its own in the folder, under a limit of time.
fn program(dir: &Path, text: &str) -> [String; 6] {
    need("python3", "python3");
    let path = dir.join("program.py");
    std::fs::write(&path, format!("{BEGIN}{text}")).unwrap();
    let path = path.display().to_string();
    ["timeout", "-s", "KILL", "60", "python3", &path].map(str::to_owned)
}

/// Checks that hold wherever a program finds /vol, which has nothing yet.
const VIEWS: &str = r#"
import subprocess
fd = make('/vol/f', b'a')
# What is asked for once or twice is not worth one.
for i in range(20): page(fd)
assert has('ring') and not has('view')
often(fd, b'a')
assert has('view')
# What others write, by the kernel's way, and what this one writes.
def outside(script): subprocess.run(['sh', '-ec', script], check=True, env={'PATH': os.environ['PATH']})
outside('printf b | dd of=/vol/f conv=notrunc status=none')
assert page(fd)[:2] == b'ba'
os.pwrite(fd, b'c', 1); assert page(fd)[:3] == b'bca'
outside('truncate -s 5 /vol/f'); assert page(fd) == b'bcaaa' and os.fstat(fd).st_size == 5
outside('chmod 640 /vol/f'); assert os.fstat(fd).st_mode & 0o777 == 0o640
os.ftruncate(fd, 8192); os.pwrite(fd, b'd' * 8192, 0); often(fd, b'd')
# One descriptor may not read what another may.
writing = os.open('/vol/f', os.O_WRONLY)
for i in range(20):
    try: page(writing); sys.exit('it was read')
    except OSError as error: assert error.errno == errno.EBADF
    assert os.fstat(writing).st_size == 8192
# Another file by the same number.
for byte in [b'e', b'f', b'g']:
    os.close(fd); fd = make('/vol/' + byte.decode(), byte); often(fd, byte)
# An unlinked one stays until it is closed.
os.unlink('/vol/g'); often(fd, b'g'); assert os.fstat(fd).st_nlink == 0
# A child has nothing of its parent's, and sees what the parent does meanwhile.
r, w = os.pipe()
child = os.fork()
if child == 0:
    assert not has('view') and not has('ring')
    often(fd, b'g'); assert has('view')
    os.write(w, b'x')
    while page(fd) != b'h' * 4096: pass
    while os.fstat(fd).st_size != 4096: pass
    os._exit(7)
os.close(w); assert os.read(r, 1) == b'x'
os.pwrite(fd, b'h' * 4096, 0); os.ftruncate(fd, 4096)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
# More threads than lanes.
def all_the_time():
    for i in range(3000): assert page(fd) == b'h' * 4096
threads = [threading.Thread(target=all_the_time) for i in range(8)]
for t in threads: t.start()
for t in threads: t.join()
print('done')
"#;

#[test]
fn views_of_ordinary_programs() {
    let served = Served::new();
    assert_eq!(ok(served.run(&[]).args(program(served.path(), VIEWS))), "done\n");
    served.end();
}

#[test]
fn views_of_a_volume_of_ones_own() {
    let dir = folder();
    let path = volume(dir.path(), "atoll.vol", "64M");
    let run = |text: &str| {
        let arguments = program(dir.path(), text);
        let mut command = atoll();
        command.current_dir(dir.path()).args(["run", "-v", "atoll.vol:/vol", "--"]);
        assert_eq!(ok(command.args(&arguments)), "done\n");
    };
    run(VIEWS);
    // A file adopted by its inode may use another's handle; it is adopted again when that closes.
    run(r#"
a = make('/vol/a', b'a')
b, looking = os.open('/vol/a', os.O_RDWR), os.open('/vol/a', os.O_RDONLY)
for i in range(20): page(a)
assert has('ring')
os.close(b)
often(a, b'a'); assert has('view')
os.pwrite(a, b'x', 0); assert page(a, 0)[:2] == page(looking, 0)[:2] == b'xa'
# And written behind another program's back, which has it open in the same way.
r, w = os.pipe()
child = os.fork()
if child == 0:
    own = os.open('/vol/a', os.O_RDWR); os.write(w, b'o')
    for i in range(300): os.pwrite(own, b'%4d' % i, 4096); assert os.pread(own, 4, 4096) == b'%4d' % i
    os._exit(7)
assert os.read(r, 1) == b'o'
for i in range(300): os.pwrite(a, b'%4d' % i, 0); assert os.pread(a, 4, 0) == b'%4d' % i
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
for i in range(300): os.pwrite(a, b'%4d' % i, 8); assert os.pread(a, 4, 8) == b'%4d' % i
assert os.pread(looking, 12, 0) == b' 299aaaa 299' and os.pread(looking, 4, 4096) == b' 299'
# Appended by both, a part by the kernel; nothing is lost or torn.
log = os.open('/vol/log', os.O_WRONLY | os.O_APPEND | os.O_CREAT)
child = os.fork()
mine = b'c' if child == 0 else b'p'
if child == 0: log = os.open('/vol/log', os.O_WRONLY | os.O_APPEND)
for i in range(300): assert os.write(log, mine * 999 + b'\n') == 1000
if child == 0: os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
lines = open('/vol/log', 'rb').read().split(b'\n')
assert len(lines) == 601 and set(lines) == {b'c' * 999, b'p' * 999, b''}, len(lines)
# As soon as it is closed nothing keeps it.
free = os.statvfs('/vol').f_bfree
big = os.open('/vol/big', os.O_RDWR | os.O_CREAT)
for i in range(20): os.write(big, b'b' * 1000000)
assert os.statvfs('/vol').f_bfree < free - 4000
os.unlink('/vol/big'); os.close(big)
until = time.monotonic() + 20
while os.statvfs('/vol').f_bfree < free - 100: assert time.monotonic() < until
print('done')
"#);
    fsck(&path);
}

#[test]
fn a_server_that_is_killed_is_an_error() {
    let served = Served::new();
    // Each thread has a call of its own, and says how it ended: an error, which stays one.
    let text = r#"
viewed = make('/vol/viewed', b'v'); often(viewed, b'v'); assert has('view')
files = [make('/vol/%d' % i, b'x') for i in range(4)]
log = os.open('/vol/log', os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def step(fd):
    data = os.read(fd, 100)
    if len(data) < 100: os.lseek(fd, 0, os.SEEK_SET)
calls = {
    'pwrite': lambda: os.pwrite(files[0], b'x' * 4096, 0), 'append': lambda: os.write(log, b'line\n'),
    'pread': lambda: page(viewed), 'fstat': lambda: os.fstat(viewed), 'read': lambda: step(files[1]),
    'fsync': lambda: os.fsync(files[2]), 'ftruncate': lambda: os.ftruncate(files[3], 8192),
    'open': lambda: os.close(os.open('/vol/viewed', os.O_RDONLY)), 'stat': lambda: os.stat('/vol/log'),
}
gone = {errno.ENOTCONN, errno.ECONNABORTED, errno.EIO}
ended = {}
def run(name, call):
    until = time.monotonic() + 40
    while time.monotonic() < until:
        try: call()
        except OSError as error:
            ended[name] = error.errno in gone or error
            break
    for i in range(300):
        try: call(); ended[name] = 'it went on'
        except OSError as error:
            if error.errno not in gone: ended[name] = error
threads = [threading.Thread(target=run, args=call) for call in calls.items()]
for t in threads: t.start()
time.sleep(0.2)
print('running', flush=True)
for t in threads: t.join()
# A child as well, and a program that it starts.
child = os.fork()
if child == 0:
    try: page(viewed)
    except OSError as error: os._exit(5 if error.errno in gone else 6)
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
assert os.waitstatus_to_exitcode(os.system('cat /vol/log > /dev/null 2>&1')) == 1
assert set(ended) == set(calls), ended
print({name: how for name, how in ended.items() if how is not True})
for fd in files + [viewed, log]:
    try: os.close(fd)
    except OSError as error: assert error.errno in gone, error
print('ended')
"#;
    let mut command = served.run(&[]);
    command.args(program(served.path(), text)).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "running");
    kill(served.pid(), Signal::SIGKILL).unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "{}");
    assert_eq!(lines.next().unwrap().unwrap(), "ended");
    // Which is of `atoll run`, that says what has happened.
    assert_eq!(child.wait().unwrap().code(), Some(125));
    served.killed();
}

#[test]
fn a_user_without_rights_has_rings_and_views() {
    if !nix::unistd::geteuid().is_root() {
        // Only the superuser can be several users.
        return;
    }
    let rules = ["--allow", "uid:65534=rw,path=/home"];
    let served = Served::with(&rules);
    served.let_others_in();
    served.script("mkdir -m 777 /vol/home; echo secret > /vol/secret");
    let text = r#"
assert os.getuid() == 65534 and not os.path.exists('/vol/secret')
fd = make('/vol/f', b'u'); often(fd, b'u')
assert has('ring') and has('view')
seen = os.fstat(fd); assert (seen.st_uid, seen.st_gid, seen.st_mode & 0o777) == (65534, 65534, 0o600)
# Not by what it has, and not by asking.
os.chmod('/vol/f', 0)
try: os.open('/vol/f', os.O_RDONLY); sys.exit('it was opened')
except OSError as error: assert error.errno == errno.EACCES
assert page(fd) == b'u' * 4096
print('done')
"#;
    let arguments = program(served.path(), text).join(" ");
    let by_user = |options: &str| {
        let script = format!("./atoll run -v s:/vol{options} -- {arguments}");
        ok(&mut as_user(served.path(), "666", &script))
    };
    assert_eq!(by_user(""), "done\n");
    served.script("test $(stat -c %u:%a /vol/home/f) = 65534:0; rm /vol/home/f");
    // In a user namespace of its own again, below that of `atoll run`, where it can still be nobody
    // else.
    need("unshare", "util-linux");
    let deeper = arguments.replace("timeout", "unshare --user timeout");
    let script = format!("./atoll run -v s:/vol -- {deeper}");
    assert_eq!(ok(&mut as_user(served.path(), "666", &script)), "done\n");

    // Beyond the connections of one user calls go by the kernel, as if there were no rings.
    let text = r#"
place, held = sys.argv[1], []
for i in range(200):
    other = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    other.connect(place)
    other.setblocking(False)
    held.append(other)
time.sleep(0.2)
def refused(other):
    try: return b'too many clients' in other.recv(1000)
    except BlockingIOError: return False
assert any([refused(other) for other in held])
fd = make('/vol/k', b'k')
for i in range(60): assert page(fd) == b'k' * 4096 and os.fstat(fd).st_size == 8192
assert not has('ring') and not has('view')
print('done')
"#;
    let arguments = program(served.path(), text).join(" ");
    let script = format!("./atoll run -v s:/vol -- {arguments} {}", served.socket().display());
    assert_eq!(ok(&mut as_user(served.path(), "666", &script)), "done\n");
    served.end();
}

#[test]
fn without_descriptors_calls_go_by_the_kernel() {
    let served = Served::new();
    // Of the program: too few to have any of them, and all of them used.
    let text = r#"
few = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (few, few))
files = []
try:
    while True: files.append(make('/vol/%d-%d' % (few, len(files)), b'n'))
except OSError as error: assert error.errno == errno.EMFILE, error
for i in range(10):
    for fd in files: assert page(fd) == b'n' * 4096 and os.fstat(fd).st_size == 8192
print(len(files) > few // 2, flush=True)
os._exit(0)
"#;
    let arguments = program(served.path(), text);
    for few in ["16", "64"] {
        assert_eq!(ok(served.run(&[]).args(&arguments).arg(few)), "True\n", "{few}");
    }

    // Which descriptors the server has, only the superuser sees: it is not dumpable.
    let open = format!("/proc/{}/fd", served.pid());
    if std::fs::read_dir(&open).is_err() {
        eprintln!("{open} cannot be read: not tried with a server that has no descriptors left");
        return;
    }
    // Of the server: it takes nobody in, and gives nobody a View, but the mount works.
    let text = r#"
fd = make('/vol/s', b's')
if sys.argv[1] == 'late': page(fd); [os.fstat(fd) for i in range(40)]; assert has('ring')
print('ready', flush=True); sys.stdin.readline()
begin = time.monotonic()
for i in range(600): assert page(fd) == b's' * 4096
assert time.monotonic() - begin < 20
assert not has('view')
print(has('ring'), flush=True); sys.stdin.readline()
# There is room again, for others.
"#;
    let arguments = program(served.path(), text);
    for when in ["early", "late"] {
        let mut command = served.run(&[]);
        command.args(&arguments).arg(when).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        let pid = rustix::process::Pid::from_raw(served.pid().as_raw());
        let free = (0..).find(|n| !Path::new(&open).join(n.to_string()).is_symlink()).unwrap();
        let full = Rlimit { current: Some(free), ..getrlimit(Resource::Nofile) };
        let before = prlimit(pid, Resource::Nofile, full).unwrap();
        std::io::Write::write_all(&mut input, b"\n").unwrap();
        let by_ring = lines.next().unwrap().unwrap();
        assert_eq!(by_ring, if when == "late" { "True" } else { "False" });
        prlimit(pid, Resource::Nofile, before).unwrap();
        std::io::Write::write_all(&mut input, b"\n").unwrap();
        assert!(child.wait().unwrap().success());
    }
    // It has not been busy with failing.
    let log = std::fs::read_to_string(served.path().join("log")).unwrap();
    assert!(log.lines().count() < 200, "{} lines", log.lines().count());
    let text = "fd = make('/vol/t', b't'); often(fd, b't'); print(has('view'))";
    assert_eq!(ok(served.run(&[]).args(program(served.path(), text))), "True\n");
    served.end();
}

/// A child has nothing of a connection that another thread was making when it was forked, and
/// nothing in it waits for that thread.
#[test]
fn forks_while_a_thread_connects() {
    let served = Served::new();
    // Instead of the server somebody who takes what it is sent and does not answer.
    let text = r#"
path = sys.argv[1]
if 'silent' not in os.environ:
    make('/vol/f', b'f')
    lines = [line.split(' ', 3) for line in os.environ['ATOLL_SERVERS'].splitlines()]
    servers = ''.join(' '.join(line[:3] + [path]) + '\n' for line in lines)
    os.execve(sys.executable, [sys.executable] + sys.argv,
              dict(os.environ, ATOLL_SERVERS=servers, silent='yes'))
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(path); listener.listen()
fd = os.open('/vol/f', os.O_RDONLY)
def use():
    for i in range(20): assert page(fd) == b'f' * 4096
thread = threading.Thread(target=use); thread.start()
asked, _ = listener.accept()
hello = asked.recv(100)
assert hello[:4] == b'atol', hello
# The thread waits for an answer now. When it waits no more nobody listens either.
os.unlink(path)
child = os.fork()
if child == 0:
    assert not strange([listener.fileno(), asked.fileno()]), strange([])
    assert not has('ring')
    use()
    os._exit(7)
thread.join()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print('end')
"#;
    let silent = served.path().join("silent");
    let arguments = program(served.path(), &format!("{INHERITED}{text}"));
    assert_eq!(ok(served.run(&[]).args(&arguments).arg(&silent)), "end\n");

    // And the true one, at any moment.
    let text = r#"
for round in range(8):
    files = [make('/vol/%d-%d' % (round, n), b'g') for n in range(8)]
    def use():
        for fd in files: often(fd, b'g')
    # Whose connection is made anew: this process has forgotten its parent's.
    child = os.fork()
    if child != 0:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        continue
    threads = [threading.Thread(target=use) for n in range(2)]
    for thread in threads: thread.start()
    children = []
    while any(thread.is_alive() for thread in threads) and len(children) < 40:
        pid = os.fork()
        if pid == 0:
            assert not strange([]), strange([])
            assert not has('ring') and not has('view')
            use()
            os._exit(7)
        children.append(pid)
    for pid in children: assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    for thread in threads: thread.join()
    os._exit(7)
print('end')
"#;
    let arguments = program(served.path(), &format!("{INHERITED}{text}"));
    assert_eq!(ok(served.run(&[]).args(&arguments)), "end\n");
    served.end();
}

#[test]
fn a_volume_for_looking_is_read_by_all_ways() {
    let dir = folder();
    let path = volume(dir.path(), "atoll.vol", "16M");
    script_ok(
        dir.path(),
        "cd /vol; head -c 8192 /dev/zero | tr '\\0' l > f; mkdir d; echo x > d/x",
    );
    // Opened by the kernel without a request, used through it, the ring and the View, mapped,
    // inherited, duplicated.
    let text = r#"
import mmap, subprocess
for i in range(30):
    fd = os.open('/vol/f', os.O_RDONLY); often(fd, b'l')
    again = os.dup(fd); os.close(fd); often(again, b'l')
    os.lseek(again, 4096, os.SEEK_SET); assert os.read(again, 9000) == b'l' * 4096
    if i < 29: os.close(again)
assert has('ring') and has('view')
try: os.pread(fd, 1, 0); sys.exit('it was closed')
except OSError as error: assert error.errno == errno.EBADF
whole = mmap.mmap(again, 8192, mmap.MAP_SHARED, mmap.PROT_READ); assert whole[4000:5000] == b'l' * 1000
child = os.fork()
if child == 0: often(again, b'l'); os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
os.lseek(again, 0, os.SEEK_SET)
assert subprocess.run(['cat'], stdin=again, capture_output=True).stdout == b'l' * 8192
for flags in [os.O_WRONLY, os.O_RDWR, os.O_RDWR | os.O_CREAT, os.O_RDONLY | os.O_TRUNC]:
    try: os.open('/vol/f', flags); sys.exit('it was opened')
    except OSError as error: assert error.errno == errno.EROFS
assert sorted(os.listdir('/vol')) == ['d', 'f'] and os.listdir('/vol/d') == ['x']
os.chdir('/vol/d'); assert open('x').read() == 'x\n' and os.getcwd() == '/vol/d'
print('done')
"#;
    let arguments = program(dir.path(), text);
    let mut command = atoll();
    command.current_dir(dir.path()).args(["run", "-v", "atoll.vol:/vol:ro", "--"]).args(&arguments);
    assert_eq!(ok(&mut command), "done\n");
    fsck(&path);
}
