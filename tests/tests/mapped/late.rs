//! A file on a FUSE mount of this process whose pages come when it likes: a system call that is to
//! read them has what it holds for as long.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use atoll_host::fuse::mount::{self, MountOptions};
use atoll_vfs::AccessTimes;
use atoll_vfs::wire::attributes::{AttrOut, EntryOut, RawAttr};
use atoll_vfs::wire::files::OpenOut;
use atoll_vfs::wire::fixed::Fixed;
use atoll_vfs::wire::header::{InHeader, OutHeader};
use atoll_vfs::wire::opcode::*;
use atoll_vfs::wire::session::{InitOut, MAJOR};
use rustix::mm::{MapFlags, ProtFlags};

const PAGE: usize = 4096;
const EIO: i32 = rustix::io::Errno::IO.raw_os_error();

/// The reads that wait; `None` when all are answered, with an error.
#[derive(Default)]
struct Reads {
    waiting: Mutex<Option<Vec<u64>>>,
    came: Condvar,
}

/// The mount, and a mapping of the first page of its file.
pub struct Late {
    target: tempfile::TempDir,
    device: File,
    reads: Arc<Reads>,
    page: *mut u8,
}

// SAFETY: only the kernel reads the page.
unsafe impl Sync for Late {}

impl Late {
    /// A thread with a mount namespace of its own is to call this.
    pub fn new() -> Late {
        let target = tempfile::tempdir().unwrap();
        let options = MountOptions {
            source: Path::new("late"),
            read_only: false,
            owner: (0, 0),
            checked: false,
            access_times: AccessTimes::Noatime,
        };
        let device = mount::open_device().unwrap();
        mount::mount(&device, target.path(), &options).unwrap();
        let device = File::from(device);
        let reads = Arc::new(Reads { waiting: Mutex::new(Some(Vec::new())), came: Condvar::new() });
        let (served, told) = (device.try_clone().unwrap(), Arc::clone(&reads));
        std::thread::spawn(move || serve(&served, &told));
        let file = File::open(target.path().join("file")).unwrap();
        let (anywhere, private) = (std::ptr::null_mut(), MapFlags::PRIVATE);
        // SAFETY: a new mapping, where there is room.
        let page = unsafe { rustix::mm::mmap(anywhere, PAGE, ProtFlags::READ, private, &file, 0) };
        Late { target, device, reads, page: page.unwrap().cast() }
    }

    /// Writes the page to `file`. Returns when this is [`let_go`](Self::let_go) of.
    pub fn write(&self, file: impl AsFd) -> rustix::io::Result<usize> {
        // SAFETY: mapped for as long as `self`, and looked at by the kernel alone, which fails
        // where the page does not come.
        let page = unsafe { std::slice::from_raw_parts(self.page, PAGE) };
        rustix::io::pwrite(file, page, 0)
    }

    /// Returns when the kernel waits for the page.
    pub fn wait(&self) {
        let none = |waiting: &mut Option<Vec<u64>>| waiting.as_ref().is_some_and(Vec::is_empty);
        let waiting = self.reads.waiting.lock().unwrap();
        let bound = Duration::from_secs(30);
        let (_guard, late) = self.reads.came.wait_timeout_while(waiting, bound, none).unwrap();
        assert!(!late.timed_out(), "nobody reads the page");
    }

    /// There is no page.
    pub fn let_go(&self) {
        let waiting = self.reads.waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
        for unique in waiting.into_iter().flatten() {
            reply(&self.device, unique, -EIO, &[]);
        }
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        self.let_go();
        // SAFETY: it is ours, and nobody has a pointer into it.
        let _ = unsafe { rustix::mm::munmap(self.page.cast(), PAGE) };
        let _ = mount::detach(self.target.path());
    }
}

fn serve(mut device: &File, reads: &Reads) {
    let mut buffer = vec![0; 1 << 20];
    while let Ok(len) = device.read(&mut buffer) {
        let Some((header, _)) = InHeader::get(&buffer[..len]) else { continue };
        let is_root = header.nodeid == 1 && header.opcode != FUSE_LOOKUP;
        let (ino, mode, size) =
            if is_root { (1, 0o40_755, 0) } else { (2, 0o100_644, PAGE as u64) };
        let attr = RawAttr { ino, mode, size, nlink: 1, ..RawAttr::default() };
        let init = InitOut { major: MAJOR, minor: 31, max_write: 4096, ..InitOut::default() };
        let node = EntryOut { nodeid: 2, attr, ..EntryOut::default() };
        let body = match header.opcode {
            FUSE_INIT => bytes(&init, InitOut::SIZE),
            FUSE_GETATTR => bytes(&AttrOut { attr, ..AttrOut::default() }, AttrOut::SIZE),
            FUSE_LOOKUP => bytes(&node, EntryOut::SIZE),
            FUSE_OPEN => bytes(&OpenOut::default(), OpenOut::SIZE),
            FUSE_FORGET | FUSE_BATCH_FORGET => continue,
            FUSE_READ => match &mut *reads.waiting.lock().unwrap() {
                Some(waiting) => {
                    waiting.push(header.unique);
                    reads.came.notify_all();
                    continue;
                }
                None => {
                    reply(device, header.unique, -EIO, &[]);
                    continue;
                }
            },
            _ => {
                reply(device, header.unique, -rustix::io::Errno::NOSYS.raw_os_error(), &[]);
                continue;
            }
        };
        reply(device, header.unique, 0, &body);
    }
}

fn reply(mut device: &File, unique: u64, error: i32, body: &[u8]) {
    let len = (OutHeader::SIZE + body.len()) as u32;
    let mut message = vec![0; OutHeader::SIZE];
    OutHeader { len, error, unique }.store(&mut message);
    message.extend_from_slice(body);
    // One that waits no more has no answer.
    let _ = device.write(&message);
}

fn bytes(value: &impl Fixed, size: usize) -> Vec<u8> {
    let mut out = vec![0; size];
    value.store(&mut out);
    out
}
