//! The initial module: a volume in memory with a program of this machine, the libraries that it is
//! linked with, and other files.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use atoll::clock::HostClock;
use atoll::storage;
use atoll_block::{BLOCK_SIZE, RamDevice};
use atoll_fs::{Fs, MountOptions};
use atoll_posix::{Credentials, OFlags, Options, Posix};
use atoll_unikernel::elf;
use atoll_vfs::Errno;

use crate::failure::Failure;
use crate::size;

/// The folders in which programs are looked for that are named without a slash.
const FOLDERS: [&str; 4] = ["/bin", "/usr/bin", "/sbin", "/usr/sbin"];
/// Blocks of the journal: flushes cost nothing in memory.
const JOURNAL: u64 = 256;
/// Such a volume has so many times the journal at least.
const JOURNAL_PART: u64 = 16;

/// A file or directory to be copied.
pub struct Added {
    from: PathBuf,
    to: PathBuf,
}

impl Added {
    /// Reads `FILE[:PATH]`.
    pub fn parse(text: &OsStr) -> Result<Added, Failure> {
        let bytes = text.as_bytes();
        let colon = bytes.windows(2).rposition(|pair| pair == b":/").filter(|at| *at > 0);
        let path = |bytes: &[u8]| PathBuf::from(OsString::from_vec(bytes.to_vec()));
        let from = path(colon.map_or(bytes, |at| &bytes[..at]));
        let to = match colon {
            Some(at) => path(&bytes[at + 1..]),
            None => std::path::absolute(&from)
                .map_err(|error| Failure::new(format!("{}: {error}", from.display())))?,
        };
        Ok(Added { from, to })
    }
}

type Volume = Posix<Fs<RamDevice>, HostClock>;

/// Makes the volume, of `bytes` bytes, and returns its content. A program that is not on this
/// machine has to be among `added`. `asked`: the size was asked for.
pub fn make(program: &OsStr, added: &[Added], bytes: u64, asked: bool) -> Result<Vec<u8>, Failure> {
    let mut all: Vec<(PathBuf, PathBuf)> =
        added.iter().map(|added| (added.from.clone(), added.to.clone())).collect();
    let within = added.iter().any(|added| Path::new(program).starts_with(&added.to));
    let found = if within { None } else { on_this_machine(program) };
    let own = found.as_ref().map(|found| (found.clone(), absolute(program, found)));
    if let Some((from, to)) = &own {
        all.push((from.clone(), to.clone()));
    }
    // Those that were added may be programs too, or have some.
    let files = own.iter().map(|(from, _)| from).chain(added.iter().map(|added| &added.from));
    for file in files.filter(|file| file.is_file()) {
        for library in linked_with(file)? {
            all.push((library.clone(), library));
        }
    }
    let content: u64 = all.iter().map(|(from, _)| size_of(from)).sum();
    let room = if asked { bytes } else { bytes + content.next_multiple_of(1 << 20) };
    fill(&all, room)
}

