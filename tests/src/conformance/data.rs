//! Reading, writing and truncating.

use atoll_vfs::*;

use super::refused;
use crate::subject::{RW, Subject, pattern};

const ROOT: Ino = Ino::ROOT;

/// Sizes around everything that implementors round to.
const SIZES: [usize; 14] =
    [1, 2, 511, 512, 513, 4095, 4096, 4097, 8192, 12_289, 65_535, 65_536, 131_073, 1 << 20];

/// Reads return the written bytes, at any alignment.
pub fn reads_return_writes(s: &mut Subject) {
    for (i, size) in SIZES.into_iter().enumerate() {
        let f = s.create(ROOT, &format!("f{i}"));
        let data = pattern(size as u64, size);
        s.write(f, 0, &data);
        assert_eq!(s.attr(f.ino).size, size as u64);
        assert_eq!(s.read(f, 0, size), data);
        assert_eq!(s.read(f, 0, size + 100), data, "a read past the end is short");
        assert_eq!(s.read(f, size as u64 / 2, size), data[size / 2..]);
        s.close(f);
    }
}

/// Overlapping writes: the last one wins, byte by byte, in the file and nowhere else.
pub fn writes_overlap(s: &mut Subject) {
    let f = s.create(ROOT, "file");
    let bystander = s.file_with(ROOT, "bystander", &pattern(99, 70_000));
    let mut wanted: Vec<u8> = Vec::new();
    let places = [(0, 10_000), (4096, 4096), (1, 1), (9_999, 2), (4095, 2), (0, 1), (5, 60_000)];
    for (i, (offset, len)) in places.into_iter().enumerate() {
        let data = pattern(i as u64, len);
        s.write(f, offset as u64, &data);
        wanted.resize(wanted.len().max(offset + len), 0);
        wanted[offset..offset + len].copy_from_slice(&data);
        assert_eq!(s.read(f, 0, wanted.len() + 1), wanted, "after write {i}");
    }
    s.close(f);
    assert_eq!(s.content(bystander), pattern(99, 70_000));
}

/// Reads at and past the end of file return nothing.
pub fn reads_end_at_the_end(s: &mut Subject) {
    let f = s.create(ROOT, "file");
    assert_eq!(s.read(f, 0, 10), b"");
    s.write(f, 0, b"12345");
    assert_eq!(s.read(f, 0, 10), b"12345");
    assert_eq!(s.read(f, 4, 10), b"5");
    assert_eq!(s.read(f, 5, 10), b"");
    assert_eq!(s.read(f, 6, 10), b"");
    assert_eq!(s.read(f, 4096, 10), b"");
    assert_eq!(s.read(f, 1 << 43, 10), b"");
    assert_eq!(s.read(f, 0, 0), b"");
    assert_eq!(s.read(f, 9, 0), b"");
}

/// A write of nothing changes nothing, not even the size.
pub fn empty_writes(s: &mut Subject) {
    let f = s.create(ROOT, "file");
    s.write(f, 0, b"x");
    s.unchanged(|s| {
        let cx = s.cx();
        let written = s.fs.write(&cx, f.ino, f.handle, 5000, b"").unwrap();
        assert_eq!(written.len, 0);
    });
    assert_eq!(s.attr(f.ino).size, 1);
}

/// A write past the end leaves zeros between.
pub fn gaps_read_as_zeros(s: &mut Subject) {
    let f = s.create(ROOT, "file");
    for (offset, at) in [(0u64, 3u64), (100, 200), (5000, 9000), (100_000, 400_000)] {
        s.write(f, offset, b"abc");
        s.write(f, at, b"def");
    }
    let bytes = s.read(f, 0, 500_000);
    assert_eq!(bytes.len(), 400_003);
    let mut wanted = vec![0; 400_003];
    for at in [0, 100, 5000, 100_000] {
        wanted[at..at + 3].copy_from_slice(b"abc");
    }
    for at in [3, 200, 9000, 400_000] {
        wanted[at..at + 3].copy_from_slice(b"def");
    }
    assert!(bytes == wanted);
}

