//! Syncs in halves: what each half means for power loss, and operations between them.
mod common;

use atoll_block::fault::Survival;
use atoll_block::{Addressable, FaultDevice};
use atoll_fs::{CheckOptions, DumpOptions, Element, Fs, check, visit};
use atoll_vfs::{
    Context, Errno, FileSystem, Handle, Ino, Name, OpenFlags, PendingSync, SetAttr, Timespec,
};
use common::*;

/// More than goes to the journal with a mark.
const MUCH: usize = 200_000;

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn volume() -> Fs<FaultDevice> {
    let mut device = FaultDevice::new(2000);
    format_seeded(&mut device, 1);
    Fs::mount(device, &mount_options()).unwrap()
}

fn file(fs: &mut Fs<FaultDevice>, named: &str, len: usize) -> (Ino, Handle) {
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let (attr, handle) = fs.create(&CX, Ino::ROOT, name(named), 0o644, flags).unwrap();
    fs.write(&CX, attr.ino, handle, 0, &vec![b'x'; len]).unwrap();
    (attr.ino, handle)
}

fn begin(fs: &mut Fs<FaultDevice>) -> PendingSync {
    fs.begin_sync(&CX, false).unwrap().expect("something to wait for")
}

/// Waits for the flush, and takes the second half. Returns a further flush to wait for, if any.
fn go_on(fs: &mut Fs<FaultDevice>, sync: PendingSync) -> Result<Option<PendingSync>, Errno> {
    let (id, flushed) = sync.flush();
    fs.device_mut().note_flushers();
    fs.end_sync(id, flushed)
}

