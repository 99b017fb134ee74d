//! The guest that is the bare image: what calls cost it, counted by the emulator. Its time says
//! nothing, since its processor is emulated; instructions and exits are exact.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::Options;
use super::daemon::{Daemon, Kind, atoll};
use crate::record::Broken;

/// The program that counts: that of the image's tests.
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/cli/tests/c/image/counts.c");
/// How long a machine may run, in seconds.
const PATIENCE: &str = "120";
/// So many calls of each kind are counted.
const CALLS: u64 = 100;
/// The counted calls on which a device may be asked, together.
const ASKING: &str = "fstat, pread and pwrite of 4 KiB, stat, create with close and unlink";

/// A program in an image.
struct Counting<'a> {
    atoll: &'a Path,
    image: PathBuf,
    program: PathBuf,
}

/// What it said.
struct Counted {
    /// Instructions of one call of each kind.
    calls: String,
    /// How often the machine was left for anything but the program's streams.
    exits: u64,
}

impl Counting<'_> {
    /// Counts `calls` calls of each kind on `source`, as `atoll unikernel run -v` has it.
    fn run(&self, source: &str, calls: u64) -> Result<Counted, Broken> {
        let mut command = Command::new("timeout");
        command.arg(PATIENCE).arg(self.atoll).args(["unikernel", "run", "--accel", "tcg"]);
        command.arg("--image").arg(&self.image);
        command.args(["--qemu-arg=-icount", "--qemu-arg=shift=0", "--report"]);
        command.args(["-v", &format!("{source}:/data"), "--"]).arg(&self.program);
        let output = command.arg(calls.to_string()).stdin(Stdio::null()).output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        let exits = errors.rsplit_once("for anything else ").map_or("", |(_, rest)| rest);
        let exits = exits.lines().next().unwrap_or_default();
        match exits.parse().ok().filter(|_| output.status.success()) {
            Some(exits) => {
                let calls = String::from_utf8_lossy(&output.stdout).into_owned();
                Ok(Counted { calls, exits })
            }
            None => Err(Broken(format!("the image on {source}: {} {errors}", output.status))),
        }
    }
}

/// Adds what is counted to `text`, or why nothing is.
pub fn text(text: &mut String, options: &Options) -> Result<(), Broken> {
    let atoll = atoll(options.atoll.as_deref())?;
    let image = std::env::var_os("ATOLL_UNIKERNEL")
        .map_or_else(|| atoll.with_file_name("atoll-unikernel"), PathBuf::from);
    if !image.is_file() {
        let _ = writeln!(
            text,
            "\nNothing is counted in the image, which is not built: `cargo xtask unikernel`"
        );
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let program = folder.path().join("counts");
    let mut compile = Command::new("gcc");
    compile.args(["-O2", "-static", "-o"]).arg(&program).arg(SOURCE);
    if !compile.status()?.success() {
        return Err(Broken(format!("{SOURCE} does not compile")));
    }
    let counting = Counting { atoll: &atoll, image, program };
    let memory = counting.run("ram", CALLS)?;
    text.push_str("\nInstructions of one call in the image, on a volume in memory\n");
    for line in memory.calls.lines().filter(|line| !line.contains(" x ")) {
        let (name, count) = line.rsplit_once(' ').unwrap_or((line, ""));
        let _ = writeln!(text, "  {name:<10}{count:>8}");
    }
    let _ = writeln!(text, "Exits of the image for one each of {ASKING}");
    let _ = writeln!(text, "  volume in memory {:>22.2}", memory.exits as f64 / CALLS as f64);
    for kind in [Kind::AtollVolume, Kind::AtollFolder] {
        let exits = |calls: u64| -> Result<u64, Broken> {
            let daemon = Daemon::start(&kind, &options.disk, options.atoll.as_deref())?;
            let socket = std::path::absolute(daemon.socket())?;
            let counted = counting.run(&socket.display().to_string(), calls)?;
            daemon.end()?;
            Ok(counted.exits)
        };
        // What beginning and end take is in both.
        let more = exits(2 * CALLS).and_then(|all| Ok(all.saturating_sub(exits(CALLS)?)));
        let name = format!("virtio-fs, {}", kind.name());
        let _ = match more {
            Ok(more) => writeln!(text, "  {name:<28}{:>11.2}", more as f64 / CALLS as f64),
            Err(Broken(why)) => writeln!(text, "  {name:<28}     failed: {}", why.trim()),
        };
    }
    Ok(())
}
