//! `atoll run` itself: the program's status, signals, terminal, identity and view of the file tree.
#![allow(missing_docs)]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{
    USUAL, as_user, atoll, children, fails, folder, fsck, need, ok, script, script_ok, volume,
    wait_until,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

#[test]
fn the_default_volume_is_made_and_said() {
    let dir = folder();
    let run = |script: &str| {
        let output = atoll()
            .current_dir(dir.path())
            .args(["run", "--", "sh", "-c", script])
            .output()
            .unwrap();
        assert!(output.status.success());
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (_, said) = run("echo kept > /vol/file");
    assert!(said.contains("made the volume ./atoll.vol (1 GiB") && said.contains("/vol"), "{said}");
    let (printed, said) = run("cat /vol/file");
    assert_eq!(printed, "kept\n");
    assert!(said.contains("using the volume ./atoll.vol") && said.contains("/vol"), "{said}");
    // It is sparse, and nobody else sees its files.
    let meta = std::fs::metadata(dir.path().join("atoll.vol")).unwrap();
    assert_eq!(meta.len(), 1 << 30);
    assert!(std::os::unix::fs::MetadataExt::blocks(&meta) * 512 < 100 << 20);
    assert!(!Path::new("/vol/file").exists());
    fsck(&dir.path().join("atoll.vol"));
}

#[test]
fn the_status_is_the_programs() {
    let dir = folder();
    for (text, status) in [
        ("true", 0),
        ("exit 1", 1),
        ("exit 255", 255),
        ("kill -KILL $$", 137),
        ("kill -TERM $$", 143),
        ("kill -SEGV $$", 139),
    ] {
        assert_eq!(script(dir.path(), text).status.code(), Some(status), "{text}");
    }
    let run = |program: &str| {
        let mut command = atoll();
        command.current_dir(dir.path()).args(["run", "-q", "--", program]);
        command
    };
    let said = fails(&mut run("/no/such/program"), 127);
    assert!(said.contains("/no/such/program"), "{said}");
    fails(&mut run("no-such-program-on-the-path"), 127);
    let said = fails(&mut run("/etc/passwd"), 126);
    assert!(said.contains("Permission denied"), "{said}");
    fails(atoll().current_dir(dir.path()).args(["run"]), 125);
    fails(atoll().current_dir(dir.path()).args(["run", "--no-such-option", "true"]), 125);
}

#[test]
fn what_cannot_be_used_is_said_and_left_alone() {
    let dir = folder();
    let path = dir.path();
    let run = |spec: &str| {
        let mut command = atoll();
        command.current_dir(path).args(["run", "-v", spec, "--", "touch", "ran"]);
        fails(&mut command, 125)
    };
    let said = run("missing.vol");
    assert!(said.contains("missing.vol") && said.contains("atoll mkfs"), "{said}");
    assert!(!path.join("missing.vol").exists());

    let foreign: Vec<u8> = (0..2_000_000u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(path.join("foreign"), &foreign).unwrap();
    let said = run("foreign");
    assert!(
        said.contains("is not an Atoll volume") && said.contains("nothing was changed"),
        "{said}"
    );
    assert!(std::fs::read(path.join("foreign")).unwrap() == foreign);
    std::fs::write(path.join("short"), "x").unwrap();
    assert!(run("short").contains("is not an Atoll volume"));
    std::fs::write(path.join("empty"), "").unwrap();
    assert!(run("empty").contains("is not an Atoll volume"));
    assert!(run("/dev/null").contains("neither a regular file nor a block device"));

    let whole = volume(path, "cut.vol", "16M");
    let bytes = std::fs::read(&whole).unwrap();
    std::fs::File::options().write(true).open(&whole).unwrap().set_len(9 << 20).unwrap();
    let said = run("cut.vol");
    assert!(said.contains("cut off"), "{said}");
    assert!(std::fs::read(&whole).unwrap() == bytes[..9 << 20]);

    volume(path, "v.vol", "16M");
    let said = run(&format!("v.vol:{}/none", path.display()));
    assert!(said.contains("mkdir -p"), "{said}");
    std::fs::write(path.join("file"), "").unwrap();
    let said = run("v.vol:file");
    assert!(said.contains("Not a directory"), "{said}");
    assert!(!path.join("ran").exists());
}

#[test]
fn a_volume_appears_at_two_places_for_looking() {
    let dir = folder();
    let vol = volume(dir.path(), "v.vol", "16M");
    ok(atoll().current_dir(dir.path()).args(["run", "-v", "v.vol", "--", "mkdir", "/vol/here"]));
    let run = |second: &str| {
        let mut command = atoll();
        command.current_dir(dir.path()).args(["run", "-v", "v.vol:/x:ro", "-v", second, "--"]);
        command.args(["ls", "/x", "/y"]);
        command
    };
    assert_eq!(ok(&mut run("v.vol:/y:ro")), "/x:\nhere\n\n/y:\nhere\n");
    let said = fails(&mut run("v.vol:/y"), 125);
    assert!(said.contains("second time"), "{said}");
    fsck(&vol);
}

#[test]
fn a_volume_in_use_is_refused() {
    let dir = folder();
    let vol = volume(dir.path(), "v.vol", "16M");
    let mut user = start(dir.path(), &["-v", "v.vol"], "echo ready; read line");
    let (mut input, mut output) = (user.stdin.take().unwrap(), user.stdout.take().unwrap());
    wait_for(&mut output, "ready\n");
    let mut command = atoll();
    command.current_dir(dir.path()).args(["run", "-v", "v.vol", "--", "touch", "ran"]);
    let said = fails(&mut command, 125);
    let server = children(user.id(), "atoll-server");
    assert!(said.contains("in use") && said.contains(&server[0].to_string()), "{said}");
    for command in [&["ls"][..], &["info"], &["fsck"], &["mkfs", "--force"]] {
        let status = if command == ["fsck"] { 8 } else { 1 };
        let said = fails(atoll().args(command).arg(&vol), status);
        assert!(said.contains("in use"), "{command:?}: {said}");
    }
    input.write_all(b"\n").unwrap();
    assert!(user.wait().unwrap().success());
    // It is closed when the command has returned.
    ok(atoll().arg("ls").arg(&vol));
    assert!(!dir.path().join("ran").exists());
}

#[test]
fn several_volumes_and_places() {
    let dir = folder();
    let path = dir.path();
    volume(path, "a.vol", "16M");
    volume(path, "b:colon.vol", "16M");
    std::fs::create_dir(path.join("here")).unwrap();
    std::fs::write(path.join("here/covered"), "").unwrap();
    let mut command = atoll();
    command.current_dir(path);
    command.args(["run", "-v", "a.vol:/data/deep/a", "-v", "b:colon.vol:here", "--", "sh", "-ec"]);
    command.arg(
        "test \"$PWD\" = \"$0\"; test -z \"$(ls here)\"; echo a > /data/deep/a/f; echo b > here/f; \
         cat /data/deep/a/f here/f; ls /etc/passwd; ls -d /proc/self /tmp",
    );
    let printed = ok(command.arg(path));
    assert_eq!(printed, "a\nb\n/etc/passwd\n/proc/self\n/tmp\n");
    assert!(path.join("here/covered").exists() && !path.join("here/f").exists());
    assert!(!Path::new("/data").exists());
    let mut command = atoll();
    command.current_dir(path);
    command.args(["run", "-v", "a.vol:/data/a", "-v", "b:colon.vol:/data/b", "--", "cat"]);
    assert_eq!(ok(command.args(["/data/a/f", "/data/b/f"])), "a\nb\n");

    // For looking only, twice at once.
    let mut command = atoll();
    command.current_dir(path);
    command.args(["run", "-v", "a.vol:/a:ro", "--", "sh", "-c", "cat /a/f; echo x > /a/g"]);
    let said = fails(&mut command, 2);
    assert!(said.contains("Read-only file system"), "{said}");
    let mut command = atoll();
    command.current_dir(path).args(["run", "-v", "a.vol", "-v", "b:colon.vol", "--", "true"]);
    assert!(fails(&mut command, 125).contains("needs a path"));
}

#[test]
fn a_missing_mount_point_is_there_only_inside() {
    let dir = folder();
    assert!(!Path::new("/vol").exists(), "this test wants a system without /vol");
    let before = listing("/");
    let inside =
        script_ok(dir.path(), "ls -A /; touch /atoll-test-new 2>/dev/null && exit 1; exit 0");
    let mut expected = before.clone();
    expected.push("vol".to_owned());
    expected.sort();
    let mut inside: Vec<_> = inside.lines().map(str::to_owned).collect();
    inside.sort();
    assert_eq!(inside, expected);
    assert_eq!(listing("/"), before);
    // A file below the root is the real one.
    let file = dir.path().join("real");
    script_ok(dir.path(), &format!("echo written > {}", file.display()));
    assert_eq!(std::fs::read_to_string(file).unwrap(), "written\n");
}

fn listing(dir: &str) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Starts a shell on the default volume, or the one in `args`, with pipes to it.
fn start(dir: &Path, args: &[&str], script: &str) -> Child {
    atoll()
        .current_dir(dir)
        .args(["run", "-q"])
        .args(args)
        .args(["--", "bash", "-c", script])
        // Signals to the group are not the tests', and stop what is in it wherever these run.
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Reads until `text` has come.
fn wait_for(from: &mut impl Read, text: &str) {
    let mut got = Vec::new();
    let mut byte = [0];
    while !got.ends_with(text.as_bytes()) {
        assert_eq!(
            from.read(&mut byte).unwrap(),
            1,
            "ended after {}",
            String::from_utf8_lossy(&got)
        );
        got.push(byte[0]);
    }
}

#[test]
fn signals_reach_the_program() {
    let dir = folder();
    for signal in
        [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGQUIT]
    {
        let name = signal.as_str().strip_prefix("SIG").unwrap();
        let text = format!(
            "trap 'echo caught > /vol/{name}; exit 42' {name}; echo ready; while :; do sleep 0.05; done"
        );
        let mut child = start(dir.path(), &[], &text);
        wait_for(child.stdout.as_mut().unwrap(), "ready\n");
        kill(Pid::from_raw(child.id() as i32), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(42), "{name}");
    }
    // Without a handler it ends the program, and atoll says by which signal.
    let mut child = start(dir.path(), &[], "echo ready; exec sleep 1000");
    wait_for(child.stdout.as_mut().unwrap(), "ready\n");
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert_eq!(script_ok(dir.path(), "ls /vol"), "HUP\nINT\nQUIT\nTERM\nUSR1\n");
}

fn is_stopped(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.starts_with('T')
}

/// A signal that stops atoll, or its group as a terminal does, stops both, and one that continues
/// atoll continues both.
#[test]
fn stops_pass_through() {
    let dir = folder();
    for signal in [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU] {
        for group in [false, true] {
            let script = "echo ready; read line; echo $line > /vol/said";
            let mut child = start(dir.path(), &[], script);
            wait_for(child.stdout.as_mut().unwrap(), "ready\n");
            let atoll = child.id() as i32;
            let shell = children(child.id(), "bash")[0];
            let to = Pid::from_raw(if group { -atoll } else { atoll });
            kill(to, signal).unwrap();
            wait_until("atoll stops with its program", || is_stopped(atoll) && is_stopped(shell));
            // The server does not: others may be using the volume.
            assert!(!is_stopped(children(child.id(), "atoll-server")[0]));
            kill(to, Signal::SIGCONT).unwrap();
            wait_until("both go on", || !is_stopped(atoll) && !is_stopped(shell));
            let line = format!("{signal} {group}\n");
            child.stdin.take().unwrap().write_all(line.as_bytes()).unwrap();
            assert!(child.wait().unwrap().success());
            assert_eq!(script_ok(dir.path(), "cat /vol/said"), line);
        }
    }
}

/// The program can be stopped and continued alone, by a user who knows nothing of atoll.
#[test]
fn the_program_alone_is_stopped_and_continued() {
    let dir = folder();
    for signal in [Signal::SIGSTOP, Signal::SIGTSTP, Signal::SIGTTIN] {
        let mut child = start(dir.path(), &[], "trap : USR1 USR2; echo ready; read line; exit 6");
        wait_for(child.stdout.as_mut().unwrap(), "ready\n");
        let shell = Pid::from_raw(children(child.id(), "bash")[0]);
        let is_pending = |signal: Signal| {
            let status = std::fs::read_to_string(format!("/proc/{shell}/status")).unwrap();
            let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:\t")).unwrap();
            u64::from_str_radix(pending, 16).unwrap() & 1 << (signal as u64 - 1) != 0
        };
        kill(shell, signal).unwrap();
        wait_until("it stops", || is_stopped(shell.as_raw()));
        // By the second atoll has seen the stop.
        for passed in [Signal::SIGUSR1, Signal::SIGUSR2] {
            kill(Pid::from_raw(child.id() as i32), passed).unwrap();
            wait_until("atoll passes on a signal", || is_pending(passed));
        }
        assert!(!is_stopped(child.id() as i32));
        kill(shell, Signal::SIGCONT).unwrap();
        child.stdin.take().unwrap().write_all(b"on\n").unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(6), "{signal}");
    }
}

/// A shell that has jobs of its own, and the terminal, suspends itself alone: the shell before it
/// goes on, and gives the terminal back.
#[test]
fn a_shell_suspends_itself() {
    need("script", "bsdutils");
    let dir = folder();
    let outer = format!("exec {} PS1='ready> ' bash --norc --noprofile -i", USUAL.join(" "));
    let mut child = Command::new("script")
        .current_dir(dir.path())
        .args(["--quiet", "--return", "--command", &outer, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    wait_for(&mut output, "ready> ");
    let mut ask = |line: &str, answer: &str| {
        input.write_all(format!("{line}\n").as_bytes()).unwrap();
        wait_for(&mut output, answer);
        wait_for(&mut output, "ready> ");
    };
    let program = env!("CARGO_BIN_EXE_atoll");
    // Where it does not run at all, nobody waits for what comes after.
    ask(&format!("{program} run -q -- true || exit"), "");
    ask(&format!("{program} run -q -- bash --norc --noprofile -i"), "");
    ask("echo inner-$((40 + 2))", "inner-42");
    ask("suspend", "Stopped");
    ask("echo outer-$((40 + 3))", "outer-43");
    ask("fg", "");
    ask("echo inner-$((40 + 4))", "inner-44");
    ask("exit 9", "");
    ask("echo status-$?", "status-9");
    input.write_all(b"exit 8\n").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(8));
}

#[test]
fn the_terminal_passes_through() {
    need("script", "bsdutils");
    let dir = folder();
    // script(1) runs its command on a terminal of its own, and sends what it reads to it. It does
    // so through a shell, which must not stay to be interrupted itself.
    let inner = format!(
        "exec {} {} run -q -- bash -c 'tty -s && echo is-a-terminal; stty size > /dev/null && read -r line && echo got-$line; \
         trap \"echo interrupted; exit 9\" INT; echo waiting; while :; do sleep 0.05; done'",
        USUAL.join(" "),
        env!("CARGO_BIN_EXE_atoll")
    );
    let mut child = Command::new("script")
        .current_dir(dir.path())
        .args(["--quiet", "--return", "--command", &inner, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    wait_for(&mut output, "is-a-terminal");
    input.write_all(b"typed\n").unwrap();
    wait_for(&mut output, "got-typed");
    wait_for(&mut output, "waiting");
    // Ctrl-C, by way of the terminal: to the program once, not twice.
    input.write_all(&[3]).unwrap();
    wait_for(&mut output, "interrupted");
    let mut rest = String::new();
    drop(input);
    BufReader::new(output).read_to_string(&mut rest).unwrap();
    assert!(!rest.contains("interrupted"), "{rest}");
    assert_eq!(child.wait().unwrap().code(), Some(9));
}

#[test]
fn what_the_program_leaves_running_is_waited_for() {
    let dir = folder();
    let start_time = Instant::now();
    let text = "(sleep 2; echo late > /vol/late) > /dev/null 2>&1 & exit 3";
    let output = script(dir.path(), text);
    assert_eq!(output.status.code(), Some(3));
    assert!(start_time.elapsed() >= Duration::from_secs(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("waiting for what it left running") && said.contains("sleep ("),
        "{said}"
    );
    assert_eq!(script_ok(dir.path(), "cat /vol/late"), "late\n");

    // An interrupt ends it instead.
    let mut child = start(dir.path(), &[], "sleep 1000 > /dev/null 2>&1 & exit 3");
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.contains("waiting"), "{line}");
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(3));
    // So it does what takes no notice of being asked.
    let mut child = start(
        dir.path(),
        &[],
        "(trap '' TERM INT HUP; while :; do sleep 1000; done) > /dev/null 2>&1 & exit 4",
    );
    let mut said = BufReader::new(child.stderr.take().unwrap());
    said.read_line(&mut line).unwrap();
    for _ in 0..2 {
        std::thread::sleep(Duration::from_millis(100));
        kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    }
    assert_eq!(child.wait().unwrap().code(), Some(4));
    fsck(&dir.path().join("atoll.vol"));
}

#[test]
fn the_server_outlives_atoll() {
    let dir = folder();
    let vol = volume(dir.path(), "v.vol", "16M");
    let text = "echo ready; sleep 1; echo done > /vol/done; sync /vol/done";
    let mut child = start(dir.path(), &["-v", "v.vol"], text);
    wait_for(child.stdout.as_mut().unwrap(), "ready\n");
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    // The program ends undisturbed, and then the volume is closed.
    wait_until("the volume is closed", || {
        atoll().arg("ls").arg(&vol).output().unwrap().status.success()
    });
    assert_eq!(ok(atoll().args(["cat"]).arg(format!("{}:/done", vol.display()))), "done\n");
    fsck(&vol);
}

#[test]
fn nothing_that_returned_is_lost_with_the_server() {
    let dir = folder();
    let vol = volume(dir.path(), "v.vol", "64M");
    for round in 0..10u64 {
        // It tells of every file once the file is there.
        let text = format!(
            "mkdir /vol/{round}; i=0; while echo $i > /vol/{round}/$i; do echo $i; i=$((i+1)); done 2>/dev/null; exit 7"
        );
        let mut child = start(dir.path(), &["-v", "v.vol"], &text);
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        for _ in 0..20 + 17 * round {
            line.clear();
            output.read_line(&mut line).unwrap();
        }
        let server = children(child.id(), "atoll-server")[0];
        kill(Pid::from_raw(server), Signal::SIGKILL).unwrap();
        let mut rest = String::new();
        output.read_to_string(&mut rest).unwrap();
        let last: u32 = rest.lines().last().unwrap_or(line.trim()).parse().unwrap();
        // The program ran on, and saw errors; atoll said why.
        assert_eq!(child.wait().unwrap().code(), Some(7));
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(said.contains("was killed") && said.contains("safe"), "{said}");
        fsck(&vol);
        let check = format!(
            "for i in $(seq 0 {last}); do test \"$(cat /vol/{round}/$i)\" = $i || exit 1; done"
        );
        let mut command = atoll();
        command.args(["run", "-v"]).arg(&vol).args(["--", "bash", "-c", &check]);
        ok(&mut command);
        fsck(&vol);
    }
    // With a program that saw nothing of it, atoll itself says so.
    let mut child = start(dir.path(), &["-v", "v.vol"], "echo ready; read line; true");
    wait_for(child.stdout.as_mut().unwrap(), "ready\n");
    let server = children(child.id(), "atoll-server")[0];
    kill(Pid::from_raw(server), Signal::SIGKILL).unwrap();
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(125));
}

#[test]
fn an_ordinary_user_may_run() {
    let root = nix::unistd::geteuid().is_root();
    let dir = folder();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    // Where the user can reach it.
    let binary = dir.path().join("atoll");
    std::fs::copy(env!("CARGO_BIN_EXE_atoll"), &binary).unwrap();
    let script = "./atoll run -q -- bash -ec '
        test \"$(id -u)\" = \"$1\"; echo mine > /vol/f; mkdir /vol/d; ln -s f /vol/l; chmod 600 /vol/f
        test \"$(stat -c %u:%g /vol/f)\" = \"$1:$2\"
        test \"$(grep CapEff /proc/self/status | cut -f2)\" = 0000000000000000
        touch side; cat /vol/l; exit 5' sh $(id -u) $(id -g); echo no";
    let run = |script: &str| {
        if root {
            as_user(dir.path(), "666", script)
        } else {
            let mut command = Command::new("sh");
            command.current_dir(dir.path()).args(["-ec", script]);
            command
        }
    };
    let output = run(script).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "mine\n");
    assert!(dir.path().join("side").exists());
    // A file that the superuser put there belongs to the user who runs: the volume's file is
    // theirs.
    let vol = dir.path().join("atoll.vol");
    std::fs::write(dir.path().join("roots"), "by root").unwrap();
    ok(atoll()
        .args(["cp", "-q"])
        .arg(dir.path().join("roots"))
        .arg(format!("{}:/", vol.display())));
    ok(&mut run("./atoll run -q -- sh -ec 'echo more >> /vol/roots; rm /vol/d -r; cat /vol/f'"));
    fsck(&vol);
}

#[test]
fn a_user_without_fuse_is_told_what_to_do() {
    if !nix::unistd::geteuid().is_root() {
        // Only the superuser can take it away.
        return;
    }
    let dir = folder();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let binary = dir.path().join("atoll");
    std::fs::copy(env!("CARGO_BIN_EXE_atoll"), &binary).unwrap();
    let said = fails(&mut as_user(dir.path(), "600", "./atoll run -q -- touch ran"), 125);
    assert!(said.contains("/dev/fuse") && said.contains("chmod 666"), "{said}");
    let mut command = Command::new("unshare");
    command.current_dir(dir.path()).args(["--mount", "sh", "-ec"]);
    command.arg(
        "mount -t tmpfs none /dev; mknod -m 666 /dev/null c 1 3; exec ./atoll run -q -- touch ran",
    );
    let said = fails(&mut command, 125);
    assert!(said.contains("/dev/fuse") && said.contains("modprobe fuse"), "{said}");
    assert!(!dir.path().join("ran").exists());
    assert!(!dir.path().join("atoll.vol").exists(), "no volume is left behind");
}

#[test]
fn deep_process_trees_and_descriptors() {
    let dir = folder();
    // Nothing of atoll's own leaks into the program.
    let state = "ls /proc/self/fd; grep SigBlk /proc/self/status; grep SigIgn /proc/$$/status";
    let mut plain = Command::new(USUAL[0]);
    let outside = ok(plain.current_dir(dir.path()).args([USUAL[1], "bash", "-c", state]));
    assert_eq!(script_ok(dir.path(), state), outside);
    // Arguments and environment as they are.
    let mut command = atoll();
    command.current_dir(dir.path()).env("SOME_THING", "a b").arg0("other name");
    command.args(["run", "-q", "printenv", "SOME_THING"]);
    assert_eq!(ok(&mut command), "a b\n");
    let mut command = atoll();
    command.current_dir(dir.path()).args(["run", "-q", "echo", "--help", "-v", "x y", "--"]);
    assert_eq!(ok(&mut command), "--help -v x y --\n");
}
