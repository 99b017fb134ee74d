//! Volumes on disks, and file systems that servers have: the same bytes inside and outside.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use atoll_vm::Virtiofsd;

use crate::common::{TempDir, atoll, folder, fsck, ok, volume, wait_until};
use crate::image::{compile, on_each_machine, run, unikernel};
use crate::programs::postmark_counts;

/// A server of a volume for virtual machines.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

/// Serves `volume` at the socket `guests` in its folder.
fn serve(dir: &Path, volume: &Path) -> Server {
    let socket = dir.join("guests");
    let child = atoll()
        .arg("serve")
        .arg(volume)
        .arg("--socket")
        .arg(dir.join("control"))
        .arg("--vhost-user")
        .arg(&socket)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("atoll starts");
    wait_until("the server listens", || {
        fs::metadata(&socket).is_ok_and(|found| found.file_type().is_socket())
    });
    Server(child)
}

/// The file system at `path` appears at /data.
fn at_data(path: &Path) -> String {
    format!("{}:/data", path.display())
}

/// A program of the tests for virtual machines.
fn chance(dir: &TempDir, name: &str) -> std::path::PathBuf {
    let source = match name {
        "fsx" => concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/fsx.c"),
        "passes" => concat!(env!("CARGO_MANIFEST_DIR"), "/../../vm/c/passes.c"),
        _ => concat!(env!("CARGO_MANIFEST_DIR"), "/../../vm/c/names.c"),
    };
    atoll_vm::programs::compile(Path::new(source), dir.path())
}

/// Operations by chance on names and on bytes, each held against what is in the program's memory.
#[track_caller]
fn by_chance(dir: &TempDir, source: &str, operations: u32) {
    let seed = "11";
    let operations = operations.to_string();
    let mut command = unikernel(["-v", source]);
    let ran = run(command.arg(chance(dir, "names")).args(["/data", &operations, seed]), b"");
    assert!(ran.output.starts_with("end\n"), "{ran:#?}");
    let mut command = unikernel(["-v", source]);
    command.arg(chance(dir, "fsx")).args(["/data", &operations, seed, "unmapped"]);
    let ran = run(&mut command, b"");
    assert!(ran.output.starts_with("end\n"), "{ran:#?}");
}

#[test]
fn operations_by_chance_are_as_in_memory() {
    let dir = folder();
    by_chance(&dir, "ram:/data", 5000);
    let volume = volume(dir.path(), "v", "64M");
    by_chance(&dir, &at_data(&volume), 3000);
    fsck(&volume);
}

/// What a thesis on virtio-fs has measured: one file by buffers of 16 bytes to 1 MiB, in order and
/// at random, and 2 to 2,048 names made, listed and removed. Each byte is checked.
#[track_caller]
fn passes(dir: &TempDir, source: &str) {
    let mut words: Vec<String> = Vec::new();
    let mut then = |what: &str| {
        let plus = (!words.is_empty()).then_some("+");
        words.extend(plus.into_iter().chain(what.split(' ')).map(String::from));
    };
    for buffer in (4..=20).step_by(2).map(|power| 1 << power) {
        for order in ["sequence", "random"] {
            let size = (buffer * 256).min(4 << 20);
            then(&format!("write /data/{order}{buffer} {size} {buffer} {order}"));
            then(&format!("read /data/{order}{buffer} {size} {buffer} {order}"));
        }
    }
    then("make /data/names 0");
    for count in (1..=11).step_by(2).map(|power| 1 << power) {
        for what in ["create", "list", "remove"] {
            then(&format!("{what} /data/names {count}"));
        }
    }
    let mut command = unikernel(["-v", source]);
    assert_eq!(run(command.arg(chance(dir, "passes")).args(&words), b"").ok(), "");
}

#[test]
fn passes_over_files_and_names() {
    let dir = folder();
    passes(&dir, "ram,128M:/data");
    let volume = volume(dir.path(), "v", "128M");
    passes(&dir, &at_data(&volume));
    fsck(&volume);
    let server = serve(dir.path(), &volume);
    let mut command = unikernel(["-v", &at_data(&dir.path().join("guests"))]);
    // Another machine, on the other way, finds what the first has left.
    command.arg(chance(&dir, "passes"));
    let names = ["list", "/data/names", "0", "+", "read", "/data/random4096", "1048576", "4096"];
    assert_eq!(run(command.args(names).arg("sequence"), b"").ok(), "");
    drop(server);
    let volume = crate::common::volume(dir.path(), "w", "128M");
    let server = serve(dir.path(), &volume);
    passes(&dir, &at_data(&dir.path().join("guests")));
    drop(server);
    fsck(&volume);
}

