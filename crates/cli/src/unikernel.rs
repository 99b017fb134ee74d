//! `atoll unikernel`: runs a Linux program in a bare image, in a virtual machine of its own.
//!
//! [`module`] makes a volume with the program in it, the image's initial module; [`machine`] is the
//! virtual machine: QEMU's command line, the streams, and how it ends; [`build`] makes an image
//! that has the volume in itself.

mod build;
mod machine;
mod module;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use atoll_unikernel::command_line::{CommandLine, Source, Volume};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::failure::{Failure, Outcome, RUN_FAILED};
use crate::size;
use crate::volume::{self, Access};
use machine::{Acceleration, Board, Machine, Wanted};
use module::Added;

/// Run a Linux program in a bare image: a virtual machine without an operating system.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Run(RunArgs),
    Build(build::Args),
}

/// What is in the image's file tree, and what the program is started with.
#[derive(clap::Args)]
struct Inside {
    /// A file or directory of this machine that is copied to the root in memory, at the same path
    /// or at PATH.
    #[arg(long, value_name = "FILE[:PATH]")]
    add: Vec<OsString>,
    /// A variable of the program's environment, which has nothing else.
    #[arg(short, long = "env", value_name = "NAME=VALUE")]
    environment: Vec<OsString>,
    /// The program's working directory.
    #[arg(short = 'w', long, value_name = "PATH")]
    directory: Option<PathBuf>,
    /// The image; otherwise the file atoll-unikernel beside this program, or in ../lib/atoll.
    #[arg(long, value_name = "FILE", env = "ATOLL_UNIKERNEL")]
    image: Option<PathBuf>,
}

impl Inside {
    /// Makes the root of `volumes` a volume with `program` in it, which the image finds as
    /// `source`: where none is named, or one in memory. `None`: it is something else.
    fn root(
        &self,
        volumes: &mut Vec<Volume>,
        program: &OsStr,
        source: Source,
    ) -> Result<Option<Vec<u8>>, Failure> {
        let root = volumes.iter_mut().find(|volume| volume.path == b"/");
        let (bytes, asked) = match &root {
            None => (RAM, false),
            Some(Volume { source: Source::Ram(bytes), .. }) => (*bytes, true),
            Some(_) if !self.add.is_empty() => {
                return Err(Failure::new("--add is for a root in memory, and a volume is at /"));
            }
            Some(_) => return Ok(None),
        };
        let added: Result<Vec<Added>, Failure> =
            self.add.iter().map(|text| Added::parse(text)).collect();
        let content = module::make(program, &added?, bytes, asked)?;
        let made = Volume {
            path: b"/".to_vec(),
            source,
            read_only: root.as_ref().is_some_and(|root| root.read_only),
            incarnation: [0; 16],
        };
        match root {
            Some(root) => *root = made,
            None => volumes.push(made),
        }
        Ok(Some(content))
    }

    /// What the image is told of `volumes` and `program`.
    fn line(&self, volumes: Vec<Volume>, program: &[OsString]) -> CommandLine {
        let text = |text: &OsString| text.as_bytes().to_vec();
        CommandLine {
            volumes,
            environment: self.environment.iter().map(text).collect(),
            directory: self
                .directory
                .as_deref()
                .map_or(Vec::new(), |path| path.as_os_str().as_bytes().to_vec()),
            program: program.iter().map(text).collect(),
            ..CommandLine::default()
        }
    }
}

