//! fallocate, and SEEK_DATA and SEEK_HOLE.

use atoll_vfs::*;

use super::refused;
use crate::subject::{File, Subject, pattern};

const ROOT: Ino = Ino::ROOT;
const KEEP: FallocateMode = FallocateMode::KEEP_SIZE;
const PUNCH: FallocateMode = FallocateMode::PUNCH_HOLE.union(KEEP);
const ZERO: FallocateMode = FallocateMode::ZERO_RANGE;

fn fallocate(s: &mut Subject, f: File, offset: u64, len: u64, mode: FallocateMode) -> Result<()> {
    let cx = s.cx();
    s.fs.fallocate(&cx, f.ino, f.handle, offset, len, mode)
}

fn seek(s: &mut Subject, f: File, offset: u64, to: SeekTo) -> Result<u64> {
    let cx = s.cx();
    s.fs.seek(&cx, f.ino, f.handle, offset, to)
}

/// Data and holes of 4 KiB blocks are told apart; the end of file is a hole.
pub fn seek_tells_data_from_holes(s: &mut Subject) {
    let f = s.create(ROOT, "file");
    s.write(f, 8192, &pattern(1, 4096));
    s.write(f, 20_480, &pattern(2, 100));
    s.truncate(f.ino, 40_000);
    let data = |s: &mut Subject, at| seek(s, f, at, SeekTo::Data);
    let hole = |s: &mut Subject, at| seek(s, f, at, SeekTo::Hole);
    for (from, wanted) in [(0, 8192), (8191, 8192), (8192, 8192), (10_000, 10_000)] {
        assert_eq!(data(s, from), Ok(wanted), "data from {from}");
    }
    for (from, wanted) in [(12_288, 20_480), (20_000, 20_480), (20_481, 20_481)] {
        assert_eq!(data(s, from), Ok(wanted), "data from {from}");
    }
    refused!(data(s, 24_576), ENXIO);
    refused!(data(s, 39_999), ENXIO);
    for (from, wanted) in [(0, 0), (5000, 5000), (8192, 12_288), (12_287, 12_288), (20_500, 24_576)]
    {
        assert_eq!(hole(s, from), Ok(wanted), "hole from {from}");
    }
    assert_eq!(hole(s, 39_999), Ok(39_999));
    for at in [40_000, 40_001, 1 << 62] {
        refused!(data(s, at), ENXIO);
        refused!(hole(s, at), ENXIO);
    }
}

/// The hole after the last data is the end of file, wherever in its block that is.
pub fn seek_ends_at_the_end_of_file(s: &mut Subject) {
    let f = s.create(ROOT, "file");
    refused!(seek(s, f, 0, SeekTo::Data), ENXIO);
    refused!(seek(s, f, 0, SeekTo::Hole), ENXIO);
    for size in [1, 4095, 4096, 4097, 10_000] {
        s.write(f, 0, &pattern(3, size as usize));
        assert_eq!(seek(s, f, 0, SeekTo::Data), Ok(0));
        assert_eq!(seek(s, f, 0, SeekTo::Hole), Ok(size));
        assert_eq!(seek(s, f, size - 1, SeekTo::Hole), Ok(size));
        refused!(seek(s, f, size, SeekTo::Data), ENXIO);
    }
    let read_only = s.open(f.ino, OpenFlags::READ);
    assert_eq!(seek(s, read_only, 0, SeekTo::Hole), Ok(10_000));
}

/// A file of nothing but a hole has no data.
pub fn seek_in_an_empty_hole(s: &mut Subject) {
    let f = s.create(ROOT, "file");
    s.truncate(f.ino, (8 << 40) + 5);
    assert_eq!(seek(s, f, 0, SeekTo::Hole), Ok(0));
    assert_eq!(seek(s, f, 8 << 40, SeekTo::Hole), Ok(8 << 40));
    refused!(seek(s, f, 0, SeekTo::Data), ENXIO);
    s.write(f, 8 << 40, b"x");
    assert_eq!(seek(s, f, 0, SeekTo::Data), Ok(8 << 40));
    assert_eq!(seek(s, f, 8 << 40, SeekTo::Hole), Ok((8 << 40) + 5));
}

/// Plain fallocate grows the file with zeros and leaves its content.
pub fn fallocate_grows(s: &mut Subject) {
    let f = s.create(ROOT, "file");
    s.write(f, 0, b"data");
    fallocate(s, f, 2, 10_000, FallocateMode::empty()).unwrap();
    assert_eq!(s.attr(f.ino).size, 10_002);
    let mut wanted = b"data".to_vec();
    wanted.resize(10_002, 0);
    assert!(s.read(f, 0, 20_000) == wanted);
    let blocks = s.attr(f.ino).blocks;
    assert!(blocks >= 24, "10,002 bytes were allocated in {blocks} sectors");
    fallocate(s, f, 0, 100, FallocateMode::empty()).unwrap();
    assert_eq!(s.attr(f.ino).size, 10_002, "fallocate never shortens");
}

