//! `atoll unikernel build`: an image with a program in it, as one file.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use atoll_unikernel::built_in;
use atoll_unikernel::command_line::Source;

use super::{Inside, attachment, image};
use crate::failure::{Failure, Outcome};

/// So many bytes of an image have all that says whether something is built into it: an image
/// itself has at most 1 MiB.
const LOOKED_AT: u64 = 2 << 20;
/// Memory that a machine has besides what is loaded: its firmware's, and for the program.
const BESIDE: u64 = 16 << 20;
/// Pieces in which the volume is written; those that are zeros are left out.
const PIECE: usize = 64 << 10;

/// Build a program into an image: one file, which boots without anything else.
///
/// The file is the kernel of a virtual machine: `atoll unikernel run --image FILE` runs it, with
/// further volumes and other arguments if those are named, and so does QEMU by itself (`-kernel
/// FILE`; docs/UNIKERNEL.md has its other options).
///
/// The root is memory, in which the program, the libraries that it is linked with, and what --add
/// names lie, copied from this machine. Each run begins with it as it is now.
#[derive(clap::Args)]
pub struct Args {
    /// A file system in memory and the directory where it appears: `ram` or `ram,SIZE`. At / it
    /// gives the size of the root.
    #[arg(short, long = "volume", value_name = "SOURCE:PATH[:ro]")]
    volumes: Vec<OsString>,
    #[command(flatten)]
    inside: Inside,
    /// The file to be made. One that is there is replaced.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// The beginning of the image at `path`.
fn beginning(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LOOKED_AT).read_to_end(&mut bytes));
    read.map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
    Ok(bytes)
}

/// Whether a program is built into the image at `path`, which a machine with `memory` bytes is to
/// run.
pub fn is_built(path: &Path, memory: u64) -> Result<bool, Failure> {
    let is_built = built_in::is_in(&beginning(path)?);
    let len = std::fs::metadata(path).map_or(0, |found| found.len());
    // The firmware would be overwritten by what it loads, and the machine would hang.
    if is_built && memory < len + BESIDE {
        let least = (len + BESIDE).div_ceil(1 << 20);
        return Err(Failure::new(format!(
            "{} needs a machine with {least}M of memory at least: -m {least}M",
            path.display()
        )));
    }
    Ok(is_built)
}

/// Builds it. A crash in the middle leaves a file of another name beside it.
pub fn run(args: &Args) -> Outcome {
    let plain = image(args.inside.image.as_deref())?;
    let mut volumes = Vec::new();
    for text in &args.volumes {
        volumes.push(attachment(text, None)?);
    }
    let volume = args.inside.root(&mut volumes, &args.program[0], Source::BuiltIn)?;
    let volume = volume.unwrap_or_default();
    let line = args.inside.line(volumes, &args.program).write();
    if line.len() > built_in::LINE_MAX {
        return Err(Failure::new("too many arguments"));
    }
    let head = built_in::head(&line, volume.len() as u64);
    let front = built_in::front(&beginning(&plain)?, (head.len() + volume.len()) as u64)
        .map_err(|error| Failure::new(format!("{}: {error}", plain.display())))?;
    let to = &args.output;
    write(to, &[front, head].concat(), &volume)
        .map_err(|error| Failure::new(format!("{}: {error}", to.display())))?;
    Ok(0)
}

/// Makes the file `to` of what it begins with and a volume, whose zeros take no space.
fn write(to: &Path, begin: &[u8], volume: &[u8]) -> std::io::Result<()> {
    let mut name = to.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    let beside = PathBuf::from(name);
    let written = File::create_new(&beside).and_then(|file| {
        file.set_len((begin.len() + volume.len()) as u64)?;
        file.write_all_at(begin, 0)?;
        for (index, piece) in volume.chunks(PIECE).enumerate() {
            if piece.iter().any(|&byte| byte != 0) {
                file.write_all_at(piece, (begin.len() + index * PIECE) as u64)?;
            }
        }
        std::fs::rename(&beside, to)
    });
    if written.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    written
}
