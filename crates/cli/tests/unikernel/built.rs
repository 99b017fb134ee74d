//! Images with a program in them: one file, which boots by itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{atoll, fails, folder, fsck, need, ok, volume};
use crate::image::{image, machine, on_each_machine, run};

/// `atoll unikernel build` of the file `image` in `dir`; options and the program come behind.
fn build(dir: &Path) -> Command {
    need("busybox", "busybox-static");
    let mut command = atoll();
    command.args(["unikernel", "build", "--image"]).arg(image()).arg("-o").arg(dir.join("image"));
    command
}

const SCRIPT: &str = "read line; echo $0 $1 $A $B $line $PWD; read f < /x/f; echo $f > /data/f;
    read f < /data/f; echo $f; exit 7";

/// An image with a shell that runs `SCRIPT`.
fn shell(dir: &Path) -> PathBuf {
    fs::write(dir.join("f"), "of the host\n").unwrap();
    let mut command = build(dir);
    command.arg("--add").arg(format!("{}:/x/f", dir.join("f").display()));
    command.args(["-e", "A=1", "-e", "B=b c", "-w", "/data", "-v", "ram,4M:/data", "--"]);
    ok(command.args(["busybox", "sh", "-c", SCRIPT, "a", "virtio_mmio.device=1"]));
    dir.join("image")
}

/// No other file, no word on the command line, no other program than QEMU.
#[test]
fn qemu_boots_the_one_file() {
    let dir = folder();
    let image = shell(dir.path());
    on_each_machine(|| {
        let with_program = |line: &str| {
            let mut command = Command::new("qemu-system-x86_64");
            let machine = if machine() == "q35" { "q35" } else { "microvm,acpi=off,rtc=on" };
            command.args(["-accel", "tcg", "-cpu", "max", "-M", machine, "-m", "256M"]);
            command.args(["-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio"]);
            command.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4"]);
            command.args(["-append", line]).arg("-kernel").arg(&image);
            run(&mut command, b"one two\n")
        };
        let ran = with_program("");
        let said = "a virtio_mmio.device=1 1 b c one two /data\nof the host\n";
        assert_eq!(ran.output, said, "{ran:#?}");
        // Twice the program's status and one more, as QEMU has it.
        assert_eq!(ran.code(), 15);
        // Each run begins with what was built, and may be told more.
        let ran = with_program("env=A=2 cwd=/ -- busybox sh -c echo%20$A$B/data/*;pwd");
        assert_eq!(ran.output, "2b c/data/*\n/\n", "{ran:#?}");
        assert_eq!(ran.code(), 1);
    });
}

#[test]
fn a_built_image_is_run_with_volumes() {
    let dir = folder();
    let image = shell(dir.path());
    let vol = volume(dir.path(), "v", "16M");
    let at_vol = format!("{}:/vol", vol.display());
    on_each_machine(|| {
        let built = |options: &[&str]| {
            let mut command = atoll();
            command.args(["unikernel", "run", "--accel", "tcg", "--machine", machine(), "--image"]);
            command.arg(&image).args(options);
            command
        };
        let ran = run(&mut built(&[]), b"one two\n");
        let said = "a virtio_mmio.device=1 1 b c one two /data\nof the host\n";
        assert_eq!((ran.code(), ran.output.as_str()), (7, said), "{ran:#?}");
        let script = "read x < /x/f; echo $x $A > /vol/f; exit 3";
        let other = ["-v", &at_vol, "-e", "A=5", "--", "busybox", "sh", "-c", script];
        let ran = run(&mut built(&other), b"");
        assert_eq!(ran.code(), 3, "{ran:#?}");
        fsck(&vol);
        let read = ok(atoll().arg("cat").arg(format!("{}:/f", vol.display())));
        assert_eq!(read, "of the host 5\n");
        let said = fails(&mut built(&["-m", "64M"]), 125);
        assert!(said.contains("M of memory at least: -m "), "{said}");
        let root = format!("{}:/", vol.display());
        let said = fails(&mut built(&["-v", &root]), 125);
        assert!(said.contains("/: another volume is there"), "{said}");
    });
}

#[test]
fn what_cannot_be_built_is_said() {
    let dir = folder();
    let built = shell(dir.path());
    let vol = volume(dir.path(), "v", "16M");
    let refused = |command: &mut Command, status: i32, said: &str| {
        let text = fails(command, status);
        assert!(text.contains(said), "{text}");
    };
    let mut again = atoll();
    again.args(["unikernel", "build", "-o"]).arg(dir.path().join("two")).arg("--image");
    refused(again.arg(&built).args(["--", "busybox"]), 1, "has been built into it already");
    let mut other = atoll();
    other.args(["unikernel", "build", "-o"]).arg(dir.path().join("two")).arg("--image");
    refused(other.arg("/bin/busybox").args(["--", "busybox"]), 1, "not an image");
    let disk = format!("{}:/data", vol.display());
    refused(build(dir.path()).args(["-v", &disk, "--", "busybox"]), 1, "only volumes in memory");
    assert!(!dir.path().join("two").exists());
    let mut plain = atoll();
    plain.args(["unikernel", "run", "--image"]).arg(image());
    refused(&mut plain, 125, "none is built into the image");
    let mut added = atoll();
    added.args(["unikernel", "run", "--add", "/x", "--image"]).arg(&built);
    refused(&mut added, 125, "the image is built");
}