/// Writes into allocated space show, and the rest still reads as zeros.
pub fn allocated_space_can_be_written(s: &mut Subject) {
    let f = s.create(ROOT, "file");
    fallocate(s, f, 0, 100_000, FallocateMode::empty()).unwrap();
    let mut wanted = vec![0; 100_000];
    for (at, len) in [(5000, 10), (40_960, 4096), (99_999, 1), (70_000, 9000)] {
        let data = pattern(at as u64, len);
        s.write(f, at as u64, &data);
        wanted[at..at + len].copy_from_slice(&data);
        assert!(s.read(f, 0, 200_000) == wanted, "after writing at {at}");
    }
}

/// KEEP_SIZE allocates past the end without moving it; blocks allocated there read as zeros when
/// the file grows over them.
pub fn fallocate_keep_size(s: &mut Subject) {
    let f = s.create(ROOT, "file");
    s.write(f, 0, b"data");
    fallocate(s, f, 0, 100_000, KEEP).unwrap();
    assert_eq!(s.attr(f.ino).size, 4);
    assert!(s.attr(f.ino).blocks >= 192);
    assert_eq!(s.read(f, 0, 100), b"data");
    refused!(seek(s, f, 4, SeekTo::Data), ENXIO);
    s.truncate(f.ino, 50_000);
    let mut wanted = b"data".to_vec();
    wanted.resize(50_000, 0);
    assert!(s.read(f, 0, 100_000) == wanted);
    s.write(f, 60_000, b"end");
    wanted.resize(60_000, 0);
    wanted.extend_from_slice(b"end");
    assert!(s.read(f, 0, 100_000) == wanted);
    s.truncate(f.ino, 0);
    assert_eq!(s.attr(f.ino).blocks, 0, "a truncation gives allocated space back");
}

/// PUNCH_HOLE zeroes the range, gives whole blocks back, and leaves the size.
pub fn punching_holes(s: &mut Subject) {
    let data = pattern(7, 40_000);
    let cases: [(u64, u64); 10] = [
        (0, 4096),
        (4096, 8192),
        (100, 50),
        (100, 4096),
        (4000, 200),
        (5000, 20_000),
        (36_864, 3136),
        (39_999, 1),
        (30_000, 100_000),
        (0, 1 << 40),
    ];
    for (i, (offset, len)) in cases.into_iter().enumerate() {
        let f = s.create(ROOT, &format!("f{i}"));
        s.write(f, 0, &data);
        fallocate(s, f, offset, len, PUNCH).unwrap();
        let mut wanted = data.clone();
        let end = (offset + len).min(40_000) as usize;
        wanted[offset as usize..end].fill(0);
        assert_eq!(s.attr(f.ino).size, 40_000);
        assert!(s.read(f, 0, 50_000) == wanted, "punched {offset}+{len}");
        let first_whole = offset.next_multiple_of(4096);
        let whole_end = if offset + len > 40_000 { 40_000 } else { (offset + len) / 4096 * 4096 };
        if first_whole < whole_end {
            let hole = seek(s, f, first_whole, SeekTo::Hole);
            assert_eq!(hole, Ok(first_whole), "punched {offset}+{len}");
        }
        s.close(f);
    }
}

/// Punching in holes and past the end does nothing.
pub fn punching_nothing(s: &mut Subject) {
    let f = s.create(ROOT, "file");
    s.write(f, 0, b"x");
    s.truncate(f.ino, 100_000);
    fallocate(s, f, 50_000, 10_000, PUNCH).unwrap();
    fallocate(s, f, 200_000, 10_000, PUNCH).unwrap();
    assert_eq!(s.attr(f.ino).size, 100_000);
    assert_eq!(s.read(f, 0, 1), b"x");
    refused!(seek(s, f, 4096, SeekTo::Data), ENXIO);
}

/// A punched hole can be filled again, and shows nothing of before.
pub fn punched_holes_can_be_filled(s: &mut Subject) {
    let f = s.create(ROOT, "file");
    let mut wanted = pattern(8, 65_536);
    s.write(f, 0, &wanted);
    fallocate(s, f, 8192, 32_768, PUNCH).unwrap();
    wanted[8192..40_960].fill(0);
    for at in [9000, 20_000, 36_000] {
        s.write(f, at as u64, b"again");
        wanted[at..at + 5].copy_from_slice(b"again");
    }
    assert!(s.read(f, 0, 70_000) == wanted);
}

