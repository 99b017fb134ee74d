//! The state of the one program: its descriptors and its place in the file systems.
#![allow(unsafe_code)]

use atoll_posix::{Clock, Credentials, OFlags, Options, Posix};
use atoll_unikernel::command_line::{CommandLine, Source};
use atoll_unikernel::tree::Tree;
use atoll_vfs::Timespec;

use crate::end::stop;
use crate::sole::Sole;
use crate::volumes::Volume;
use crate::{clock, memory};

/// The clock of timestamps.
#[derive(Clone, Copy, Debug)]
pub struct ImageClock;

impl Clock for ImageClock {
    #[inline]
    fn now(&self) -> Timespec {
        clock::now()
    }
}

/// The program's files.
pub type Files = Posix<Tree<Volume>, ImageClock>;

static FILES: Sole<Files> = Sole::new();

/// How many descriptors may be open at once.
pub const DESCRIPTORS: usize = 65_536;

/// Begins in the working directory, with the standard streams open.
pub fn begin(tree: Tree<Volume>, line: &CommandLine) {
    memory::begin();
    let options = Options {
        first_descriptor: 0,
        descriptor_limit: DESCRIPTORS,
        umask: 0o022,
        credentials: Credentials { uid: 0, gid: 0 },
        // Others may change what a device serves.
        sole_user: !line.volumes.iter().any(|volume| matches!(volume.source, Source::Served(_))),
        ..Options::default()
    };
    let mut files = Posix::new(tree, ImageClock, &options);
    let streams = [
        ("/dev/stdin", OFlags::empty()),
        ("/dev/stdout", OFlags::WRONLY),
        ("/dev/stderr", OFlags::WRONLY),
    ];
    for (path, flags) in streams {
        if let Err(error) = files.open(path.as_bytes(), flags, 0) {
            stop(format_args!("{path}: {error}"));
        }
    }
    if !line.directory.is_empty()
        && let Err(error) = files.chdir(&line.directory)
    {
        stop(format_args!("the working directory: {error}"));
    }
    // SAFETY: called once, before the first system call.
    unsafe { FILES.set(files) };
}

/// The program's files, for the one system call that runs.
#[inline]
pub fn files() -> &'static mut Files {
    // SAFETY: set by `begin`. A system call asks for it where it uses it, and what it uses calls
    // nothing that asks for it too.
    unsafe { FILES.get() }
}

/// Takes the files away, to end them.
pub fn take() -> Files {
    // SAFETY: as `files`; the caller ends the image, and no call follows.
    unsafe { core::ptr::read(FILES.get()) }
}
