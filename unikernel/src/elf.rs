//! Programs as they lie in a file: the headers of ELF for x86-64, checked before anything is done
//! by them (System V ABI, chapter 5; its supplement for AMD64).
//!
//! Whatever the file says, what comes out of here lies below [`END`], in order, without overlaps,
//! and is bounded in number.

use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use bitflags::bitflags;

use crate::PAGE;

/// Bytes of the file's header.
pub const HEADER: usize = 64;
/// Bytes of a program header.
const ENTRY: usize = 56;
/// The most program headers that a file may have: many times what linkers make.
const ENTRIES_MAX: usize = 64;
/// The longest path of an interpreter, its NUL included.
pub const INTERPRETER_MAX: u64 = 4096;
/// The lowest address of a program: the image lies below.
pub const START: u64 = 0x40_0000;
/// The end of what a program may take: programs above and beyond have the upper half.
pub const END: u64 = 1 << 46;

bitflags! {
    /// What a page may be used for, as p_flags has it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub struct Protection: u32 {
        /// Instructions are fetched.
        const EXECUTE = 1;
        /// Bytes are stored.
        const WRITE = 2;
        /// Bytes are loaded.
        const READ = 4;
    }
}

/// A part of the file that is brought to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its address, before the program is moved.
    pub address: u64,
    /// Bytes of memory that it takes; those beyond the file's are zeros.
    pub memory: u64,
    /// Where it lies in the file.
    pub offset: u64,
    /// Bytes of the file.
    pub length: u64,
    /// What its pages may be used for.
    pub protection: Protection,
}

impl Segment {
    /// The pages that it touches.
    pub fn pages(&self) -> Range<u64> {
        self.address & !(PAGE - 1)..(self.address + self.memory).next_multiple_of(PAGE)
    }
}

/// The header of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Where the program begins.
    pub entry: u64,
    /// Whether it may be moved to any address.
    pub movable: bool,
    /// Where the program headers lie in the file.
    pub table: u64,
    /// How many there are.
    pub count: usize,
}

/// A program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Its parts, in the order of their addresses.
    pub segments: Vec<Segment>,
    /// Where the path of its interpreter lies in the file, with its NUL.
    pub interpreter: Option<Range<u64>>,
    /// The address of the program headers in memory, if they are there.
    pub table: Option<u64>,
}

impl Program {
    /// The pages from its first to its last.
    pub fn span(&self) -> Range<u64> {
        match (self.segments.first(), self.segments.last()) {
            (Some(first), Some(last)) => first.pages().start..last.pages().end,
            _ => 0..0,
        }
    }
}

/// Why a file is no program for this image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElfError {
    /// It does not begin as ELF files do.
    NotElf,
    /// It is for another machine, or of another kind.
    OtherMachine,
    /// Its headers contradict themselves, or ask for addresses that a program cannot have.
    Malformed,
}

