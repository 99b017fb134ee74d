//! Instructions of the processor that no language has: ports, model-specific registers, and the
//! like. Every access to a port leaves the virtual machine for its host, and is counted.
#![allow(unsafe_code)]

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};

/// How often ports were accessed.
static EXITS: AtomicU64 = AtomicU64::new(0);

/// How often the machine was left for its host so far, by accesses to devices.
pub fn exits() -> u64 {
    EXITS.load(Ordering::Relaxed)
}

/// Counts one more.
#[inline]
pub fn count_exit() {
    // There is one processor: no locked instruction is needed.
    EXITS.store(EXITS.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// Writes a byte to a port.
///
/// The ports used here are those of devices that touch no memory.
#[inline]
pub fn write8(port: u16, value: u8) {
    count_exit();
    // SAFETY: a device's port, by which no memory is changed.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nomem, nostack)) };
}

/// Reads a byte from a port.
#[inline]
pub fn read8(port: u16) -> u8 {
    count_exit();
    let value;
    // SAFETY: as for `write8`.
    unsafe { asm!("in al, dx", in("dx") port, out("al") value, options(nomem, nostack)) };
    value
}

/// Writes four bytes to a port.
#[inline]
pub fn write32(port: u16, value: u32) {
    count_exit();
    // SAFETY: as for `write8`.
    unsafe { asm!("out dx, eax", in("dx") port, in("eax") value, options(nomem, nostack)) };
}

/// Reads four bytes from a port.
#[inline]
pub fn read32(port: u16) -> u32 {
    count_exit();
    let value;
    // SAFETY: as for `write8`.
    unsafe { asm!("in eax, dx", in("dx") port, out("eax") value, options(nomem, nostack)) };
    value
}

/// The time-stamp counter.
#[inline]
pub fn tsc() -> u64 {
    // SAFETY: reads a counter, which every x86-64 processor has.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// A leaf of CPUID: the registers EAX, EBX, ECX, EDX.
pub fn cpuid(leaf: u32) -> [u32; 4] {
    let found = core::arch::x86_64::__cpuid(leaf);
    [found.eax, found.ebx, found.ecx, found.edx]
}

/// Sixty-four random bits from the processor, or `None` if it has none just now.
pub fn rdrand() -> Option<u64> {
    let (value, good): (u64, u8);
    // SAFETY: the callers have asked CPUID.
    unsafe {
        asm!("rdrand {}", "setc {}", out(reg) value, out(reg_byte) good, options(nomem, nostack))
    };
    (good != 0).then_some(value)
}

/// Writes a model-specific register.
///
/// # Safety
/// The value is one that keeps what runs running.
pub unsafe fn write_msr(register: u32, value: u64) {
    let (low, high) = (value as u32, (value >> 32) as u32);
    // SAFETY: as the caller promises.
    unsafe {
        asm!("wrmsr", in("ecx") register, in("eax") low, in("edx") high, options(nostack));
    }
}

/// The base of the segment FS, where a program has its thread's variables.
pub const FS_BASE: u32 = 0xc000_0100;
/// The base of the segment GS.
pub const GS_BASE: u32 = 0xc000_0101;

/// Sets the base of FS or GS for the program. Nothing of the image is reached by those.
pub fn set_base(register: u32, address: u64) {
    // An address that is none would fault: the callers have checked that it is a program's.
    // SAFETY: only the program uses these segments.
    unsafe { write_msr(register, address) };
}

/// Reads a model-specific register.
pub fn read_msr(register: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: the registers that are read here exist in every x86-64 processor.
    unsafe {
        asm!("rdmsr", in("ecx") register, out("eax") low, out("edx") high, options(nomem, nostack));
    }
    u64::from(high) << 32 | u64::from(low)
}

/// The address that the last page fault was about.
pub fn fault_address() -> u64 {
    let address;
    // SAFETY: reads a control register.
    unsafe { asm!("mov {}, cr2", out(reg) address, options(nomem, nostack)) };
    address
}

/// Rests a moment while something is awaited.
#[inline]
pub fn pause() {
    core::hint::spin_loop();
}

/// Stops the processor for ever.
pub fn halt() -> ! {
    loop {
        // SAFETY: interrupts are off, so nothing comes after it.
        unsafe { asm!("cli", "hlt", options(nomem, nostack)) };
    }
}
