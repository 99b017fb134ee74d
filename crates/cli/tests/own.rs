//! A volume of one's own, which its kernel caches as if it were alone with it: what was removed,
//! what is full, and what is written back.
#![allow(missing_docs)]

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::serving::Served;
use common::{atoll, children, fails, folder, fsck, need, ok, volume, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A program with the volume at /vol, which may fail.
fn run(dir: &Path, options: &[&str], script: &str) -> Command {
    run_with(dir, "a.vol", options, script)
}

fn run_with(dir: &Path, volume: &str, options: &[&str], script: &str) -> Command {
    let mut command = atoll();
    command.current_dir(dir).args(["run", "-q", "-v", &format!("{volume}:/vol")]).args(options);
    command.args(["--", "bash", "-euo", "pipefail", "-c", script]);
    command
}

const WAYS: [&[&str]; 2] = [&[], &["--cache", "writeback"]];

/// The kernel says that it has forgotten a file after the call that has removed it: what the file
/// had is there for the next call all the same, and for whoever asks how much is free.
#[test]
fn what_is_removed_makes_room_at_once() {
    let dir = folder();
    volume(dir.path(), "a.vol", "64M");
    for options in WAYS {
        let script = r#"
            cd /vol; free() { stat -f -c %f .; }
            most=$(( $(free) * 7 / 10 )); before=$(free)
            for i in $(seq 6); do
                dd if=/dev/zero of=f bs=4k count=$most status=none
                # Another has it open, and lets go of it.
                exec 9<f; rm f; exec 9<&-
                now=$(free); [ $now -gt $(( before - 200 )) ] || { echo "$i: $now of $before"; exit 1; }
                [ $((i % 2)) = 0 ] || continue
                dd if=/dev/zero of=f bs=4k count=$most status=none; rm f
            done
            # Many at a time, while others work.
            (for i in $(seq 300); do echo $i > other; done) &
            for i in $(seq 4); do
                for n in $(seq 8); do dd if=/dev/zero of=f$n bs=4k count=$((most / 8)) status=none; done
                rm f*
            done
            wait
        "#;
        ok(&mut run(dir.path(), options, script));
    }
    fsck(&dir.path().join("a.vol"));
}

/// So it is on a served volume too, and where a file is freed in steps while others work.
#[test]
fn what_is_removed_makes_room_in_steps() {
    need("python3", "python3");
    let dir = folder();
    volume(dir.path(), "a.vol", "64M");
    volume(dir.path(), "b.vol", "64M");
    let served = Served::again(dir, &["b.vol"]);
    let program = r#"
import os, threading
os.chdir('/vol')
def free(): return os.statvfs('.').f_bfree
before, on, late = free(), True, []
def others(name):
    while on:
        with open(name, 'w') as f: f.write('x')
threads = [threading.Thread(target=others, args=(name,)) for name in 'abc']
for thread in threads: thread.start()
for n in range(150):
    with open('f', 'wb') as f:
        for i in range(600): os.pwrite(f.fileno(), b'z' * 4096, i * 8192)
    os.unlink('f')
    if before - free() > 100: late.append(n)
on = False
for thread in threads: thread.join()
assert not late, late
"#;
    for volume in ["a.vol", "s"] {
        let script = format!("exec python3 -c \"{program}\"");
        ok(&mut run_with(served.path(), volume, &[], &script));
    }
    fsck(&served.path().join("a.vol"));
    served.stop();
}

/// What a program has open, or stands in, goes on when its name has gone.
#[test]
fn what_is_removed_is_there_for_whoever_has_it() {
    need("python3", "python3");
    let dir = folder();
    volume(dir.path(), "a.vol", "64M");
    let program = r#"
import os
os.chdir('/vol')
def make(name, data):
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o640)
    os.write(fd, data)
    return fd
def same(fd, data, links):
    assert os.pread(fd, 100, 0) == data and os.fstat(fd).st_nlink == links, (os.pread(fd, 100, 0), os.fstat(fd))
    os.pwrite(fd, b'X', 0); os.ftruncate(fd, 5000); os.fsync(fd)
    assert os.pread(fd, 1, 0) == b'X' and os.fstat(fd).st_size == 5000
    os.fchmod(fd, 0o600); os.utime(fd, (1, 2))
    assert os.fstat(fd).st_mode & 0o777 == 0o600 and os.fstat(fd).st_mtime == 2
a = make('a', b'one'); os.unlink('a'); same(a, b'one', 0)
b = make('b', b'two'); make('c', b'three'); os.rename('c', 'b'); same(b, b'two', 0)
d = make('d', b'four'); os.link('d', 'e'); os.unlink('d'); same(d, b'four', 1); os.unlink('e')
assert os.fstat(d).st_nlink == 0
# Never read or written: it is opened, and that is all that the kernel knows.
make('g', b'five'); g = os.open('g', os.O_RDONLY); os.unlink('g'); assert os.read(g, 9) == b'five'
# O_PATH, and by /proc.
make('h', b'six'); h = os.open('h', os.O_PATH); os.unlink('h')
with open(f'/proc/self/fd/{h}', 'rb') as again: assert again.read() == b'six'
t = os.open('.', os.O_TMPFILE | os.O_RDWR, 0o600)
for i in range(20): os.pwrite(t, bytes([i]) * 4096, i * 4096)
os.link(f'/proc/self/fd/{t}', 'named', src_dir_fd=os.open('/', os.O_RDONLY), follow_symlinks=True)
assert os.stat('named').st_size == 20 * 4096
os.unlink('named')
os.mkdir('dir'); os.chdir('dir'); here = os.open('.', os.O_RDONLY); os.rmdir('/vol/dir')
assert os.stat('.').st_nlink == 0 and os.listdir(here) == []
try: open('new', 'w'); raise SystemExit('made in what is removed')
except FileNotFoundError: pass
os.chdir('/vol')
# An old content does not come back.
for n in range(50):
    with open('cut', 'wb') as f: f.write(b'long' * 5000)
    with open('cut', 'wb') as f: f.write(b'%d' % n)
    with open('cut', 'rb') as f: assert f.read() == b'%d' % n
print('end')
"#;
    for options in WAYS {
        let said = ok(&mut run(dir.path(), options, &format!("exec python3 -c \"{program}\"")));
        assert_eq!(said, "end\n", "{options:?}");
    }
    fsck(&dir.path().join("a.vol"));
}

