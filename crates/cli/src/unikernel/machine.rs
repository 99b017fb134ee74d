//! The virtual machine of an image: QEMU's command line, the program's streams, and how it ends.
//!
//! | device | what goes there |
//! |---|---|
//! | first serial line | standard output, and input with an end (`atoll_unikernel::framing`) |
//! | second serial line | standard error, and what the image has to say |
//! | isa-debugcon | `r` when the image takes input, `sNNN` with the program's status |
//! | isa-debug-exit | the end |

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use atoll_host::device::HostDevice;
use atoll_unikernel::command_line::CommandLine;
use atoll_unikernel::framing;
use rustix::fs::MemfdFlags;
use rustix::io::FdFlags;

use crate::failure::{Failure, Outcome};

/// How the machine is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Acceleration {
    /// By hardware virtualisation where a try shows that it works, otherwise emulated.
    Auto,
    /// By hardware virtualisation.
    Kvm,
    /// Emulated.
    Tcg,
}

/// Which machine the emulator plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Board {
    /// A whole PC, with its devices on PCI.
    Q35,
    /// As little as a virtual machine can be: its devices have no bus (virtio-mmio).
    Microvm,
}

/// How many devices QEMU's microvm has places for, as long as it tells of them on the command line.
const PLACES: usize = 8;
/// How long the image may take to begin when hardware virtualisation is tried.
const TRIED: Duration = Duration::from_secs(5);
/// QEMU's device for any vhost-user server.
const GENERIC: &str = "vhost-user-test-device";
/// Pieces in which the module is written; those that are zeros are left out.
const PIECE: usize = 64 << 10;

/// A machine to be run once.
pub struct Machine {
    qemu: PathBuf,
    image: PathBuf,
    memory: u64,
    board: Board,
    module: Option<OwnedFd>,
    devices: Vec<OsString>,
    /// The volumes of its disks: locked against others until it has ended.
    disks: Vec<HostDevice>,
    /// How many file systems servers have.
    served: u32,
    /// Some by QEMU's generic device.
    is_generic: bool,
}

/// What a server's device is to have beside queues for requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// A window (DAX).
    pub dax: bool,
    /// Notices of changes.
    pub told: bool,
}

impl Wanted {
    /// Takes the words for it from the end of a source: `SOCKET[,dax][,told]`.
    pub fn parse(source: &[u8]) -> (&[u8], Wanted) {
        let (mut rest, mut wanted) = (source, Wanted::default());
        loop {
            rest = match (rest.strip_suffix(b",dax"), rest.strip_suffix(b",told")) {
                (Some(before), _) if !wanted.dax => {
                    wanted.dax = true;
                    before
                }
                (_, Some(before)) if !wanted.told => {
                    wanted.told = true;
                    before
                }
                _ => return (rest, wanted),
            };
        }
    }

    /// Whether it is to have nothing.
    pub fn is_nothing(self) -> bool {
        self == Wanted::default()
    }
}

/// What the image said.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    /// It takes input.
    Ready,
    /// It ends with this status.
    Status(u8),
    /// It is gone.
    Gone,
}

impl Machine {
    /// One with the image at `image` and so many bytes of memory.
    pub fn new(qemu: &Path, image: &Path, memory: u64, board: Board) -> Machine {
        Machine {
            qemu: qemu.to_owned(),
            image: image.to_owned(),
            memory,
            board,
            module: None,
            devices: Vec::new(),
            disks: Vec::new(),
            served: 0,
            is_generic: false,
        }
    }

    /// Adds the volume in the file at `path`, which is open as `volume`, as a disk; its number.
    /// QEMU keeps what the image writes in the same memory as this process would, so that it has
    /// the same life: the host's page cache.
    pub fn add_disk(
        &mut self,
        path: &Path,
        volume: HostDevice,
        read_only: bool,
    ) -> Result<u32, Failure> {
        let number = self.disks.len() as u32;
        let read_only = if read_only { "on" } else { "off" };
        let driver = match std::fs::metadata(path) {
            Ok(found) if found.file_type().is_block_device() => "host_device",
            _ => "file",
        };
        self.devices.push("-blockdev".into());
        self.devices.push(
            format!(
                "driver=raw,node-name=disk{number},read-only={read_only},discard=unmap,\
             detect-zeroes=off,cache.direct=off,cache.no-flush=off,file.driver={driver},\
             file.filename={},file.locking=off,file.discard=unmap",
                quoted(path)?
            )
            .into(),
        );
        let device = match self.board {
            Board::Q35 => format!("virtio-blk-pci,drive=disk{number},disable-legacy=on"),
            Board::Microvm => format!("virtio-blk-device,drive=disk{number},{}", self.place()?),
        };
        self.devices.push("-device".into());
        self.devices.push(device.into());
        self.disks.push(volume);
        Ok(number)
    }

