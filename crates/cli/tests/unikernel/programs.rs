//! Unmodified programs of Debian's, static and dynamic.

use std::fs;

use crate::common::{fails, folder, need};
use crate::image::{compile, image, machine, on_each_machine, run, unikernel};

const NONE: [&str; 0] = [];

#[test]
fn a_static_program_lists_prints_and_counts() {
    on_each_machine(|| {
        need("busybox", "busybox-static");
        let busybox = |arguments: &[&str], input: &[u8]| {
            run(unikernel(NONE).arg("busybox").args(arguments), input)
        };
        assert_eq!(busybox(&["echo", "a b", "", "%é\n"], b"").ok(), "a b  %é\n\n");
        assert_eq!(busybox(&["ls", "/"], b"").ok(), "bin\ndev\n");
        assert_eq!(busybox(&["true"], b"").code(), 0);
        assert_eq!(busybox(&["false"], b"").code(), 1);
        // All bytes, in both directions.
        let all: Vec<u8> = (0..=127).chain(0..=127).collect();
        assert_eq!(busybox(&["cat"], &all).ok().as_bytes(), all);
        // What one program says to its errors is none of its output.
        let ran = busybox(&["cat", "/none"], b"");
        assert_eq!((ran.code(), ran.output.as_str()), (1, ""));
        assert!(ran.errors.contains("can't open '/none': No such file"), "{}", ran.errors);
    });
}

#[test]
fn a_shell_runs_its_own_commands_and_redirections() {
    on_each_machine(|| {
        need("busybox", "busybox-static");
        let script = "cd /data; for i in 1 2 3; do echo line $i; done > f; echo more >> f;
            while read a b; do echo $b $a; done < f; echo $HOME $(( 6 * 7 )); exit 200";
        let options = ["-v", "ram,1M:/data", "-e", "HOME=/h o"];
        let ran = run(unikernel(options).args(["busybox", "sh", "-c", script]), b"");
        assert_eq!(ran.output, "1 line\n2 line\n3 line\nmore\n/h o 42\n", "{}", ran.errors);
        assert_eq!(ran.code(), 200);
    });
}

#[test]
fn files_of_this_machine_are_added() {
    let dir = folder();
    fs::create_dir(dir.path().join("d")).unwrap();
    fs::write(dir.path().join("d/f"), "of the host\n").unwrap();
    std::os::unix::fs::symlink("f", dir.path().join("d/l")).unwrap();
    let added = format!("{}:/x/y", dir.path().join("d").display());
    let ran = run(unikernel(["--add", &added, "-w", "/x"]).args(["busybox", "cat", "y/l"]), b"");
    assert_eq!(ran.ok(), "of the host\n");
}

/// PostMark's commands.
fn postmark(files: u32, buffering: bool) -> Vec<u8> {
    format!(
        "set number {files}\nset size 500 10000\nset transactions 500\nset read 512\n\
         set write 512\nset buffering {buffering}\nset location /data\nrun\nquit\n"
    )
    .into_bytes()
}

/// Runs PostMark in memory, and holds its counts against those on Linux.
#[track_caller]
pub fn postmark_counts(files: u32, buffering: bool, golden: [u32; 6], options: &[&str]) -> String {
    need("postmark", "postmark");
    let ran = run(unikernel(options).arg("postmark"), &postmark(files, buffering));
    let report = ran.errors.clone();
    let output = ran.ok();
    let counts = output.split_once("Files:").and_then(|(_, rest)| rest.split_once("Data:"));
    let (counts, _) = counts.unwrap_or_else(|| panic!("no report: {output}{report}"));
    let first = |line: &str| line.split(|c: char| !c.is_ascii_digit()).find_map(|n| n.parse().ok());
    let found: Vec<u32> = counts.lines().filter_map(first).collect();
    let [created, mixed, read, appended, deleted, deleted_mixed] = golden;
    let (all, gone) = (created + mixed, deleted + deleted_mixed);
    assert_eq!(found, [all, created, mixed, read, appended, gone, deleted, deleted_mixed]);
    report
}

#[test]
fn postmark_of_500_files_counts_what_it_counts_on_linux_and_leaves_the_machine_alone() {
    let options = ["-v", "ram,64M:/data", "--report"];
    let report = postmark_counts(500, true, [500, 264, 243, 257, 528, 236], &options);
    // Between its first instruction and its end it has only read its commands and written its
    // report.
    assert!(report.contains("for anything else 0\n"), "{report}");
}

#[test]
fn postmark_of_1000_files() {
    postmark_counts(1000, false, [1000, 248, 255, 245, 996, 252], &["-v", "ram,64M:/data"]);
}

