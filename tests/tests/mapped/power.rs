//! Power loss while a guest stores into files by its window: the memory is written as a front end's
//! guest would, and each image that a crash can leave is looked at.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard};

use atoll_block::fault::{Image, Survival};
use atoll_block::{Addressable, BlockDevice, BlockError, BlockIndex, FaultDevice, Flusher};
use atoll_fs::{FormatOptions, format};
use atoll_server::session::ranges::Mappable;
use atoll_tests::rng::Rng;

use super::*;

type Fails<T> = std::result::Result<T, BlockError>;

/// The device, whose power the test cuts.
#[derive(Clone)]
struct Disk(Arc<Mutex<FaultDevice>>);

impl Disk {
    fn device(&self) -> MutexGuard<'_, FaultDevice> {
        self.0.lock().unwrap()
    }
}

impl BlockDevice for Disk {
    fn block_count(&self) -> u64 {
        self.device().block_count()
    }
    fn read(&mut self, at: BlockIndex, buf: &mut [u8]) -> Fails<()> {
        self.device().read(at, buf)
    }
    fn write(&mut self, at: BlockIndex, data: &[u8]) -> Fails<()> {
        self.device().write(at, data)
    }
    fn flush(&mut self) -> Fails<()> {
        self.device().flush()
    }
    fn flush_range(&mut self, at: BlockIndex, count: u64) -> Fails<()> {
        self.device().flush_range(at, count)
    }
    fn flusher(&mut self, at: BlockIndex, count: u64) -> Option<Flusher> {
        self.device().flusher(at, count)
    }
    fn discard(&mut self, at: BlockIndex, count: u64) -> Fails<()> {
        self.device().discard(at, count)
    }
}

impl Addressable for Disk {
    fn load(&mut self, at: u64, buf: &mut [u8]) -> Fails<()> {
        self.device().load(at, buf)
    }
    fn store(&mut self, at: u64, data: &[u8]) -> Fails<()> {
        self.device().store(at, data)
    }
}

/// Pages that each file has, a few of each of its ranges.
const PAGES: u64 = 24;
const RANGE: u64 = 2 << 20;
const FILES: [&str; 2] = ["f", "g"];
/// What the files that come and go have.
const OTHERS: u64 = 99;
const BEFORE: [u8; 16] = [7; 16];
const AFTER: [u8; 16] = [8; 16];

fn place(page: u64) -> u64 {
    page / 8 * RANGE + page % 8 * 5 * PAGE
}

/// A page of `file`: each 16 bytes say of which file, of which page and by which store.
fn content(file: u64, page: u64, number: u64) -> Vec<u8> {
    let unit = [file << 32 | page, number].map(u64::to_le_bytes).concat();
    unit.repeat(PAGE as usize / unit.len())
}

/// What a page has had: `None` for zeros, or the number of the store; and how many events of the
/// device had been before.
#[derive(Default)]
struct History {
    contents: Vec<(u64, Option<u64>)>,
    /// The first contents that there may still be after so many events, after power loss and after
    /// the end of the process.
    synced: Vec<(u64, usize)>,
    written: Vec<(u64, usize)>,
}

impl History {
    fn push(&mut self, events: u64, content: Option<u64>) {
        self.contents.push((events, content));
    }

    fn allowed(&self, marks: &[(u64, usize)], events: u64) -> Vec<Option<u64>> {
        let first = marks.iter().rev().find(|mark| mark.0 <= events).map_or(0, |mark| mark.1);
        let had = self.contents[first..].iter().take_while(|content| content.0 <= events);
        had.map(|content| content.1).collect()
    }
}

struct World {
    disk: Disk,
    volume: Arc<Volume<Fs<Disk>>>,
    guest: Session<Fs<Disk>>,
    other: Session<Fs<Disk>>,
    files: Vec<(Ino, Handle)>,
    shown: Vec<Option<File>>,
    histories: Vec<History>,
    number: u64,
}