/// Run a program in the image, with volumes in its file tree.
///
/// The image boots in QEMU and answers the program's system calls itself. The program may be any
/// Linux program for x86-64 that has one thread and starts no other. Standard input, output and
/// error are the command's, and so is the status.
///
/// Without a volume at / the root is memory, in which the program, the libraries that it is linked
/// with, and what --add names lie, copied from this machine.
///
/// 125: the image or QEMU failed; 128 and more: a fault ended the program, which is said.
#[derive(clap::Args)]
struct RunArgs {
    /// A file system and the directory where it appears. `ram` or `ram,SIZE` is memory, gone at the
    /// end; the file of a volume, or a disk with one, is a disk of the machine; the socket of a
    /// vhost-user server (`atoll serve --vhost-user`, virtiofsd) is a virtio-fs device: with
    /// `SOCKET,dax` its window is used, with `SOCKET,told` its notices of changes too, both with
    /// QEMU 11.1. `:ro` after both for looking only.
    #[arg(short, long = "volume", value_name = "SOURCE:PATH[:ro]")]
    volumes: Vec<OsString>,
    #[command(flatten)]
    inside: Inside,
    /// Memory of the machine, the root in memory included.
    #[arg(short, long, value_name = "SIZE", value_parser = size::parse, default_value = "256M")]
    memory: u64,
    /// The emulator.
    #[arg(long, value_name = "PROGRAM", env = "ATOLL_QEMU", default_value = "qemu-system-x86_64")]
    qemu: PathBuf,
    /// How the machine is run: by hardware virtualisation where that works, otherwise emulated.
    #[arg(long, value_name = "HOW", value_enum, default_value = "auto")]
    accel: Acceleration,
    /// Which machine it is: a PC with PCI, or one with as little as can be.
    #[arg(long, value_name = "MACHINE", value_enum, default_value = "q35")]
    machine: Board,
    /// Another argument for QEMU; may be given several times.
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    qemu_arg: Vec<OsString>,
    /// Say at the end what it cost: ticks of the time-stamp counter, and how often the machine was
    /// left for its host.
    #[arg(long)]
    report: bool,
    /// The program and its arguments. An image that was built with a program runs that one without.
    #[arg(trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Bytes of a volume in memory when its size is not given.
const RAM: u64 = 64 << 20;

/// Runs it.
pub fn run(args: &Args) -> Outcome {
    match &args.command {
        Command::Run(args) => run_program(args).map_err(|failure| failure.with_status(RUN_FAILED)),
        Command::Build(args) => build::run(args),
    }
}

fn run_program(args: &RunArgs) -> Outcome {
    let image = image(args.inside.image.as_deref())?;
    let is_built = build::is_built(&image, args.memory)?;
    if args.program.is_empty() && !is_built {
        return Err(Failure::new("name a program: none is built into the image"));
    }
    if is_built && !args.inside.add.is_empty() {
        return Err(Failure::new("--add is for `atoll unikernel build`: the image is built"));
    }
    let mut machine = Machine::new(&args.qemu, &image, args.memory, args.machine);
    let mut volumes = Vec::new();
    for text in &args.volumes {
        volumes.push(attachment(text, Some(&mut machine))?);
    }
    if !is_built
        && let Some(content) = args.inside.root(&mut volumes, &args.program[0], Source::Module)?
    {
        machine.set_module(content)?;
    }
    let mut seed = [0; 16];
    let got = getrandom(&mut seed[..], GetRandomFlags::empty());
    if got.is_ok_and(|got| got < seed.len()) || got.is_err() {
        return Err(Failure::new("this machine has no random numbers"));
    }
    let line = CommandLine {
        seed: Some(seed),
        framed: true,
        report: args.report,
        ..args.inside.line(volumes, &args.program)
    };
    machine.run(&line, args.accel, &args.qemu_arg)
}

/// The file of the image.
fn image(asked: Option<&Path>) -> Result<PathBuf, Failure> {
    const NAME: &str = "atoll-unikernel";
    if let Some(path) = asked {
        return match path.is_file() {
            true => Ok(path.to_owned()),
            false => Err(Failure::new(format!("there is no image {}", path.display()))),
        };
    }
    let program = std::env::current_exe().unwrap_or_default();
    let folder = program.parent().unwrap_or(Path::new("."));
    let places = [folder.join(NAME), folder.join("../lib/atoll").join(NAME)];
    places.iter().find(|place| place.is_file()).cloned().ok_or_else(|| {
        Failure::new(format!(
            "the image is missing: neither {} nor {} is there; name it with --image, or make it from \
             the source with `cargo xtask unikernel`",
            places[0].display(),
            places[1].display()
        ))
    })
}

/// Reads `SOURCE:PATH[:ro]`, and gives the machine, if there is one, the device that it needs.
fn attachment(text: &OsStr, machine: Option<&mut Machine>) -> Result<Volume, Failure> {
    let shown = text.to_string_lossy();
    let bytes = text.as_bytes();
    let (rest, read_only) = match bytes.strip_suffix(b":ro") {
        Some(rest) => (rest, true),
        None => (bytes.strip_suffix(b":rw").unwrap_or(bytes), false),
    };
    let parts =
        rest.iter().rposition(|&byte| byte == b':').map(|at| (&rest[..at], &rest[at + 1..]));
    let Some((source, path)) =
        parts.filter(|(source, path)| !source.is_empty() && path.first() == Some(&b'/'))
    else {
        return Err(Failure::new(format!(
            "`-v {shown}` names no source and path: write -v SOURCE:PATH, for example -v ram:/data"
        )));
    };
    let mut incarnation = [0; 16];
    let source = match (source, machine) {
        (b"ram", _) => Source::Ram(RAM),
        (source, _) if source.starts_with(b"ram,") => {
            let size = String::from_utf8_lossy(&source[4..]).into_owned();
            Source::Ram(size::parse(&size).map_err(Failure::new)?)
        }
        (_, None) => {
            return Err(Failure::new(format!(
                "`-v {shown}`: an image has only volumes in memory (-v ram:PATH); what is on disks \
                 and servers is named when it is run"
            )));
        }
        (source, Some(machine)) => {
            // As other commands name such a socket.
            let name = source.strip_prefix(b"vhost-user:").unwrap_or(source);
            let (name, wanted) = Wanted::parse(name);
            let file = PathBuf::from(OsString::from_vec(name.to_vec()));
            let found = std::fs::metadata(&file).map_err(|error| {
                Failure::new(format!(
                    "`-v {shown}`: {}: {error}; a source is `ram`, a volume's file, or a server's socket",
                    file.display()
                ))
            })?;
            if found.file_type().is_socket() {
                Source::Served(machine.add_served(&file, wanted)?)
            } else if !wanted.is_nothing() {
                return Err(Failure::new(format!(
                    "`-v {shown}`: `dax` and `told` are for the socket of a server"
                )));
            } else {
                let access = if read_only { Access::Read } else { Access::Write };
                let device = volume::open_device(&file, access)?;
                incarnation = device.incarnation();
                Source::Disk(machine.add_disk(&file, device, read_only)?)
            }
        }
    };
    Ok(Volume { path: path.to_vec(), source, read_only, incarnation })
}
