//! Faults, and the tables for them and for interrupts. A page of the heap or of the program that
//! has no memory yet gets some; any other fault ends the image with a report. Each kind runs on a
//! stack of its own, since below the program's stack pointer lies its red zone, and since a stack
//! may be what is at fault.
#![allow(unsafe_code)]

use core::arch::{asm, global_asm};
use core::cell::UnsafeCell;

use atoll_unikernel::PAGE;
use atoll_unikernel::elf::Protection;

use crate::{end, frames, heap, interrupts, memory, paging, ports};

global_asm!(
    r#"
    .macro trap number, code
trap_\number:
    .if \code == 0
    push 0
    .endif
    push \number
    jmp trap_all
    .endm

    .pushsection .text.traps, "ax", @progbits
    .irp number, 0,1,2,3,4,5,6,7,9,15,16,18,19,20,22,23,24,25,26,27,28,31
    trap \number, 0
    .endr
    .irp number, 8,10,11,12,13,14,17,21,29,30
    trap \number, 1
    .endr
trap_all:
    push rax
    push rbx
    push rcx
    push rdx
    push rsi
    push rdi
    push rbp
    push r8
    push r9
    push r10
    push r11
    push r12
    push r13
    push r14
    push r15
    cld
    mov rdi, rsp
    call {trap}
    pop r15
    pop r14
    pop r13
    pop r12
    pop r11
    pop r10
    pop r9
    pop r8
    pop rbp
    pop rdi
    pop rsi
    pop rdx
    pop rcx
    pop rbx
    pop rax
    add rsp, 16
    iretq
    .popsection

    .pushsection .rodata.traps, "a", @progbits
    .balign 8
    .global trap_table
trap_table:
    .irp number, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    .quad trap_\number
    .endr
    .popsection
    "#,
    trap = sym trap,
);

unsafe extern "C" {
    static trap_table: [u64; TRAPS];
    static stack_call: u8;
    static stack_trap: u8;
    static stack_double: u8;
    static stack_interrupt: u8;
}

/// Kinds of faults of the processor.
const TRAPS: usize = 32;
/// Faults and interrupts.
const GATES: usize = interrupts::SPURIOUS + 1;
const DOUBLE_FAULT: u64 = 8;
const PAGE_FAULT: u64 = 14;

/// What was running, as the instructions above store it.
#[derive(Debug)]
#[repr(C)]
pub struct Frame {
    /// R15 to R8, RBP, RDI, RSI, RDX, RCX, RBX, RAX.
    pub registers: [u64; 15],
    /// The kind of the fault.
    pub number: u64,
    /// What the processor says about it.
    pub code: u64,
    /// The instruction.
    pub rip: u64,
    cs: u64,
    /// The flags.
    pub rflags: u64,
    /// The stack.
    pub rsp: u64,
    ss: u64,
}

/// In the code of a page fault: the page is there, and may not be used so.
const PROTECTED: u64 = 1;
/// It was to be written to.
const WRITE: u64 = 2;
/// Instructions were to be fetched.
const FETCH: u64 = 16;

/// What a page fault was for.
pub fn wanted(code: u64) -> Protection {
    match code {
        code if code & FETCH != 0 => Protection::EXECUTE,
        code if code & WRITE != 0 => Protection::WRITE,
        _ => Protection::READ,
    }
}

extern "C" fn trap(frame: &mut Frame) {
    if frame.number == PAGE_FAULT {
        let address = ports::fault_address();
        if frame.code & PROTECTED == 0 && bring(address, wanted(frame.code)) {
            return;
        }
        end::page_fault(frame, address);
        return;
    }
    end::fault(frame);
}

impl Frame {
    /// Goes on in `function`, on the empty stack for calls, when the trap returns.
    pub fn go_on(&mut self, function: extern "C" fn(u64) -> !, argument: u64) {
        self.rip = function as usize as u64;
        // As after a call: a return address, to nowhere, is on the stack.
        self.rsp = (&raw const stack_call) as u64 - 8;
        self.rflags = 2;
        self.registers[9] = argument;
    }
}

