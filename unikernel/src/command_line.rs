//! The image's command line: which file systems lie where, and which program runs.
//!
//! Words between blanks, then `--`, then the program with its arguments. A byte of a word that is
//! no letter, digit or one of `-._/+:@^~` may be written `%XX`; blanks, commas and percent signs
//! have to be. Both sides use this module: `atoll unikernel run` [writes](CommandLine::write) what
//! the image [reads](CommandLine::parse).
//!
//! | word | meaning |
//! |---|---|
//! | `volume=PATH,ram:BYTES` | a new volume in memory |
//! | `volume=PATH,module` | the volume in the initial module, changed in memory alone |
//! | `volume=PATH,built-in` | the same of the volume that is built into the image |
//! | `volume=PATH,disk:N[,ro][,incarnation=HEX]` | the volume on the N-th virtio-blk device |
//! | `volume=PATH,fs:N[,ro]` | what the N-th virtio-fs device serves |
//! | `env=NAME=VALUE` | a variable of the program's environment |
//! | `cwd=PATH` | the program's working directory |
//! | `seed=HEX` | sixteen random bytes; without them a virtio-rng device is asked |
//! | `stdin=framed` | standard input has an end: see `devices` |
//! | `report` | at the end the image says what it cost |
//! | `virtio_mmio.device=SIZE@ADDRESS:INTERRUPT` | a virtio device without a bus |
//!
//! The last is a parameter of Linux's, which QEMU's microvm and Firecracker put behind all that
//! they are given: it counts among the program's arguments too. An argument that begins so is
//! written with `%76` for its first letter.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::{self, Write};

use atoll_virtio::mmio::Place;

/// What the words about devices without a bus begin with.
const DEVICE: &[u8] = b"virtio_mmio.device=";
/// The most bytes of registers that such a device may have: each page of them is mapped.
const REGISTERS_MAX: u64 = 1 << 20;

/// Where the content of a file system is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A new volume of so many bytes in memory.
    Ram(u64),
    /// The initial module, which is a volume.
    Module,
    /// The volume that is built into the image.
    BuiltIn,
    /// The virtio-blk device of this number, counted from 0 in the order of their addresses.
    Disk(u32),
    /// The virtio-fs device of this number.
    Served(u32),
}

/// A file system and the directory where it appears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// The directory, absolute.
    pub path: Vec<u8>,
    /// Its content.
    pub source: Source,
    /// Takes no changes.
    pub read_only: bool,
    /// The life of the host's memory beneath a disk (docs/RELIABILITY.md, Which crash was it);
    /// zeros: nobody knows, and the end of the image counts as power loss.
    pub incarnation: [u8; 16],
}

/// All that the image is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandLine {
    /// The file systems, in the order in which they are attached.
    pub volumes: Vec<Volume>,
    /// The environment, each NAME=VALUE.
    pub environment: Vec<Vec<u8>>,
    /// The working directory; empty for `/`.
    pub directory: Vec<u8>,
    /// Random bytes.
    pub seed: Option<[u8; 16]>,
    /// Standard input is framed.
    pub framed: bool,
    /// The image says at the end what it cost.
    pub report: bool,
    /// Where the registers of virtio devices are that no bus has.
    pub devices: Vec<Place>,
    /// The program's path, and its arguments.
    pub program: Vec<Vec<u8>>,
}

/// A word of the command line that has no meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotUnderstood(pub Vec<u8>);

impl fmt::Display for NotUnderstood {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not understood: `{}`", String::from_utf8_lossy(&self.0))
    }
}

/// Two volumes that cannot be there at once, by the directory of the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conflict<'a> {
    /// They have one directory.
    Directory(&'a [u8]),
    /// They have one content: for two drivers of one device neither works.
    Content(&'a [u8]),
}

impl fmt::Display for Conflict<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, why) = match self {
            Conflict::Directory(path) => (path, "another volume is there"),
            Conflict::Content(path) => (path, "another volume has the same content"),
        };
        write!(f, "{}: {why}", String::from_utf8_lossy(path))
    }
}

