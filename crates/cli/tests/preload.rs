//! The interposer: what programs see with it is what they see without.
#![allow(missing_docs)]

mod common;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use atoll_host::client::{Address, Connection};
use atoll_host::server::rules::Mode;
use atoll_transport::channel::Config;
use atoll_vfs::{Errno, FileSystem};
use common::served::Served;
use common::{atoll, fsck, need, ok};

/// Compiles a C program of tests/c to `dir`.
fn compile(source: &str, dir: &Path, arguments: &[&str]) -> PathBuf {
    need("gcc", "gcc");
    let to = dir.join(Path::new(source).with_extension("")).with_extension(arguments.concat());
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source);
    ok(Command::new("gcc")
        .args(["-Wall", "-Wextra", "-Werror", "-O1", "-o"])
        .arg(&to)
        .arg(from)
        .args(arguments));
    to
}

/// Runs `command`, killed if it takes a minute; what it printed, and the first line that it said.
fn run(mut command: Command) -> (String, String) {
    let output = command.stdin(Stdio::null()).output().expect("it starts");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}: {}\n{printed}\n{said}", output.status);
    (printed, said.lines().next().unwrap_or_default().to_owned())
}

#[test]
fn forks_of_every_kind() {
    let served = Served::new();
    let library = compile("forks.c", served.path(), &["-DLIBRARY", "-shared", "-fPIC"]);
    let program = served.path().join("forks");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/forks.c");
    ok(Command::new("gcc")
        .args(["-Wall", "-Wextra", "-Werror", "-O1", "-o"])
        .arg(&program)
        .arg(source)
        .arg(library));
    let expected = "fork\n_Fork\nclone by number\nclone\nparent\n".repeat(3) + "end\n";
    for options in [&[][..], &["--no-preload"]] {
        let mut command = served.run(options);
        command.args(["timeout", "-s", "KILL", "60"]).arg(&program).arg("/vol/f");
        assert_eq!(run(command).0, expected, "{options:?}");
    }
    assert!(served.connections() > 12, "children have connections of their own");
    served.end();
}

#[test]
fn descriptors_and_offsets_are_as_on_the_host() {
    let served = Served::new();
    let dir = served.path();
    let program = compile("descriptors.c", dir, &["-lpthread"]);
    let host = dir.join("host");
    std::fs::create_dir(&host).unwrap();
    let mut on_host = Command::new("timeout");
    on_host.args(["-s", "KILL", "60"]).arg(&program).arg(&host);
    let (expected, offsets) = run(on_host);
    assert!(expected.ends_with("end\n"), "{expected}");
    assert_eq!(offsets, "kernel");
    for (options, offsets) in [(&[][..], "private"), (&["--no-preload"], "kernel")] {
        let before = served.connections();
        let mut on_volume = served.run(options);
        on_volume
            .args(["sh", "-c", "rm -rf /vol/*; exec timeout -s KILL 60 $0 /vol"])
            .arg(&program);
        let (found, where_kept) = run(on_volume);
        assert_eq!(where_kept, offsets, "{options:?}");
        for (found, expected) in found.lines().zip(expected.lines()) {
            assert_eq!(found, expected, "{options:?}");
        }
        assert_eq!(found.lines().count(), expected.lines().count());
        assert_eq!(served.connections() > before, offsets == "private", "by the ring or not");
    }
    // And no call was made on what a descriptor once was.
    let checking = checking_library(dir);
    let mut on_volume = atoll();
    on_volume.current_dir(dir).args(["run", "-q", "--no-preload", "--", "sh", "-ec"]);
    on_volume.arg("rm -rf /vol/*; LD_PRELOAD=$0; export LD_PRELOAD; timeout -s KILL 60 $1 /vol");
    let (found, where_kept) = run({
        on_volume.arg(checking).arg(program);
        on_volume
    });
    assert_eq!((found, where_kept.as_str()), (expected, "private"));
    fsck(&dir.join("atoll.vol"));
    served.end();
}

/// The library compiled so that it dies where it is wrong about a descriptor.
fn checking_library(dir: &Path) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../preload/c");
    let to = dir.join("checking.so");
    let mut gcc = Command::new("gcc");
    gcc.args([
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-missing-attributes",
        "-Wno-deprecated-declarations",
    ]);
    gcc.args(["-std=gnu11", "-O1", "-g", "-fPIC", "-shared", "-fvisibility=hidden"]);
    gcc.arg("-DATOLL_CHECK").arg("-o").arg(&to);
    let sources = std::fs::read_dir(sources).unwrap().map(|entry| entry.unwrap().path());
    gcc.args(sources.filter(|path| path.extension().is_some_and(|extension| extension == "c")));
    ok(&mut gcc);
    to
}