/// Which of `names` are there after power loss.
fn survive(fs: &Fs<FaultDevice>, names: &[&str]) -> Vec<bool> {
    let mut device = FaultDevice::from_image(fs.device().power_loss(Survival::None));
    let report = check(&mut device, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{:#?}", report.findings);
    let mut fs = Fs::mount(device, &mount_options_after_power_loss()).unwrap();
    names.iter().map(|named| fs.lookup(&CX, Ino::ROOT, name(named)).is_ok()).collect()
}

fn mount_options_after_power_loss() -> atoll_fs::MountOptions {
    atoll_fs::MountOptions { incarnation: [8; 16], ..mount_options() }
}

fn free_blocks(fs: &mut Fs<FaultDevice>) -> u64 {
    fs.statfs(&CX).unwrap().blocks_free
}

#[test]
fn durable_from_the_second_half_on() {
    for (len, waits) in [(100, 1), (MUCH, 2)] {
        let mut fs = volume();
        file(&mut fs, "a", len);
        let mut sync = begin(&mut fs);
        file(&mut fs, "b", len);
        for wait in 1..=waits {
            assert_eq!(survive(&fs, &["a", "b"]), [false, false], "{len} bytes, wait {wait}");
            match go_on(&mut fs, sync).unwrap() {
                Some(more) => {
                    assert!(wait < waits);
                    sync = more;
                }
                None => {
                    assert_eq!(wait, waits);
                    break;
                }
            }
            // The mark covers no operation that came since.
            file(&mut fs, &format!("c{wait}"), len);
        }
        assert_eq!(survive(&fs, &["a", "b"]), [true, false], "{len} bytes");
        fs.syncfs(&CX).unwrap();
        assert_eq!(survive(&fs, &["a", "b"]), [true, true], "{len} bytes");
    }
}

/// The same moment is not waited for twice.
#[test]
fn nothing_to_do_is_done() {
    let mut fs = volume();
    fs.syncfs(&CX).unwrap();
    assert!(fs.begin_sync(&CX, false).unwrap().is_none());
    file(&mut fs, "a", 10);
    let sync = begin(&mut fs);
    assert!(go_on(&mut fs, sync).unwrap().is_none());
    let events = fs.device().events();
    assert!(fs.begin_sync(&CX, false).unwrap().is_none());
    fs.syncfs(&CX).unwrap();
    assert_eq!(fs.device().events(), events, "everything was durable");
}

/// A whole sync between the halves covers them; so does another that begins, which is whole then.
#[test]
fn a_whole_sync_between_covers_both() {
    for len in [100, MUCH] {
        for begun in [false, true] {
            let mut fs = volume();
            file(&mut fs, "a", len);
            let sync = begin(&mut fs);
            file(&mut fs, "b", 100);
            if begun {
                assert!(fs.begin_sync(&CX, false).unwrap().is_none());
            } else {
                fs.syncfs(&CX).unwrap();
            }
            assert_eq!(survive(&fs, &["a", "b"]), [true, true]);
            assert!(content(&fs, "a", Lost::Everything) == vec![b'x'; len]);
            let events = fs.device().events();
            assert!(go_on(&mut fs, sync).unwrap().is_none());
            assert_eq!(fs.device().events(), events + 1, "the flush alone");
            file(&mut fs, "c", len);
            let sync = begin(&mut fs);
            drop(sync);
            // Never ended: the next one covers it.
            fs.syncfs(&CX).unwrap();
            assert_eq!(survive(&fs, &["a", "b", "c"]), [true, true, true]);
            assert!(fs.begin_sync(&CX, false).unwrap().is_none());
        }
    }
}

#[test]
fn a_failed_flush_is_told_and_ends_all_changes() {
    for (len, fails_at) in [(100, 0), (MUCH, 0), (MUCH, 1)] {
        let mut fs = volume();
        let (ino, handle) = file(&mut fs, "a", len);
        let mut sync = begin(&mut fs);
        if fails_at == 1 {
            fs.device_mut().faults.flusher_errors = 1;
            sync = go_on(&mut fs, sync).unwrap().expect("the mark");
        } else {
            // The flusher was taken already: the result of the flush counts.
            let (id, _) = sync.flush();
            assert_eq!(fs.end_sync(id, Err(Errno::EIO)).map(drop), Err(Errno::EIO));
            sync = PendingSync::new(atoll_vfs::SyncId(1), || Ok(()));
        }
        assert_eq!(go_on(&mut fs, sync).map(drop), Err(Errno::EIO));
        assert_eq!(fs.write(&CX, ino, handle, 0, b"y").map(drop), Err(Errno::EIO));
        assert_eq!(fs.begin_sync(&CX, false).map(drop), Err(Errno::EIO));
        assert_eq!(fs.fsync(&CX, ino, handle, false), Err(Errno::EIO));
        let mut byte = [0];
        assert_eq!(fs.read(&CX, ino, handle, 0, &mut byte), Ok(1));
    }
}

/// A flush of the volume that failed between the halves leaves the second nothing to promise.
#[test]
fn a_failure_between_the_halves_is_told() {
    let mut fs = volume();
    file(&mut fs, "a", 100);
    let sync = begin(&mut fs);
    file(&mut fs, "b", 100);
    fs.device_mut().faults.flush_errors = 1;
    assert_eq!(fs.syncfs(&CX), Err(Errno::EIO));
    assert_eq!(go_on(&mut fs, sync).map(drop), Err(Errno::EIO));
}

/// Blocks that were freed before the first half come back with the second, not before; those that
/// were freed since with the next sync.
#[test]
fn freed_blocks_come_back_with_the_second_half() {
    let mut fs = volume();
    let free = free_blocks(&mut fs);
    let (a, ha) = file(&mut fs, "a", 1 << 20);
    let (b, hb) = file(&mut fs, "b", 1 << 20);
    fs.syncfs(&CX).unwrap();
    let cut = SetAttr { size: Some(0), ..SetAttr::default() };
    fs.setattr(&CX, a, Some(ha), &cut).unwrap();
    let sync = begin(&mut fs);
    fs.setattr(&CX, b, Some(hb), &cut).unwrap();
    // It takes all blocks that are free for good, and then needs those that have to wait: it makes
    // a whole sync.
    let (c, hc) = file(&mut fs, "c", 1);
    let room = (free - 600) as usize * 4096;
    assert_eq!(fs.write(&CX, c, hc, 0, &vec![1; room]).unwrap().len, room);
    let whole = survive(&fs, &["c"]);
    assert!(go_on(&mut fs, sync).unwrap().is_none());
    assert_eq!(survive(&fs, &["a", "b"]), [true, true]);
    let much = fs.write(&CX, c, hc, room as u64, &vec![2; 500 * 4096]).unwrap().len;
    assert_eq!((whole, much), (vec![false], 500 * 4096));
    assert_eq!(survive(&fs, &["c"]), [true], "what was freed since came back by a sync");
}

/// The part of the undurable writes that power loss takes.
#[derive(Clone, Copy, PartialEq)]
enum Lost {
    Everything,
    /// Those to the journal, and no others.
    Journal,
}

/// The content of a file after a loss of power.
fn content(fs: &Fs<FaultDevice>, named: &str, lost: Lost) -> Vec<u8> {
    let sb = fs.info().superblock;
    let ring = sb.ring_start * 8..(sb.ring_start + sb.ring_blocks) * 8;
    let image = fs.device().media().power_loss_with(|sector, contents| {
        if lost == Lost::Everything || ring.contains(&sector) { 0 } else { contents - 1 }
    });
    let mut device = FaultDevice::from_image(image);
    assert!(check(&mut device, &CheckOptions::default()).unwrap().is_clean());
    let mut fs = Fs::mount(device, &mount_options_after_power_loss()).unwrap();
    let attr = fs.lookup(&CX, Ino::ROOT, name(named)).unwrap();
    let handle = fs.open(&CX, attr.ino, OpenFlags::READ).unwrap();
    let mut bytes = vec![0; attr.size as usize];
    assert_eq!(fs.read(&CX, attr.ino, handle, 0, &mut bytes), Ok(bytes.len()));
    bytes
}

fn set_size(fs: &mut Fs<FaultDevice>, (ino, handle): (Ino, Handle), size: u64) {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    fs.setattr(&CX, ino, Some(handle), &set).unwrap();
}

/// Blocks that were allocated before the first half and freed after it belong to the state that the
/// sync brings back.
#[test]
fn blocks_from_before_the_first_half_are_not_reused_at_once() {
    let mut fs = volume();
    let a = file(&mut fs, "a", MUCH);
    let sync = begin(&mut fs);
    set_size(&mut fs, a, 0);
    let (b, handle) = file(&mut fs, "b", 1);
    fs.write(&CX, b, handle, 0, &[b'y'; MUCH]).unwrap();
    let sync = go_on(&mut fs, sync).unwrap().expect("the mark");
    assert!(go_on(&mut fs, sync).unwrap().is_none());
    assert!(content(&fs, "a", Lost::Journal) == [b'x'; MUCH], "another file's bytes show");
}

/// Until the second half blocks freed before the first belong to the old state. The volume has no
/// other room, so that an operation that needs them has to make a commit.
#[test]
fn freed_blocks_are_not_reused_before_the_second_half() {
    let mut fs = volume();
    let a = file(&mut fs, "a", 2 * MUCH);
    let (fill, handle) = file(&mut fs, "fill", 1);
    let room = (free_blocks(&mut fs) - 20) as usize * 4096;
    assert_eq!(fs.write(&CX, fill, handle, 0, &vec![b'z'; room]).unwrap().len, room);
    fs.syncfs(&CX).unwrap();
    set_size(&mut fs, a, 0);
    let sync = begin(&mut fs);
    assert!(content(&fs, "a", Lost::Journal) == [b'x'; 2 * MUCH]);
    let (b, handle) = file(&mut fs, "b", 1);
    fs.write(&CX, b, handle, 0, &[b'y'; 90 * 4096]).unwrap();
    assert!(content(&fs, "a", Lost::Journal).is_empty(), "another file's bytes show");
    assert!(go_on(&mut fs, sync).unwrap().is_none());
}

/// Until the second half a file that was made shorter before the first may be long again; and one
/// that was made shorter since may be after it.
#[test]
fn bytes_that_may_come_back_are_not_zeroed() {
    // Within one block, whose data no record has: a record would bring it back.
    let (long, short) = (MUCH as u64, MUCH as u64 - 1000);
    for before in [true, false] {
        let mut fs = volume();
        let a = file(&mut fs, "a", MUCH);
        if before {
            fs.syncfs(&CX).unwrap();
            set_size(&mut fs, a, short);
        }
        let mut sync = begin(&mut fs);
        if !before {
            set_size(&mut fs, a, short);
            while let Some(more) = go_on(&mut fs, sync).unwrap() {
                sync = more;
            }
        }
        set_size(&mut fs, a, long);
        assert!(content(&fs, "a", Lost::Journal) == [b'x'; MUCH], "shortened before: {before}");
        fs.syncfs(&CX).unwrap();
        let wanted = [[b'x'; MUCH - 1000].as_slice(), &[0; 1000]].concat();
        assert!(content(&fs, "a", Lost::Journal) == wanted, "shortened before: {before}");
    }
}

/// Operations between the halves need a sync of their own, names without data and data without
/// names.
#[test]
fn what_came_between_is_left_for_the_next() {
    for data in [false, true] {
        let mut fs = volume();
        let (other, handle) = file(&mut fs, "other", 10);
        fs.syncfs(&CX).unwrap();
        file(&mut fs, "a", MUCH);
        let sync = begin(&mut fs);
        if data {
            fs.write(&CX, other, handle, 0, b"yyyyyyyyyy").unwrap();
        } else {
            fs.mkdir(&CX, Ino::ROOT, name("d"), 0o755).unwrap();
        }
        let sync = go_on(&mut fs, sync).unwrap().expect("the mark");
        assert!(go_on(&mut fs, sync).unwrap().is_none());
        assert_eq!(survive(&fs, &["a", "d"]), [true, false]);
        assert!(content(&fs, "a", Lost::Everything) == [b'x'; MUCH]);
        fs.syncfs(&CX).unwrap();
        assert_eq!(survive(&fs, &["a", "d"]), [true, !data]);
        let wanted = if data { [b'y'; 10] } else { [b'x'; 10] };
        assert_eq!(content(&fs, "other", Lost::Everything), wanted);
    }
}

/// A mark that covers less than all before it shows in a dump.
#[test]
fn a_covering_mark_is_dumped() {
    let mut fs = volume();
    file(&mut fs, "a", MUCH);
    let sync = begin(&mut fs);
    file(&mut fs, "b", 100);
    let sync = go_on(&mut fs, sync).unwrap().expect("the mark");
    assert!(go_on(&mut fs, sync).unwrap().is_none());
    let mut device = fs.device().clone();
    let mut marks = Vec::new();
    visit(&mut device, &DumpOptions { records: true, ..DumpOptions::default() }, &mut |element| {
        if let Element::Record { position, mark: true, flushed, covers, .. } = element {
            marks.push((*position, *flushed, *covers));
        }
        true
    })
    .unwrap();
    let [(position, true, Some(covers))] = marks[..] else { panic!("{marks:?}") };
    assert!(covers < position);
}

/// A mark that claims to cover records that are not there counts for nothing, or for those that
/// are.
#[test]
fn a_mark_with_a_false_position_is_survived() {
    let mut fs = volume();
    file(&mut fs, "a", MUCH);
    let sync = begin(&mut fs);
    file(&mut fs, "b", 100);
    let sync = go_on(&mut fs, sync).unwrap().expect("the mark");
    go_on(&mut fs, sync).unwrap();
    let image = fs.device().process_crash();
    let found = marks_of(&image);
    for position in [0, 1, found.0 - 8, found.0 + 3, found.1, found.1 + 8, u64::MAX - 7, u64::MAX] {
        let mut device = FaultDevice::from_image(image.clone());
        rewrite_mark(&mut device, found.1, position);
        let report = check(&mut device, &CheckOptions::default()).unwrap();
        assert!(report.is_clean(), "{position}: {:#?}", report.findings);
        let mut fs = Fs::mount(device, &mount_options_after_power_loss()).unwrap();
        fs.mkdir(&CX, Ino::ROOT, name("d"), 0o755).unwrap();
        fs.unmount().unwrap();
    }
}

/// The position that the covering mark covers, and where the mark is.
fn marks_of(image: &atoll_block::fault::Image) -> (u64, u64) {
    let mut device = FaultDevice::from_image(image.clone());
    let mut found = None;
    visit(&mut device, &DumpOptions { records: true, ..DumpOptions::default() }, &mut |element| {
        if let Element::Record { position, covers: Some(covers), .. } = element {
            found = Some((*covers, *position));
        }
        true
    })
    .unwrap();
    found.expect("a covering mark")
}

/// Writes another position into the mark and seals it anew.
fn rewrite_mark(device: &mut FaultDevice, at: u64, position: u64) {
    use atoll_fs::layout::record;
    let sb = atoll_fs::read_superblock(device).unwrap();
    let base = sb.ring_start * 4096;
    let mut seed = 0;
    let headers = DumpOptions { records: false, ..DumpOptions::default() };
    visit(device, &headers, &mut |element| {
        if let Element::JournalHeader { header: Some(header), current: true, .. } = element {
            seed = header.chain;
        }
        true
    })
    .unwrap();
    let mut ring = vec![0; (sb.ring_blocks * 4096) as usize];
    device.load(base, &mut ring).unwrap();
    let len = record::HEADER_LEN + record::COVERS_LEN;
    let mut mark = ring[at as usize..][..len].to_vec();
    mark[record::HEADER_LEN..].copy_from_slice(&position.to_le_bytes());
    mark[record::CHECKSUM..][..8].fill(0);
    let sum = xxhash_rust::xxh3::xxh3_64_with_seed(&mark, seed.wrapping_add(at));
    mark[record::CHECKSUM..][..8].copy_from_slice(&sum.to_le_bytes());
    device.store(base + at, &mark).unwrap();
}

/// Goes on until everything is durable.
fn end(fs: &mut Fs<FaultDevice>, mut sync: PendingSync) {
    while let Some(more) = go_on(fs, sync).unwrap() {
        sync = more;
    }
}

/// Files whose timestamps alone are left to be written.
fn touched(fs: &mut Fs<FaultDevice>, count: usize) -> Vec<(Ino, Handle)> {
    let files = (0..count).map(|at| file(fs, &format!("f{at}"), 1)).collect::<Vec<_>>();
    fs.syncfs(&CX).unwrap();
    for &(ino, handle) in &files {
        touch(fs, (ino, handle), LATER);
    }
    files
}

/// A second after all else.
const LATER: Context = Context { now: Timespec { sec: CX.now.sec + 1, nsec: 0 }, ..CX };

fn touch(fs: &mut Fs<FaultDevice>, (ino, handle): (Ino, Handle), cx: Context) {
    // In place, so that nothing but its times changes.
    fs.write(&cx, ino, handle, 0, b"y").unwrap();
}

/// Of how many of `files` the last time survives a loss of power.
fn times_survive(fs: &Fs<FaultDevice>, files: &[(Ino, Handle)]) -> usize {
    let device = FaultDevice::from_image(fs.device().power_loss(Survival::None));
    let mut fs = Fs::mount(device, &mount_options_after_power_loss()).unwrap();
    files.iter().filter(|(ino, _)| fs.getattr(&CX, *ino).unwrap().mtime == LATER.now).count()
}

/// However many files have new timestamps, no half writes more than some; all that had them when
/// the sync began are durable when it ends, though others get new ones between any two pieces.
#[test]
fn timestamps_are_written_in_pieces() {
    const PIECE: usize = 256;
    let mut fs = volume();
    let files = touched(&mut fs, 3 * PIECE + 1);
    let later = file(&mut fs, "later", 1);
    let mut before = records(&fs);
    let mut sync = begin(&mut fs);
    let mut turns = 0;
    loop {
        let written = records(&fs);
        assert!(written - before <= PIECE / 64 + 1, "{} transactions at once", written - before);
        if !sync.is_turn() {
            break;
        }
        turns += 1;
        // These do not put off the end of the sync.
        touch(&mut fs, later, LATER);
        touch(&mut fs, files[0], LATER);
        assert_eq!(times_survive(&fs, &files), 0, "nothing is durable yet");
        before = records(&fs);
        sync = go_on(&mut fs, sync).unwrap().expect("a flush at least");
    }
    assert_eq!(turns, 3);
    end(&mut fs, sync);
    assert_eq!(times_survive(&fs, &files), files.len());
}

/// How many records the journal has.
fn records(fs: &Fs<FaultDevice>) -> usize {
    let mut device = fs.device().clone();
    let mut count = 0;
    visit(&mut device, &DumpOptions { records: true, ..DumpOptions::default() }, &mut |element| {
        count += usize::from(matches!(element, Element::Record { .. }));
        true
    })
    .unwrap();
    count
}

/// A whole sync, or another that begins, covers one that is still writing timestamps; of one that
/// never goes on nothing is left.
#[test]
fn a_whole_sync_covers_one_that_writes_timestamps() {
    for begun in [false, true] {
        let mut fs = volume();
        let files = touched(&mut fs, 600);
        let sync = begin(&mut fs);
        assert!(sync.is_turn());
        if begun {
            assert!(fs.begin_sync(&CX, false).unwrap().is_none());
        } else {
            fs.syncfs(&CX).unwrap();
        }
        assert_eq!(times_survive(&fs, &files), files.len());
        let events = fs.device().events();
        assert!(go_on(&mut fs, sync).unwrap().is_none());
        assert_eq!(fs.device().events(), events, "nothing was left to do");
        files.iter().for_each(|&file| touch(&mut fs, file, CX));
        assert!(begin(&mut fs).is_turn(), "it is in pieces again");
    }
}

/// A sync of data alone is not held up by timestamps, nor does it take them from a sync that waits.
#[test]
fn a_sync_of_data_leaves_timestamps_to_others() {
    let mut fs = volume();
    let files = touched(&mut fs, 600);
    let sync = begin(&mut fs);
    let data = fs.begin_sync(&CX, true).unwrap().expect("a flush");
    assert!(!data.is_turn());
    end(&mut fs, data);
    end(&mut fs, sync);
    assert_eq!(times_survive(&fs, &files), files.len());
}

/// A volume that fails between two pieces tells the caller that waits.
#[test]
fn a_failure_between_pieces_is_told() {
    let mut fs = volume();
    touched(&mut fs, 600);
    let sync = begin(&mut fs);
    assert!(sync.is_turn());
    fs.device_mut().faults.flush_errors = 1;
    assert_eq!(fs.syncfs(&CX), Err(Errno::EIO));
    assert_eq!(go_on(&mut fs, sync).map(drop), Err(Errno::EIO));
}

/// Data alone is durable by a commit in halves whose mark covers no record that another did not:
/// what the journal had of it before is void.
#[test]
fn newer_data_without_a_record_is_not_taken_back() {
    for operations in 0..3 {
        let mut fs = volume();
        let (ino, handle) = file(&mut fs, "f", MUCH);
        fs.syncfs(&CX).unwrap();
        // Little: it goes to the journal with the mark.
        fs.write(&CX, ino, handle, 0, &[b'a'; 4096]).unwrap();
        fs.fsync(&CX, ino, handle, true).unwrap();
        fs.write(&CX, ino, handle, 0, &vec![b'b'; MUCH]).unwrap();
        let mut next = fs.begin_sync(&CX, true).unwrap();
        for at in 0..operations {
            fs.mkdir(&CX, Ino::ROOT, name(&format!("d{at}")), 0o755).unwrap();
        }
        while let Some(sync) = next.take() {
            next = go_on(&mut fs, sync).unwrap();
        }
        for survival in [Survival::None, Survival::All] {
            let device = FaultDevice::from_image(fs.device().power_loss(survival));
            let mut fs = Fs::mount(device, &mount_options_after_power_loss()).unwrap();
            let attr = fs.lookup(&CX, Ino::ROOT, name("f")).unwrap();
            let handle = fs.open(&CX, attr.ino, OpenFlags::READ).unwrap();
            let mut got = vec![0; MUCH];
            fs.read(&CX, attr.ino, handle, 0, &mut got).unwrap();
            assert!(got.iter().all(|&byte| byte == b'b'), "{operations} operations, {survival:?}");
        }
    }
}