/// Starts a program that says `ready`, then kills what serves its volume.
fn killed(dir: &Path, options: &[&str], script: &str) {
    let script = format!("{script}; echo ready; exec sleep 600");
    let mut child: Child =
        run(dir, options, &script).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let servers = children(child.id(), "atoll-server");
    assert_eq!(servers.len(), 1);
    kill(Pid::from_raw(servers[0]), Signal::SIGKILL).unwrap();
    // The program is left, and finds nothing there any more.
    let mut programs = Vec::new();
    wait_until("the program waits", || {
        programs = children(child.id(), "sleep");
        !programs.is_empty()
    });
    programs.iter().for_each(|&pid| kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap());
    child.wait().unwrap();
    fsck(&dir.join("a.vol"));
}

#[test]
fn what_was_written_outlives_the_server() {
    let dir = folder();
    volume(dir.path(), "a.vol", "64M");
    let cat =
        |name: &str| ok(atoll().current_dir(dir.path()).args(["cat", &format!("a.vol:/{name}")]));
    killed(
        dir.path(),
        &[],
        "cd /vol; echo old > f; echo new > f; echo more >> f; exec 9<f; rm f; echo other > g",
    );
    assert_eq!(cat("g"), "other\n");
    fails(atoll().current_dir(dir.path()).args(["cat", "a.vol:/f"]), 1);

    // What is written back: what was synced, and what has replaced something.
    let script = "cd /vol; echo synced > s; sync s; echo old > f; sync f
        head -c 300000 /dev/zero | tr '\\0' x > new; mv new f; echo first > n; mv -n n n2";
    killed(dir.path(), &["--cache", "writeback"], script);
    assert_eq!(cat("s"), "synced\n");
    assert_eq!(cat("f"), "x".repeat(300_000));
    assert!(["", "first\n"].contains(&&*cat("n2")));
}