/// Gives the page at `address` memory, if one is to be there.
fn bring(address: u64, wanted: Protection) -> bool {
    let protection = if heap::holds(address) {
        Protection::READ | Protection::WRITE
    } else {
        match memory::protection_at(address) {
            Some(protection) if protection.contains(wanted) => protection,
            _ => return false,
        }
    };
    // Memory was promised; what is missing would be a table's.
    let Some(frame) = frames::take_zeroed() else { end::no_memory() };
    // SAFETY: the page is absent, and is to be there.
    if !unsafe { paging::map(address & !(PAGE - 1), frame, protection) } {
        end::no_memory();
    }
    true
}

/// An entry of the table of faults.
type Gate = [u64; 2];

/// The tables that the processor reads.
#[repr(C, align(16))]
struct Tables {
    gates: [Gate; GATES],
    /// Null, code, data, and the task state's two.
    segments: [u64; 5],
    /// The task state, in which the stacks for faults and interrupts stand.
    task: [u32; 26],
}

struct Place(UnsafeCell<Tables>);
// SAFETY: written once, at the boot.
unsafe impl Sync for Place {}
static TABLES: Place = Place(UnsafeCell::new(Tables {
    gates: [[0; 2]; GATES],
    segments: [0, 0x00af_9a00_0000_ffff, 0x00cf_9200_0000_ffff, 0, 0],
    task: [0; 26],
}));

/// Stacks for faults and interrupts, counted from 1.
const STACK: u64 = 1;
const STACK_DOUBLE: u64 = 2;
const STACK_INTERRUPT: u64 = 3;

/// The gate to the instructions at `at`, which run on this stack and are not interrupted.
fn gate(at: u64, stack: u64) -> Gate {
    let (low, middle) = (at & 0xffff, at >> 16 & 0xffff);
    [low | 8 << 16 | stack << 32 | 0x8e << 40 | middle << 48, at >> 32]
}

/// Sets the tables up.
pub fn begin() {
    // SAFETY: called once, at the boot.
    let tables = unsafe { &mut *TABLES.0.get() };
    let stacks = [
        (&raw const stack_trap) as u64,
        (&raw const stack_double) as u64,
        (&raw const stack_interrupt) as u64,
    ];
    for (index, stack) in stacks.into_iter().enumerate() {
        tables.task[9 + 2 * index] = stack as u32;
        tables.task[10 + 2 * index] = (stack >> 32) as u32;
    }
    let task = (&raw const tables.task) as u64;
    let len = size_of_val(&tables.task) as u64 - 1;
    let (low, high) = (task & 0xff_ffff, task >> 24 & 0xff);
    tables.segments[3] = len | low << 16 | 0x89 << 40 | high << 56;
    tables.segments[4] = task >> 32;
    // SAFETY: the table of instructions above.
    for (number, at) in unsafe { trap_table }.into_iter().enumerate() {
        let stack = if number as u64 == DOUBLE_FAULT { STACK_DOUBLE } else { STACK };
        tables.gates[number] = gate(at, stack);
    }
    for (number, at) in interrupts::gates() {
        tables.gates[number] = gate(at, STACK_INTERRUPT);
    }
    let pointer = |at: u64, len: usize| -> [u16; 5] {
        let word = |index: u32| (at >> (16 * index)) as u16;
        [len as u16 - 1, word(0), word(1), word(2), word(3)]
    };
    let gates = pointer((&raw const tables.gates) as u64, size_of_val(&tables.gates));
    let segments = pointer((&raw const tables.segments) as u64, size_of_val(&tables.segments));
    // SAFETY: the tables are whole, the segments in use stay what they are, and they live as long
    // as the image.
    unsafe {
        asm!("lgdt [{}]", in(reg) &segments, options(readonly, nostack));
        asm!("lidt [{}]", in(reg) &gates, options(readonly, nostack));
        asm!("ltr {:x}", in(reg) 24_u16, options(nostack));
    }
}
