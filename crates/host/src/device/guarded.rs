//! Copies to and from mapped files that survive what a mapping does when its file cannot give or
//! take the page: SIGBUS.
//!
//! A page of a mapping cannot be had when the file became shorter, the disk beneath it is full, or
//! the medium failed. The kernel then sends SIGBUS to the thread at the faulting instruction. All
//! accesses to mappings are made by the copy routines below, which keep no state on the stack; the
//! handler knows by the instruction's address that one of them was hit, restores the registers
//! that a function must preserve, and returns from the routine in its place, with the result 1.
//! There is no flag or lock to set before a copy and nothing that threads share.
//!
//! The handler leaves by a jump and not by rt_sigreturn(2), so that a sealed process, which may
//! not call that, survives too. It is installed with SA_NODEFER and an empty mask: there is no
//! signal mask to restore. A SIGBUS from elsewhere goes to the handler that was there before.
//!
//! The routines store in ascending order, so that a process that ends within a copy leaves a
//! prefix of it (to within the last 64 bytes, which may be in two places at once). Moving 64
//! bytes at a time through vector registers is as fast as `memcpy` and `rep movsb` for any length
//! (docs/PERFORMANCE.md, Devices).
#![allow(unsafe_code)]

use std::sync::{Once, OnceLock};

/// A copy routine: `length` bytes from `from` to `to`; 0, or 1 if a page could not be had.
type Copy = unsafe extern "C" fn(to: *mut u8, from: *const u8, length: usize) -> usize;

unsafe extern "C" {
    fn atoll_copy_begin();
    fn atoll_copy_sse(to: *mut u8, from: *const u8, length: usize) -> usize;
    fn atoll_copy_avx(to: *mut u8, from: *const u8, length: usize) -> usize;
    fn atoll_copy_end();
    fn atoll_copy_resume(registers: *const i64, float_state: *const u8) -> !;
}

// Arguments: rdi to, rsi from, rdx length. No stack, no register that a function must preserve.
//
// atoll_copy_resume takes the general registers in the order of `gregset_t` and the image of
// FXSAVE, which begins with the x87 control word and has MXCSR at 24, the two other things that a
// function must preserve and that the kernel resets for a handler.
core::arch::global_asm!(
    r#"
    .text
    .p2align 5
    .hidden atoll_copy_begin
    .globl atoll_copy_begin
atoll_copy_begin:

    .hidden atoll_copy_avx
    .globl atoll_copy_avx
    .type atoll_copy_avx, @function
atoll_copy_avx:
    cmp rdx, 64
    jbe 30f
    lea rcx, [rdi + rdx - 64]
    lea r8, [rsi + rdx - 64]
    .p2align 5
20: vmovdqu ymm0, [rsi]
    vmovdqu ymm1, [rsi + 32]
    vmovdqu [rdi], ymm0
    vmovdqu [rdi + 32], ymm1
    add rsi, 64
    add rdi, 64
    cmp rdi, rcx
    jb 20b
    vmovdqu ymm0, [r8]
    vmovdqu ymm1, [r8 + 32]
    vmovdqu [rcx], ymm0
    vmovdqu [rcx + 32], ymm1
    vzeroupper
    xor eax, eax
    ret

    .hidden atoll_copy_sse
    .globl atoll_copy_sse
    .type atoll_copy_sse, @function
    .p2align 5
atoll_copy_sse:
    cmp rdx, 64
    jbe 30f
    lea rcx, [rdi + rdx - 64]
    lea r8, [rsi + rdx - 64]
    .p2align 5
20: movdqu xmm0, [rsi]
    movdqu xmm1, [rsi + 16]
    movdqu xmm2, [rsi + 32]
    movdqu xmm3, [rsi + 48]
    movdqu [rdi], xmm0
    movdqu [rdi + 16], xmm1
    movdqu [rdi + 32], xmm2
    movdqu [rdi + 48], xmm3
    add rsi, 64
    add rdi, 64
    cmp rdi, rcx
    jb 20b
    mov rdi, rcx
    mov rsi, r8
    mov edx, 64

    .p2align 5
30: cmp rdx, 16
    jb 40f
    cmp rdx, 32
    jbe 31f
    movdqu xmm0, [rsi]
    movdqu xmm1, [rsi + 16]
    movdqu xmm2, [rsi + rdx - 32]
    movdqu xmm3, [rsi + rdx - 16]
    movdqu [rdi], xmm0
    movdqu [rdi + 16], xmm1
    movdqu [rdi + rdx - 32], xmm2
    movdqu [rdi + rdx - 16], xmm3
    xor eax, eax
    ret
31: movdqu xmm0, [rsi]
    movdqu xmm1, [rsi + rdx - 16]
    movdqu [rdi], xmm0
    movdqu [rdi + rdx - 16], xmm1
    xor eax, eax
    ret
40: cmp rdx, 8
    jb 50f
    mov rax, [rsi]
    mov rcx, [rsi + rdx - 8]
    mov [rdi], rax
    mov [rdi + rdx - 8], rcx
    xor eax, eax
    ret
50: cmp rdx, 4
    jb 60f
    mov eax, [rsi]
    mov ecx, [rsi + rdx - 4]
    mov [rdi], eax
    mov [rdi + rdx - 4], ecx
    xor eax, eax
    ret
60: test rdx, rdx
    jz 70f
    movzx eax, byte ptr [rsi]
    mov [rdi], al
    cmp rdx, 1
    je 70f
    movzx eax, byte ptr [rsi + 1]
    movzx ecx, byte ptr [rsi + rdx - 1]
    mov [rdi + 1], al
    mov [rdi + rdx - 1], cl
70: xor eax, eax
    ret

    .hidden atoll_copy_end
    .globl atoll_copy_end
atoll_copy_end:

    .hidden atoll_copy_resume
    .globl atoll_copy_resume
    .type atoll_copy_resume, @function
atoll_copy_resume:
    test rsi, rsi
    jz 80f
    fldcw [rsi]
    ldmxcsr [rsi + 24]
80: mov r12, [rdi + 8 * 4]
    mov r13, [rdi + 8 * 5]
    mov r14, [rdi + 8 * 6]
    mov r15, [rdi + 8 * 7]
    mov rbp, [rdi + 8 * 10]
    mov rbx, [rdi + 8 * 11]
    mov rsp, [rdi + 8 * 15]
    mov eax, 1
    ret
"#
);