#[test]
fn programs_with_and_without_it_share_offsets() {
    let served = Served::new();
    let usual = compile("shares.c", served.path(), &[]);
    let alone = compile("shares.c", served.path(), &["-static"]);
    let text = format!(
        "cd /vol; usual={usual}; alone={alone}
         {{ $alone a; $usual b; echo shell; $alone c; printf 'by printf\\n'; python3 -c 'import os; os.write(1, b\"python\\n\")'; $usual d; }} > file
         cat file; {{ env -i $usual e; LD_PRELOAD= $usual f; }} >> file; tail -n 2 file
         for w in 1 2 3 4; do (for i in $(seq 50); do echo $w $i >> appended; $alone $w.$i >> appended; done) & done; wait
         wc -l < appended; sort -u appended | wc -l
         for w in 1 2 3; do ($alone $w; for i in $(seq 50); do echo $w $i; done; $usual $w) & done > shared; wait
         wc -l < shared; sort -u shared | wc -l
         exec 5< shared; read -u 5 line; $alone x <&5 > /dev/null; head -c 1 <&5 | wc -c
         while read -r line; do echo \"$line\"; done < file | sed -n 1,3p | tr a-z A-Z | tee upper | wc -l; cat upper
         exec 7<> both; echo written >&7; cat both; ls -l /proc/self/fd/7 | sed 's/.* -> //'",
        usual = usual.display(),
        alone = alone.display(),
    );
    let printed = served.script(&text);
    let expected = "a\nb\nshell\nc\nby printf\npython\nd\ne\nf\n400\n400\n156\n153\n1\n3\nA\nB\nSHELL\nwritten\n/vol/both\n";
    assert_eq!(printed, expected);
    served.end();
}

#[test]
fn the_users_own_library_stays_and_the_switch_is_off() {
    let served = Served::new();
    let printed = |options: &[&str], before: Option<&str>| {
        let mut command = served.run(options);
        command.args(["sh", "-c", "echo $LD_PRELOAD"]).env_remove("LD_PRELOAD");
        if let Some(before) = before {
            command.env("LD_PRELOAD", before);
        }
        ok(&mut command).trim().to_owned()
    };
    let ours = printed(&[], None);
    assert!(ours.starts_with('/') && ours.ends_with(".so"), "{ours}");
    assert_eq!(printed(&["--no-preload"], None), "");
    assert_eq!(printed(&["--no-preload"], Some("libm.so.6")), "libm.so.6");
    assert_eq!(printed(&[], Some("libm.so.6")), format!("libm.so.6:{ours}"));
}

#[test]
fn nginx_serves_files() {
    // Where it lies is not on everybody's path.
    assert!(
        Path::new("/usr/sbin/nginx").exists(),
        "nginx is missing: install it with `apt-get install nginx`"
    );
    need("python3", "python3");
    let served = Served::new();
    let text = r#"
        cd /vol; mkdir www logs tmp
        seq 200000 > www/long; seq 10 > www/short; head -c 300000 /dev/urandom > www/random
        for sendfile in on off; do
            printf '%s\n' "daemon off; user root; worker_processes 2; pid /vol/pid; error_log /vol/logs/error;" \
                "events {}" "http { sendfile $sendfile; access_log /vol/logs/access; client_body_temp_path /vol/tmp;" \
                "server { listen unix:$PLACE/socket; root /vol/www; } }" > conf
            /usr/sbin/nginx -p /vol -c /vol/conf & nginx=$!
            for i in $(seq 100); do test -S $PLACE/socket && break; sleep 0.05; done
            python3 - << 'END'
import http.client, os, socket, threading
wrong = []
def fetch(worker):
    for i in range(20):
        name = ['long', 'short', 'random'][(worker + i) % 3]
        link = http.client.HTTPConnection('x')
        link.sock = socket.socket(socket.AF_UNIX)
        link.sock.settimeout(30)
        link.sock.connect(os.environ['PLACE'] + '/socket')
        headers = {'Range': 'bytes=5-15'} if i % 2 else {}
        link.request('GET', '/' + name, headers=headers)
        body = link.getresponse().read()
        content = open('/vol/www/' + name, 'rb').read()
        if body != (content[5:16] if i % 2 else content): wrong.append(name)
        link.close()
threads = [threading.Thread(target=fetch, args=(w,)) for w in range(4)]
for t in threads: t.start()
for t in threads: t.join()
print(wrong)
END
            kill -QUIT $nginx; wait $nginx; rm -f $PLACE/socket
        done
        wc -l < logs/access; grep -c 'GET /long' logs/access; grep -ci error logs/error || true
    "#;
    let text = format!("export PLACE={}; {text}", served.path().display());
    assert_eq!(served.script(&text), "[]\n[]\n160\n54\n0\n");
    served.end();
}