/// Data that a shorter length cut off never comes back, however the file grows again.
pub fn truncation_forgets(s: &mut Subject) {
    for (i, cut) in [0u64, 1, 100, 4095, 4096, 4097, 10_000].into_iter().enumerate() {
        for (j, regrow) in [(0, 20_000u64), (1, 20_000), (2, 4097), (2, 12_288)] {
            let f = s.create(ROOT, &format!("f{i} {j} {regrow}"));
            let data = pattern(i as u64, 16_384);
            s.write(f, 0, &data);
            s.truncate(f.ino, cut);
            assert_eq!(s.read(f, 0, 20_000), data[..cut as usize]);
            match j {
                0 => s.truncate(f.ino, regrow),
                1 => s.write(f, regrow - 1, &[0]),
                _ => {
                    let cx = s.cx();
                    let mode = FallocateMode::empty();
                    s.fs.fallocate(&cx, f.ino, f.handle, 0, regrow, mode).unwrap();
                }
            }
            let size = regrow.max(cut) as usize;
            let mut wanted = data[..cut as usize].to_vec();
            wanted.resize(size, 0);
            assert!(s.read(f, 0, 40_000) == wanted, "cut to {cut}, grown to {regrow} by {j}");
            s.close(f);
        }
    }
}

/// A block that held another file's data reads as zeros where the new file was not written.
pub fn no_file_shows_another_ones_data(s: &mut Subject) {
    for round in 0..4 {
        let old = s.create(ROOT, "old");
        s.write(old, 0, &pattern(round, 1 << 20));
        s.close(old);
        s.unlink(ROOT, "old");
        let new = s.create(ROOT, "new");
        for block in 0..64u64 {
            s.write(new, block * 8192 + 100, b"new");
        }
        s.truncate(new.ino, 1 << 20);
        let bytes = s.read(new, 0, 1 << 20);
        assert_eq!(bytes.len(), 1 << 20);
        for (at, &byte) in bytes.iter().enumerate() {
            let within = at % 8192;
            let written = at < 64 * 8192 && (100..103).contains(&within);
            assert_eq!(byte, if written { b"new"[within - 100] } else { 0 }, "at {at}");
        }
        s.close(new);
        s.unlink(ROOT, "new");
    }
}

/// APPEND writes at the end, wherever the offset points, and says where.
pub fn appends_go_to_the_end(s: &mut Subject) {
    let f = s.create(ROOT, "file");
    s.write(f, 0, b"first");
    let a = s.open(f.ino, RW | OpenFlags::APPEND);
    let cx = s.cx();
    let written = s.fs.write(&cx, a.ino, a.handle, 0, b" second").unwrap();
    assert_eq!((written.len, written.offset), (7, 5));
    s.truncate(f.ino, 5000);
    let written = s.fs.write(&cx, a.ino, a.handle, 1 << 40, b"third").unwrap();
    assert_eq!((written.len, written.offset), (5, 5000));
    let b = s.open(f.ino, OpenFlags::WRITE | OpenFlags::APPEND);
    let written = s.fs.write(&cx, b.ino, b.handle, 3, b"fourth").unwrap();
    assert_eq!(written.offset, 5005);
    assert_eq!(s.read(a, 0, 12), b"first second");
    assert_eq!(s.read(a, 5000, 100), b"thirdfourth");
    let written = s.fs.write(&cx, f.ino, f.handle, 1, b"x").unwrap();
    assert_eq!(written.offset, 1, "a write without APPEND says its own offset");
    assert_eq!(s.attr(f.ino).size, 5011);
}

/// Sparse files reach 16 TiB and take no more space than was written.
pub fn sparse_files_reach_16_tib(s: &mut Subject) {
    let top = (16u64 << 40).min(s.quirks.file_size_max) - 4096;
    let f = s.create(ROOT, "file");
    let places = [0, 4 << 20, (4 << 30) - 1, 4 << 30, (1 << 40) + 12_345, 8 << 40, top];
    for (i, at) in places.into_iter().enumerate() {
        s.write(f, at, &pattern(i as u64, 4096));
    }
    assert_eq!(s.attr(f.ino).size, top + 4096);
    for (i, at) in places.into_iter().enumerate() {
        let wanted = pattern(i as u64, 4096);
        let read = s.read(f, at, 4096);
        let overwritten = if i == 2 { 1 } else { 4096 };
        assert_eq!(read[..overwritten], wanted[..overwritten], "at {at}");
    }
    for hole in [8192, 5 << 20, 5 << 30, 2 << 40, top - 4096] {
        assert_eq!(s.read(f, hole, 4096), [0; 4096], "hole at {hole}");
    }
    let cx = s.cx();
    s.fs.fsync(&cx, f.ino, f.handle, false).unwrap();
    assert!(s.attr(f.ino).blocks < 1000);
    s.truncate(f.ino, 4 << 30);
    assert_eq!(s.read(f, (4 << 30) - 1, 100), pattern(2, 1));
    s.close(f);
    s.unlink(ROOT, "file");
}

