//! Space that runs out within a write, on the volume or on its host.
mod common;

use atoll_block::fault::Survival;
use atoll_block::{BLOCK_SIZE, FaultDevice};
use atoll_fs::{CheckOptions, FormatOptions, Fs, MountOptions, check, format};
use atoll_vfs::{
    CheckpointStep, Errno, FallocateMode, FileSystem, Handle, Ino, Name, SetAttr, XattrFlags,
};
use common::*;

fn volume(blocks: u64) -> Fs<FaultDevice> {
    let mut device = FaultDevice::new(blocks);
    let options = FormatOptions { journal_blocks: Some(128), ..FormatOptions::default() };
    format(&mut device, &options).unwrap();
    Fs::mount(device, &mount_options()).unwrap()
}

fn create(fs: &mut Fs<FaultDevice>, name: &str) -> (Ino, Handle) {
    let (attr, handle) =
        fs.create(&CX, Ino::ROOT, Name::new(name.as_bytes()).unwrap(), 0o644, RW).unwrap();
    (attr.ino, handle)
}

/// One write into a file of pieces and holes, with so much space left. The file has what the answer
/// says: all, the beginning, or nothing.
fn write(
    fs: &mut Fs<FaultDevice>,
    file: (Ino, Handle),
    rng: &mut Rng,
    expected: &mut Vec<u8>,
) -> Option<bool> {
    let at = rng.below(900_000);
    let span = [5000, 100_000, 700_000][rng.below(3) as usize];
    let data = vec![rng.below(255) as u8 + 1; rng.below(span) as usize + 1];
    let written = match fs.write(&CX, file.0, file.1, at, &data) {
        Ok(written) => written.len,
        Err(error) => {
            assert_eq!(error, Errno::ENOSPC);
            0
        }
    };
    let at = at as usize;
    if written > 0 && expected.len() < at + written {
        expected.resize(at + written, 0);
    }
    expected.iter_mut().skip(at).zip(&data[..written]).for_each(|(to, from)| *to = *from);
    let mut got = vec![0; expected.len() + 1];
    let n = fs.read(&CX, file.0, file.1, 0, &mut got).unwrap();
    assert_eq!(n, expected.len());
    let wrong = got.iter().zip(expected.iter()).position(|(got, expected)| got != expected);
    assert_eq!(wrong, None, "{written} of {} bytes at {at}", data.len());
    (written < data.len()).then_some(written == 0)
}

#[test]
fn a_write_changes_what_it_answers_and_no_more() {
    let (mut nothing, mut short) = (0, 0);
    for seed in 1..40 {
        let mut rng = Rng::new(seed);
        // By turns the volume is full, and its host.
        let mut fs = volume(if seed % 2 == 0 { 500 } else { 2000 });
        let file = create(&mut fs, "f");
        let mut expected = Vec::new();
        for _ in 0..30 {
            if seed % 2 != 0 {
                fs.device_mut().faults.free_blocks = Some(rng.below(60));
            }
            match rng.below(4) {
                0 => {
                    let (from, len) = (rng.below(200) << 12, (rng.below(20) + 1) << 12);
                    let mode = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
                    fs.fallocate(&CX, file.0, file.1, from, len, mode).unwrap();
                    let end = ((from + len) as usize).min(expected.len());
                    if (from as usize) < end {
                        expected[from as usize..end].fill(0);
                    }
                }
                1 if seed % 2 == 0 => {
                    // Never written, so that it stays away from the file's end.
                    let (from, len) = (rng.below(200) << 12, (rng.below(40) + 1) << 12);
                    let mode = FallocateMode::KEEP_SIZE;
                    let _ = fs.fallocate(&CX, file.0, file.1, from, len, mode);
                }
                _ => match write(&mut fs, file, &mut rng, &mut expected) {
                    Some(true) => nothing += 1,
                    Some(false) => short += 1,
                    None => {}
                },
            }
        }
        fs.device_mut().faults.free_blocks = None;
        fs.release(&CX, file.0, file.1).unwrap();
        let mut device = fs.unmount().unwrap();
        assert!(check(&mut device, &CheckOptions::default()).unwrap().is_clean(), "seed {seed}");
    }
    assert!(nothing > 10 && short > 10, "{nothing} failed, {short} were cut short");
}

