//! The first instructions, by the PVH protocol (Xen, docs/misc/pvh.pandoc): QEMU starts them in
//! 32-bit mode, without pages, and with the address of `hvm_start_info` in EBX. Then what that
//! structure says, and the memory map.
#![allow(unsafe_code)]

use core::arch::global_asm;
use core::cell::UnsafeCell;
use core::ops::Range;
use core::ptr;

use atoll_unikernel::built_in;

use crate::frames::{self, DIRECT};
use crate::{paging, ports, traps};

global_asm!(
    r#"
    .pushsection .note.Xen, "a", @note
    .balign 4
    .long 4, 8, 18
    .asciz "Xen"
    .quad boot32
    .popsection

    // What is built into the image: atoll_unikernel::built_in.
    .pushsection .note.atoll, "a", @note
    .balign 4
    .long 6, 16, 1
    .asciz "Atoll"
    .balign 4
    .global built_in
built_in:
    .quad 0, 0
    .popsection

    .pushsection .boot, "ax", @progbits
    .code32
    .global boot32
boot32:
    cli
    cld
    // The first gibibyte, at 0 and at DIRECT.
    mov eax, offset boot_level3
    or eax, 3
    mov [boot_level4], eax
    mov [boot_level4 + 256 * 8], eax
    mov eax, offset boot_level2
    or eax, 3
    mov [boot_level3], eax
    xor ecx, ecx
    mov eax, 0x83
2:
    mov [boot_level2 + ecx * 8], eax
    add eax, 0x200000
    inc ecx
    cmp ecx, 512
    jne 2b
    // PAE, and SSE for programs.
    mov eax, cr4
    or eax, 0x620
    mov cr4, eax
    mov eax, offset boot_level4
    mov cr3, eax
    // SYSCALL, long mode, pages that are not executable.
    mov ecx, 0xc0000080
    rdmsr
    or eax, 0x901
    wrmsr
    // Pages, their write protection for us too, and a floating-point unit.
    mov eax, cr0
    and eax, 0xfffffff3
    or eax, 0x80010023
    mov cr0, eax
    lgdt [boot_gdt_pointer]
    mov esp, offset stack_call
    push 8
    mov eax, offset boot64
    push eax
    retf
    .code64
boot64:
    mov ax, 16
    mov ds, ax
    mov es, ax
    mov ss, ax
    xor eax, eax
    mov fs, ax
    mov gs, ax
    lea rsp, [rip + stack_call]
    xor ebp, ebp
    mov edi, ebx
    call {boot}
    ud2
    .popsection

    .pushsection .rodata.boot, "a", @progbits
    .balign 8
boot_gdt:
    .quad 0, 0x00af9a000000ffff, 0x00cf92000000ffff
boot_gdt_pointer:
    .word 23
    .long boot_gdt
    .popsection

    .pushsection .bss.boot, "aw", @nobits
    .balign 4096
boot_level4: .skip 4096
boot_level3: .skip 4096
boot_level2: .skip 4096
    .popsection
    "#,
    boot = sym boot,
);

/// The longest command line.
const LINE_MAX: usize = 64 << 10;
/// `hvm_start_info`'s first word.
const MAGIC: u32 = 0x336e_c578;
/// In the memory map: memory that may be used.
const MEMORY: u32 = 1;
/// The most entries of the memory map that are read.
const ENTRIES_MAX: u32 = 128;

/// What the boot loader says.
pub struct Boot {
    line: [u8; LINE_MAX],
    line_len: usize,
    module: Range<u64>,
    built_in: Range<u64>,
    /// The machine has memory where that lies.
    has_built_in: bool,
}

/// What is built into the image.
pub struct BuiltIn {
    /// Its command line.
    pub line: &'static [u8],
    /// Its volume.
    pub volume: &'static mut [u8],
}

impl Boot {
    /// The command line.
    pub fn command_line(&self) -> &[u8] {
        &self.line[..self.line_len]
    }

    /// The initial module, for its one user.
    pub fn module(&self) -> Option<&'static mut [u8]> {
        // SAFETY: its frames are never given out. It is asked for once.
        unsafe { bytes(&self.module) }
    }

    /// What is built into the image, for its one user.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn built_in(&self) -> Result<Option<BuiltIn>, &'static str> {
        if !self.has_built_in && !self.built_in.is_empty() {
            return Err("the machine has too little memory for it");
        }
        // SAFETY: its frames are never given out. It is asked for once.
        let Some(bytes) = (unsafe { bytes(&self.built_in) }) else { return Ok(None) };
        let parts = built_in::parts(bytes, bytes.len() as u64);
        let (line, volume) = parts.ok_or("it is not what was built in")?;
        let (head, rest) = bytes.split_at_mut(volume.start);
        Ok(Some(BuiltIn { line: &head[line], volume: rest }))
    }
}

