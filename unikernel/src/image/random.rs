//! Random numbers: the processor's, and those made of a seed, which the command line brings or else
//! a source of entropy (virtio-rng).

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use atoll_vfs::{Errno, Result};
use siphasher::sip::SipHasher24;

use crate::{ports, virtio};

static HAS_RDRAND: AtomicBool = AtomicBool::new(false);
static SEEDED: AtomicBool = AtomicBool::new(false);
static SEED: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
static COUNTER: AtomicU64 = AtomicU64::new(0);
/// How often the processor is asked again when it has none just now, as its makers advise.
const TRIES: usize = 10;

/// A seed of the machine's own source, if it has one that gives any.
fn seed_of_machine() -> Option<[u8; 16]> {
    let mut seed = [0; 16];
    virtio::entropy(&mut seed).ok().map(|()| seed)
}

/// Finds out what there is. `seed`: that of the command line. The clock has begun.
pub fn begin(seed: Option<[u8; 16]>) {
    HAS_RDRAND.store(ports::cpuid(1)[2] & 1 << 30 != 0, Ordering::Relaxed);
    if let Some(seed) = seed.or_else(seed_of_machine) {
        let (low, high) = seed.split_at(8);
        for (to, half) in SEED.iter().zip([low, high]) {
            let word = half.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
            to.store(word, Ordering::Relaxed);
        }
        SEEDED.store(true, Ordering::Relaxed);
    }
}

/// Fills `buf`.
///
/// # Errors
/// `EIO`: the processor has none, and nothing has brought a seed.
pub fn fill(buf: &mut [u8]) -> Result<()> {
    for piece in buf.chunks_mut(8) {
        let word = word().ok_or(Errno::EIO)?;
        piece.copy_from_slice(&word.to_le_bytes()[..piece.len()]);
    }
    Ok(())
}

fn word() -> Option<u64> {
    let processor = if HAS_RDRAND.load(Ordering::Relaxed) {
        (0..TRIES).find_map(|_| ports::rdrand())
    } else {
        None
    };
    if !SEEDED.load(Ordering::Relaxed) {
        return processor;
    }
    // The function is a pseudorandom one under a secret key: the seed.
    let [low, high] = [0, 1].map(|half| SEED[half].load(Ordering::Relaxed));
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    let made = SipHasher24::new_with_keys(low, high).hash(&count.to_le_bytes());
    Some(made ^ processor.unwrap_or(0))
}