impl CommandLine {
    /// Reads a command line. Words before the first that this module knows may be the boot
    /// loader's; there are none in QEMU.
    ///
    /// # Errors
    /// The first word that has no meaning.
    pub fn parse(text: &[u8]) -> Result<CommandLine, NotUnderstood> {
        let mut line = CommandLine::default();
        let mut words = text
            .split(|byte| matches!(byte, b' ' | b'\n' | b'\t' | 0))
            .filter(|word| !word.is_empty());
        for word in words.by_ref() {
            if word == b"--" {
                break;
            }
            line.word(word).ok_or_else(|| NotUnderstood(word.to_vec()))?;
        }
        for word in words {
            if word.starts_with(DEVICE) {
                line.word(word).ok_or_else(|| NotUnderstood(word.to_vec()))?;
                continue;
            }
            // An argument that is empty is written as a quoted nothing.
            let argument = if word == b"%" { Some(Vec::new()) } else { decoded(word) };
            line.program.push(argument.ok_or_else(|| NotUnderstood(word.to_vec()))?);
        }
        Ok(line)
    }

    /// Adds what `more` says, which the machine is started with, to this, which is built into the
    /// image. A program with its arguments takes the place of the one before, as do a directory
    /// and a seed; of variables with one name the program finds the last.
    pub fn add(&mut self, more: CommandLine) {
        let CommandLine { volumes, environment, directory, seed, .. } = more;
        self.volumes.extend(volumes);
        for variable in environment {
            let name = variable.split(|&byte| byte == b'=').next().unwrap_or_default();
            let same = |it: &Vec<u8>| it.split(|&byte| byte == b'=').next() == Some(name);
            self.environment.retain(|it| !same(it));
            self.environment.push(variable);
        }
        if !directory.is_empty() {
            self.directory = directory;
        }
        self.seed = seed.or(self.seed);
        self.framed |= more.framed;
        self.report |= more.report;
        more.devices.into_iter().for_each(|place| self.device(place));
        if !more.program.is_empty() {
            self.program = more.program;
        }
    }

    /// The first volume that cannot be there together with one before it.
    pub fn conflict(&self) -> Option<Conflict<'_>> {
        self.volumes.iter().enumerate().find_map(|(number, volume)| {
            let mut before = self.volumes[..number].iter();
            // Each volume in memory is a new one.
            let is_new = matches!(volume.source, Source::Ram(_));
            if before.clone().any(|other| other.path == volume.path) {
                return Some(Conflict::Directory(&volume.path));
            }
            let is_same = !is_new && before.any(|other| other.source == volume.source);
            is_same.then_some(Conflict::Content(&volume.path))
        })
    }

    /// Takes note of a device. One that is named once more is the same one.
    fn device(&mut self, place: Place) {
        if self.devices.iter().all(|other| other.address != place.address) {
            self.devices.push(place);
        }
    }

    fn word(&mut self, word: &[u8]) -> Option<()> {
        let equals = word.iter().position(|&byte| byte == b'=');
        let (name, value) = match equals {
            Some(at) => (&word[..at], &word[at + 1..]),
            None => (word, &[][..]),
        };
        match name {
            b"volume" => self.volumes.push(volume(value)?),
            b"env" => self.environment.push(decoded(value)?),
            b"cwd" => self.directory = decoded(value)?,
            b"seed" => self.seed = Some(hex(value)?),
            b"stdin" if value == b"framed" => self.framed = true,
            b"report" if equals.is_none() => self.report = true,
            _ if word.starts_with(DEVICE) => {
                self.device(Place::parse(value).filter(|place| place.len <= REGISTERS_MAX)?);
            }
            _ => return None,
        }
        Some(())
    }

    /// Writes it as [`parse`](Self::parse) reads it.
    pub fn write(&self) -> String {
        let mut out = String::new();
        for volume in &self.volumes {
            out.push_str("volume=");
            encode(&volume.path, &mut out);
            // Writing to a string cannot fail.
            let _ = match volume.source {
                Source::Ram(bytes) => write!(out, ",ram:{bytes}"),
                Source::Module => write!(out, ",module"),
                Source::BuiltIn => write!(out, ",built-in"),
                Source::Disk(number) => write!(out, ",disk:{number}"),
                Source::Served(number) => write!(out, ",fs:{number}"),
            };
            if volume.read_only {
                out.push_str(",ro");
            }
            if volume.incarnation != [0; 16] {
                out.push_str(",incarnation=");
                write_hex(&volume.incarnation, &mut out);
            }
            out.push(' ');
        }
        for variable in &self.environment {
            out.push_str("env=");
            encode(variable, &mut out);
            out.push(' ');
        }
        if !self.directory.is_empty() {
            out.push_str("cwd=");
            encode(&self.directory, &mut out);
            out.push(' ');
        }
        if let Some(seed) = &self.seed {
            out.push_str("seed=");
            write_hex(seed, &mut out);
            out.push(' ');
        }
        if self.framed {
            out.push_str("stdin=framed ");
        }
        if self.report {
            out.push_str("report ");
        }
        for Place { address, len } in &self.devices {
            let _ = write!(out, "virtio_mmio.device={len}@{address:#x}:0 ");
        }
        out.push_str("--");
        for argument in &self.program {
            out.push(' ');
            let mut rest = &argument[..];
            if argument.is_empty() {
                out.push('%');
            } else if argument.starts_with(DEVICE) {
                let _ = write!(out, "%{:02x}", argument[0]);
                rest = &argument[1..];
            }
            encode(rest, &mut out);
        }
        out
    }
}

