//! Inodes: their record on disk, and its place in the tree.

use atoll_block::Addressable;
use atoll_vfs::{Attr, Errno, FileType, Ino, Timespec};

use crate::cache::FrameId;
use crate::error::{Corruption, Result};
use crate::key::Key;
use crate::layout::{self, BLOCK_COUNT_MAX, get_time, get32, get64, inode, put_time, put32, put64};
use crate::store::Store;
use crate::table::Inode;
use crate::tree::ItemPlace;

/// The most links of a directory, which are 2 and its subdirectories.
/// [`LINK_MAX`](atoll_vfs::LINK_MAX) is for files.
pub const DIRECTORY_LINK_MAX: u32 = u32::MAX / 2;

/// An inode record, parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeRecord {
    /// Type and permission bits.
    pub mode: u32,
    /// Hard links; for a directory 2 plus its subdirectories.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u32,
    /// The project that it belongs to; 0: none.
    pub project: u32,
    /// Length in bytes.
    pub size: u64,
    /// Data blocks allocated.
    pub blocks: u64,
    /// The parent of a directory, else 0.
    pub parent: u64,
    /// Last change of content.
    pub mtime: Timespec,
    /// Last change of attributes.
    pub ctime: Timespec,
    /// Last access.
    pub atime: Timespec,
    /// Creation.
    pub btime: Timespec,
}

impl InodeRecord {
    /// A record with nothing in it but `now`.
    pub fn new(now: Timespec) -> InodeRecord {
        InodeRecord {
            mode: 0,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            project: 0,
            size: 0,
            blocks: 0,
            parent: 0,
            mtime: now,
            ctime: now,
            atime: now,
            btime: now,
        }
    }

    /// The bytes on disk.
    pub fn emit(&self) -> [u8; inode::LEN] {
        let mut b = [0; inode::LEN];
        put32(&mut b, inode::MODE, self.mode);
        put32(&mut b, inode::NLINK, self.nlink);
        put32(&mut b, inode::UID, self.uid);
        put32(&mut b, inode::GID, self.gid);
        put32(&mut b, inode::RDEV, self.rdev);
        put32(&mut b, inode::PROJECT, self.project);
        put64(&mut b, inode::SIZE, self.size);
        put64(&mut b, inode::BLOCKS, self.blocks);
        put64(&mut b, inode::PARENT, self.parent);
        put_time(&mut b, inode::MTIME, self.mtime);
        put_time(&mut b, inode::CTIME, self.ctime);
        put_time(&mut b, inode::ATIME, self.atime);
        put_time(&mut b, inode::BTIME, self.btime);
        b
    }

    /// Reads and checks a record.
    ///
    /// # Errors
    /// [`Corruption::Item`].
    pub fn parse(b: &[u8]) -> Result<InodeRecord> {
        if b.len() != inode::LEN {
            return Err(Corruption::Item.into());
        }
        let record = InodeRecord {
            mode: get32(b, inode::MODE),
            nlink: get32(b, inode::NLINK),
            uid: get32(b, inode::UID),
            gid: get32(b, inode::GID),
            rdev: get32(b, inode::RDEV),
            project: get32(b, inode::PROJECT),
            size: get64(b, inode::SIZE),
            blocks: get64(b, inode::BLOCKS),
            parent: get64(b, inode::PARENT),
            mtime: get_time(b, inode::MTIME),
            ctime: get_time(b, inode::CTIME),
            atime: get_time(b, inode::ATIME),
            btime: get_time(b, inode::BTIME),
        };
        let times = [record.mtime, record.ctime, record.atime, record.btime];
        let sound = record.mode >> 16 == 0
            && FileType::from_mode(record.mode).is_some()
            && record.size <= atoll_vfs::filesystem::FILE_SIZE_MAX
            && record.nlink <= DIRECTORY_LINK_MAX
            && record.blocks <= BLOCK_COUNT_MAX
            && times.iter().all(|t| t.nsec < 1_000_000_000);
        if !sound {
            return Err(Corruption::Item.into());
        }
        Ok(record)
    }

