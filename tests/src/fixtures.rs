//! Fixtures that many tests begin with: a volume, and its users.

use atoll_block::RamDevice;
use atoll_fs::{FormatOptions, Fs, MountOptions, format};
use atoll_server::Credentials;
use atoll_vfs::{Context, FileSystem, Ino, SetAttr, Timespec};

/// An empty volume of `blocks` blocks, mounted.
pub fn volume(blocks: u64) -> Fs<RamDevice> {
    let mut device = RamDevice::new(blocks);
    format(&mut device, &FormatOptions { hash_key: [7; 16], ..FormatOptions::default() })
        .expect("format");
    Fs::mount(device, &MountOptions::default()).expect("mount")
}

/// An empty volume in which everybody may make files.
pub fn open_to_all() -> Fs<RamDevice> {
    let mut fs = volume(16 << 10);
    let changes = SetAttr { mode: Some(0o777), ..SetAttr::default() };
    fs.setattr(&cx(), Ino::ROOT, None, &changes).expect("its root");
    fs
}

/// The superuser.
pub fn root() -> Credentials {
    Credentials::default()
}

/// Another user, with a group beside its own.
pub fn user() -> Credentials {
    Credentials { uid: 1000, gid: 1000, groups: [2000].into(), pid: 77 }
}

/// A call of the superuser.
pub fn cx() -> Context {
    Context { uid: 0, gid: 0, now: Timespec { sec: 1_000_000_000, nsec: 0 } }
}