/// A file can be as long as lseek(2) can say and not longer: `EFBIG`, and nothing changed.
pub fn files_end_at_the_largest_offset(s: &mut Subject) {
    let max = s.quirks.file_size_max;
    let f = s.create(ROOT, "file");
    s.write(f, 0, b"start");
    s.unchanged(|s| {
        let cx = s.cx();
        for offset in [max, max + 1, u64::MAX, u64::MAX - 2] {
            let data = b"abc";
            refused!(s.fs.write(&cx, f.ino, f.handle, offset, data), EFBIG | EINVAL);
            refused!(
                s.fs.fallocate(&cx, f.ino, f.handle, offset, 3, FallocateMode::empty()),
                EFBIG | EINVAL
            );
        }
        let all = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
        refused!(s.fs.fallocate(&cx, f.ino, f.handle, 1, u64::MAX, all), EFBIG | EINVAL);
    });
    s.truncate(f.ino, max);
    assert_eq!(s.attr(f.ino).size, max);
    s.unchanged(|s| {
        let cx = s.cx();
        let a = s.open(f.ino, RW | OpenFlags::APPEND);
        refused!(s.fs.write(&cx, a.ino, a.handle, 0, b"x"), EFBIG);
        s.close(a);
    });
    s.truncate(f.ino, 5);
    assert_eq!(s.read(f, 0, 10), b"start");
    s.close(f);
}

/// The last byte of the largest file can be written.
pub fn the_last_byte_can_be_written(s: &mut Subject) {
    let max = s.quirks.file_size_max;
    let f = s.create(ROOT, "file");
    s.write(f, max - 3, b"end");
    assert_eq!(s.attr(f.ino).size, max);
    assert_eq!(s.read(f, max - 4, 100), b"\0end");
    s.close(f);
    s.unlink(ROOT, "file");
}

/// One write of many megabytes, and many writes of one byte.
pub fn large_and_tiny_writes(s: &mut Subject) {
    let f = s.create(ROOT, "large");
    let data = pattern(1, 9 << 20);
    s.write(f, 17, &data);
    let read = s.read(f, 0, (9 << 20) + 100);
    assert!(read[..17] == [0; 17] && read[17..] == data);
    s.close(f);
    let f = s.create(ROOT, "tiny");
    let data = pattern(2, 10_000);
    for (at, byte) in data.iter().enumerate() {
        s.write(f, at as u64, &[*byte]);
    }
    assert!(s.read(f, 0, 20_000) == data);
    s.close(f);
}

/// Blocks written in any order, forwards, backwards and strided, make one file.
pub fn blocks_in_any_order(s: &mut Subject) {
    const BLOCKS: u64 = 64;
    for (i, step) in [1, 63, 7, 27].into_iter().enumerate() {
        let f = s.create(ROOT, &format!("f{i}"));
        let data = pattern(i as u64, BLOCKS as usize * 4096);
        for n in 0..BLOCKS {
            let at = (n * step % BLOCKS) as usize * 4096;
            s.write(f, at as u64, &data[at..at + 4096]);
        }
        assert!(s.read(f, 0, data.len() + 1) == data, "stride {step}");
        s.close(f);
    }
}

/// Two handles of one file see each other's writes at once, a hundred files keep apart.
pub fn handles_share_the_file(s: &mut Subject) {
    let f = s.create(ROOT, "file");
    let g = s.open(f.ino, RW);
    s.write(f, 0, b"from f");
    assert_eq!(s.read(g, 0, 10), b"from f");
    s.write(g, 5, b"g");
    assert_eq!(s.read(f, 0, 10), b"from g");
    s.close(f);
    assert_eq!(s.read(g, 0, 10), b"from g");
    let files: Vec<_> = (0..100).map(|i| s.create(ROOT, &format!("f{i}"))).collect();
    for round in 0..3 {
        for (i, file) in files.iter().enumerate() {
            s.write(*file, round * 3000, &pattern(i as u64 + round * 100, 3000));
        }
    }
    for (i, file) in files.iter().enumerate() {
        let wanted: Vec<u8> =
            (0..3).flat_map(|round| pattern(i as u64 + round * 100, 3000)).collect();
        assert!(s.read(*file, 0, 10_000) == wanted, "file {i}");
    }
}