#[test]
fn a_volume_made_inside_is_read_outside_and_the_reverse() {
    on_each_machine(|| {
        let dir = folder();
        let volume = volume(dir.path(), "v", "64M");
        let mut bytes = Vec::new();
        fs::File::open("/dev/urandom").unwrap().take(300_000).read_to_end(&mut bytes).unwrap();
        fs::write(dir.path().join("random"), &bytes).unwrap();
        let inside = |place: &str| format!("{}:{place}", volume.display());
        ok(atoll().arg("cp").arg(dir.path().join("random")).arg(inside("/outside")));
        let source = at_data(&volume);
        let mut command = unikernel(["-v", &source]);
        let ran = run(command.args(["busybox", "cp", "/data/outside", "/data/inside"]), b"");
        assert_eq!(ran.ok(), "");
        // It was unmounted: there is nothing to recover.
        fsck(&volume);
        ok(atoll().arg("cp").arg(inside("/inside")).arg(dir.path().join("back")));
        assert!(fs::read(dir.path().join("back")).unwrap() == bytes, "what was copied inside");
        // For looking only.
        let read_only = format!("{source}:ro");
        let mut command = unikernel(["-v", &read_only]);
        let ran = run(command.args(["busybox", "rm", "/data/inside"]), b"");
        assert!(ran.code() == 1 && ran.errors.contains("Read-only file system"), "{ran:#?}");
        // Nobody else has it meanwhile.
        let mut command = unikernel(["-v", &source]);
        command.args(["busybox", "sh", "-c", "echo ready; read line; true"]);
        let mut holder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "ready\n");
        let ran = atoll().arg("fsck").arg(&volume).output().unwrap();
        assert!(String::from_utf8_lossy(&ran.stderr).contains("in use"), "{ran:?}");
        drop(holder.stdin.take());
        assert!(holder.wait().unwrap().success());
        fsck(&volume);
    });
}

#[test]
fn programs_run_on_a_disk() {
    on_each_machine(|| {
        let dir = folder();
        let volume = volume(dir.path(), "v", "64M");
        let source = at_data(&volume);
        postmark_counts(500, true, [500, 264, 243, 257, 528, 236], &["-v", &source]);
        let mut command = unikernel(["-v", &source]);
        let script = b"create table t (i integer, s text);
            with recursive n(x) as (select 1 union all select x + 1 from n where x < 20000)
            insert into t select x, 'row ' || x from n;
            insert into t values (0, 'one by itself'); select count(*), sum(i) from t;
            pragma integrity_check;\n";
        let ran = run(command.args(["sqlite3", "/data/test.db"]), script);
        assert_eq!(ran.ok(), "20001|200010000\nok\n");
        fsck(&volume);
        // The whole root, the program too, is on a disk.
        let inside = |place: &str| format!("{}:{place}", volume.display());
        ok(atoll().arg("mkdir").arg(inside("/bin")));
        ok(atoll().args(["cp", "/bin/busybox"]).arg(inside("/bin/busybox")));
        let source = format!("{}:/", volume.display());
        let ran = run(unikernel(["-v", &source]).args(["busybox", "ls", "/"]), b"");
        assert_eq!(ran.ok(), "bin\ndev\ntest.db\n");
        fsck(&volume);
    });
}

#[test]
fn programs_run_on_a_served_volume_that_the_host_uses_too() {
    on_each_machine(|| {
        let dir = folder();
        let volume = volume(dir.path(), "v", "64M");
        let server = serve(dir.path(), &volume);
        let source = at_data(&dir.path().join("guests"));
        by_chance(&dir, &source, 1000);
        postmark_counts(500, true, [500, 264, 243, 257, 528, 236], &["-v", &source]);
        drop(server);
        fsck(&volume);
    });
}

#[test]
fn programs_run_on_a_directory_that_a_stock_server_has() {
    use std::os::unix::fs::MetadataExt;
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        println!("skipped: the stock virtiofsd needs root");
        return;
    }
    let dir = folder();
    let shared = dir.path().join("shared");
    fs::create_dir(&shared).unwrap();
    fs::write(shared.join("host"), "of the host\n").unwrap();
    Virtiofsd::each(&shared, |name, server| {
        let mut command = unikernel(["-v", &at_data(&server.socket())]);
        let ran = run(command.args(["busybox", "cp", "/data/host", "/data/image"]), b"");
        assert_eq!(ran.ok(), "", "{name}");
        assert_eq!(fs::read_to_string(shared.join("image")).unwrap(), "of the host\n", "{name}");
        fs::remove_file(shared.join("image")).unwrap();
    });
    for program in ["names", "fsx"] {
        Virtiofsd::each(&shared, |name, server| {
            let mut command = unikernel(["-v", &at_data(&server.socket())]);
            let arguments = ["/data", "1000", "11", "unmapped"];
            let some = if program == "fsx" { &arguments[..] } else { &arguments[..3] };
            let ran = run(command.arg(chance(&dir, program)).args(some), b"");
            assert!(ran.output.starts_with("end\n"), "{name}: {ran:#?}");
            // The next one begins anew.
            fs::remove_dir_all(&shared).unwrap();
            fs::create_dir(&shared).unwrap();
        });
    }
    Virtiofsd::each(&shared, |_, server| {
        let source = at_data(&server.socket());
        postmark_counts(500, true, [500, 264, 243, 257, 528, 236], &["-v", &source]);
    });
}

