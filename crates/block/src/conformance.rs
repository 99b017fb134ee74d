//! The contract of [`BlockDevice`] and [`Addressable`], as checks that every implementor passes.
//!
//! With the feature `conformance`, for the tests of this crate and of those with devices of their
//! own. Random sequences are generated from a seed, printed with the command that replays it.

use std::string::String;
use std::vec::Vec;
use std::{format, vec};

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::device::{Addressable, BLOCK_SIZE, BlockIndex};
use crate::error::BlockError;

/// The size of the devices that are tested, in blocks: small, so that operations meet, but not
/// smaller than the largest transfers.
pub const BLOCKS: u64 = 40;

const BLOCK: u64 = BLOCK_SIZE as u64;
const SIZE: u64 = BLOCKS * BLOCK;

/// One call on a device.
#[derive(Clone, Debug)]
enum Operation {
    Load { at: u64, len: usize },
    Store { at: u64, len: usize, fill: u8 },
    StorePieces { at: u64, len: usize, piece: usize, fill: u8 },
    StoreZeros { at: u64, len: u64 },
    Read { first: u64, count: usize },
    Write { first: u64, count: usize, fill: u8 },
    WriteAll { first: u64, count: usize, apart: u64, fill: u8 },
    Discard { first: u64, count: u64 },
    Flush,
    FlushRange { first: u64, count: u64 },
    Flusher { first: u64, count: u64 },
}

/// Offsets, near the borders of blocks and the end of the device more often than elsewhere.
fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..SIZE,
        4 => (0..=BLOCKS, 0..200u64).prop_map(|(block, back)| (block * BLOCK).saturating_sub(back)),
        3 => (0..=BLOCKS).prop_map(|block| block * BLOCK),
        1 => SIZE - 10..SIZE + 10,
    ]
}

fn length() -> impl Strategy<Value = usize> {
    prop_oneof![
        4 => 0..600usize,
        2 => 0..3 * BLOCK_SIZE,
        1 => 0..20 * BLOCK_SIZE,
        2 => (0..12usize).prop_map(|blocks| blocks * BLOCK_SIZE),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    let blocks = || 0..=BLOCKS + 1;
    prop_oneof![
        6 => (offset(), length()).prop_map(|(at, len)| Operation::Load { at, len }),
        6 => (offset(), length(), any::<u8>())
            .prop_map(|(at, len, fill)| Operation::Store { at, len, fill }),
        4 => (offset(), length(), 1..2 * BLOCK_SIZE, any::<u8>()).prop_map(
            |(at, len, piece, fill)| Operation::StorePieces { at, len, piece, fill }
        ),
        2 => (offset(), length())
            .prop_map(|(at, len)| Operation::StoreZeros { at, len: len as u64 }),
        3 => (blocks(), 0..12usize).prop_map(|(first, count)| Operation::Read { first, count }),
        3 => (blocks(), 0..12usize, any::<u8>())
            .prop_map(|(first, count, fill)| Operation::Write { first, count, fill }),
        2 => (blocks(), 0..40usize, 1..5u64, any::<u8>()).prop_map(
            |(first, count, apart, fill)| Operation::WriteAll { first, count, apart, fill }
        ),
        1 => (blocks(), 0..5u64).prop_map(|(first, count)| Operation::Discard { first, count }),
        1 => Just(Operation::Flush),
        1 => (blocks(), 0..5u64).prop_map(|(first, count)| Operation::FlushRange { first, count }),
        1 => (blocks(), 0..5u64).prop_map(|(first, count)| Operation::Flusher { first, count }),
    ]
}

/// Bytes that differ from their neighbours and between fills.
fn pattern(len: usize, fill: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ fill).collect()
}

/// The range of `model` that a call concerns, or the error that it must return.
fn expected(at: u64, len: u64) -> Result<core::ops::Range<usize>, BlockError> {
    match at.checked_add(len) {
        Some(end) if end <= SIZE => Ok(at as usize..end as usize),
        _ => Err(BlockError::OutOfRange),
    }
}

