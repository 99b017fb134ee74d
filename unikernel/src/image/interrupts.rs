//! The one interrupt: a device says that a notice has come. All else is polled for.
//!
//! It comes only while the program runs, whose flags allow it: the way in clears that flag
//! (`entry`), and nothing of the image sets it. So no call is under way, and what the interrupt
//! does is to the image as a call of the program's. It has a stack of its own, since below the
//! program's stack pointer lies its red zone. The program's floating-point registers are not
//! touched.
#![allow(unsafe_code)]

use core::arch::{asm, global_asm};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use atoll_unikernel::PAGE;

use crate::{paging, ports, told};

/// The interrupt's number, behind those of faults; and that of one that is none, whose lower four
/// bits have to be set.
pub const NOTICE: usize = 32;
pub const SPURIOUS: usize = 47;

global_asm!(
    r#"
    .pushsection .text.interrupts, "ax", @progbits
interrupt_notice:
    push rax
    push rcx
    push rdx
    push rsi
    push rdi
    push r8
    push r9
    push r10
    push r11
    cld
    call {notice}
    pop r11
    pop r10
    pop r9
    pop r8
    pop rdi
    pop rsi
    pop rdx
    pop rcx
    pop rax
interrupt_spurious:
    iretq
    .popsection
    "#,
    notice = sym notice,
);

unsafe extern "C" {
    fn interrupt_notice();
    fn interrupt_spurious();
}

/// The addresses of the instructions, by the interrupts' numbers.
pub fn gates() -> [(usize, u64); 2] {
    [
        (NOTICE, interrupt_notice as *const () as u64),
        (SPURIOUS, interrupt_spurious as *const () as u64),
    ]
}

// The processor's own interrupt controller (Intel SDM volume 3, chapter 11), by its registers in
// memory.
const APIC_BASE: u32 = 0x1b;
const ENABLED: u64 = 1 << 11;
/// Its registers are not in memory.
const X2APIC: u64 = 1 << 10;
const ID: u64 = 0x20;
const PRIORITY: u64 = 0x80;
const END: u64 = 0xb0;
const SPURIOUS_VECTOR: u64 = 0xf0;
const SOFTWARE_ENABLED: u32 = 1 << 8;
const LINE_0: u64 = 0x350;
const MASKED: u32 = 1 << 16;
/// CPUID's leaf 1, EDX: there is one.
const HAS_APIC: u32 = 1 << 9;
/// The address at which devices' messages reach the processor with number 0.
const MESSAGES: u64 = 0xfee0_0000;

/// The old controllers' masks.
const OLD_MASKS: [u16; 2] = [0x21, 0xa1];

/// Where the registers are found; 0 before.
static REGISTERS: AtomicU64 = AtomicU64::new(0);

fn register(at: u64) -> Option<NonNull<u32>> {
    let base = REGISTERS.load(Ordering::Relaxed);
    NonNull::new((base + at) as *mut u32).filter(|_| base != 0)
}

fn write(at: u64, value: u32) {
    if let Some(register) = register(at) {
        ports::count_exit();
        // SAFETY: a register of the controller, which `begin` has mapped.
        unsafe { register.as_ptr().write_volatile(value) };
    }
}

fn read(at: u64) -> u32 {
    ports::count_exit();
    // SAFETY: as above.
    register(at).map_or(0, |register| unsafe { register.as_ptr().read_volatile() })
}

/// Has the processor take messages of devices, from [`enable`] on; the address and data of such a
/// message. `None`: it cannot.
pub fn message() -> Option<(u64, u32)> {
    if REGISTERS.load(Ordering::Relaxed) == 0 {
        begin()?;
    }
    Some((MESSAGES | u64::from(read(ID) >> 24) << 12, NOTICE as u32))
}

fn begin() -> Option<()> {
    if ports::cpuid(1)[3] & HAS_APIC == 0 {
        return None;
    }
    let base = ports::read_msr(APIC_BASE);
    if base & X2APIC != 0 || base & ENABLED == 0 {
        return None;
    }
    // SAFETY: the controller's registers are there.
    let at = unsafe { paging::map_device(base & !(PAGE - 1), PAGE) }?;
    REGISTERS.store(at, Ordering::Relaxed);
    // Nothing comes but messages: the firmware has its timer tick by the old controllers.
    OLD_MASKS.into_iter().for_each(|mask| ports::write8(mask, 0xff));
    write(LINE_0, MASKED);
    write(PRIORITY, 0);
    write(SPURIOUS_VECTOR, SOFTWARE_ENABLED | SPURIOUS as u32);
    Some(())
}

/// Lets interrupts come from now on, if a device sends any: the program begins.
pub fn enable() {
    if REGISTERS.load(Ordering::Relaxed) != 0 {
        // SAFETY: the image is done with all that a notice changes.
        unsafe { asm!("sti", options(nostack)) };
    }
}

extern "C" fn notice() {
    // Before: of what comes from now on there is another.
    write(END, 0);
    told::take_all();
}