/// The number on the next line. A line without its end is none: the machine was killed in it, and
/// the number may be one of more digits.
fn number(said: &mut impl BufRead) -> Option<u64> {
    let mut line = String::new();
    said.read_line(&mut line).expect("text");
    let digits = line.strip_suffix('\n')?;
    Some(digits.parse().unwrap_or_else(|_| panic!("a number, not {digits:?}")))
}

/// Lets `survivor` make files in what `source` is, and kills the machine after a while, `times`
/// times; after each, `checked` looks from outside, and the next machine at all that was said.
fn killed(dir: &TempDir, source: &str, times: u32, checked: impl Fn()) {
    let program = compile(dir.path(), "survivor");
    let (mut next, mut random) = (0_u64, 1_u64);
    for _ in 0..times {
        let mut command = unikernel(["-v", source]);
        command.arg(&program).args(["/data", &next.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut machine = command.spawn().expect("atoll starts");
        let mut said = BufReader::new(machine.stdout.take().unwrap());
        // After so many files, and then somewhere among the instructions of the next.
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let (files, moment) = (1 + (random >> 33) % 40, (random >> 40) % 3000);
        for _ in 0..files {
            next = number(&mut said).expect("the machine makes files until it is killed") + 1;
        }
        std::thread::sleep(Duration::from_micros(moment));
        machine.kill().unwrap();
        // What had been said by then counts too.
        while let Some(number) = number(&mut said) {
            next = number + 1;
        }
        machine.wait().unwrap();
        checked();
        let from = next.saturating_sub(100).to_string();
        let mut command = unikernel(["-v", source]);
        let ran = run(command.arg(&program).args(["/data", &from, &next.to_string()]), b"");
        assert_eq!(ran.ok(), "all there\n", "files {from} to {next}");
    }
}

/// How often: ATOLL_KILLS says, 200 for the long form.
fn kills() -> u32 {
    std::env::var("ATOLL_KILLS").ok().and_then(|times| times.parse().ok()).unwrap_or(5)
}

#[test]
fn what_was_done_on_a_disk_survives_the_machine() {
    on_each_machine(|| {
        let dir = folder();
        let volume = volume(dir.path(), "v", "256M");
        killed(&dir, &at_data(&volume), kills(), || {
            // QEMU ends a moment after the command that was killed, and has the volume until then.
            wait_until("the machine has ended", || {
                let ran = atoll().arg("fsck").arg(&volume).output().unwrap();
                let said = String::from_utf8_lossy(&ran.stderr);
                assert!(ran.status.success() || said.contains("in use"), "{said}");
                ran.status.success()
            });
        });
    });
}

#[test]
fn what_was_done_on_a_served_volume_survives_the_machine() {
    let dir = folder();
    let volume = volume(dir.path(), "v", "256M");
    let server = serve(dir.path(), &volume);
    killed(&dir, &at_data(&dir.path().join("guests")), kills(), || ());
    drop(server);
    fsck(&volume);
}

/// QEMU would fill the places of a microvm from the last on, while the image counts from the first:
/// each volume is at its own directory, whatever kind of device has it.
#[test]
fn each_volume_of_a_microvm_is_at_its_own_directory() {
    let dir = folder();
    let served = volume(dir.path(), "served", "16M");
    let server = serve(dir.path(), &served);
    let mut options: Vec<String> = ["--machine", "microvm"].map(String::from).into();
    for number in 0..3 {
        let volume = volume(dir.path(), &format!("v{number}"), "16M");
        fs::write(dir.path().join("name"), format!("{number}\n")).unwrap();
        ok(atoll()
            .arg("cp")
            .arg(dir.path().join("name"))
            .arg(format!("{}:/name", volume.display())));
        // Among them one of another kind.
        if number == 1 {
            options.extend(["-v".into(), format!("{}/guests:/served", dir.path().display())]);
        }
        options.extend(["-v".into(), format!("{}:/data{number}", volume.display())]);
    }
    let script = "for d in /data*; do read n < $d/name; echo $n; done
        echo $n > /served/copy; read n < /served/copy; echo $n";
    let ran = run(unikernel(&options).args(["busybox", "sh", "-c", script]), b"");
    assert_eq!(ran.ok(), "0\n1\n2\n2\n");
    for _ in 0..5 {
        options.extend(["-v".into(), format!("{}/guests:/more", dir.path().display())]);
    }
    let said = crate::common::fails(unikernel(&options).arg("busybox"), 125);
    assert!(said.contains("a microvm takes 8 volumes"), "{said}");
    drop(server);
    fsck(&served);
}