/// Makes the call on the device and on the plain bytes, and compares.
fn step<M: Addressable>(device: &mut M, model: &mut [u8], op: &Operation) -> Result<(), String> {
    let (got, want) = match *op {
        Operation::Load { at, len } => {
            let mut buf = vec![0x55; len];
            let got = device.load(at, &mut buf);
            let want = expected(at, len as u64);
            if let Ok(range) = &want
                && got.is_ok()
                && buf != model[range.clone()]
            {
                return Err(difference(&buf, &model[range.clone()]));
            }
            (got, want.map(drop))
        }
        Operation::Store { at, len, fill } => {
            let data = pattern(len, fill);
            let want = expected(at, len as u64);
            (device.store(at, &data), want.map(|range| model[range].copy_from_slice(&data)))
        }
        Operation::StorePieces { at, len, piece, fill } => {
            let data = pattern(len, fill);
            // Some have nothing in them.
            let pieces: Vec<&[u8]> = data.chunks(piece).flat_map(|piece| [piece, &[]]).collect();
            let want = expected(at, len as u64);
            let got = device.store_pieces(at, &pieces);
            (got, want.map(|range| model[range].copy_from_slice(&data)))
        }
        Operation::StoreZeros { at, len } => {
            (device.store_zeros(at, len), expected(at, len).map(|range| model[range].fill(0)))
        }
        Operation::Read { first, count } => {
            let mut buf = vec![0x55; count * BLOCK_SIZE];
            let got = device.read(BlockIndex(first), &mut buf);
            let want = expected(first * BLOCK, buf.len() as u64);
            if let Ok(range) = &want
                && got.is_ok()
                && buf != model[range.clone()]
            {
                return Err(difference(&buf, &model[range.clone()]));
            }
            (got, want.map(drop))
        }
        Operation::Write { first, count, fill } => {
            let data = pattern(count * BLOCK_SIZE, fill);
            let want = expected(first * BLOCK, data.len() as u64);
            let got = device.write(BlockIndex(first), &data);
            (got, want.map(|range| model[range].copy_from_slice(&data)))
        }
        Operation::WriteAll { first, count, apart, fill } => {
            // From none to all of the blocks from one to the next, the last write first.
            let data = pattern(count * BLOCK_SIZE, fill);
            let at = |number: usize| first + number as u64 * apart;
            let len = |number: usize| number % (apart as usize + 1) * BLOCK_SIZE;
            let writes: Vec<(BlockIndex, &[u8])> = (0..count / apart as usize)
                .map(|number| (number, number * apart as usize * BLOCK_SIZE))
                .map(|(number, from)| (BlockIndex(at(number)), &data[from..from + len(number)]))
                .rev()
                .collect();
            let ranges: Result<Vec<_>, BlockError> = writes
                .iter()
                .map(|(first, data)| expected(first.byte_offset(), data.len() as u64))
                .collect();
            let want = ranges.map(|ranges| {
                for (range, (_, data)) in ranges.into_iter().zip(&writes) {
                    model[range].copy_from_slice(data);
                }
            });
            (device.write_all(&writes), want)
        }
        Operation::Discard { first, count } => {
            let want = expected(first * BLOCK, count * BLOCK);
            (device.discard(BlockIndex(first), count), want.map(|range| model[range].fill(0)))
        }
        Operation::Flush => (device.flush(), Ok(())),
        Operation::FlushRange { first, count } => {
            let want = expected(first * BLOCK, count * BLOCK);
            (device.flush_range(BlockIndex(first), count), want.map(drop))
        }
        // One that is not on the device has none.
        Operation::Flusher { first, count } => match device.flusher(BlockIndex(first), count) {
            Some(flusher) => (flusher.flush(), expected(first * BLOCK, count * BLOCK).map(drop)),
            None => (Ok(()), Ok(())),
        },
    };
    if got == want { Ok(()) } else { Err(format!("returned {got:?} instead of {want:?}")) }
}

fn difference(got: &[u8], want: &[u8]) -> String {
    let first = got.iter().zip(want).position(|(a, b)| a != b).unwrap_or(0);
    format!("byte {first} of {} is {} instead of {}", got.len(), got[first], want[first])
}