/// Data may be written from several pieces of memory, and read to several: the file is the same,
/// whatever is there before and wherever the pieces end.
pub fn pieces_make_one_call(s: &mut Subject) {
    let cx = s.cx();
    let cuts =
        [vec![0], vec![1], vec![4096], vec![4095, 4097, 4097], vec![1, 8192, 12_288, 29_999]];
    for (i, cut) in cuts.iter().enumerate() {
        for (j, offset) in [0, 1, 4096, 100_000].into_iter().enumerate() {
            let f = s.create(ROOT, &format!("f{i}-{j}"));
            // Some of it is there, some is a hole.
            let mut wanted = pattern(1, 9000);
            s.write(f, 0, &wanted);
            wanted.resize(40_000, 0);
            s.write(f, 40_000, &[5; 3000]);
            wanted.extend([5; 3000]);
            let data = pattern(2 + i as u64, 30_000);
            let ends = cut.iter().copied().chain([data.len()]);
            let begins = [0].into_iter().chain(cut.iter().copied());
            let ranges: Vec<_> = begins.zip(ends).map(|(begin, end)| begin..end).collect();
            let pieces: Vec<&[u8]> = ranges.iter().map(|range| &data[range.clone()]).collect();
            let all = Data::new(&pieces);
            let written = s.fs.write_vectored(&cx, f.ino, f.handle, offset, all).unwrap();
            assert_eq!(written, Written { len: 30_000, offset });
            let end = offset as usize + data.len();
            wanted.resize(wanted.len().max(end), 0);
            wanted[offset as usize..end].copy_from_slice(&data);
            assert!(s.read(f, 0, 200_000) == wanted, "cut {cut:?} at {offset}");
            // Short at the end of file, and no further than that.
            for from in [0, 3, wanted.len() - 20_000, wanted.len() - 1, wanted.len(), 300_000] {
                let mut found = vec![0xee; 30_000];
                let mut rest = &mut found[..];
                let mut places = Vec::new();
                for range in &ranges {
                    let (place, others) = rest.split_at_mut(range.len());
                    places.push(place);
                    rest = others;
                }
                let mut room = Room::new(places);
                let n = s.fs.read_vectored(&cx, f.ino, f.handle, from as u64, &mut room).unwrap();
                let there = &wanted[from.min(wanted.len())..];
                let there = &there[..there.len().min(30_000)];
                assert!(found[..n] == *there, "cut {cut:?} at {offset} from {from}");
                assert!(found[n..].iter().all(|&byte| byte == 0xee));
            }
            s.close(f);
        }
    }
    let f = s.create(ROOT, "appended");
    s.write(f, 0, b"begin");
    let end = s.open(f.ino, RW | OpenFlags::APPEND);
    let pieces = [&b" and"[..], b"", b" end"];
    let written = s.fs.write_vectored(&cx, f.ino, end.handle, 1, Data::new(&pieces)).unwrap();
    assert_eq!(written, Written { len: 8, offset: 5 });
    assert_eq!(s.read(f, 0, 20), b"begin and end");
    // The rights are the handle's.
    let (reads, writes) = (s.open(f.ino, OpenFlags::READ), s.open(f.ino, OpenFlags::WRITE));
    let all = Data::new(&pieces);
    refused!(s.fs.write_vectored(&cx, f.ino, reads.handle, 0, all), EBADF);
    let (mut a, mut b) = ([0; 1], [0; 1]);
    let mut room = Room::new(vec![&mut a[..], &mut b[..]]);
    refused!(s.fs.read_vectored(&cx, f.ino, writes.handle, 0, &mut room), EBADF);
    for file in [f, end, reads, writes] {
        s.close(file);
    }
}

/// fsync, fsyncdir and syncfs succeed and change nothing that can be seen.
pub fn syncing_changes_nothing(s: &mut Subject) {
    let dir = s.dir(ROOT, "dir");
    let f = s.create(dir, "file");
    s.write(f, 0, &pattern(5, 10_000));
    s.unchanged(|s| {
        let cx = s.cx();
        s.fs.fsync(&cx, f.ino, f.handle, false).unwrap();
        s.fs.fsync(&cx, f.ino, f.handle, true).unwrap();
        let handle = s.fs.opendir(&cx, dir).unwrap();
        s.fs.fsyncdir(&cx, dir, handle).unwrap();
        s.fs.releasedir(&cx, dir, handle).unwrap();
        s.fs.syncfs(&cx).unwrap();
        s.fs.syncfs(&cx).unwrap();
    });
}