impl World {
    fn new() -> World {
        let mut device = FaultDevice::new(8192);
        let options = FormatOptions { journal_blocks: Some(128), ..FormatOptions::default() };
        format(&mut device, &options).unwrap();
        let mut device = FaultDevice::from_image(device.process_crash());
        device.start_recording();
        let disk = Disk(Arc::new(Mutex::new(device)));
        let options = MountOptions { incarnation: BEFORE, ..MountOptions::default() };
        let fs = Fs::mount(disk.clone(), &options).unwrap();
        let volume = atoll_host::server::volume(fs, "v");
        let session = || volume.session(Credentials::default(), Access::default()).unwrap();
        let (mut guest, other) = (session(), session());
        let files = FILES.map(|named| {
            let (attr, handle) = guest.create(&cx(), Ino::ROOT, name(named), 0o644, RW).unwrap();
            (attr.ino, handle)
        });
        let files = files.to_vec();
        let mut histories: Vec<History> = Vec::new();
        histories.resize_with(FILES.len() * PAGES as usize, History::default);
        histories.iter_mut().for_each(|history| history.push(0, None));
        let shown = (0..FILES.len() * 3).map(|_| None).collect();
        let mut world = World { disk, volume, guest, other, files, shown, histories, number: 0 };
        for file in 0..FILES.len() {
            let set = SetAttr { size: Some(3 * RANGE), ..SetAttr::default() };
            world.guest.setattr(&cx(), world.files[file].0, None, &set).unwrap();
        }
        world.guest.syncfs(&cx()).unwrap();
        world
    }

    fn events(&self) -> u64 {
        let mut device = self.disk.device();
        device.note_flushers();
        device.events()
    }

    /// The memory of a range, which the guest is shown from now on.
    fn show(&mut self, file: usize, range: usize) -> &File {
        let (ino, handle) = self.files[file];
        let at = (range as u64 * RANGE, RANGE);
        if self.shown[file * 3 + range].is_none() {
            let mapped = self.guest.map_range(&cx(), ino, handle, at, false).unwrap();
            let Mappable::Memory(token) = mapped else { panic!("it is a volume") };
            let memory = atoll_host::server::mapped_memory(&self.volume, token).unwrap().0;
            self.shown[file * 3 + range] = Some(File::from(memory));
        }
        self.shown[file * 3 + range].as_ref().unwrap()
    }

    fn pages(&mut self, file: usize) -> &mut [History] {
        &mut self.histories[file * PAGES as usize..][..PAGES as usize]
    }

    /// All that has been stored into `file` until now is in the volume, and durable if `synced`.
    fn mark(&mut self, file: usize, synced: bool) {
        let events = self.events();
        for page in self.pages(file) {
            let last = page.contents.len() - 1;
            page.written.push((events, last));
            if synced {
                page.synced.push((events, last));
            }
        }
    }

    fn step(&mut self, rng: &mut Rng) {
        let file = rng.within(0..FILES.len() as u64) as usize;
        let page = rng.within(0..PAGES);
        self.number += 1;
        let (number, events) = (self.number, self.events());
        let data = content(file as u64, page, number);
        let (ino, handle) = self.files[file];
        match rng.within(0..20) {
            0..=8 => {
                let memory = self.show(file, page as usize / 8);
                memory.write_all_at(&data, place(page)).unwrap();
                self.pages(file)[page as usize].push(events, Some(number));
            }
            // By another client.
            9 | 10 => {
                let by = self.other.open(&cx(), ino, RW).unwrap();
                self.pages(file)[page as usize].push(events, Some(number));
                self.other.write(&cx(), ino, by, place(page), &data).unwrap();
                self.other.release(&cx(), ino, by).unwrap();
                let events = self.events();
                let history = &mut self.pages(file)[page as usize];
                history.written.push((events, history.contents.len() - 1));
            }
            11..=13 => {
                self.guest.fsync(&cx(), ino, handle, rng.within(0..2) == 0).unwrap();
                self.mark(file, true);
            }
            14 => {
                self.volume.tend_mappings(NOW, &|| {}).unwrap();
                self.volume.write_back(NOW).unwrap();
                (0..FILES.len()).for_each(|file| self.mark(file, false));
            }
            15 => {
                // A range is given back, and goes.
                self.shown[file * 3 + page as usize / 8] = None;
                self.guest.make_room(&cx());
            }
            16 => {
                // Cut, and as long as before.
                for (other, history) in (0..).zip(self.pages(file)) {
                    if place(other) >= place(page) {
                        history.push(events, None);
                    }
                }
                for size in [place(page), 3 * RANGE] {
                    let set = SetAttr { size: Some(size), ..SetAttr::default() };
                    self.guest.setattr(&cx(), ino, None, &set).unwrap();
                }
            }
            17 => {
                let hole = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
                self.pages(file)[page as usize].push(events, None);
                self.guest.fallocate(&cx(), ino, handle, place(page), PAGE, hole).unwrap();
            }
            // Others' files come and go: their blocks are the next ones'.
            _ => {
                let named = format!("other{}", number % 3);
                let made = self.other.create(&cx(), Ino::ROOT, name(&named), 0o644, RW).unwrap();
                for at in 0..20 {
                    let data = content(OTHERS, at, number);
                    self.other.write(&cx(), made.0.ino, made.1, at * PAGE, &data).unwrap();
                }
                if number % 2 == 0 {
                    self.other.fsync(&cx(), made.0.ino, made.1, false).unwrap();
                }
                self.other.release(&cx(), made.0.ino, made.1).unwrap();
                self.other.unlink(&cx(), Ino::ROOT, name(&named)).unwrap();
            }
        }
    }