    /// Adds the file system of the vhost-user server at `socket`; its number. QEMU's device for
    /// virtio-fs has queues for requests and nothing else: what is `wanted` besides takes its
    /// generic one.
    pub fn add_served(&mut self, socket: &Path, wanted: Wanted) -> Result<u32, Failure> {
        let number = self.served;
        let socket = quoted(socket)?;
        self.devices.push("-chardev".into());
        self.devices.push(format!("socket,id=served{number},path={socket}").into());
        let (kind, options) = if wanted.is_nothing() {
            ("vhost-user-fs", format!("tag=served{number}"))
        } else {
            // High priority, notices, requests. The configuration ends with the length of a buffer
            // for notices, of a device that has them.
            let (queues, config) = if wanted.told { (3, 44) } else { (2, 40) };
            let queues = format!("num_vqs={queues},vq_size=1024");
            (GENERIC, format!("virtio-id=26,{queues},config_size={config}"))
        };
        let (bus, place) = match self.board {
            Board::Q35 => ("-pci", String::new()),
            // The devices of both names without a bus.
            Board::Microvm if wanted.is_nothing() => ("-device", format!(",{}", self.place()?)),
            Board::Microvm => ("", format!(",{}", self.place()?)),
        };
        self.devices.push("-device".into());
        let device = format!("{kind}{bus},chardev=served{number},{options}{place}");
        self.devices.push(device.into());
        self.is_generic |= !wanted.is_nothing();
        self.served += 1;
        Ok(number)
    }

    /// The place of the next device of a microvm, as an option. QEMU's own choice is the last that
    /// is free, while the image counts devices by their addresses.
    fn place(&self) -> Result<String, Failure> {
        let number = self.disks.len() + self.served as usize;
        if number >= PLACES {
            let why = format!("a microvm takes {PLACES} volumes that are not in memory");
            return Err(Failure::new(format!("{why}; --machine q35 takes more")));
        }
        Ok(format!("bus=virtio-mmio-bus.{number}"))
    }

    /// Gives it the initial module.
    pub fn set_module(&mut self, content: Vec<u8>) -> Result<(), Failure> {
        let failed =
            |error: io::Error| Failure::new(format!("memory for the initial module: {error}"));
        let memory = rustix::fs::memfd_create("atoll-module", MemfdFlags::CLOEXEC)
            .map_err(|error| failed(error.into()))?;
        let file = File::from(memory);
        file.set_len(content.len() as u64).map_err(failed)?;
        for (index, piece) in content.chunks(PIECE).enumerate() {
            if piece.iter().any(|&byte| byte != 0) {
                let at = (index * PIECE) as u64;
                std::os::unix::fs::FileExt::write_all_at(&file, piece, at).map_err(failed)?;
            }
        }
        self.module = Some(file.into());
        Ok(())
    }

