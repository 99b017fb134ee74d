//! The cost of one call of the C library, in nanoseconds: `cargo run --release --example micro`.
//! With a file's path the volume in it is used (made if it is missing), mapped or, with `pread` as
//! the second argument, by pread and pwrite; else one in memory.
#![allow(unsafe_code, reason = "the calls are those of C")]

use std::ffi::{CStr, CString};
use std::hint::black_box;
use std::ptr;
use std::time::Instant;

use atoll::c::attributes::atoll_fstat;
use atoll::c::directories::{atoll_closedir, atoll_opendir, atoll_readdir};
use atoll::c::files::{atoll_close, atoll_lseek, atoll_open, atoll_pread, atoll_pwrite};
use atoll::c::mounting::{
    ATOLL_FORCE, ATOLL_PREAD, ATOLL_RAM, AtollOptions, atoll_error, atoll_mkfs, atoll_mount,
    atoll_unmount,
};
use atoll::c::names::{atoll_mkdir, atoll_unlink};

/// The best of five rounds of `count` calls.
fn time(name: &str, count: u32, mut call: impl FnMut(u32)) {
    let mut best = f64::MAX;
    for _ in 0..5 {
        let begin = Instant::now();
        (0..count).for_each(&mut call);
        best = best.min(begin.elapsed().as_nanos() as f64 / f64::from(count));
    }
    println!("{name:40} {best:10.1}");
}

fn once(name: &str, count: u32, call: impl FnMut(u32)) {
    let begin = Instant::now();
    (0..count).for_each(call);
    println!("{name:40} {:10.1}", begin.elapsed().as_nanos() as f64 / f64::from(count));
}

fn check(result: i32) -> i32 {
    // SAFETY: the message is a C string.
    assert!(result >= 0, "{}: {:?}", std::io::Error::last_os_error(), unsafe {
        CStr::from_ptr(atoll_error())
    });
    result
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().map(|path| CString::new(path).expect("a path"));
    let direct = arguments.next().is_some_and(|mode| mode == "pread");
    let mut options = AtollOptions {
        size: size_of::<AtollOptions>(),
        flags: ATOLL_FORCE,
        first_descriptor: 0,
        volume_bytes: 1 << 30,
        cache_bytes: 0,
        uid: 0,
        gid: 0,
    };
    // SAFETY: strings end in NUL, structures are whole, buffers as long as said.
    unsafe {
        if let Some(path) = &path {
            check(atoll_mkfs(path.as_ptr(), &options));
        }
        options.flags = if direct { ATOLL_PREAD } else { 0 };
        options.flags |= if path.is_none() { ATOLL_RAM } else { 0 };
        check(atoll_mount(path.as_ref().map_or(ptr::null(), |p| p.as_ptr()), &options));
        measure();
        check(atoll_unmount());
    }
}

/// # Safety
/// None: unsafe for brevity, as every call is one of C.
unsafe fn measure() {
    // SAFETY: strings end in NUL, structures are whole, buffers as long as said.
    unsafe {
        let create = libc::O_CREAT | libc::O_RDWR;
        let fd = check(atoll_open(c"/file".as_ptr(), create, 0o644));
        let (mut buf, big) = ([7u8; 64], vec![1u8; 1 << 20]);
        check(atoll_pwrite(fd, big.as_ptr().cast(), big.len(), 0) as i32);
        time("lseek", 1_000_000, |i| {
            black_box(atoll_lseek(fd, i.into(), libc::SEEK_SET));
        });
        let mut stat = core::mem::zeroed();
        time("fstat", 1_000_000, |_| {
            black_box(atoll_fstat(fd, &mut stat));
        });
        let at = |i: u32| i64::from(i.wrapping_mul(2_654_435_761) >> 12 & !63);
        time("pread 64 bytes", 1_000_000, |i| {
            black_box(atoll_pread(fd, buf.as_mut_ptr().cast(), 64, at(i)));
        });
        time("pwrite 64 bytes", 1_000_000, |i| {
            black_box(atoll_pwrite(fd, buf.as_ptr().cast(), 64, at(i)));
        });
        time("pwrite 64 bytes + pread 64 bytes", 1_000_000, |i| {
            black_box(atoll_pwrite(fd, buf.as_ptr().cast(), 64, at(i)));
            black_box(atoll_pread(fd, buf.as_mut_ptr().cast(), 64, at(i)));
        });
        let mut page = [0u8; 4096];
        time("pwrite 4 KiB + pread 4 KiB", 100_000, |i| {
            let at = i64::from(i % 256) * 4096;
            black_box(atoll_pwrite(fd, page.as_ptr().cast(), 4096, at));
            black_box(atoll_pread(fd, page.as_mut_ptr().cast(), 4096, at));
        });
        time("open + close", 100_000, |_| {
            atoll_close(check(atoll_open(c"/file".as_ptr(), libc::O_RDONLY, 0)));
        });
        atoll_close(fd);
        check(atoll_mkdir(c"/d".as_ptr(), 0o755));
        let names: Vec<CString> =
            (0..1000).map(|i| CString::new(format!("/d/file-{i}")).expect("a path")).collect();
        for name in &names {
            atoll_close(check(atoll_open(name.as_ptr(), create, 0o644)));
        }
        time("readdir of 1,000 entries", 1000, |_| {
            let dir = atoll_opendir(c"/d".as_ptr());
            let mut count = 0;
            while !atoll_readdir(dir).is_null() {
                count += 1;
            }
            assert_eq!(count, 1002);
            atoll_closedir(dir);
        });
        check(atoll_mkdir(c"/many".as_ptr(), 0o755));
        let name = |i: u32| CString::new(format!("/many/{i}")).expect("a path");
        let names: Vec<CString> = (0..100_000).map(name).collect();
        once("create + close, 100,000 in a directory", 100_000, |i| {
            atoll_close(check(atoll_open(names[i as usize].as_ptr(), create, 0o644)));
        });
        time("open + close, 100,000 in a directory", 100_000, |i| {
            let i = i.wrapping_mul(2_654_435_761) % 100_000;
            atoll_close(check(atoll_open(names[i as usize].as_ptr(), libc::O_RDONLY, 0)));
        });
        once("unlink, 100,000 in a directory", 100_000, |i| {
            check(atoll_unlink(names[i as usize].as_ptr()));
        });
    }
}
