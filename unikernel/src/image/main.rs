//! The image: boots without an operating system, and runs one program.
//!
//! Read in this order: [`boot`] the first instructions, and what the boot loader says; [`ports`]
//! the processor's instructions and registers; [`serial`] the lines to the outside; [`frames`]
//! memory by pages, [`paging`] addresses, [`heap`] the allocator; [`traps`] faults; [`clock`] and
//! [`random`]; [`virtio`] devices, [`storage`] and [`volumes`] the file systems; [`process`] the
//! state of the one program, [`memory`] its memory, [`load`] how it begins; [`entry`] the way of
//! its system calls, and [`calls`] what they do; [`end`] how it all ends.
//!
//! One processor, no interrupts: nothing here runs twice at a time. Faults interrupt anything, and
//! touch only [`frames`] and [`paging`].
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
mod load;
mod memory;
mod paging;
mod ports;
mod process;
mod random;
mod serial;
mod sole;
mod storage;
mod traps;
mod virtio;
mod volumes;

use atoll_unikernel::command_line::CommandLine;

use boot::Boot;
use end::stop;

/// What follows the first instructions.
fn main(boot: &Boot) -> ! {
    end::mark(end::Mark::Boot);
    serial::begin();
    let line = match CommandLine::parse(boot.command_line()) {
        Ok(line) => line,
        Err(error) => stop(format_args!("the command line: {error}")),
    };
    serial::set_framed(line.framed);
    clock::begin();
    virtio::begin(&line.devices);
    random::begin(line.seed);
    let tree = volumes::attach(&line, boot.module());
    process::begin(tree, &line);
    end::begin_report(line.report);
    let start = load::program(&line);
    serial::tell_ready();
    entry::run(start)
}
