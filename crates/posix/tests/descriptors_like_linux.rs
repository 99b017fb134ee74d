//! Random sequences of calls on descriptors answer as Linux does. The only test of its process,
//! since numbers of descriptors are compared.

mod common;

use common::{Answer, Calls, Host, Layer};

/// SplitMix64: the same seed gives the same sequence.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

const PATHS: [&[u8]; 5] = [b"a", b"b", b"c", b"dir", b"link"];
const OPEN: [u32; 14] = [
    0, 1, 2, 0o400002, 0o102, 0o1002, 0o2001, 0o2102, 0o302, 0o200000, 0o10000000, 0o101, 0o1102,
    0o2,
];

/// One call, the same on both sides for the same numbers.
fn step(calls: &mut dyn Calls, random: &mut Random, trace: &mut Vec<String>) -> Answer {
    let fd = random.below(12) as i64 - 1;
    let size = random.pick(&[0, 1, 7, 512, 4095, 4096, 4097, 9000]) as usize;
    let offset = random.pick(&[-1, 0, 1, 100, 4000, 4096, 8191, 12288, 70000, i64::MAX]);
    let byte = random.next() as u8;
    let choice = random.below(18);
    trace.push(format!("call {choice} fd {fd} size {size} offset {offset}"));
    let sum = |buf: &[u8], n: i64| {
        let read = &buf[..n as usize];
        n << 32 | read.iter().fold(0i64, |s, b| (s * 31 + i64::from(*b)) & 0xffff_ffff)
    };
    match choice {
        0..=3 => {
            let (path, flags) = (random.pick(&PATHS), random.pick(&OPEN));
            trace.push(format!("  open {:?} {flags:#o}", String::from_utf8_lossy(path)));
            calls.open(path, flags, 0o644)
        }
        4 => calls.close(fd),
        5 => calls.dup(fd),
        6 => calls.dup2(fd, random.below(12) as i64 - 1),
        7 | 8 => calls.write(fd, &vec![byte; size]),
        9 => calls.pwrite(fd, &vec![byte; size], offset.min(70000)),
        10 => {
            let mut buf = vec![0; size];
            let n = calls.read(fd, &mut buf)?;
            Ok(sum(&buf, n))
        }
        11 => {
            let mut buf = vec![0; size];
            let n = calls.pread(fd, &mut buf, offset.min(70000))?;
            Ok(sum(&buf, n))
        }
        12 | 13 => {
            let whence = random.pick(&[libc::SEEK_SET, libc::SEEK_CUR, libc::SEEK_END]);
            // Each file system has its own behaviour at offsets near the largest.
            calls.lseek(fd, offset.min(70000), whence)
        }
        14 => calls.ftruncate(fd, offset.min(70000)),
        15 => calls.set_append(fd, byte & 1 == 0),
        16 => calls.fsize(fd),
        _ => {
            let path = random.pick(&[&b"a"[..], b"b", b"c"]);
            calls.unlink(path)
        }
    }
}

fn plant(calls: &mut dyn Calls) {
    calls.mkdir(b"dir", 0o755).expect("a new directory");
    calls.symlink(b"a", b"link").expect("a new link");
}

fn run(seed: u64) {
    let (mut host, mut layer) = (Host::new(), Layer::new());
    host.rebase();
    plant(&mut host);
    plant(&mut layer);
    let (mut theirs, mut ours) = (Random(seed), Random(seed));
    let mut trace = Vec::new();
    for _ in 0..400 {
        let expected = step(&mut host, &mut theirs, &mut trace);
        let got = step(&mut layer, &mut ours, &mut Vec::new());
        // A directory's cookies and its offset are each file system's own.
        assert_eq!(
            expected,
            got,
            "{}\nreplay: ATOLL_SEED={seed} cargo test -p atoll-posix --test descriptors_like_linux",
            trace.join("\n")
        );
    }
    for fd in 0..64 {
        let _ = host.close(fd);
    }
}

#[test]
fn random_sequences() {
    match std::env::var("ATOLL_SEED") {
        Ok(seed) => run(seed.parse().expect("a number")),
        Err(_) => (0..400).for_each(run),
    }
}