fn volume(value: &[u8]) -> Option<Volume> {
    let mut parts = value.split(|&byte| byte == b',');
    let path = decoded(parts.next()?)?;
    if path.first() != Some(&b'/') {
        return None;
    }
    let source = parts.next()?;
    let colon = source.iter().position(|&byte| byte == b':');
    let (kind, rest) = match colon {
        Some(at) => (&source[..at], &source[at + 1..]),
        None => (source, &[][..]),
    };
    let source = match kind {
        b"ram" => Source::Ram(number(rest)?),
        b"module" if colon.is_none() => Source::Module,
        b"built-in" if colon.is_none() => Source::BuiltIn,
        b"disk" => Source::Disk(number(rest)?.try_into().ok()?),
        b"fs" => Source::Served(number(rest)?.try_into().ok()?),
        _ => return None,
    };
    let mut volume = Volume { path, source, read_only: false, incarnation: [0; 16] };
    for part in parts {
        match part.strip_prefix(b"incarnation=") {
            Some(digits) => volume.incarnation = hex(digits)?,
            None if part == b"ro" => volume.read_only = true,
            None => return None,
        }
    }
    Some(volume)
}

fn number(digits: &[u8]) -> Option<u64> {
    core::str::from_utf8(digits).ok()?.parse().ok()
}

fn nibble(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

fn hex(digits: &[u8]) -> Option<[u8; 16]> {
    let mut bytes = [0; 16];
    if digits.len() != 32 {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
    }
    Some(bytes)
}

fn write_hex(bytes: &[u8], out: &mut String) {
    for byte in bytes {
        let _ = write!(out, "{byte:02x}");
    }
}

fn decoded(word: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(word.len());
    let mut bytes = word.iter().copied();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => nibble(bytes.next()?)? << 4 | nibble(bytes.next()?)?,
            byte => byte,
        });
    }
    Some(out)
}