#[test]
fn sqlite_in_two_processes_at_once() {
    need("python3", "python3");
    let served = Served::new();
    // Each process has connections in threads, and forks while another writes.
    let text = r#"
        cd /vol; cat > work.py << 'END'
import os, sqlite3, sys, threading
def work(name):
    db = sqlite3.connect('db', timeout=60, isolation_level=None)
    for i in range(40):
        db.execute('begin immediate')
        n = db.execute('select n from counter').fetchone()[0]
        db.execute('update counter set n = ?', (n + 1,))
        db.execute('insert into log values (?, ?)', (name, 'x' * (i * 37 % 3000)))
        db.execute('commit')
        if i % 10 == 0: assert db.execute('pragma integrity_check').fetchone()[0] == 'ok'
threads = [threading.Thread(target=work, args=(sys.argv[1] + str(t),)) for t in range(2)]
for t in threads: t.start()
for i in range(5): os.system('true')
for t in threads: t.join()
END
        python3 -c "
import sqlite3; db = sqlite3.connect('db')
print(db.execute('pragma journal_mode=wal').fetchone()[0])
db.executescript('create table counter(n); insert into counter values (0); create table log(who, text)')"
        python3 work.py a & a=$!; python3 work.py b & wait $!; wait $a
        python3 -c "
import sqlite3; db = sqlite3.connect('db')
print(db.execute('select n from counter').fetchone()[0], db.execute('select count(*) from log').fetchone()[0], db.execute('pragma integrity_check').fetchone()[0])"
    "#;
    assert_eq!(served.script(text), "wal\n160 160 ok\n");
    served.end();
}

#[test]
fn what_one_writes_all_others_see_at_once() {
    need("python3", "python3");
    let served = Served::new();
    // Each adds to a number in turns with the others, by its own way, and sees what they did.
    let text = r#"
import os, sys, time
turn, of = int(sys.argv[1]), 3
end = time.monotonic() + 60
fd = os.open('/vol/number', os.O_RDWR | os.O_CREAT)
log = os.open('/vol/log', os.O_WRONLY | os.O_APPEND | os.O_CREAT)
while time.monotonic() < end:
    n = int(os.pread(fd, 20, 0) or b'0')
    if n >= 300: sys.exit(0)
    if n % of != turn: continue
    assert os.fstat(log).st_size == n * 8, (n, os.fstat(log).st_size)
    os.write(log, b'%7d\n' % n)
    os.pwrite(fd, b'%d' % (n + 1), 0)
sys.exit(1)
"#;
    std::fs::write(served.path().join("turns.py"), text).unwrap();
    let before = served.connections();
    let children: Vec<Child> = (0..3)
        .map(|turn: i32| {
            let options: &[&str] = if turn == 1 { &["--no-preload"] } else { &[] };
            let script = served.path().join("turns.py");
            let mut command = served.run(options);
            command.arg("python3").arg(script).arg(turn.to_string()).spawn().unwrap()
        })
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    assert!(served.connections() >= before + 2, "by rings");
    assert_eq!(
        served.script("wc -l < /vol/log; sort -c /vol/log; tail -n 1 /vol/log"),
        "300\n    299\n"
    );
    served.end();
}

#[test]
fn tokens_are_not_guessed() {
    let served = Served::new();
    let mut holder = served.run(&[]);
    holder.args(["sh", "-c", "exec 5> /vol/open; echo; read -r line; exec true"]);
    let mut holder = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = [0; 1];
    std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut line).unwrap();
    let place = Address::find(&served.socket()).unwrap();
    let mut ring = Connection::open(&place).unwrap().ring(Mode::Write, &Config::default()).unwrap();
    let mut client = ring.client().unwrap();
    for guess in 0..200u64 {
        for token in [[guess, 0], [0, guess], [guess, guess], [guess << 32, guess << 32]] {
            assert_eq!(client.adopt(token), Err(Errno::EBADF));
        }
    }
    let cx = atoll_vfs::Context { uid: 0, gid: 0, now: atoll_vfs::Timespec::default() };
    client.getattr(&cx, atoll_vfs::Ino::ROOT).expect("it is served still");
    drop((client, ring));
    drop(holder.stdin.take());
    holder.wait().unwrap();
    served.end();
}