/// A step of a checkpoint after the other; an operation comes between its commit and its header.
fn checkpoint(fs: &mut Fs<FaultDevice>, file: (Ino, Handle)) {
    let (mut flushed, mut changed) = (None, false);
    for step in 0.. {
        assert!(step < 100);
        match fs.checkpoint_step(flushed.take()).unwrap() {
            CheckpointStep::Idle => break,
            CheckpointStep::More => {}
            CheckpointStep::Sync => fs.fsync(&CX, file.0, file.1, true).unwrap(),
            CheckpointStep::Wait(step) => {
                if !std::mem::replace(&mut changed, true) {
                    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
                    fs.setattr(&CX, file.0, None, &set).unwrap();
                }
                flushed = Some(step.flush());
                fs.device_mut().note_flushers();
            }
        }
    }
}

/// A block that an aborted write had stored to is metadata soon: no commit carries what was stored
/// there, which recovery would write over it.
#[test]
fn data_of_an_aborted_write_is_nobodys() {
    let keep = FallocateMode::KEEP_SIZE;
    let mut aborted = 0;
    for names in 0..8 {
        let mut fs = volume(600);
        let (file, filler) = (create(&mut fs, "f"), create(&mut fs, "filler"));
        let inos: Vec<Ino> = (0..30 + names)
            .map(|i| {
                let (ino, handle) = create(&mut fs, &format!("{i}"));
                fs.release(&CX, ino, handle).unwrap();
                ino
            })
            .collect();
        // Exactly one block is free before each write, which needs another where a node is full.
        let free = |fs: &mut Fs<FaultDevice>| fs.statfs(&CX).unwrap().blocks_free;
        fs.syncfs(&CX).unwrap();
        let all = free(&mut fs);
        fs.fallocate(&CX, filler.0, filler.1, 0, (all - 2) << 12, keep).unwrap();
        let mut given = 0;
        for at in (0..300).step_by(2) {
            while free(&mut fs) < 1 {
                let mode = FallocateMode::PUNCH_HOLE | keep;
                fs.fallocate(&CX, filler.0, filler.1, given << 12, 4096, mode).unwrap();
                given += 1;
                fs.syncfs(&CX).unwrap();
            }
            if fs.write(&CX, file.0, file.1, at << 12, &[b'A'; BLOCK_SIZE]).is_err() {
                aborted += 1;
                break;
            }
        }
        let mut set = Vec::new();
        for ino in inos {
            let value = vec![ino.0 as u8; 700];
            if fs.setxattr(&CX, ino, b"user.a", &value, XattrFlags::empty()).is_ok() {
                set.push((ino, value));
            }
        }
        checkpoint(&mut fs, file);
        fs.syncfs(&CX).unwrap();
        for survival in [Survival::All, Survival::None] {
            let mut device = FaultDevice::from_image(fs.device_mut().power_loss(survival));
            assert!(check(&mut device, &CheckOptions::default()).unwrap().is_clean());
            let options = MountOptions { incarnation: [8; 16], ..mount_options() };
            let mut fs = Fs::mount(device, &options).unwrap();
            for (ino, value) in &set {
                let mut got = Vec::new();
                fs.getxattr(&CX, *ino, b"user.a", &mut got).unwrap();
                assert!(got == *value);
            }
            let mut device = fs.unmount().unwrap();
            assert!(check(&mut device, &CheckOptions::default()).unwrap().is_clean());
        }
    }
    assert!(aborted > 2, "{aborted}");
}
