//! The cost of reads of a View on this machine:
//! `cargo run --release -p atoll-vfs --example view_alone`.
//!
//! An argument picks one kind of read and a second one the number of reads, for counting
//! instructions.

use std::hint::black_box;
use std::time::Instant;

use atoll_transport::Shared;
use atoll_vfs::view::{PAGE, Size, ViewReader, ViewWriter};
use atoll_vfs::{Attr, Ino, Timespec};

fn memory(len: usize) -> Shared<'static> {
    let bytes = vec![0u8; len + PAGE].leak();
    let before = bytes.as_ptr().align_offset(PAGE);
    Shared::from_slice(&mut bytes[before..][..len])
}

fn sized(size: u64) -> Attr {
    let time = Timespec::default();
    Attr {
        ino: Ino(0),
        mode: 0,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size,
        blocks: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
    }
}

/// Pages that are read in turn: with tables and the buffer, less than the second-level cache.
const FEW: u64 = 64;

fn main() {
    let size = Size::for_pages(16384);
    let memory = memory(size.bytes());
    let mut writer = ViewWriter::new(memory, size).expect("a View");
    let reader = ViewReader::new(memory).expect("the View");
    let names: Vec<String> = (0..1000).map(|n| format!("name-of-file-{n}")).collect();
    let long: Vec<String> = (0..1000).map(|n| format!("{n:0>200}")).collect();
    for ino in 1..=1000u64 {
        writer.put_attr(ino, &sized(16384 * PAGE as u64));
        writer.put_entry(1, names[ino as usize - 1].as_bytes(), ino);
        writer.put_entry(1, long[ino as usize - 1].as_bytes(), ino);
    }
    (0..16384).for_each(|block| writer.put_page(7, block, &[7; PAGE]));
    let mut buf = vec![0u8; 64 * PAGE];
    let ino = |n: u64| n % 1000 + 1;
    let name = |n: u64| names[n as usize % 1000].as_bytes();
    let pick = std::env::args().nth(1);
    let count = std::env::args().nth(2).and_then(|n| n.parse().ok()).unwrap_or(2_000_000u64);
    let measure = |what: &str, run: &mut dyn FnMut(u64)| {
        if pick.as_ref().is_some_and(|pick| pick != what) {
            return;
        }
        let mut best = f64::INFINITY;
        for _ in 0..if pick.is_some() { 1 } else { 5 } {
            let begin = Instant::now();
            (0..count).for_each(&mut *run);
            best = best.min(begin.elapsed().as_secs_f64() * 1e9 / count as f64);
        }
        println!("{what:<24} {best:8.1} ns");
    };
    measure("nothing", &mut |n| {
        black_box(n);
    });
    measure("copy-4k", &mut |n| {
        let offset = (n % FEW) as usize * PAGE;
        let (from, to) = buf.split_at_mut(32 * PAGE);
        to[..PAGE].copy_from_slice(&from[offset % (32 * PAGE)..][..PAGE]);
        black_box(&to);
    });
    let large = vec![1u8; 16384 * PAGE];
    measure("copy-4k-64MiB", &mut |n| {
        let offset = (n * 7919 % 16384) as usize * PAGE;
        buf[..PAGE].copy_from_slice(&large[offset..][..PAGE]);
        black_box(&buf);
    });
    measure("attr", &mut |n| {
        black_box(reader.attr(ino(n)));
    });
    measure("size", &mut |n| {
        black_box(reader.size(ino(n)));
    });
    measure("lookup", &mut |n| {
        black_box(reader.lookup(1, name(n)));
    });
    measure("lookup-long", &mut |n| {
        black_box(reader.lookup(1, long[n as usize % 1000].as_bytes()));
    });
    measure("lookup-attr", &mut |n| {
        black_box(reader.lookup_attr(1, name(n)));
    });
    measure("attr-miss", &mut |n| {
        black_box(reader.attr(n + 100_000));
    });
    measure("read-64", &mut |n| {
        black_box(reader.read(7, n % FEW * PAGE as u64 + 64, &mut buf[..64]));
    });
    measure("read-4k", &mut |n| {
        black_box(reader.read(7, n % FEW * PAGE as u64, &mut buf[..PAGE]));
    });
    measure("read-4k-64MiB", &mut |n| {
        black_box(reader.read(7, n * 7919 % 16384 * PAGE as u64, &mut buf[..PAGE]));
    });
    if count <= 10_000_000 {
        measure("drop-put-page", &mut |n| {
            writer.drop_pages(7, n % FEW..n % FEW + 1);
            writer.put_page(7, n % FEW, &[1; PAGE]);
        });
        measure("drop-put-attr", &mut |n| {
            writer.drop_attr(ino(n));
            writer.put_attr(ino(n), &sized(0));
        });
        measure("put-entry", &mut |n| writer.put_entry(1, name(n), ino(n)));
    }
}
