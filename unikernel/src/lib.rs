//! A bare image that runs unmodified Linux programs on Atoll: no operating system, no second
//! privilege level, the programs' system calls answered by the POSIX layer.
//!
//! This library is the part that needs no machine, which is built and tested anywhere. Read in this
//! order: [`command_line`] what the image is told, [`built_in`] what it has in itself; [`elf`]
//! programs as they lie in a file;
//! [`areas`] which addresses a program has; [`stack`] what it finds on its stack; [`abi`]
//! structures of Linux's; [`devices`] console, random numbers
//! and the like as files; [`framing`] standard input with an end; [`tree`]
//! several file systems as one. The image itself is in `src/image`, whose `main.rs` says what to
//! read there; docs/UNIKERNEL.md has the whole.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod abi;
pub mod areas;
pub mod built_in;
pub mod command_line;
pub mod devices;
pub mod elf;
pub mod framing;
pub mod stack;
pub mod tree;

/// Bytes in a page of memory.
pub const PAGE: u64 = 4096;