/// ZERO_RANGE zeroes the range and grows the file, unless KEEP_SIZE.
pub fn zeroing_ranges(s: &mut Subject) {
    if !s.quirks.zero_range {
        return;
    }
    let data = pattern(9, 20_000);
    for (i, (offset, len)) in
        [(0u64, 4096u64), (100, 50), (5000, 10_000), (19_000, 5000), (30_000, 10)]
            .into_iter()
            .enumerate()
    {
        for (mode, grows) in [(ZERO, true), (ZERO | KEEP, false)] {
            let f = s.create(ROOT, &format!("f{i}{grows}"));
            s.write(f, 0, &data);
            fallocate(s, f, offset, len, mode).unwrap();
            let end = (offset + len) as usize;
            let mut wanted = data.clone();
            if grows {
                wanted.resize(end.max(20_000), 0);
            }
            let size = wanted.len();
            wanted[size.min(offset as usize)..size.min(end)].fill(0);
            assert_eq!(s.attr(f.ino).size, size as u64);
            assert!(s.read(f, 0, 50_000) == wanted, "zeroed {offset}+{len}, grows: {grows}");
            s.close(f);
        }
    }
}

/// Unknown modes, empty ranges and handles without WRITE are refused.
pub fn fallocate_errors(s: &mut Subject) {
    let f = s.create(ROOT, "file");
    s.write(f, 0, &pattern(1, 10_000));
    let read_only = s.open(f.ino, OpenFlags::READ);
    s.unchanged(|s| {
        for mode in [FallocateMode::empty(), KEEP, PUNCH] {
            refused!(fallocate(s, f, 0, 0, mode), EINVAL);
            refused!(fallocate(s, f, 100, 0, mode), EINVAL);
            refused!(fallocate(s, read_only, 0, 10, mode), EBADF);
        }
        for mode in [
            FallocateMode::PUNCH_HOLE,
            FallocateMode::PUNCH_HOLE | ZERO,
            PUNCH | ZERO,
            FallocateMode::from_bits_retain(4),
            FallocateMode::from_bits_retain(1 << 31),
        ] {
            refused!(fallocate(s, f, 0, 4096, mode), EOPNOTSUPP | EINVAL);
        }
        if s.quirks.caller_time {
            // A host's file system may know how to collapse and insert ranges.
            for bits in [8, 9, 32, 64] {
                let mode = FallocateMode::from_bits_retain(bits);
                refused!(fallocate(s, f, 0, 4096, mode), EOPNOTSUPP | EINVAL);
            }
        }
    });
}

/// More than any volume has is `ENOSPC` (or `EFBIG`), and takes nothing.
pub fn fallocate_of_everything(s: &mut Subject) {
    if !s.quirks.caller_time {
        return; // A host's file system is not ours to fill.
    }
    let f = s.create(ROOT, "file");
    s.unchanged(|s| {
        refused!(fallocate(s, f, 0, 1 << 60, FallocateMode::empty()), ENOSPC | EFBIG);
        refused!(fallocate(s, f, 0, 1 << 60, KEEP), ENOSPC | EFBIG);
    });
    assert_eq!(s.attr(f.ino).blocks, 0, "a fallocate that failed kept space");
    s.write(f, 0, b"there is room");
}

/// A file of alternating data and holes is told apart block by block.
pub fn alternating_holes(s: &mut Subject) {
    const PAIRS: u64 = 200;
    let f = s.create(ROOT, "file");
    for i in 0..PAIRS {
        s.write(f, i * 8192, &pattern(i, 4096));
    }
    let mut at = 0;
    for i in 0..PAIRS {
        assert_eq!(seek(s, f, at, SeekTo::Data), Ok(i * 8192));
        at = seek(s, f, i * 8192, SeekTo::Hole).unwrap();
        assert_eq!(at, i * 8192 + 4096);
    }
    for i in (0..PAIRS).step_by(2) {
        fallocate(s, f, i * 8192, 4096, PUNCH).unwrap();
    }
    assert_eq!(seek(s, f, 0, SeekTo::Data), Ok(8192));
    for i in 0..PAIRS {
        s.write(f, i * 8192 + 4096, &pattern(i + 1000, 4096));
    }
    for i in 0..PAIRS {
        let kept = if i % 2 == 0 { vec![0; 4096] } else { pattern(i, 4096) };
        assert!(s.read(f, i * 8192, 4096) == kept);
        assert!(s.read(f, i * 8192 + 4096, 4096) == pattern(i + 1000, 4096));
    }
}