fn encode(bytes: &[u8], out: &mut String) {
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._/+:@^~=".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02x}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn what_is_written_is_read() {
        let line = CommandLine {
            volumes: vec![
                Volume {
                    path: b"/".to_vec(),
                    source: Source::Module,
                    read_only: false,
                    incarnation: [0; 16],
                },
                Volume {
                    path: b"/a, b%".to_vec(),
                    source: Source::Disk(2),
                    read_only: true,
                    incarnation: *b"0123456789abcdef",
                },
                Volume {
                    path: b"/r".to_vec(),
                    source: Source::Ram(1 << 26),
                    read_only: false,
                    incarnation: [0; 16],
                },
                Volume {
                    path: b"/s".to_vec(),
                    source: Source::Served(0),
                    read_only: false,
                    incarnation: [0; 16],
                },
                Volume {
                    path: b"/b".to_vec(),
                    source: Source::BuiltIn,
                    read_only: true,
                    incarnation: [0; 16],
                },
            ],
            environment: vec![b"A=b c\n".to_vec(), b"X=".to_vec()],
            directory: b"/a".to_vec(),
            seed: Some([7; 16]),
            framed: true,
            report: true,
            devices: vec![
                Place::new(0xfeb0_0000, 512).unwrap(),
                Place::new(0xfeb0_0200, 512).unwrap(),
            ],
            program: vec![
                b"/bin/sh".to_vec(),
                b"".to_vec(),
                b"--".to_vec(),
                b"virtio_mmio.device=512@0:1".to_vec(),
                (0..=255).collect(),
            ],
        };
        assert_eq!(CommandLine::parse(line.write().as_bytes()), Ok(line));
        let empty = CommandLine::default();
        assert_eq!(CommandLine::parse(empty.write().as_bytes()), Ok(empty));
    }

    /// QEMU writes them behind all that it is given, which ends with the program.
    #[test]
    fn devices_come_last() {
        let text =
            b"seed=00112233445566778899aabbccddeeff -- p a virtio_mmio.device=512@0xfeb00e00:12 \
            virtio_mmio.device=512@0xfeb00c00:11";
        let line = CommandLine::parse(text).unwrap();
        assert_eq!(line.program, [b"p", b"a"]);
        let places = [0xfeb0_0e00, 0xfeb0_0c00].map(|address| Place::new(address, 512).unwrap());
        assert_eq!(line.devices, places);
        let wrong = b"virtio_mmio.device=1@0:1";
        let failed = CommandLine::parse(&[b"-- p ", &wrong[..]].concat());
        assert_eq!(failed, Err(NotUnderstood(wrong.to_vec())));
    }

    #[test]
    fn what_the_machine_is_started_with_comes_to_what_is_built_in() {
        let parse = |text: &str| CommandLine::parse(text.as_bytes()).unwrap();
        let built = "volume=/,built-in env=A=1 env=AB=2 cwd=/a -- p a";
        let mut line = parse(built);
        line.add(parse(""));
        assert_eq!(line, parse(built));
        line.add(parse(
            "volume=/d,disk:0 env=A=3 seed=00112233445566778899aabbccddeeff stdin=framed report \
             virtio_mmio.device=512@4096:1",
        ));
        let both = "volume=/,built-in volume=/d,disk:0 env=AB=2 env=A=3 cwd=/a \
            seed=00112233445566778899aabbccddeeff stdin=framed report virtio_mmio.device=512@4096:1 \
            -- p a";
        assert_eq!(line, parse(both));
        line.add(parse("cwd=/b -- q"));
        assert_eq!(line, parse(&both.replace("cwd=/a", "cwd=/b").replace("p a", "q")));
    }

    #[test]
    fn a_device_that_is_named_twice_is_one() {
        let text = b"virtio_mmio.device=512@4096:1 -- p virtio_mmio.device=1M@8192:2 \
            virtio_mmio.device=1K@0x1000:1";
        let mut line = CommandLine::parse(text).unwrap();
        let places =
            [(4096, 512), (8192, 1 << 20)].map(|(address, len)| Place::new(address, len).unwrap());
        assert_eq!(line.devices, places);
        line.add(CommandLine::parse(text).unwrap());
        assert_eq!(line.devices, places);
    }

    #[test]
    fn volumes_that_cannot_be_there_at_once() {
        let parse = |text: &str| CommandLine::parse(text.as_bytes()).unwrap();
        for apart in [
            "",
            "volume=/,module volume=/b,built-in volume=/c,disk:0 volume=/d,disk:1 volume=/e,fs:0",
            "volume=/a,ram:4096 volume=/b,ram:4096",
        ] {
            assert_eq!(parse(apart).conflict(), None, "{apart}");
        }
        for (text, conflict) in [
            ("volume=/a,ram:1 volume=/,ram:1 volume=/,ram:2", Conflict::Directory(b"/")),
            ("volume=/a,disk:3 volume=/b,disk:3,ro", Conflict::Content(b"/b")),
            ("volume=/a,fs:0 volume=/b,disk:0 volume=/c,fs:0", Conflict::Content(b"/c")),
            ("volume=/a,module volume=/b,module", Conflict::Content(b"/b")),
        ] {
            assert_eq!(parse(text).conflict(), Some(conflict), "{text}");
        }
        let mut line = parse("volume=/,built-in -- p");
        line.add(parse("volume=/,disk:0"));
        assert_eq!(line.conflict(), Some(Conflict::Directory(b"/")));
    }

    #[test]
    fn words_without_meaning_are_named() {
        for word in [
            "volume=/",
            "volume=a,module",
            "volume=/,ram:x",
            "volume=/,ram",
            "volume=/,module:1",
            "volume=/,built-in:1",
            "volume=/,disk:0,rw",
            "volume=/,disk:99999999999",
            "volume=/,disk:0,incarnation=12",
            "env=%4",
            "env=%zz",
            "seed=12",
            "stdin=raw",
            "report=1",
            "console=ttyS0",
            "virtio_mmio.device=512",
            "virtio_mmio.device=1025K@0xfeb00000:5",
            "virtio_mmio.drivers=512@0xfeb00000:5",
        ] {
            let text = alloc::format!("  {word} -- p");
            let failed = CommandLine::parse(text.as_bytes());
            assert_eq!(failed, Err(NotUnderstood(word.as_bytes().to_vec())), "{word}");
        }
    }
}
