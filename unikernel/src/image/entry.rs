//! The way of a system call: the program's `syscall` instruction jumps to [`answer`], in the same
//! privilege level, which calls a function by the call's number and jumps back.
//!
//! The instruction leaves the return address in RCX and the flags in R11, and changes no stack.
//! Programs expect all other registers but RAX as they were. The functions keep those that the C
//! calling convention says, so that only the rest is saved here; registers of SSE are never
//! touched, since the image is built without. The flags are restored before the program's stack is
//! taken back: below that lies the program's red zone, which nothing may be pushed into.
#![allow(unsafe_code)]

use core::arch::{asm, global_asm};

use crate::{calls, end, interrupts, ports};

global_asm!(
    r#"
    .pushsection .text.entry, "ax", @progbits
    .balign 64
    .global answer
answer:
    mov [rip + program_stack], rsp
    // One word less than full, so that the function finds the alignment that it expects.
    lea rsp, [rip + stack_call - 8]
    push rcx
    push r11
    push rdi
    push rsi
    push rdx
    push r8
    push r9
    push r10
    // The seventh argument, for the functions that want it.
    push rax
    mov rcx, r10
    lea r11, [rip + {table}]
    cmp rax, {count}
    jae 2f
    call [r11 + rax * 8]
3:
    add rsp, 8
    pop r10
    pop r9
    pop r8
    pop rdx
    pop rsi
    pop rdi
    popfq
    pop rcx
    mov rsp, [rip + program_stack]
    jmp rcx
2:
    call {unknown}
    jmp 3b
    .popsection

    .pushsection .bss.entry, "aw", @nobits
    .balign 8
program_stack: .skip 8
    .popsection
    "#,
    table = sym calls::TABLE,
    count = const calls::COUNT,
    unknown = sym calls::unknown,
);

unsafe extern "C" {
    fn answer();
}

/// The selectors of SYSCALL and SYSRET.
const STAR: u32 = 0xc000_0081;
/// Where SYSCALL jumps.
const LSTAR: u32 = 0xc000_0082;
/// The flags that SYSCALL clears.
const FMASK: u32 = 0xc000_0084;
/// Trap, interrupt, direction, nested task, alignment check. So no interrupt comes during a call.
const CLEARED: u64 = 0x4_4700;

/// Where a program begins.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// The first instruction.
    pub entry: u64,
    /// The stack pointer.
    pub stack: u64,
}

/// Runs the program; it ends with the image.
pub fn run(start: Start) -> ! {
    // SAFETY: the image's code and data segments, and its way in.
    unsafe {
        ports::write_msr(STAR, 8 << 32);
        ports::write_msr(LSTAR, answer as *const () as u64);
        ports::write_msr(FMASK, CLEARED);
    }
    end::note_start();
    interrupts::enable();
    // SAFETY: the program's first instruction and its stack; nothing of the image is needed again
    // but by its calls. All registers but the stack's are as a new process has them.
    unsafe {
        asm!(
            "mov rsp, rsi",
            "xor eax, eax",
            "xor ebx, ebx",
            "xor ecx, ecx",
            "xor edx, edx",
            "xor esi, esi",
            "xor ebp, ebp",
            "xor r8d, r8d",
            "xor r9d, r9d",
            "xor r10d, r10d",
            "xor r11d, r11d",
            "xor r12d, r12d",
            "xor r13d, r13d",
            "xor r14d, r14d",
            "xor r15d, r15d",
            "jmp rdi",
            in("rdi") start.entry,
            in("rsi") start.stack,
            options(noreturn)
        )
    }
}