    /// Runs the program to its end, with this process's standard streams; its status.
    pub fn run(&self, line: &CommandLine, how: Acceleration, more: &[OsString]) -> Outcome {
        if self.is_generic && !self.has_generic()? {
            return Err(Failure::new(format!(
                "{} has no {GENERIC}, which `dax` and `told` take: QEMU 11.1 has it; name one with \
                 --qemu",
                self.qemu.display()
            )));
        }
        let kvm = match how {
            Acceleration::Kvm => true,
            Acceleration::Tcg => false,
            Acceleration::Auto => self.kvm_works(),
        };
        let (control, control_end) = pipe()?;
        let (errors, errors_end) = pipe()?;
        let mut command = self.command(&line.write(), kvm, [&control_end, &errors_end])?;
        command.args(&self.devices).args(more).stdin(Stdio::piped());
        // QEMU may be there a moment longer than this process: the volumes are locked until then.
        self.disks.iter().try_for_each(|disk| inherited(disk.claim()).map(drop))?;
        let mut child = self.start(&mut command)?;
        drop((control_end, errors_end));
        let input = child.stdin.take();
        let copied = thread::spawn(move || {
            // Where nobody reads them there is nobody to tell.
            let _ = io::copy(&mut File::from(errors), &mut io::stderr());
        });
        let mut listen = Listen(File::from(control));
        let mut said = listen.next();
        if said == Said::Ready {
            if let Some(input) = input {
                // It ends with this process: it may wait for input that nobody wants any more.
                thread::spawn(move || send(input));
            }
            said = listen.next();
        }
        let ended = child.wait().map_err(|error| Failure::new(format!("QEMU: {error}")))?;
        let _ = copied.join();
        match said {
            Said::Status(status) => Ok(status),
            _ => Err(Failure::new(format!(
                "the image did not come to its end: {} ended with {ended}",
                self.qemu.display()
            ))),
        }
    }

    /// Whether the emulator has the generic device.
    fn has_generic(&self) -> Result<bool, Failure> {
        let mut command = Command::new(&self.qemu);
        command.args(["-device", &format!("{GENERIC},help")]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let said = self.start(&mut command)?.wait_with_output();
        let said = said.map_err(|error| Failure::new(format!("QEMU: {error}")))?;
        // Some versions succeed without it, and say nothing.
        Ok(String::from_utf8_lossy(&said.stdout).contains("virtio-id"))
    }

    fn start(&self, command: &mut Command) -> Result<Child, Failure> {
        command.spawn().map_err(|error| {
            let hint = match error.kind() {
                io::ErrorKind::NotFound => {
                    "; install QEMU for x86-64 (Debian: qemu-system-x86), or name it with --qemu"
                }
                _ => "",
            };
            Failure::new(format!("cannot run {}: {error}{hint}", self.qemu.display()))
        })
    }

    /// QEMU with all but the volumes' devices. `ends`: where the control line and standard error
    /// go.
    fn command(&self, line: &str, kvm: bool, ends: [&OwnedFd; 2]) -> Result<Command, Failure> {
        let mut command = self.ending_with_us();
        let how: [&str; 4] =
            if kvm { ["-accel", "kvm", "-cpu", "host"] } else { ["-accel", "tcg", "-cpu", "max"] };
        command.args(how);
        let board: &[&str] = match self.board {
            Board::Q35 => &["q35"],
            // With ACPI the command line would not say where the devices are. The clocks may be
            // off where the machine is not emulated.
            Board::Microvm => &[
                "microvm,acpi=off,auto-kernel-cmdline=on,rtc=on,pit=on,pic=off",
                "-global",
                "virtio-mmio.force-legacy=off",
            ],
        };
        command.arg("-M").args(board).args(["-nodefaults", "-no-user-config", "-no-reboot"]);
        command.args(["-display", "none", "-m", &format!("{}k", self.memory.div_ceil(1024))]);
        command.args(["-chardev", "stdio,id=streams,signal=off", "-serial", "chardev:streams"]);
        for (name, end) in ["control", "errors"].into_iter().zip(ends) {
            let fd = inherited(end.as_fd())?;
            let set = fd.to_string();
            command.args(["-add-fd", &format!("fd={fd},set={set}")]);
            // Not to be truncated, which a pipe cannot be.
            let file = format!("file,id={name},append=on,path=/dev/fdset/{set}");
            command.args(["-chardev", &file]);
        }
        match self.board {
            Board::Q35 => command.args(["-serial", "chardev:errors"]),
            // It has one line of its own.
            Board::Microvm => {
                command.args(["-device", "isa-serial,iobase=0x2f8,irq=3,chardev=errors"])
            }
        };
        command.args(["-device", "isa-debugcon,iobase=0xe9,chardev=control"]);
        command.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4"]);
        command.arg("-kernel").arg(&self.image).args(["-append", line]);
        if self.served > 0 {
            // The servers map it.
            let memory = format!(
                "memory-backend-memfd,id=memory,size={}k,share=on",
                self.memory.div_ceil(1024)
            );
            command.args(["-object", &memory, "-numa", "node,memdev=memory"]);
        }
        if let Some(module) = &self.module {
            command.args(["-initrd", &format!("/proc/self/fd/{}", inherited(module.as_fd())?)]);
        }
        Ok(command)
    }

    /// The emulator, which is to end when this process does, however that ends.
    fn ending_with_us(&self) -> Command {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let helper = std::env::split_paths(&path)
            .map(|folder| folder.join("setpriv"))
            .find(|program| program.is_file());
        // A missing emulator is this process's to find.
        let there = self.qemu.is_absolute() && self.qemu.is_file()
            || std::env::split_paths(&path).any(|folder| folder.join(&self.qemu).is_file());
        match helper.filter(|_| there) {
            Some(helper) => {
                let mut command = Command::new(helper);
                command.args(["--pdeathsig", "KILL", "--"]).arg(&self.qemu);
                command
            }
            None => Command::new(&self.qemu),
        }
    }

    /// Whether the image comes to its end by hardware virtualisation: there are machines that have
    /// it in name, and on which no guest of this kind starts.
    fn kvm_works(&self) -> bool {
        if File::options().read(true).write(true).open("/dev/kvm").is_err() {
            return false;
        }
        self.try_kvm().unwrap_or(false)
    }

    fn try_kvm(&self) -> Result<bool, Failure> {
        let (control, control_end) = pipe()?;
        let (_errors, errors_end) = pipe()?;
        // Without a program it says so, and ends.
        let mut command = self.command("--", true, [&control_end, &errors_end])?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = self.start(&mut command)?;
        drop((control_end, errors_end));
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            let mut listen = Listen(File::from(control));
            let works = loop {
                match listen.next() {
                    Said::Ready => {}
                    Said::Status(_) => break true,
                    Said::Gone => break false,
                }
            };
            let _ = sender.send(works);
        });
        let works = receiver.recv_timeout(TRIED).unwrap_or(false);
        let _ = child.kill();
        let _ = child.wait();
        Ok(works)
    }
}

