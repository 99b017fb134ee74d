//! Atoll ends with the right status, and programs find the signals as they were, whatever signals
//! are ignored or blocked where it is started, as under nohup(1), in a shell's background or below
//! a service manager.
#![allow(missing_docs)]

mod common;

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use common::{children, folder, fsck, volume, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const SIGNALS: &str = "HUP,INT,QUIT,TERM,PIPE,CHLD";

/// Arguments of env(1) that leave these as usual, ignore them, block them, and do both.
fn ways() -> [Vec<String>; 4] {
    let (ignored, blocked) =
        (format!("--ignore-signal={SIGNALS}"), format!("--block-signal={SIGNALS}"));
    [vec![], vec![ignored.clone()], vec![blocked.clone()], vec![ignored, blocked]]
}

fn is_ignored(way: &[String]) -> bool {
    way.iter().any(|argument| argument.starts_with("--ignore"))
}

fn under(way: &[String], program: &str) -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal").args(way).arg(program);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn atoll_under(way: &[String]) -> Command {
    under(way, env!("CARGO_BIN_EXE_atoll"))
}

/// Waits for its end, and kills it when that does not come.
#[track_caller]
fn ended(child: &mut Child) -> ExitStatus {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if begin.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn send(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id() as i32), signal).unwrap();
}

/// Where `signals` were ignored from the start it takes no notice of them.
#[track_caller]
fn stays(child: &mut Child, signals: &[Signal], way: &[String]) {
    if is_ignored(way) {
        signals.iter().for_each(|&signal| send(child, signal));
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(child.try_wait().unwrap(), None, "{way:?}");
    }
}

#[test]
fn a_program_ends_with_its_status_and_finds_its_signals() {
    // The signals of the shell, and of a program that it starts.
    let script =
        "grep -E 'SigIgn|SigBlk' /proc/$$/status /proc/self/status | sed s/.*Sig//; exit 7";
    let dir = folder();
    // All that there are, and such of which neighbours differ.
    let all = [vec!["--ignore-signal"], vec!["--block-signal"]];
    let some = [vec![
        "--ignore-signal=HUP,QUIT,PIPE,TERM,CHLD,TSTP",
        "--block-signal=INT,PIPE,USR2,TTIN,RTMAX",
    ]];
    let ways = ways()
        .into_iter()
        .chain(all.into_iter().chain(some).map(|way| way.into_iter().map(str::to_owned).collect()));
    for way in ways {
        let mut seen = [under(&way, "sh"), atoll_under(&way)].map(|mut command| {
            let inner: &[&str] = match command.get_args().last().unwrap().to_str() {
                Some("sh") => &["-c", script],
                _ => &["run", "-q", "--", "sh", "-c", script],
            };
            let mut child = command.current_dir(dir.path()).args(inner).spawn().unwrap();
            assert_eq!(ended(&mut child).code(), Some(7), "{way:?}");
            let mut said = String::new();
            child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
            said.lines().map(str::to_owned).collect::<Vec<_>>()
        });
        assert_eq!(seen[0].len(), 4, "{seen:?}");
        let inside = std::mem::take(&mut seen[1]);
        assert_eq!(inside, seen[0], "{way:?}");
    }
}

#[test]
fn what_is_left_running_is_ended() {
    for way in ways() {
        let dir = folder();
        let text = "sleep 1000 > /dev/null 2>&1 & exit 3";
        let mut child = atoll_under(&way)
            .current_dir(dir.path())
            .args(["run", "-q", "--", "sh", "-c", text])
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("waiting"), "{line}");
        stays(&mut child, &[Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT], &way);
        // A program that takes no notice of the first is killed by the second.
        send(&child, Signal::SIGTERM);
        std::thread::sleep(Duration::from_millis(100));
        let _ = kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM);
        assert_eq!(ended(&mut child).code(), Some(3), "{way:?}");
        fsck(&dir.path().join("atoll.vol"));
    }
}

