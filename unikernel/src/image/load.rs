//! How a program begins: its file and that of its interpreter are brought to memory, and its stack
//! is made.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use atoll_posix::OFlags;
use atoll_unikernel::PAGE;
use atoll_unikernel::command_line::CommandLine;
use atoll_unikernel::elf::{self, END, Header, Program, Protection};
use atoll_unikernel::stack::{self, kind};

use crate::end::stop;
use crate::entry::Start;
use crate::memory::{self, STACK_BYTES, STACK_TOP};
use crate::process::files;
use crate::volumes::shown;
use crate::{ports, random};

/// Where a program lies that may be moved, as on Linux without randomness.
const MOVED: u64 = 0x5555_5555_4000 & (END - 1);
/// Where programs are looked for that are named without a slash, if PATH says nothing.
const PATH: &[u8] = b"/bin:/usr/bin:/sbin:/usr/sbin";
/// A program may use so much of its stack for arguments and environment.
const STACK_USED: usize = (STACK_BYTES / 4) as usize;

/// A program in memory.
struct Loaded {
    entry: u64,
    /// How far it was moved.
    by: u64,
    header: Header,
    program: Program,
}

/// Brings the program of the command line to memory.
pub fn program(line: &CommandLine) -> Start {
    let Some(name) = line.program.first() else { stop(format_args!("no program is named")) };
    let path = found(name, &line.environment);
    let fail = |why: String| -> ! { stop(format_args!("{}: {why}", shown(&path))) };
    let loaded = load(&path, MOVED).unwrap_or_else(|why| fail(why));
    let interpreter = loaded.program.interpreter.clone().map(|range| {
        let path = interpreter_path(&path, &range).unwrap_or_else(|why| fail(why));
        load(&path, 0)
            .unwrap_or_else(|why| fail(format!("its interpreter {}: {why}", shown(&path))))
    });
    let end = loaded.program.span().end + loaded.by;
    memory::set_heap(end);
    let stack = STACK_TOP - STACK_BYTES..STACK_TOP;
    if memory::lay(stack, Protection::READ | Protection::WRITE).is_err() {
        fail("no memory for its stack".into());
    }
    let mut bytes = [0; 16];
    if random::fill(&mut bytes).is_err() {
        fail(
            "no random numbers for it: give seed= on the command line, or a virtio-rng device"
                .into(),
        );
    }
    let begin = interpreter.as_ref().unwrap_or(&loaded);
    let table = loaded.program.table.map_or(0, |table| table + loaded.by);
    let values = [
        (kind::HEADERS, table),
        (kind::HEADER_SIZE, 56),
        (kind::HEADER_COUNT, loaded.header.count as u64),
        (kind::PAGE_SIZE, PAGE),
        (kind::INTERPRETER, interpreter.as_ref().map_or(0, |interpreter| interpreter.by)),
        (kind::ENTRY, loaded.entry),
        (kind::USER, 0),
        (kind::EFFECTIVE_USER, 0),
        (kind::GROUP, 0),
        (kind::EFFECTIVE_GROUP, 0),
        (kind::PROCESSOR, u64::from(ports::cpuid(1)[3])),
        (kind::TICKS, 100),
        (kind::SECURE, 0),
    ];
    let made = stack::build(
        STACK_TOP - PAGE,
        STACK_USED,
        &line.program,
        &line.environment,
        &values,
        bytes,
    );
    let Some(made) = made else { fail("too many arguments".into()) };
    if memory::put(made.pointer, &made.bytes).is_err() {
        fail("no memory for its stack".into());
    }
    Start { entry: begin.entry, stack: made.pointer }
}

/// The path of the program `name`, looked for as a shell does.
fn found(name: &[u8], environment: &[Vec<u8>]) -> Vec<u8> {
    if name.contains(&b'/') {
        return name.to_vec();
    }
    let variable = environment.iter().find_map(|variable| variable.strip_prefix(b"PATH="));
    for folder in variable.unwrap_or(PATH).split(|&byte| byte == b':') {
        let path = [folder, b"/", name].concat();
        if files().stat(&path).is_ok_and(|attr| !attr.is_dir()) {
            return path;
        }
    }
    name.to_vec()
}

fn interpreter_path(of: &[u8], range: &core::ops::Range<u64>) -> Result<Vec<u8>, String> {
    let mut path = vec![0; (range.end - range.start) as usize];
    let fd = files().open(of, OFlags::empty(), 0).map_err(|error| format!("{error}"))?;
    let read = files().pread(fd, &mut path, range.start as i64);
    let _ = files().close(fd);
    if read.map_err(|error| format!("{error}"))? < path.len() || path.pop() != Some(0) {
        return Err("its interpreter has no path".into());
    }
    Ok(path)
}

/// Brings the file at `path` to memory, at `wish` if it may be moved (0: anywhere).
fn load(path: &[u8], wish: u64) -> Result<Loaded, String> {
    let fd = files().open(path, OFlags::empty(), 0).map_err(|error| format!("{error}"))?;
    let loaded = load_open(fd, wish);
    let _ = files().close(fd);
    loaded
}

fn load_open(fd: i32, wish: u64) -> Result<Loaded, String> {
    let mut bytes = [0; elf::HEADER];
    let read = files().pread(fd, &mut bytes, 0).map_err(|error| format!("{error}"))?;
    let header = elf::header(&bytes[..read]).map_err(|error| format!("{error}"))?;
    let mut table = vec![0; header.table_len()];
    let read = files().pread(fd, &mut table, header.table as i64);
    if read.map_err(|error| format!("{error}"))? < table.len() {
        return Err(format!("{}", elf::ElfError::Malformed));
    }
    let program = header.program(&table).map_err(|error| format!("{error}"))?;
    let span = program.span();
    let no_place = || String::from("it takes more addresses than there are");
    let by = if header.movable {
        let len = span.end - span.start;
        let at = memory::place(wish, len).ok_or_else(no_place)?;
        at.wrapping_sub(span.start)
    } else {
        if !memory::is_free(span.clone()) || span.end > STACK_TOP - STACK_BYTES {
            return Err(no_place());
        }
        0
    };
    for segment in &program.segments {
        let range = segment.pages();
        let range = range.start.wrapping_add(by)..range.end.wrapping_add(by);
        let no_memory = |_| String::from("it takes more memory than there is");
        memory::lay(range.clone(), Protection::READ | Protection::WRITE).map_err(no_memory)?;
        let at = segment.address.wrapping_add(by);
        let to = memory::bytes_mut(at, segment.length).map_err(no_memory)?;
        let read = files().pread(fd, to, segment.offset as i64);
        if read.map_err(|error| format!("{error}"))? < to.len() {
            return Err("its file is cut off".into());
        }
        memory::protect(range, segment.protection).map_err(no_memory)?;
    }
    Ok(Loaded { entry: header.entry.wrapping_add(by), by, header, program })
}