/// A path as QEMU's options take it: a comma stands twice.
fn quoted(path: &Path) -> Result<String, Failure> {
    let path = std::path::absolute(path)
        .map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
    match path.to_str() {
        Some(text) => Ok(text.replace(',', ",,")),
        None => Err(Failure::new(format!("{}: QEMU takes no such name", path.display()))),
    }
}

/// A pipe: where it is read, and where it is written.
fn pipe() -> Result<(OwnedFd, OwnedFd), Failure> {
    let (reader, writer) = io::pipe().map_err(|error| Failure::new(format!("no pipe: {error}")))?;
    Ok((reader.into(), writer.into()))
}

/// Lets the emulator have a descriptor; its number.
fn inherited(fd: BorrowedFd<'_>) -> Result<i32, Failure> {
    rustix::io::fcntl_setfd(fd, FdFlags::empty())
        .map_err(|error| Failure::new(format!("a descriptor: {}", io::Error::from(error))))?;
    Ok(fd.as_raw_fd())
}

/// The control line.
struct Listen(File);

impl Listen {
    fn byte(&mut self) -> Option<u8> {
        let mut byte = [0];
        self.0.read_exact(&mut byte).ok().map(|()| byte[0])
    }

    fn next(&mut self) -> Said {
        loop {
            match self.byte() {
                Some(b'r') => return Said::Ready,
                Some(b's') => {
                    let digits: Option<Vec<u8>> = (0..3).map(|_| self.byte()).collect();
                    let text = digits.and_then(|digits| String::from_utf8(digits).ok());
                    return text
                        .and_then(|text| text.parse().ok())
                        .map_or(Said::Gone, Said::Status);
                }
                Some(_) => {}
                None => return Said::Gone,
            }
        }
    }
}

/// Sends standard input, with its end.
fn send(mut to: impl Write) {
    let (mut buffer, mut sent) = ([0; 4096], Vec::new());
    loop {
        sent.clear();
        let read = io::stdin().read(&mut buffer);
        match read {
            Ok(len @ 1..) => framing::encode(&buffer[..len], &mut sent),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            _ => sent.extend(framing::ENDED),
        }
        // The image may have ended.
        if to.write_all(&sent).and_then(|()| to.flush()).is_err() || !matches!(read, Ok(1..)) {
            return;
        }
    }
}
