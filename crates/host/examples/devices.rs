//! Measures the devices: `cargo run --release -p atoll-host --example devices [DIRECTORY]`.
//!
//! Each line is a median over rounds that go through all devices in turn. The directory, by
//! default the current one, decides which host file system is measured.

use std::fs::File;
use std::hint::black_box;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use atoll_block::{Addressable, BlockDevice, BlockIndex, RamDevice};
use atoll_host::device::{Access, Create, HostDevice, OpenOptions, open};

const BLOCKS: u64 = 32 << 8;

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_nanos() as f64
}

/// Nanoseconds of one of `count` calls of `call`.
fn each(count: u64, mut call: impl FnMut(u64)) -> Duration {
    let start = Instant::now();
    (0..count).for_each(&mut call);
    start.elapsed() / count as u32
}

fn main() -> std::io::Result<()> {
    let directory = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| ".".into()));
    let directory = tempfile::tempdir_in(directory)?;
    let path = |name: &str| directory.path().join(name);
    let direct = Access::Direct { cache_bytes: 8 << 20 };
    let ways = [
        ("mapped", Access::Mapped, false),
        ("direct", direct, false),
        ("direct, sealable", direct, true),
    ];
    let mut devices: Vec<(&str, HostDevice)> = Vec::new();
    for (name, access, sealable) in ways {
        let options = OpenOptions {
            access,
            sealable,
            create: Create::New,
            blocks: Some(BLOCKS),
            ..OpenOptions::default()
        };
        let mut device = open(&path(name), &options).map_err(std::io::Error::other)?;
        let file = File::options().write(true).open(path(name))?;
        for block in (0..BLOCKS).step_by(256) {
            // By large writes, after which the host caches it in large folios.
            file.write_all_at(&vec![1; 256 * 4096], block * 4096)?;
        }
        device.flush().map_err(std::io::Error::other)?;
        devices.push((name, device));
    }

    println!("load and store of warm blocks, ns (1 MiB of them):");
    let mut ram = RamDevice::new(BLOCKS);
    let mut buf = vec![0u8; 65536];
    for size in [8usize, 64, 256, 1024, 4096, 65536] {
        print!("{size:>8}");
        let spread = |i: u64| (i * 65536 + (i * 4096) % 65536) % (1 << 20);
        let mut measure = |name: &str, device: &mut dyn Addressable| {
            let mut loads = Vec::new();
            let mut stores = Vec::new();
            let count = if name.starts_with("direct") { 2_000 } else { 20_000 };
            for _ in 0..15 {
                loads.push(each(count, |i| {
                    device.load(spread(i), black_box(&mut buf[..size])).unwrap();
                }));
                stores.push(each(count.min(if size > 4096 { 200 } else { count }), |i| {
                    device.store(spread(i), black_box(&buf[..size])).unwrap();
                }));
            }
            print!("  {name}: {:.1} {:.1}", median(loads), median(stores));
        };
        measure("RAM", &mut ram);
        for (name, device) in &mut devices {
            measure(name, device);
        }
        println!();
    }

    println!("700 bytes stored and made durable, us:");
    let commit = |device: &mut HostDevice, base: u64, i: u64| {
        let at = base * 4096 + i * 700;
        let start = Instant::now();
        device.store(at, &[i as u8; 700]).unwrap();
        let first = at / 4096;
        device.flush_range(BlockIndex(first), (at + 699) / 4096 - first + 1).unwrap();
        start.elapsed()
    };
    let mut appended = File::create(path("appended"))?;
    let mut times = vec![Vec::new(); 2 * devices.len() + 1];
    // The second half of each device has been announced as a place of commits.
    for (_, device) in &mut devices {
        device.expect_commits(BlockIndex(BLOCKS / 2), 1024).unwrap();
    }
    for i in 0..400 {
        for (d, (_, device)) in devices.iter_mut().enumerate() {
            times[2 * d].push(commit(device, 0, i));
            times[2 * d + 1].push(commit(device, BLOCKS / 2, i));
        }
        let start = Instant::now();
        appended.write_all(&[i as u8; 700])?;
        appended.sync_all()?;
        times[2 * devices.len()].push(start.elapsed());
    }
    let mut times = times.into_iter();
    for (name, _) in &devices {
        let (plain, announced) = (times.next().unwrap(), times.next().unwrap());
        println!(
            "{name:>20}: {:.0}, after expect_commits {:.0}",
            median(plain) / 1e3,
            median(announced) / 1e3
        );
    }
    println!("{:>20}: {:.0}", "append and fsync", median(times.next().unwrap()) / 1e3);
    Ok(())
}