/// Runs random sequences of calls on devices that `open` returns, each of [`BLOCKS`] blocks that
/// read as zeros, against a plain array of bytes. `package` and `test` say what to run again.
///
/// # Panics
/// If a device breaks the contract, with the shortest sequence found that does.
pub fn random_operations<M: Addressable>(
    package: &str,
    test: &str,
    cases: u32,
    mut open: impl FnMut() -> M,
) {
    let seed = std::env::var("ATOLL_SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
    let seed = seed.unwrap_or(1);
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let open = core::cell::RefCell::new(&mut open);
    let outcome = TestRunner::new_with_rng(config, rng).run(
        &prop::collection::vec(operation(), 1..60),
        |operations| {
            let mut device = (open.borrow_mut())();
            let mut model = vec![0; SIZE as usize];
            prop_assert_eq!(device.block_count(), BLOCKS);
            for (i, op) in operations.iter().enumerate() {
                if let Err(reason) = step(&mut device, &mut model, op) {
                    return Err(TestCaseError::fail(format!("call {i}, {op:?}: {reason}")));
                }
            }
            let whole = Operation::Load { at: 0, len: SIZE as usize };
            step(&mut device, &mut model, &whole).map_err(TestCaseError::fail)
        },
    );
    if let Err(error) = outcome {
        panic!("{error}\nreplay with: ATOLL_SEED={seed} cargo test -p {package} {test}");
    }
}

/// Checks what random calls are unlikely to meet: numbers that overflow, buffers of odd lengths,
/// empty ranges, and that a refused call changes nothing. The device has [`BLOCKS`] blocks.
///
/// # Panics
/// If the device breaks the contract.
pub fn limits<M: Addressable>(device: &mut M) {
    let refused = Err(BlockError::OutOfRange);
    let mut block = vec![7; BLOCK_SIZE];
    for first in 0..BLOCKS {
        device.write(BlockIndex(first), &block).unwrap();
    }
    for first in [BLOCKS, BLOCKS + 1, u64::MAX / BLOCK, u64::MAX / BLOCK + 1, u64::MAX] {
        let index = BlockIndex(first);
        assert_eq!(device.read(index, &mut block), refused, "read at {first}");
        assert_eq!(device.write(index, &[1; BLOCK_SIZE]), refused, "write at {first}");
        assert_eq!(device.discard(index, 1), refused, "discard at {first}");
        assert_eq!(device.flush_range(index, 1), refused, "flush at {first}");
        assert!(device.flusher(index, 1).is_none(), "flusher at {first}");
    }
    for count in [BLOCKS + 1, u64::MAX / BLOCK + 1, u64::MAX] {
        assert_eq!(device.discard(BlockIndex(0), count), refused, "discard of {count}");
        assert_eq!(device.discard(BlockIndex(1), count), refused, "discard of {count}");
        assert_eq!(device.flush_range(BlockIndex(1), count), refused, "flush of {count}");
    }
    for len in [1, 511, BLOCK_SIZE - 1, BLOCK_SIZE + 1] {
        let mut odd = vec![1; len];
        assert_eq!(device.read(BlockIndex(0), &mut odd), refused, "read of {len} bytes");
        assert_eq!(device.write(BlockIndex(0), &odd), refused, "write of {len} bytes");
    }
    for at in [SIZE, SIZE - 1, u64::MAX - 1, u64::MAX] {
        assert_eq!(device.load(at, &mut block[..2]), refused, "load at {at}");
        assert_eq!(device.store(at, &[1; 2]), refused, "store at {at}");
        assert_eq!(device.store_pieces(at, &[&[1], &[1]]), refused, "pieces at {at}");
        assert_eq!(device.store_zeros(at, 2), refused, "zeros at {at}");
    }
    for len in [SIZE + 1, u64::MAX] {
        assert_eq!(device.store_zeros(0, len), refused, "{len} zeros");
        assert_eq!(device.store_zeros(1, len), refused, "{len} zeros");
    }
    let mut all = vec![0; SIZE as usize];
    device.load(0, &mut all).unwrap();
    assert!(all.iter().all(|&byte| byte == 7), "a refused call changed something");

    device.read(BlockIndex(BLOCKS), &mut []).unwrap();
    device.write(BlockIndex(BLOCKS), &[]).unwrap();
    device.discard(BlockIndex(BLOCKS), 0).unwrap();
    device.flush_range(BlockIndex(BLOCKS), 0).unwrap();
    device.load(SIZE, &mut []).unwrap();
    device.store(SIZE, &[]).unwrap();
    device.store_pieces(SIZE, &[]).unwrap();
    device.store_pieces(SIZE, &[&[], &[]]).unwrap();
    device.store_zeros(SIZE, 0).unwrap();

    device.discard(BlockIndex(3), 2).unwrap();
    device.load(3 * BLOCK - 1, &mut all[..2 * BLOCK_SIZE + 2]).unwrap();
    assert_eq!((all[0], all[2 * BLOCK_SIZE + 1]), (7, 7));
    assert!(all[1..=2 * BLOCK_SIZE].iter().all(|&byte| byte == 0), "discarded blocks are zeros");
}