#[test]
fn others_see_each_write() {
    let dir = folder();
    std::fs::create_dir(dir.path().join("d")).unwrap();
    std::fs::create_dir(dir.path().join("m")).unwrap();
    for (command, status) in [(["run", "-q", "-v", "d:/vol"], 125), (["mount", "d", "m", "-f"], 1)]
    {
        let mut command = {
            let mut atoll = atoll();
            atoll.args(command);
            atoll
        };
        if status == 125 {
            command.args(["--cache", "writeback", "true"]);
        } else {
            command.args(["--cache", "writeback"]);
        }
        let said = fails(command.current_dir(dir.path()), status);
        assert!(said.contains("is one that others change too"), "{said}");
    }
    let served = common::served::Served::new();
    let said = fails(
        atoll().current_dir(served.path()).args([
            "run",
            "--cache",
            "writeback",
            "-v",
            "s:/vol",
            "true",
        ]),
        125,
    );
    assert!(said.contains("is a server's"), "{said}");
    served.end();
}

/// A server whose memory is all taken by what programs read ahead goes on: the kernel takes pages
/// from them while it serves.
#[test]
fn what_is_read_may_be_more_than_there_is_memory() {
    let dir = folder();
    volume(dir.path(), "a.vol", "512M");
    // Both halves are in one group.
    let script = format!(
        r#"
        groups=/sys/fs/cgroup; most=memory.max
        [ ! -d $groups/memory ] || {{ groups=$groups/memory; most=memory.limit_in_bytes; }}
        group=$groups/atoll-test-$$
        if mkdir $group 2> /dev/null && echo 33554432 2> /dev/null > $group/$most; then
            trap 'sleep 0.2; rmdir $group' EXIT
        else
            # This user may make none.
            rmdir $group 2> /dev/null; echo no limit; exit 0
        fi
        sh -c 'echo $$ > '$group'/cgroup.procs || exit 99; exec timeout -s KILL 240 "$@"' - \
            {} run -q -v a.vol:/vol -- sh -euc '
                cd /vol
                for i in 1 2 3 4 5 6; do dd if=/dev/zero of=f$i bs=1M count=32 status=none; done
                for round in 1 2; do
                    for i in 1 2 3 4 5 6; do cat f$i > /dev/null & done
                    wait
                done
                echo read'
        "#,
        env!("CARGO_BIN_EXE_atoll")
    );
    let mut command = Command::new("bash");
    let said = ok(command.current_dir(dir.path()).args(["-c", &script]));
    assert!(said == "read\n" || said == "no limit\n", "{said}");
}

/// What a program has stored into a mapping is data to who copies the file, though nobody has
/// written it back.
#[test]
fn what_is_stored_into_a_hole_is_copied() {
    need("python3", "python3");
    let dir = folder();
    volume(dir.path(), "a.vol", "64M");
    for options in WAYS {
        let script = r#"cd /vol; rm -f f g; python3 - <<'END'
import mmap, os, subprocess
fd = os.open('f', os.O_CREAT | os.O_RDWR)
os.ftruncate(fd, 1 << 20)
with mmap.mmap(fd, 1 << 20) as m:
    m[500_000:500_004] = b'DATA'
    other = os.open('f', os.O_RDONLY)
    assert 495_000 < os.lseek(other, 0, os.SEEK_DATA) <= 500_000
    m[900_000:900_004] = b'MORE'
    assert 500_000 < os.lseek(other, 500_000, os.SEEK_HOLE) < 900_000
    subprocess.check_call(['cp', 'f', 'g'])
    assert open('f', 'rb').read() == open('g', 'rb').read()
    assert open('g', 'rb').read()[900_000:900_004] == b'MORE'
END"#;
        ok(&mut run(dir.path(), options, script));
    }
    fsck(&dir.path().join("a.vol"));
}
