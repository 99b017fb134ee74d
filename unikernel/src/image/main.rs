//! The image: boots without an operating system, and runs one program.
//!
//! Read in this order: [`boot`] the first instructions, and what the boot loader says; [`ports`]
//! the processor's instructions and registers; [`serial`] the lines to the outside; [`frames`]
//! memory by pages, [`paging`] addresses, [`heap`] the allocator; [`traps`] faults; [`clock`] and
//! [`random`]; [`virtio`] devices, [`window`] files that they show, [`told`] what is kept of those,
//! [`interrupts`] how a notice comes; [`storage`] and [`volumes`] the file systems; [`process`] the
//! state of the one program, [`memory`] its memory, [`mappings`] files in it, [`load`] how it
//! begins; [`entry`] the way of its system calls, and [`calls`] what they do; [`end`] how it all
//! ends.
//!
//! One processor, and the one interrupt comes only while the program runs: nothing here runs twice
//! at a time. Faults interrupt anything, and touch only [`frames`] and [`paging`].
#![no_std]
#![no_main]
#![deny(unsafe_code)]

extern crate alloc;

mod boot;
mod calls;
mod clock;
mod end;
mod entry;
mod frames;
mod heap;
mod interrupts;
mod load;
mod mappings;
mod memory;
mod paging;
mod ports;
mod process;
mod random;
mod serial;
mod sole;
mod storage;
mod told;
mod traps;
mod virtio;
mod volumes;
mod window;

use atoll_unikernel::command_line::CommandLine;

use boot::{Boot, BuiltIn};
use end::stop;
use volumes::Given;

/// Reads a command line.
fn read(text: &[u8]) -> CommandLine {
    CommandLine::parse(text).unwrap_or_else(|error| stop(format_args!("the command line: {error}")))
}

/// What follows the first instructions.
fn main(boot: &Boot) -> ! {
    end::mark(end::Mark::Boot);
    serial::begin();
    let (built_line, built_in) = match boot.built_in() {
        Ok(Some(BuiltIn { line, volume })) => (line, Some(volume)),
        Ok(None) => (&[][..], None),
        Err(why) => stop(format_args!("what is built into the image: {why}")),
    };
    let mut line = read(built_line);
    line.add(read(boot.command_line()));
    if let Some(conflict) = line.conflict() {
        stop(format_args!("the command line: {conflict}"));
    }
    serial::set_framed(line.framed);
    clock::begin();
    virtio::begin(&line.devices);
    random::begin(line.seed);
    let tree = volumes::attach(&line, Given { module: boot.module(), built_in });
    process::begin(tree, &line);
    end::begin_report(line.report);
    let start = load::program(&line);
    serial::tell_ready();
    entry::run(start)
}