    /// The type.
    #[inline]
    pub fn file_type(&self) -> FileType {
        // `parse` checked it, and the file system makes no other.
        FileType::from_mode(self.mode).unwrap_or(FileType::Regular)
    }

    /// Whether this is a directory.
    #[inline]
    pub fn is_dir(&self) -> bool {
        self.file_type() == FileType::Directory
    }

    /// The answer to stat(2).
    #[inline]
    pub fn attr(&self, ino: Ino) -> Attr {
        Attr {
            ino,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size: if self.is_dir() { layout::DIRECTORY_SIZE } else { self.size },
            blocks: self.blocks * 8,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.btime,
        }
    }
}

/// Where an inode record is, to be believed only while the frame has that version.
#[derive(Clone, Copy, Debug, Default)]
pub struct Remembered {
    frame: FrameId,
    version: u64,
    offset: u16,
}

/// How many places of records are remembered.
pub const READS_REMEMBERED: usize = 16;

/// A run of file blocks and where it is on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first file block.
    pub file_block: u64,
    /// The first block on the device.
    pub start: u64,
    /// Blocks in the run.
    pub len: u64,
    /// Allocated, but reads as zeros.
    pub unwritten: bool,
}

impl Extent {
    /// The file block after the run.
    #[inline]
    pub fn end(&self) -> u64 {
        self.file_block + self.len
    }
}

impl<M: Addressable> Store<M> {
    /// The place of the record of `ino`.
    ///
    /// # Errors
    /// `ESTALE` if there is no such inode.
    pub fn inode_place(&mut self, ino: Ino) -> Result<ItemPlace> {
        self.find(Key::inode(ino.0))?.ok_or(Errno::ESTALE.into())
    }

    /// The record of `ino` in the tree. The store remembers the places of some records that were
    /// read: an inode that is looked up is often opened next, and a directory with one lookup often
    /// gets more.
    ///
    /// # Errors
    /// `ESTALE` if there is no such inode.
    pub fn read_inode(&mut self, ino: Ino) -> Result<InodeRecord> {
        let (last, at) = self.last_read[ino.0 as usize % READS_REMEMBERED];
        if last == ino && self.cache.is_current(at.frame, at.version) {
            let from = at.offset as usize;
            return InodeRecord::parse(&self.cache.frame(at.frame).data[from..from + inode::LEN]);
        }
        let place = self.inode_place(ino)?;
        let record = InodeRecord::parse(self.value(&place))?;
        self.last_read[ino.0 as usize % READS_REMEMBERED] = (ino, self.remember(&place));
        Ok(record)
    }

    fn remember(&self, place: &ItemPlace) -> Remembered {
        let frame = self.cache.frame(place.frame);
        Remembered {
            frame: place.frame,
            version: frame.version,
            offset: frame.value_range(place.slot).start as u16,
        }
    }

    /// Replaces the record of `ino` in the tree.
    pub fn write_inode(&mut self, ino: Ino, record: &InodeRecord) -> Result<()> {
        let place = self.inode_place(ino)?;
        self.update(&place, 0, &record.emit());
        Ok(())
    }

    /// Replaces the bytes of a record from `offset` on. The place that `inode` remembers saves the
    /// way through the tree.
    #[inline]
    pub fn update_inode(&mut self, inode: &mut Inode, offset: usize, bytes: &[u8]) -> Result<()> {
        let Remembered { frame, version, offset: at } = inode.place;
        if version != 0 && self.cache.is_current(frame, version) {
            self.put(frame, at as usize + offset, bytes);
            return Ok(());
        }
        let place = self.inode_place(inode.ino)?;
        if self.value(&place).len() != inode::LEN {
            return Err(Corruption::Item.into());
        }
        inode.place = self.remember(&place);
        self.put(place.frame, inode.place.offset as usize + offset, bytes);
        Ok(())
    }

    /// Writes size and block count of `inode`'s record to the tree.
    #[inline]
    pub fn update_size(&mut self, inode: &mut Inode) -> Result<()> {
        let mut b = [0; 16];
        put64(&mut b, 0, inode.record.size);
        put64(&mut b, 8, inode.record.blocks);
        self.update_inode(inode, inode::SIZE, &b)
    }
}
