//! A file system under test, and the one place that says where implementors may differ.

use atoll_vfs::model::{Snapshot, snapshot};
use atoll_vfs::*;

/// Where an implementor legitimately departs from the contract or is narrower than it. The default
/// is the full contract; only a foreign file system (a host directory) has any of these.
#[derive(Clone, Copy, Debug)]
pub struct Quirks {
    /// Timestamps are [`Context::now`]. A host directory takes them from the host's clock; they are
    /// then left out of comparisons, and tests only see whether they changed.
    pub caller_time: bool,
    /// New inodes belong to the [`Context`]'s user and group, and those can be changed. A host
    /// directory needs root for it.
    pub ownership: bool,
    /// Devices and sockets can be made. Where the host makes them that takes root.
    pub devices: bool,
    /// The largest file, in bytes. ext4 with 4 KiB blocks: 16 TiB less one block.
    pub file_size_max: u64,
    /// An open file whose last name was unlinked can get a name again. Linux allows that only for
    /// files that never had one.
    pub relink: bool,
    /// `fallocate` with ZERO_RANGE works. tmpfs has none.
    pub zero_range: bool,
    /// A listing that goes on from a cookie is complete whatever was renamed meanwhile. tmpfs (seen
    /// on Linux 6.18) can leave out entries after the one at the cookie's place was renamed.
    pub stable_cookies: bool,
    /// The mode of a symbolic link can be changed. Linux says `EOPNOTSUPP`.
    pub link_modes: bool,
    /// Extended attributes work on symbolic links and special files too. Linux has the `user.`
    /// namespace on regular files and directories only.
    pub xattr_everywhere: bool,
    /// The largest value of an extended attribute, in bytes. ext4 keeps all of a file's in a block.
    pub xattr_value_max: usize,
    /// The most hard links that a file can have, where that can be tried in a test.
    pub link_max: Option<u32>,
    /// A file that is no directory is found as `.` of itself: kernels look up so what NFS exports.
    pub finds_itself: bool,
    /// Fifty thousand inodes can be known at once. A host directory needs a descriptor for each.
    pub many_inodes: bool,
}

impl Default for Quirks {
    fn default() -> Self {
        Quirks {
            caller_time: true,
            ownership: true,
            devices: true,
            file_size_max: filesystem::FILE_SIZE_MAX,
            relink: true,
            zero_range: true,
            stable_cookies: true,
            link_modes: true,
            xattr_everywhere: true,
            xattr_value_max: XATTR_SIZE_MAX,
            link_max: Some(LINK_MAX),
            finds_itself: false,
            many_inodes: true,
        }
    }
}

/// A file system under test with what tests need around it: a clock, a caller, shorthands that
/// panic where a call that must succeed does not.
pub struct Subject {
    /// The file system.
    pub fs: Box<dyn FileSystem>,
    /// Where it may differ.
    pub quirks: Quirks,
    clock: i64,
}

/// An open file.
#[derive(Clone, Copy, Debug)]
pub struct File {
    /// Its inode.
    pub ino: Ino,
    /// Its handle.
    pub handle: Handle,
}

/// A checked name.
///
/// # Panics
/// If it is none.
pub fn name(bytes: &(impl AsRef<[u8]> + ?Sized)) -> Name<'_> {
    Name::new(bytes.as_ref()).expect("a test's name is valid")
}

/// `len` bytes without a zero among them that differ by `seed` and position.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 56) as u8 | 1
        })
        .collect()
}

/// Read and write.
pub const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

impl Subject {
    /// Puts `fs` under test.
    pub fn new(fs: impl FileSystem + 'static, quirks: Quirks) -> Self {
        Subject { fs: Box::new(fs), quirks, clock: 1_000_000_000 }
    }