    /// Looks at what a crash after `events` events has left.
    fn judge(&self, image: Image, incarnation: [u8; 16], events: u64, what: &str) {
        let mut device = FaultDevice::from_image(image);
        let report = check(&mut device, &CheckOptions::default()).unwrap();
        assert!(report.is_clean(), "{what} {events}: {report:?}");
        let options = MountOptions { incarnation, ..MountOptions::default() };
        let mut fs = Fs::mount(device, &options).unwrap();
        for (file, named) in (0..).zip(FILES) {
            let Ok(attr) = fs.lookup(&cx(), Ino::ROOT, name(named)) else {
                panic!("{what} {events}: {named} is not there");
            };
            let handle = fs.open(&cx(), attr.ino, OpenFlags::READ).unwrap();
            for page in 0..PAGES {
                let history = &self.histories[(file * PAGES + page) as usize];
                let marks = if what == "process" { &history.written } else { &history.synced };
                let allowed = history.allowed(marks, events);
                let mut had = vec![0; PAGE as usize];
                fs.read(&cx(), attr.ino, handle, place(page), &mut had).unwrap();
                for unit in had.chunks_exact(16) {
                    let word = |at: usize| u64::from_le_bytes(unit[at..at + 8].try_into().unwrap());
                    let found = (word(0), word(8));
                    let right = allowed.iter().any(|content| match content {
                        Some(number) => found == (file << 32 | page, *number),
                        None => found == (0, 0),
                    });
                    assert!(right, "{what} {events} {named} {page}: {found:x?} of {allowed:?}");
                }
            }
        }
    }
}

/// What a guest has synced is there, and nothing older, or of another file, ever is.
#[test]
fn what_a_guest_stored_and_synced_survives_power_loss() {
    for seed in 0..4 {
        let mut rng = Rng::new(seed);
        let mut world = World::new();
        let begun = world.events();
        (0..150).for_each(|_| world.step(&mut rng));
        let end = world.events();
        let recording = world.disk.device().take_recording().unwrap();
        assert_eq!(recording.events().len() as u64, end, "all that has been");
        let mut replay = recording.replay();
        let synced: usize = world.histories.iter().map(|history| history.synced.len()).sum();
        assert!(synced > 100 && end - begun > 300, "{synced} {end}");
        let mut at = begun;
        while at <= end {
            replay.advance_to(at as usize);
            let media = replay.media();
            for survival in [Survival::None, Survival::All, Survival::Seed(at), Survival::Only(at)]
            {
                world.judge(media.power_loss(survival), AFTER, at, "power");
            }
            world.judge(media.current().clone(), BEFORE, at, "process");
            at += 1 + rng.within(0..end / 40);
        }
    }
}