/// The bytes of a range of physical memory, if there are any.
///
/// # Safety
/// Nothing else uses them from now on.
unsafe fn bytes(range: &Range<u64>) -> Option<&'static mut [u8]> {
    let at = (DIRECT + range.start) as *mut u8;
    // SAFETY: as the caller promises.
    (!range.is_empty())
        .then(|| unsafe { core::slice::from_raw_parts_mut(at, (range.end - range.start) as usize) })
}

/// Adds the memory from `start` to `end` but for the ranges that are `taken`.
fn add_free(start: u64, end: u64, taken: &[Range<u64>]) {
    match taken {
        [] => frames::add(start, end),
        [first, rest @ ..] if first.is_empty() || first.end <= start || end <= first.start => {
            add_free(start, end, rest);
        }
        [first, rest @ ..] => {
            add_free(start, first.start.max(start), rest);
            add_free(first.end.min(end), end, rest);
        }
    }
}

/// Its place: it is too large for a stack.
struct Place(UnsafeCell<Boot>);
// SAFETY: it is written before anything else runs.
unsafe impl Sync for Place {}
static BOOT: Place = Place(UnsafeCell::new(Boot {
    line: [0; LINE_MAX],
    line_len: 0,
    module: 0..0,
    built_in: 0..0,
    has_built_in: false,
}));

unsafe extern "C" {
    /// The two words of the image's note.
    static built_in: [u8; 16];
}

/// The words at the physical address `at`, below 1 GiB.
///
/// # Safety
/// The boot's own tables are in use, and there is a `T` at that address.
unsafe fn read<T: Copy>(at: u64) -> T {
    // SAFETY: as the caller promises; of no alignment.
    unsafe { ptr::read_unaligned((DIRECT + at) as *const T) }
}

/// `struct hvm_start_info`, version 1.
#[derive(Clone, Copy)]
#[repr(C)]
struct StartInfo {
    magic: u32,
    version: u32,
    flags: u32,
    modules: u32,
    module_list: u64,
    command_line: u64,
    rsdp: u64,
    memory_map: u64,
    memory_entries: u32,
    reserved: u32,
}

/// `struct hvm_memmap_table_entry`.
#[derive(Clone, Copy)]
#[repr(C)]
struct MemoryEntry {
    at: u64,
    len: u64,
    kind: u32,
    reserved: u32,
}

/// What the boot loader has at an address above what is mapped at first cannot be read.
const REACHED: u64 = 1 << 30;

extern "C" fn boot(info: u64) -> ! {
    // SAFETY: nothing else runs yet; the boot loader has put its structures where it says.
    let boot = unsafe { &mut *BOOT.0.get() };
    // SAFETY: as above.
    let info: StartInfo = unsafe { read(info) };
    if info.magic != MAGIC || info.version < 1 || info.memory_map >= REACHED {
        ports::halt();
    }
    if info.modules > 0 && info.module_list < REACHED {
        // SAFETY: a list of that many modules, each with its address and length first.
        let [at, len]: [u64; 2] = unsafe { read(info.module_list) };
        boot.module = at..at.saturating_add(len);
    }
    if info.command_line != 0 && info.command_line < REACHED {
        while boot.line_len < LINE_MAX {
            // SAFETY: a string that ends with NUL.
            match unsafe { read::<u8>(info.command_line + boot.line_len as u64) } {
                0 => break,
                byte => boot.line[boot.line_len] = byte,
            }
            boot.line_len += 1;
        }
    }
    // SAFETY: bytes of the image. The compiler does not know what will be there.
    let note = unsafe { ptr::read_volatile(&raw const built_in) };
    let [at, len] = [0, 8].map(|at| u64::from_le_bytes(core::array::from_fn(|by| note[at + by])));
    boot.built_in = at..at.saturating_add(len);
    let mut memory = 0;
    for index in 0..info.memory_entries.min(ENTRIES_MAX) {
        let at = info.memory_map + u64::from(index) * size_of::<MemoryEntry>() as u64;
        // SAFETY: a table of that many entries.
        let entry: MemoryEntry = unsafe { read(at) };
        if entry.kind == MEMORY {
            let end = entry.at.saturating_add(entry.len);
            memory = memory.max(end);
            boot.has_built_in |= entry.at <= boot.built_in.start && boot.built_in.end <= end;
            add_free(entry.at, end, &[boot.module.clone(), boot.built_in.clone()]);
        }
    }
    // SAFETY: called once, by the boot.
    if unsafe { paging::begin(memory) }.is_none() {
        ports::halt();
    }
    traps::begin();
    crate::main(boot)
}