    /// The next caller: a second later than the one before. Where the host's clock counts, that
    /// clock has moved on too.
    pub fn cx(&mut self) -> Context {
        self.clock += 1;
        if !self.quirks.caller_time {
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
        let now = Timespec { sec: self.clock, nsec: 123_456_789 };
        Context { uid: 1000, gid: 1001, now }
    }

    /// Makes an empty regular file.
    pub fn file(&mut self, parent: Ino, at: &str) -> Ino {
        let cx = self.cx();
        let mode = FileType::Regular.mode_bits() | 0o644;
        self.fs.mknod(&cx, parent, name(at), mode, 0).expect("mknod").ino
    }

    /// Makes a directory.
    pub fn dir(&mut self, parent: Ino, at: &str) -> Ino {
        let cx = self.cx();
        self.fs.mkdir(&cx, parent, name(at), 0o755).expect("mkdir").ino
    }

    /// Makes a symbolic link.
    pub fn symlink(&mut self, parent: Ino, at: &str, target: &str) -> Ino {
        let cx = self.cx();
        self.fs.symlink(&cx, parent, name(at), target.as_bytes()).expect("symlink").ino
    }

    /// Makes a named pipe.
    pub fn fifo(&mut self, parent: Ino, at: &str) -> Ino {
        let cx = self.cx();
        let mode = FileType::Fifo.mode_bits() | 0o600;
        self.fs.mknod(&cx, parent, name(at), mode, 0).expect("mknod").ino
    }

    /// Makes and opens a regular file for reading and writing.
    pub fn create(&mut self, parent: Ino, at: &str) -> File {
        let cx = self.cx();
        let (attr, handle) =
            self.fs.create(&cx, parent, name(at), 0o644, RW | OpenFlags::EXCL).expect("create");
        File { ino: attr.ino, handle }
    }

    /// Makes a regular file that holds `data` and leaves it closed.
    pub fn file_with(&mut self, parent: Ino, at: &str, data: &[u8]) -> Ino {
        let file = self.create(parent, at);
        self.write(file, 0, data);
        self.close(file);
        file.ino
    }

    /// Opens a regular file.
    pub fn open(&mut self, ino: Ino, flags: OpenFlags) -> File {
        let cx = self.cx();
        File { ino, handle: self.fs.open(&cx, ino, flags).expect("open") }
    }

    /// Closes a file.
    pub fn close(&mut self, file: File) {
        let cx = self.cx();
        self.fs.release(&cx, file.ino, file.handle).expect("release");
    }

    /// Writes all of `data`.
    pub fn write(&mut self, file: File, offset: u64, data: &[u8]) {
        let cx = self.cx();
        let written = self.fs.write(&cx, file.ino, file.handle, offset, data).expect("write");
        assert_eq!(written.len, data.len(), "a write was short with room left");
    }

    /// Reads up to `len` bytes.
    pub fn read(&mut self, file: File, offset: u64, len: usize) -> Vec<u8> {
        let cx = self.cx();
        // Not zero, so that a byte which was claimed and not filled shows.
        let mut buf = vec![0xee; len];
        let n = self.fs.read(&cx, file.ino, file.handle, offset, &mut buf).expect("read");
        assert!(n <= len, "read of {len} bytes returned {n}");
        assert!(buf[n..].iter().all(|&b| b == 0xee), "read wrote past what it returned");
        buf.truncate(n);
        buf
    }

    /// Reads a whole (small) file by inode.
    pub fn content(&mut self, ino: Ino) -> Vec<u8> {
        let file = self.open(ino, OpenFlags::READ);
        let size = self.attr(ino).size as usize;
        let bytes = self.read(file, 0, size + 1);
        self.close(file);
        bytes
    }

    /// The attributes.
    pub fn attr(&mut self, ino: Ino) -> Attr {
        let cx = self.cx();
        self.fs.getattr(&cx, ino).expect("getattr")
    }

    /// The inode that `at` names in `parent`.
    pub fn lookup(&mut self, parent: Ino, at: &(impl AsRef<[u8]> + ?Sized)) -> Result<Attr> {
        let cx = self.cx();
        self.fs.lookup(&cx, parent, name(at))
    }

    /// Sets the length by inode.
    pub fn truncate(&mut self, ino: Ino, size: u64) {
        let cx = self.cx();
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        let attr = self.fs.setattr(&cx, ino, None, &set).expect("setattr of the size");
        assert_eq!(attr.size, size);
    }

    /// Removes a file's name.
    pub fn unlink(&mut self, parent: Ino, at: &str) {
        let cx = self.cx();
        self.fs.unlink(&cx, parent, name(at)).expect("unlink");
    }

    /// Removes an empty directory.
    pub fn rmdir(&mut self, parent: Ino, at: &str) {
        let cx = self.cx();
        self.fs.rmdir(&cx, parent, name(at)).expect("rmdir");
    }

    /// Adds a name.
    pub fn link(&mut self, ino: Ino, parent: Ino, at: &str) {
        let cx = self.cx();
        let attr = self.fs.link(&cx, ino, parent, name(at)).expect("link");
        assert_eq!(attr.ino, ino);
    }

    /// Renames with `flags`.
    pub fn rename_with(
        &mut self,
        from: (Ino, &str),
        to: (Ino, &str),
        flags: RenameFlags,
    ) -> Result<()> {
        let cx = self.cx();
        self.fs.rename(&cx, from.0, name(from.1), to.0, name(to.1), flags)
    }

    /// Renames.
    pub fn rename(&mut self, from: (Ino, &str), to: (Ino, &str)) {
        self.rename_with(from, to, RenameFlags::empty()).expect("rename");
    }

    /// The names in a directory, sorted, without `.` and `..`, each with its inode.
    pub fn names(&mut self, dir: Ino) -> Vec<(Vec<u8>, Ino)> {
        let cx = self.cx();
        let handle = self.fs.opendir(&cx, dir).expect("opendir");
        let mut names = Vec::new();
        self.fs
            .readdir(&cx, dir, handle, 0, &mut |entry| {
                names.push((entry.name.to_vec(), entry.ino));
                true
            })
            .expect("readdir");
        self.fs.releasedir(&cx, dir, handle).expect("releasedir");
        names.retain(|(name, _)| name != b"." && name != b"..");
        names.sort();
        names
    }

    /// All of it, comparable with another moment.
    pub fn snapshot(&mut self) -> Snapshot {
        let snapshot = snapshot(&mut *self.fs).unwrap_or_else(|error| panic!("{error}"));
        if self.quirks.caller_time { snapshot } else { snapshot.without_times() }
    }

    /// Runs calls that must all fail, and checks that they changed nothing.
    pub fn unchanged(&mut self, calls: impl FnOnce(&mut Subject)) {
        let before = self.snapshot();
        calls(self);
        let differences = self.snapshot().differences(&before, 10);
        assert!(differences.is_empty(), "a call that failed changed: {differences:#?}");
    }
}