/// Where the program is on this machine, if it is.
fn on_this_machine(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Path::new(program).is_file().then(|| program.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(FOLDERS.map(PathBuf::from));
    folders.map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// Where the image finds it: at the path that it is named by, or in its search path.
fn absolute(program: &OsStr, found: &Path) -> PathBuf {
    match program.as_bytes() {
        [b'/', ..] => program.into(),
        name if name.contains(&b'/') => Path::new("/").join(program),
        _ => Path::new("/bin").join(found.file_name().unwrap_or(program)),
    }
}

/// The interpreter of the program at `path` and the libraries that it is linked with, as that
/// interpreter finds them; nothing for what is no dynamic program.
fn linked_with(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    let failed = |why: &dyn std::fmt::Display| Failure::new(format!("{}: {why}", path.display()));
    let bytes = fs::read(path).map_err(|error| failed(&error))?;
    let Ok(header) = elf::header(&bytes) else { return Ok(Vec::new()) };
    let table = usize::try_from(header.table)
        .ok()
        .and_then(|at| bytes.get(at..at.checked_add(header.table_len())?));
    let program = header.program(table.unwrap_or_default()).map_err(|error| failed(&error))?;
    let Some(range) = program.interpreter else { return Ok(Vec::new()) };
    let name = bytes.get(range.start as usize..range.end as usize);
    let Some(name) = name.and_then(|name| name.strip_suffix(b"\0")) else {
        return Err(failed(&"its interpreter has no path"));
    };
    let interpreter = PathBuf::from(OsString::from_vec(name.to_vec()));
    // A library's path with a slash would be one below the working directory.
    let path = fs::canonicalize(path).map_err(|error| failed(&error))?;
    let listed =
        Command::new(&interpreter).arg("--list").arg(&path).env("LC_ALL", "C").output().map_err(
            |error| failed(&format!("its interpreter {}: {error}", interpreter.display())),
        )?;
    let text = String::from_utf8_lossy(&listed.stdout);
    if !listed.status.success() || text.contains("not found") {
        let said = String::from_utf8_lossy(&listed.stderr);
        return Err(failed(&format!("its libraries: {}{}", text.trim(), said.trim())));
    }
    // NAME => PATH (ADDRESS), PATH (ADDRESS), or the kernel's own, which has no path.
    let words =
        text.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    Ok(words.map(PathBuf::from).chain([interpreter.clone()]).collect())
}

/// Bytes of the files at and below `path`.
fn size_of(path: &Path) -> u64 {
    match fs::read_dir(path) {
        Ok(entries) => entries.flatten().map(|entry| size_of(&entry.path())).sum(),
        Err(_) => fs::metadata(path).map_or(0, |found| found.len() + BLOCK_SIZE as u64),
    }
}

fn fill(files: &[(PathBuf, PathBuf)], bytes: u64) -> Result<Vec<u8>, Failure> {
    let failed = |why: &dyn std::fmt::Display| {
        Failure::new(format!("the root in memory, of {}: {why}", size::show(bytes)))
    };
    let blocks = size::to_blocks(bytes);
    let mut device = RamDevice::new(blocks);
    let mut options =
        storage::new_volume(Credentials::default()).map_err(|error| failed(&error))?;
    options.journal_blocks = (blocks >= JOURNAL * JOURNAL_PART).then_some(JOURNAL);
    atoll_fs::format(&mut device, &options).map_err(|error| failed(&error))?;
    let fs = Fs::mount(device, &MountOptions::default()).map_err(|error| failed(&error))?;
    let mut volume = Posix::new(fs, HostClock, &Options::default());
    for (from, to) in files {
        copy(&mut volume, from, to).map_err(|error| match error {
            Error::Host(error) => Failure::new(format!("{}: {error}", from.display())),
            Error::Volume(Errno::ENOSPC) => failed(&format!(
                "no space is left for {}; give a size with -v ram,SIZE:/",
                to.display()
            )),
            Error::Volume(error) => failed(&format!("{}: {error}", to.display())),
        })?;
    }
    let device = volume.into_fs().unmount().map_err(|error| failed(&error))?;
    Ok(device.into_inner())
}

enum Error {
    Host(std::io::Error),
    Volume(Errno),
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Error {
        Error::Host(error)
    }
}

impl From<Errno> for Error {
    fn from(error: Errno) -> Error {
        Error::Volume(error)
    }
}

/// Copies what is at `from`, with all below, to `to`. Symbolic links at `from` are followed, those
/// below are copied.
fn copy(volume: &mut Volume, from: &Path, to: &Path) -> Result<(), Error> {
    let mut above = PathBuf::new();
    for part in to.parent().unwrap_or(to).components() {
        above.push(part);
        match volume.mkdir(above.as_os_str().as_bytes(), 0o755) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    copy_at(volume, from, to, &fs::metadata(from)?)
}

fn copy_at(volume: &mut Volume, from: &Path, to: &Path, found: &fs::Metadata) -> Result<(), Error> {
    let name = to.as_os_str().as_bytes();
    let mode = found.permissions().mode() & 0o7777;
    if found.is_dir() {
        match volume.mkdir(name, mode) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let mut entries = fs::read_dir(from)?.collect::<Result<Vec<_>, _>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            copy_at(volume, &entry.path(), &to.join(entry.file_name()), &entry.metadata()?)?;
        }
    } else if found.is_symlink() {
        let target = fs::read_link(from)?;
        volume.symlinkat(target.as_os_str().as_bytes(), atoll_posix::AT_FDCWD, name)?;
    } else if found.is_file() {
        let fd = volume.open(name, OFlags::CREAT | OFlags::TRUNC | OFlags::WRONLY, mode)?;
        let data = fs::read(from)?;
        let mut done = 0;
        while done < data.len() {
            done += volume.write(fd, &data[done..])?;
        }
        volume.close(fd)?;
    } else {
        // A pipe or a device of this machine means nothing in the image.
        let _ = found.rdev();
    }
    Ok(())
}