#[test]
fn postmark_of_10000_files() {
    let options = ["-m", "512M", "-v", "ram,256M:/data"];
    postmark_counts(10_000, false, [10_000, 256, 247, 253, 10_012, 244], &options);
}

#[test]
fn postmark_of_100000_files() {
    let options = ["-m", "2G", "-v", "ram,1200M:/data"];
    postmark_counts(100_000, false, [100_000, 238, 246, 254, 99_976, 262], &options);
}

#[test]
fn sqlite_inserts_and_finds_its_database_whole() {
    need("sqlite3", "sqlite3");
    let mut script = String::from("create table t (id integer, s text, f real);\n");
    for row in 1..=50 {
        script += &format!("insert into t values ({row}, 'row {row}', {row} * 0.5);\n");
    }
    script += "with recursive n(x) as (select 51 union all select x + 1 from n where x < 5000)
        insert into t select x, 'row ' || x, x * 0.5 from n;
        create index i on t (s);
        select count(*), sum(id), min(s), sum(f) from t; pragma integrity_check;\n";
    for mode in ["delete", "truncate", "persist", "memory"] {
        let script = format!("pragma journal_mode={mode};\n{script}");
        let mut command = unikernel(["-v", "ram,32M:/data"]);
        let ran = run(command.args(["sqlite3", "/data/test.db"]), script.as_bytes());
        assert_eq!(ran.ok(), format!("{mode}\n5000|12502500|row 1|6251250.0\nok\n"));
    }
}

#[test]
fn a_hundred_thousand_files_a_full_disk_and_all_that_calls_do() {
    let dir = folder();
    let program = compile(dir.path(), "files");
    let mut command = unikernel(["-m", "1G", "-v", "ram,600M:/data", "-v", "ram,4M:/small"]);
    let ran = run(command.arg(program).args(["100000", "/data", "/small"]), b"");
    assert_eq!(ran.ok(), "calls\nmemory\nfiles 100000\nfull\nend\n");
}

/// What is random where the command line brings no seed and the processor has no such instruction.
#[test]
fn random_numbers_come_from_a_device() {
    on_each_machine(|| {
        need("busybox", "busybox-static");
        // In place of the command line that is made, which has a seed.
        let line = "--qemu-arg=volume=/,module volume=/data,ram:8388608 -- busybox hexdump /dev/urandom -n 32";
        let options = |more: &[&str]| {
            let line = ["--qemu-arg=-append", line, "--qemu-arg=-cpu", "--qemu-arg=qemu64"];
            let more = more.iter().map(|word| format!("--qemu-arg={word}"));
            unikernel(line.map(String::from).into_iter().chain(more))
        };
        let numbers = || {
            let device = if machine() == "q35" { "virtio-rng-pci" } else { "virtio-rng-device" };
            let ran = run(options(&["-device", device]).arg("busybox"), b"");
            let said = ran.ok();
            assert_eq!(said.lines().count(), 3, "{said}");
            said
        };
        assert_ne!(numbers(), numbers());
        let ran = run(options(&[]).arg("busybox"), b"");
        assert!(ran.code() == 125 && ran.errors.contains("no random numbers"), "{ran:#?}");
    });
}

#[test]
fn what_is_missing_is_said() {
    let mut command = unikernel(NONE);
    let said = fails(command.arg("/none/such"), 125);
    assert!(said.contains("/none/such: no such file or directory"), "{said}");
    // A script is no program that it could load.
    let dir = folder();
    fs::write(dir.path().join("script"), "#!/bin/sh\necho\n").unwrap();
    let said = fails(unikernel(NONE).arg(dir.path().join("script")), 125);
    assert!(said.contains("script: not an ELF program"), "{said}");
    let mut command = crate::common::atoll();
    command.args(["unikernel", "run", "--image", "/none", "--", "true"]);
    assert!(fails(&mut command, 125).contains("there is no image /none"));
    let mut command = crate::common::atoll();
    command.args(["unikernel", "run", "--qemu", "none-such", "--accel", "tcg", "--image"]);
    let said = fails(command.arg(image()).args(["--", "busybox"]), 125);
    assert!(said.contains("cannot run none-such") && said.contains("qemu-system-x86"), "{said}");
    for wrong in ["ram", "ram:data", ":/data", "ram,x:/data", "none:/data"] {
        let said = fails(unikernel(["-v", wrong]).arg("busybox"), 125);
        assert!(said.contains(wrong) || said.contains("is no size"), "{wrong}: {said}");
    }
}