#[test]
fn a_server_ends_when_it_is_asked_to() {
    for way in ways() {
        for signal in [Signal::SIGTERM, Signal::SIGINT] {
            if signal == Signal::SIGINT && is_ignored(&way) {
                continue;
            }
            let dir = folder();
            let vol = volume(dir.path(), "v.vol", "16M");
            let mut child = atoll_under(&way)
                .current_dir(dir.path())
                .args(["serve", "v.vol", "--socket", "s"])
                .stderr(File::create(dir.path().join("log")).unwrap())
                .spawn()
                .unwrap();
            wait_until("it serves", || dir.path().join("s").exists());
            // The processes that receive from clients end with it.
            let helpers = children(child.id(), "atoll");
            // It has no terminal to lose.
            send(&child, Signal::SIGHUP);
            stays(&mut child, &[Signal::SIGINT], &way);
            send(&child, signal);
            let status = ended(&mut child);
            let log = std::fs::read_to_string(dir.path().join("log")).unwrap();
            assert!(status.success(), "{way:?} {signal}: {status}, {log}");
            let gone = |pid: &i32| !Path::new(&format!("/proc/{pid}")).exists();
            wait_until("its helpers have ended", || helpers.iter().all(gone));
            fsck(&vol);
        }
    }
}

#[test]
fn a_mount_ends_when_it_is_asked_to() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let all = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];
    let ends = |way: &Vec<String>| if is_ignored(way) { 1 } else { all.len() };
    for (way, signal) in
        ways().iter().flat_map(|way| all[..ends(way)].iter().map(move |&s| (way, s)))
    {
        let dir = folder();
        let vol = volume(dir.path(), "v.vol", "16M");
        std::fs::create_dir(dir.path().join("point")).unwrap();
        let point = dir.path().join("point");
        let before = std::fs::metadata(&point).unwrap();
        let mut child = atoll_under(way)
            .current_dir(dir.path())
            .args(["mount", "--foreground", "v.vol", "point"])
            .spawn()
            .unwrap();
        let dev = std::os::unix::fs::MetadataExt::dev;
        wait_until("it is mounted", || {
            std::fs::metadata(&point).is_ok_and(|now| dev(&now) != dev(&before))
        });
        stays(&mut child, &all[1..], way);
        send(&child, signal);
        assert!(ended(&mut child).success(), "{way:?} {signal}");
        fsck(&vol);
    }
}

/// Where atoll leads the session of a terminal, as below ssh or in a window of its own, the kernel
/// tells it alone that the terminal has gone.
#[test]
fn a_terminal_that_goes_away_ends_the_program() {
    const PROGRAM: &str = "echo $$ > /vol/pid; cp /vol/pid pid; exec sleep 1000";
    for stopped in [false, true] {
        let dir = folder();
        let terminal = nix::pty::openpty(None, None).unwrap();
        // Nobody else may have it, or it does not go away.
        rustix::io::fcntl_setfd(&terminal.master, rustix::io::FdFlags::CLOEXEC).unwrap();
        let mut child = Command::new("setsid")
            .args(["--ctty", "env", "--default-signal", env!("CARGO_BIN_EXE_atoll")])
            .args(["run", "-q", "--", "sh", "-c", PROGRAM])
            .current_dir(dir.path())
            .stdin(terminal.slave.try_clone().unwrap())
            .stdout(Stdio::null())
            .stderr(File::create(dir.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        drop(terminal.slave);
        let pid = || std::fs::read_to_string(dir.path().join("pid")).ok()?.trim().parse().ok();
        wait_until("it runs", || pid().is_some());
        let program = Pid::from_raw(pid().unwrap());
        if stopped {
            kill(program, Signal::SIGSTOP).unwrap();
            let state = || std::fs::read_to_string(format!("/proc/{program}/stat")).unwrap();
            wait_until("it has stopped", || state().contains(") T "));
        }
        drop(terminal.master);
        assert_eq!(ended(&mut child).code(), Some(128 + 1), "stopped: {stopped}");
        fsck(&dir.path().join("atoll.vol"));
    }
}