const _: () = {
    assert!(libc::REG_R12 == 4 && libc::REG_R13 == 5 && libc::REG_R14 == 6 && libc::REG_R15 == 7);
    assert!(libc::REG_RBP == 10 && libc::REG_RBX == 11 && libc::REG_RSP == 15);
};

/// A page that the copy needed could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageFault;

/// The copy routines, of which one suits this processor, with the handler that guards them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guarded {
    copy: Copy,
}

impl Guarded {
    /// Installs the handler of SIGBUS if that has not been done in this process.
    pub(super) fn new() -> Guarded {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(install);
        let avx = std::is_x86_feature_detected!("avx");
        Guarded { copy: if avx { atoll_copy_avx } else { atoll_copy_sse } }
    }

    /// Copies `length` bytes. After a fault, `to` holds part of them.
    ///
    /// # Safety
    /// Both ranges are valid for their access, but for pages of a mapped file that SIGBUS answers;
    /// they do not overlap.
    #[inline]
    pub(super) unsafe fn copy(
        self,
        to: *mut u8,
        from: *const u8,
        length: usize,
    ) -> Result<(), PageFault> {
        // SAFETY: the caller promises what the routine needs.
        match unsafe { (self.copy)(to, from, length) } {
            0 => Ok(()),
            _ => Err(PageFault),
        }
    }
}

/// How many registers the kernel saves before the pointer to the floating point state.
const REGISTERS: usize = 23;

/// The action of SIGBUS before.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

fn install() {
    // SAFETY: sigaction is given valid structures, zeroed where it fills them in; the handler does
    // only what a handler may, see there.
    unsafe {
        let mut previous: libc::sigaction = core::mem::zeroed();
        libc::sigaction(libc::SIGBUS, core::ptr::null(), &mut previous);
        PREVIOUS.get_or_init(|| previous);
        let mut action: libc::sigaction = core::mem::zeroed();
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = on_sigbus;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &action, core::ptr::null_mut());
    }
}

extern "C" fn on_sigbus(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let begin = atoll_copy_begin as *const () as i64;
    let end = atoll_copy_end as *const () as i64;
    // SAFETY: the kernel passes a valid context to a handler with SA_SIGINFO. If the instruction
    // is one of a copy routine, then its registers hold the state of that routine's caller as the
    // comment above the assembly says, with rsp at the return address.
    unsafe {
        let machine = &raw const (*context.cast::<libc::ucontext_t>()).uc_mcontext;
        let registers = machine.cast::<i64>();
        let at = registers.add(libc::REG_RIP as usize).read();
        if at >= begin && at < end && (*info).si_code > 0 {
            // The kernel's structure goes on with this pointer; not every C library names it.
            let float_state = registers.add(REGISTERS).cast::<*const u8>().read();
            atoll_copy_resume(registers, float_state);
        }
        pass_on(signal, info, context);
    }
}

/// Does what would have been done without us. Of the earlier handler's flags only SA_SIGINFO is
/// honoured.
///
/// # Safety
/// Within a handler, with the arguments that it was given.
unsafe fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the earlier handler is called as the kernel would have; sigaction and raise may be
    // called within handlers.
    unsafe {
        let sent_by_a_process = (*info).si_code <= 0;
        let previous = PREVIOUS.get();
        match previous.map_or(libc::SIG_DFL, |previous| previous.sa_sigaction) {
            libc::SIG_IGN if sent_by_a_process => {}
            libc::SIG_DFL | libc::SIG_IGN => {
                // The default ends the process, at the faulting instruction again if there is one.
                let mut action: libc::sigaction = core::mem::zeroed();
                action.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(signal, &action, core::ptr::null_mut());
                if sent_by_a_process {
                    libc::raise(signal);
                }
            }
            handler if previous.is_some_and(|p| p.sa_flags & libc::SA_SIGINFO != 0) => {
                let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                    core::mem::transmute(handler);
                handler(signal, info, context);
            }
            handler => {
                let handler: extern "C" fn(i32) = core::mem::transmute(handler);
                handler(signal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_alignment_is_copied() {
        let from: Vec<u8> = (0..1024u32).map(|i| (i * 7 % 251) as u8 + 1).collect();
        let guarded = [Guarded::new(), Guarded { copy: atoll_copy_sse }];
        for (guarded, length) in guarded.into_iter().flat_map(|g| (0..700).map(move |n| (g, n))) {
            for shift in [0, 1, 7, 15, 33, 63] {
                let mut to = vec![0u8; 1024];
                // SAFETY: 700 + 63 bytes fit in both.
                let outcome = unsafe {
                    guarded.copy(to.as_mut_ptr().add(shift), from.as_ptr().add(shift / 2), length)
                };
                assert_eq!(outcome, Ok(()));
                assert_eq!(to[shift..shift + length], from[shift / 2..shift / 2 + length]);
                assert!(to[..shift].iter().chain(&to[shift + length..]).all(|&b| b == 0));
            }
        }
    }
}
