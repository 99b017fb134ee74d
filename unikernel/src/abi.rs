//! Structures of Linux's interface on x86-64, as programs read them (include/uapi/asm/stat.h and
//! the like). Each is written into words of the program's memory, or into bytes.

use atoll_vfs::{Attr, StatFs, Timespec};

/// Bytes of `struct stat`.
pub const STAT: usize = 144;
/// Bytes of `struct statx`.
pub const STATX: usize = 256;
/// Bytes of `struct statfs`.
pub const STATFS: usize = 120;
/// Bytes of `struct sysinfo`.
pub const SYSINFO: usize = 112;
/// Bytes of `struct utsname`.
pub const UTSNAME: usize = 390;
/// Bytes in the unit of reads and writes that programs are told of.
const IO_BLOCK: u64 = 4096;

/// Writes `struct stat`.
#[inline]
pub fn stat(attr: &Attr, out: &mut [u8; STAT]) {
    let mut put = |at: usize, value: u64| out[at..at + 8].copy_from_slice(&value.to_le_bytes());
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    put(0, 1);
    put(8, attr.ino.0);
    put(16, u64::from(attr.nlink));
    put(24, pair(attr.mode, attr.uid));
    put(32, pair(attr.gid, 0));
    put(40, u64::from(attr.rdev));
    put(48, attr.size);
    put(56, IO_BLOCK);
    put(64, attr.blocks);
    for (at, time) in [(72, &attr.atime), (88, &attr.mtime), (104, &attr.ctime)] {
        put(at, time.sec as u64);
        put(at + 8, u64::from(time.nsec));
    }
    put(120, 0);
    put(128, 0);
    put(136, 0);
}

/// Writes `struct statx` with all that it has room for of a volume's (STATX_BASIC_STATS and the
/// time of creation).
pub fn statx(attr: &Attr) -> [u8; STATX] {
    let mut out = [0; STATX];
    let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &0xfff_u32.to_le_bytes());
    put(4, &(IO_BLOCK as u32).to_le_bytes());
    put(16, &attr.nlink.to_le_bytes());
    put(20, &attr.uid.to_le_bytes());
    put(24, &attr.gid.to_le_bytes());
    put(28, &(attr.mode as u16).to_le_bytes());
    put(32, &attr.ino.0.to_le_bytes());
    put(40, &attr.size.to_le_bytes());
    put(48, &attr.blocks.to_le_bytes());
    for (at, time) in [(64, attr.atime), (80, attr.btime), (96, attr.ctime), (112, attr.mtime)] {
        put(at, &time.sec.to_le_bytes());
        put(at + 8, &time.nsec.to_le_bytes());
    }
    put(128, &(attr.rdev >> 8).to_le_bytes());
    put(132, &(attr.rdev & 0xff).to_le_bytes());
    put(140, &1_u32.to_le_bytes());
    out
}

/// Writes `struct statfs`.
pub fn statfs(of: &StatFs) -> [u8; STATFS] {
    let words = [
        // "ATOL", of no file system of Linux's.
        0x4c4f_5441,
        u64::from(of.block_size),
        of.blocks,
        of.blocks_free,
        of.blocks_available,
        of.files,
        of.files_free,
        0,
        u64::from(of.name_max),
        u64::from(of.block_size),
    ];
    let mut out = [0; STATFS];
    for (to, word) in out.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    out
}

/// Writes `struct timespec`.
pub fn timespec(time: Timespec) -> [u8; 16] {
    let mut out = [0; 16];
    out[..8].copy_from_slice(&time.sec.to_le_bytes());
    out[8..].copy_from_slice(&u64::from(time.nsec).to_le_bytes());
    out
}

/// Reads `struct timespec`; the nanoseconds may be any number.
pub fn read_timespec(bytes: &[u8; 16]) -> (i64, i64) {
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at..at + 8]);
        i64::from_le_bytes(word)
    };
    (word(0), word(8))
}

/// Writes `struct utsname`: the system that programs believe to be on.
pub fn utsname() -> [u8; UTSNAME] {
    let mut out = [0; UTSNAME];
    // Release 6.1: programs of glibc refuse to run on releases that are too old for them.
    let fields =
        ["Linux", "atoll", "6.1.0-atoll", concat!("Atoll ", env!("CARGO_PKG_VERSION")), "x86_64"];
    for (to, field) in out.chunks_exact_mut(65).zip(fields) {
        to[..field.len()].copy_from_slice(field.as_bytes());
    }
    out
}

/// Writes `struct sysinfo`: seconds since the start, bytes of memory, and those that are free.
pub fn sysinfo(uptime: u64, memory: u64, free: u64) -> [u8; SYSINFO] {
    let mut out = [0; SYSINFO];
    let mut put = |at: usize, value: u64| out[at..at + 8].copy_from_slice(&value.to_le_bytes());
    put(0, uptime);
    put(32, memory);
    put(40, free);
    // One process; the unit of the sizes, in bytes.
    put(80, 1);
    put(104, 1);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_vfs::Ino;

    #[test]
    fn attributes_lie_where_programs_read_them() {
        let time = |sec, nsec| Timespec { sec, nsec };
        let attr = Attr {
            ino: Ino(0x1_0000_0002),
            mode: 0o100_644,
            nlink: 3,
            uid: 4,
            gid: 5,
            rdev: 0x0103,
            size: 6,
            blocks: 7,
            atime: time(8, 9),
            mtime: time(-10, 11),
            ctime: time(12, 13),
            btime: time(14, 15),
        };
        let mut out = [0xff; STAT];
        stat(&attr, &mut out);
        let word = |at: usize| u64::from_le_bytes(out[at..at + 8].try_into().unwrap());
        assert_eq!([word(8), word(16), word(48), word(64)], [0x1_0000_0002, 3, 6, 7]);
        assert_eq!(word(24), 0o100_644 | 4 << 32);
        assert_eq!([word(72), word(80), word(88), word(104)], [8, 9, -10_i64 as u64, 12]);
        let wide = statx(&attr);
        assert_eq!(wide[28..30], 0o100_644_u16.to_le_bytes());
        assert_eq!(wide[112..120], (-10_i64).to_le_bytes());
        assert_eq!(wide[80..88], 14_i64.to_le_bytes());
        assert_eq!((wide[128], wide[132]), (1, 3));
    }
}
