//! How it all ends: with the program's status, or with a report.
#![allow(unsafe_code)]

use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::traps::{Frame, wanted};
use crate::volumes::Volume;
use crate::{mappings, paging, ports, process, serial};
use atoll_unikernel::elf::Protection;

/// The port that ends QEMU (isa-debug-exit), with twice what is written and one more as its status.
const EXIT: u16 = 0xf4;
/// The image itself failed, as `atoll run` has it.
const FAILED: u8 = 125;
/// The signals that a fault would be to a process, as statuses of a shell.
const ILLEGAL: u8 = 128 + 4;
const TRAP: u8 = 128 + 5;
const BUS: u8 = 128 + 7;
const ARITHMETIC: u8 = 128 + 8;
const SEGMENT: u8 = 128 + 11;

/// Whether costs are reported at the end.
static REPORTS: AtomicBool = AtomicBool::new(false);
/// The time-stamp counter at the image's first function, at the program's first instruction, and at
/// its first call about a file.
static MARKS: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
/// Exits when the program began: all, and those of the standard streams.
static EXITS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// The end has begun.
static ENDING: AtomicBool = AtomicBool::new(false);

/// A moment that is reported.
#[derive(Clone, Copy)]
pub enum Mark {
    /// The image's first function.
    Boot = 0,
    /// The program's first instruction.
    Program = 1,
    /// Its first call about a file.
    File = 2,
}

/// Notes the moment, the first time.
#[inline]
pub fn mark(mark: Mark) {
    let place = &MARKS[mark as usize];
    if place.load(Ordering::Relaxed) == 0 {
        place.store(ports::tsc(), Ordering::Relaxed);
    }
}

/// Says whether costs are to be reported.
pub fn begin_report(reports: bool) {
    REPORTS.store(reports, Ordering::Relaxed);
}

/// The program begins.
pub fn note_start() {
    mark(Mark::Program);
    EXITS[0].store(ports::exits(), Ordering::Relaxed);
    EXITS[1].store(serial::stream_exits(), Ordering::Relaxed);
}

fn report() {
    if !REPORTS.load(Ordering::Relaxed) {
        return;
    }
    let now = ports::tsc();
    let [boot, program, file] = [0, 1, 2].map(|mark| MARKS[mark].load(Ordering::Relaxed));
    let before = EXITS[0].load(Ordering::Relaxed);
    let all = ports::exits() - before;
    let streams = serial::stream_exits() - EXITS[1].load(Ordering::Relaxed);
    serial::say(format_args!(
        "report: ticks to the program {}, to its first file {}, to its end {}; exits \
         before the program {before}, for its streams {streams}, for anything else {}",
        program - boot,
        file.saturating_sub(boot),
        now - boot,
        all - streams
    ));
}

/// Ends with the program's status. The volumes are unmounted.
pub fn exit(status: u8) -> ! {
    report();
    ENDING.store(true, Ordering::Relaxed);
    let mut status = status;
    mappings::end();
    for volume in process::take().into_fs().into_parts() {
        match volume {
            Volume::Own(fs) => {
                if let Err(error) = fs.unmount() {
                    serial::say(format_args!("a volume cannot be unmounted: {error}"));
                    status = FAILED;
                }
            }
            Volume::Served(client) => {
                client.into_inner().into_inner().disconnect().stop();
            }
            Volume::Devices(_) => {}
        }
    }
    end(status)
}

/// Ends at once: what the image was to do cannot be done.
pub fn stop(why: fmt::Arguments<'_>) -> ! {
    serial::say(why);
    end(FAILED)
}

/// There is no memory for what was promised.
pub fn no_memory() -> ! {
    stop(format_args!("out of memory"))
}

fn end(status: u8) -> ! {
    serial::tell_status(status);
    ports::write32(EXIT, u32::from(status));
    // Where there is no such device.
    ports::halt()
}

/// Ends after a page fault that is an error: where the fault came from, nothing goes on.
pub fn page_fault(frame: &mut Frame, address: u64) {
    let what = match wanted(frame.code) {
        Protection::EXECUTE => "executing",
        Protection::WRITE => "writing to",
        _ => "reading",
    };
    let page = address & !(atoll_unikernel::PAGE - 1);
    let is_cut = mappings::misses(&(address..address.saturating_add(1)));
    let why = if is_cut && frame.code & 1 == 0 {
        "the file that is mapped there has no such page"
    } else if paging::guards().contains(&page) {
        "a stack of the image is full"
    } else if frame.code & 1 != 0 {
        "its page may not be used so"
    } else if address < atoll_unikernel::PAGE {
        "a null pointer"
    } else {
        "nothing is there"
    };
    let status = if is_cut && frame.code & 1 == 0 { BUS } else { SEGMENT };
    fail(frame, format_args!("page fault {what} {address:#x}: {why}"), status)
}

/// Ends after any other fault.
pub fn fault(frame: &mut Frame) {
    let (what, status) = match frame.number {
        0 => ("division error", ARITHMETIC),
        1 => ("debug trap", TRAP),
        3 => ("breakpoint", TRAP),
        6 => ("invalid instruction", ILLEGAL),
        8 => ("double fault", SEGMENT),
        13 => ("general protection fault", SEGMENT),
        16 | 19 => ("floating-point error", ARITHMETIC),
        _ => ("fault", SEGMENT),
    };
    let (number, code) = (frame.number, frame.code);
    fail(frame, format_args!("{what} ({number}, code {code:#x})"), status)
}

fn fail(frame: &mut Frame, what: fmt::Arguments<'_>, status: u8) {
    let own = paging::text().contains(&frame.rip);
    let whose = if own { "the image" } else { "the program" };
    serial::say(format_args!("{whose} stopped: {what}, at {:#x}", frame.rip));
    const NAMES: [&str; 15] = [
        "r15", "r14", "r13", "r12", "r11", "r10", "r9", "r8", "rbp", "rdi", "rsi", "rdx", "rcx",
        "rbx", "rax",
    ];
    for (name, value) in NAMES.iter().zip(frame.registers).rev() {
        serial::say(format_args!("{name:>6} {value:016x}"));
    }
    serial::say(format_args!("   rsp {:016x}, flags {:x}", frame.rsp, frame.rflags));
    if own || ENDING.load(Ordering::Relaxed) {
        end(if own { FAILED } else { status })
    }
    // What the program did before is whole, since no call was under way. This stack is for faults,
    // and there may be more of them while volumes are unmounted: that has the one for calls.
    frame.go_on(exit_after_fault, u64::from(status));
}

extern "C" fn exit_after_fault(status: u64) -> ! {
    exit(status as u8)
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    if ENDING.swap(true, Ordering::Relaxed) {
        end(FAILED)
    }
    stop(format_args!("{info}"))
}