impl fmt::Display for ElfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ElfError::NotElf => "not an ELF program",
            ElfError::OtherMachine => "a program for another machine or system",
            ElfError::Malformed => "a malformed program",
        })
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).and_then(|b| b.try_into().ok()).map_or(0, u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// Reads the header at the beginning of a file, of which `bytes` are the first.
///
/// # Errors
/// Why it is no program.
pub fn header(bytes: &[u8]) -> Result<Header, ElfError> {
    if bytes.len() < HEADER || !bytes.starts_with(b"\x7fELF") {
        return Err(ElfError::NotElf);
    }
    let (class, order, machine, kind) = (bytes[4], bytes[5], u16_at(bytes, 18), u16_at(bytes, 16));
    if (class, order, machine) != (2, 1, 62) || !matches!(kind, 2 | 3) {
        return Err(ElfError::OtherMachine);
    }
    let (table, count) = (u64_at(bytes, 32), usize::from(u16_at(bytes, 56)));
    let sane = usize::from(u16_at(bytes, 54)) == ENTRY && (1..=ENTRIES_MAX).contains(&count);
    if !sane || table > i64::MAX as u64 - (ENTRIES_MAX * ENTRY) as u64 {
        return Err(ElfError::Malformed);
    }
    Ok(Header { entry: u64_at(bytes, 24), movable: kind == 3, table, count })
}

impl Header {
    /// Bytes of the program headers.
    pub fn table_len(&self) -> usize {
        self.count * ENTRY
    }

    /// Reads the program headers, of which `table` are the bytes.
    ///
    /// # Errors
    /// [`ElfError::Malformed`].
    pub fn program(&self, table: &[u8]) -> Result<Program, ElfError> {
        if table.len() != self.table_len() {
            return Err(ElfError::Malformed);
        }
        let mut program = Program { segments: Vec::new(), interpreter: None, table: None };
        let lowest = if self.movable { 0 } else { START };
        for entry in table.chunks_exact(ENTRY) {
            let (offset, address) = (u64_at(entry, 8), u64_at(entry, 16));
            let (length, memory) = (u64_at(entry, 32), u64_at(entry, 40));
            let in_file = offset.checked_add(length).is_some_and(|end| end <= i64::MAX as u64);
            let in_memory = address.checked_add(memory).is_some_and(|end| end <= END);
            match u32_at(entry, 0) {
                LOAD if memory == 0 => {}
                LOAD => {
                    let together = offset % PAGE == address % PAGE;
                    if !in_file || !in_memory || !together || length > memory || address < lowest {
                        return Err(ElfError::Malformed);
                    }
                    let protection = Protection::from_bits_truncate(u32_at(entry, 4));
                    let segment = Segment { address, memory, offset, length, protection };
                    let behind = program
                        .segments
                        .last()
                        .is_none_or(|before: &Segment| before.pages().end <= segment.pages().start);
                    if !behind {
                        return Err(ElfError::Malformed);
                    }
                    program.segments.push(segment);
                }
                INTERPRETER => {
                    if !in_file || !(2..=INTERPRETER_MAX).contains(&length) {
                        return Err(ElfError::Malformed);
                    }
                    program.interpreter = Some(offset..offset + length);
                }
                _ => {}
            }
        }
        let holds = |address: u64, len: u64| {
            let end = address.checked_add(len);
            let within = |s: &Segment| {
                s.address <= address && end.is_some_and(|end| end <= s.address + s.memory)
            };
            program.segments.iter().any(within)
        };
        if !holds(self.entry, 1) {
            return Err(ElfError::Malformed);
        }
        let len = self.table_len() as u64;
        program.table = program.segments.iter().find_map(|s| {
            let into = self.table.checked_sub(s.offset)?;
            (into + len <= s.length).then(|| s.address + into)
        });
        Ok(program)
    }
}

/// A segment that is loaded.
const LOAD: u32 = 1;
/// The path of an interpreter.
const INTERPRETER: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    /// A file's header and program headers.
    fn file(kind: u16, entry: u64, headers: &[[u64; 6]]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[16..18].copy_from_slice(&kind.to_le_bytes());
        bytes[18] = 62;
        bytes[24..32].copy_from_slice(&entry.to_le_bytes());
        bytes[32] = 64;
        bytes[54] = 56;
        bytes[56] = headers.len() as u8;
        for [kind, flags, offset, address, length, memory] in headers {
            bytes.extend((*kind as u32).to_le_bytes());
            bytes.extend((*flags as u32).to_le_bytes());
            for word in [offset, address, address, length, memory, &0x1000] {
                bytes.extend(word.to_le_bytes());
            }
        }
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Program, ElfError> {
        header(bytes)?.program(&bytes[HEADER..])
    }

    const TEXT: [u64; 6] = [1, 5, 0, START, 0x1100, 0x1100];
    const DATA: [u64; 6] = [1, 6, 0x1100, START + 0x3100, 0x100, 0x2000];

    #[test]
    fn a_program() {
        let program = read(&file(2, START + 0x80, &[TEXT, DATA, [3, 4, 0x40, 0, 28, 28]])).unwrap();
        assert_eq!(program.span(), START..START + 0x6000);
        assert_eq!(program.interpreter, Some(0x40..0x40 + 28));
        assert_eq!(program.table, Some(START + 64));
        assert_eq!(program.segments[1].protection, Protection::READ | Protection::WRITE);
    }

    #[test]
    fn what_is_refused() {
        assert_eq!(header(b"#!/bin/sh\n"), Err(ElfError::NotElf));
        let mut other = file(2, START, &[TEXT]);
        other[18] = 183;
        assert_eq!(header(&other), Err(ElfError::OtherMachine));
        let refused: [&[[u64; 6]]; 9] = [
            // More of the file than of memory.
            &[[1, 5, 0, START, 0x1100, 0x1000]],
            // Not where pages of the file can be.
            &[[1, 5, 1, START, 0x10, 0x10]],
            // Below where programs lie, and above.
            &[[1, 5, 0, 0x1000, 0x10, 0x10], TEXT],
            &[TEXT, [1, 5, 0, END - 0x1000, 0x10, 0x2000]],
            &[TEXT, [1, 5, 0, u64::MAX - 0xfff, 0x10, 0x2000]],
            // One over the other, and out of order.
            &[TEXT, [1, 6, 0x1f00, START + 0x1f00, 0x10, 0x10]],
            &[DATA, TEXT],
            // An interpreter without a path, and beyond the end of every file.
            &[TEXT, [3, 4, 0, 0, 1, 1]],
            &[TEXT, [3, 4, u64::MAX, 0, 28, 28]],
        ];
        for headers in refused {
            assert_eq!(read(&file(2, START, headers)), Err(ElfError::Malformed), "{headers:x?}");
        }
        // It begins where nothing is loaded.
        assert_eq!(read(&file(2, START + 0x2000, &[TEXT])), Err(ElfError::Malformed));
        assert_eq!(read(&file(2, START, &[])), Err(ElfError::Malformed));
    }
}
