//! Projects: the inodes below a directory with a quota, and what they take.
//!
//! As with the project quotas of XFS and ext4 an inode says in its record which project it belongs
//! to, and a new one belongs to that of its directory. Each transaction that changes what the
//! inodes of a project take changes the project's item too, so that a crash leaves it exact. A
//! volume without projects has none of this, and no transaction of it takes more.
//!
//! Of bytes an inode takes its blocks and the cells of its items, those of its extents left out:
//! names, targets and attributes count, and an empty file is not for nothing.

use atoll_block::{Addressable, BLOCK_SIZE};
use atoll_vfs::{Ino, StatFs};

use crate::error::{Corruption, FsError, Result};
use crate::key::{Key, Kind};
use crate::layout::{cell, get32, get64, inode, project, put32, put64};
use crate::store::Store;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// Bytes of a project's item that change with its usage.
pub const USAGE_LEN: usize = project::FLAGS - project::BYTES;

/// The space and the number of some inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes.
    pub bytes: u64,
    /// Inodes.
    pub inodes: u64,
}

/// The most that the inodes below a directory may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Bytes; `None` is no bound.
    pub bytes: Option<u64>,
    /// Inodes, the directory's own among them; `None` is no bound.
    pub inodes: Option<u64>,
}

/// A project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Project {
    /// Its number, as in the records of its inodes.
    pub number: u32,
    /// The directory that it is for.
    pub root: Ino,
    /// The space and the number of its inodes.
    pub usage: Usage,
    /// Everything below the directory belongs to it.
    pub complete: bool,
    /// Its quota, which no volume stores: the server that has the volume sets it.
    pub(crate) quota: Option<Quota>,
}

/// A change of what a project takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Charge {
    number: u32,
    bytes: i64,
    inodes: i64,
}

impl Usage {
    /// With `item` of an inode of the project, whose value is `value`.
    pub(crate) fn add_item(&mut self, key: Key, blocks: u64, value: &[u8]) {
        self.bytes += match key.kind() {
            Some(Kind::Extent) => blocks * BLOCK,
            _ => item_bytes(value.len()) as u64,
        };
        self.inodes += u64::from(key.kind() == Some(Kind::Inode));
    }
}

impl Project {
    /// Reads and checks the item of a project.
    ///
    /// # Errors
    /// [`Corruption::Item`].
    pub(crate) fn parse(key: Key, b: &[u8]) -> Result<Project> {
        let number = u32::try_from(key.offset()).unwrap_or(0);
        if b.len() != project::LEN || number == 0 {
            return Err(Corruption::Item.into());
        }
        Ok(Project {
            number,
            root: Ino(get64(b, project::ROOT)),
            usage: Usage { bytes: get64(b, project::BYTES), inodes: get64(b, project::INODES) },
            complete: get32(b, project::FLAGS) & project::COMPLETE != 0,
            quota: None,
        })
    }

    /// The value of its item.
    pub(crate) fn emit(&self) -> [u8; project::LEN] {
        let mut b = [0; project::LEN];
        put64(&mut b, project::ROOT, self.root.0);
        put64(&mut b, project::BYTES, self.usage.bytes);
        put64(&mut b, project::INODES, self.usage.inodes);
        put32(&mut b, project::FLAGS, if self.complete { project::COMPLETE } else { 0 });
        b
    }

    fn after(&self, charge: &Charge) -> Usage {
        Usage {
            bytes: self.usage.bytes.saturating_add_signed(charge.bytes),
            inodes: self.usage.inodes.saturating_add_signed(charge.inodes),
        }
    }

    /// Whether the quota leaves room for `charge`. A charge that takes no more than before always
    /// has room: a project may have been beyond its quota when it got it.
    fn has_room(&self, charge: &Charge) -> bool {
        let after = self.after(charge);
        let Quota { bytes, inodes } = self.quota.unwrap_or_default();
        (charge.bytes <= 0 || bytes.is_none_or(|most| after.bytes <= most))
            && (charge.inodes <= 0 || inodes.is_none_or(|most| after.inodes <= most))
    }
}

impl Charge {
    /// Makes it part of its project's usage.
    pub(crate) fn settle(&self, projects: &mut [Project]) {
        if let Some(project) = projects.iter_mut().find(|project| project.number == self.number) {
            project.usage = project.after(self);
        }
    }
}

/// The bytes that an item with a value of `len` bytes takes.
pub(crate) const fn item_bytes(len: usize) -> i64 {
    (cell::VALUE + len) as i64
}

impl<M: Addressable> Store<M> {
    /// Reads the volume's projects.
    pub(crate) fn load_projects(&mut self) -> Result<()> {
        self.projects.clear();
        if !self.superblock.has_projects() {
            return Ok(());
        }
        self.cache.begin_operation();
        let mut key = Key::project(0);
        while let Some(place) = self.seek(key)?.filter(|place| place.key.is(0, Kind::Project)) {
            let project = Project::parse(place.key, self.value(&place))?;
            self.projects.push(project);
            key = place.key.next();
        }
        Ok(())
    }

    /// The project `number`. A damaged volume may have inodes of projects that it does not have.
    fn project(&self, number: u32) -> Option<&Project> {
        self.projects.iter().find(|project| project.number == number)
    }

    /// The project of `ino`, if the volume has any.
    pub(crate) fn project_of(&mut self, ino: Ino) -> Result<u32> {
        if self.projects.is_empty() { Ok(0) } else { Ok(self.read_inode(ino)?.project) }
    }

    /// Whether a project with a quota is for the directory `ino`. It stays where it is: the quota
    /// is for what lies there.
    pub(crate) fn is_quota_root(&self, ino: Ino) -> bool {
        self.projects.iter().any(|project| project.root == ino && project.quota.is_some())
    }

    /// Within a transaction: the project `number` takes so much more, or less.
    #[inline]
    pub(crate) fn charge(&mut self, number: u32, bytes: i64, inodes: i64) {
        if number != 0 {
            self.add_charge(Charge { number, bytes, inodes });
        }
    }

    fn add_charge(&mut self, new: Charge) {
        let charges = &mut self.transaction.charges;
        match charges.iter_mut().find(|charge| charge.number == new.number) {
            Some(charge) => {
                charge.bytes += new.bytes;
                charge.inodes += new.inodes;
            }
            None => charges.push(new),
        }
    }

    /// As [`charge`](Self::charge), for `len` blocks of a file.
    ///
    /// # Errors
    /// [`FsError::Quota`], before anything is stored there.
    #[inline]
    pub(crate) fn charge_blocks(&mut self, number: u32, len: u64) -> Result<()> {
        if number == 0 {
            return Ok(());
        }
        self.charge(number, (len * BLOCK) as i64, 0);
        self.check_charges()
    }

    /// As [`charge`](Self::charge), for `len` blocks that a file does not have any more.
    #[inline]
    pub(crate) fn discharge_blocks(&mut self, number: u32, len: u64) {
        self.charge(number, -((len * BLOCK) as i64), 0);
    }

    /// As [`charge`](Self::charge), for an item with a value of `len` bytes.
    #[inline]
    pub(crate) fn charge_item(&mut self, number: u32, len: usize) {
        self.charge(number, item_bytes(len), 0);
    }

    /// As [`charge`](Self::charge), for an item that is removed.
    #[inline]
    pub(crate) fn discharge_item(&mut self, number: u32, len: usize) {
        self.charge(number, -item_bytes(len), 0);
    }

    /// As [`charge`](Self::charge), for an inode.
    pub(crate) fn charge_inode(&mut self, number: u32) {
        self.charge(number, item_bytes(inode::LEN), 1);
    }

    /// As [`charge`](Self::charge), for an inode that is removed.
    pub(crate) fn discharge_inode(&mut self, number: u32) {
        self.charge(number, -item_bytes(inode::LEN), -1);
    }

    /// Whether quotas leave room for what the transaction takes.
    fn check_charges(&self) -> Result<()> {
        let room = |charge: &Charge| {
            self.project(charge.number).is_none_or(|project| project.has_room(charge))
        };
        if self.transaction.frees_space || self.transaction.charges.iter().all(room) {
            return Ok(());
        }
        Err(FsError::Quota)
    }

    /// The end of a transaction: what projects take goes to their items.
    #[inline]
    pub(crate) fn put_charges(&mut self) -> Result<()> {
        if self.transaction.charges.is_empty() { Ok(()) } else { self.put_all_charges() }
    }

    fn put_all_charges(&mut self) -> Result<()> {
        self.check_charges()?;
        for at in 0..self.transaction.charges.len() {
            let charge = self.transaction.charges[at];
            let Some(project) = self.project(charge.number) else { continue };
            let Usage { bytes, inodes } = project.after(&charge);
            if project.usage == (Usage { bytes, inodes }) {
                continue;
            }
            let place = self.find(Key::project(charge.number))?.ok_or(Corruption::Item)?;
            if self.value(&place).len() != project::LEN {
                return Err(Corruption::Item.into());
            }
            let mut b = [0; USAGE_LEN];
            put64(&mut b, 0, bytes);
            put64(&mut b, 8, inodes);
            self.update(&place, project::BYTES, &b);
        }
        Ok(())
    }

    /// The blocks that the quota of a project leaves.
    pub(crate) fn blocks_left(&self, number: u32) -> u64 {
        let left = |project: &Project| {
            let most = project.quota?.bytes?;
            let mut after = project.usage;
            for charge in self.transaction.charges.iter().filter(|c| c.number == number) {
                after = project.after(charge);
            }
            Some(most.saturating_sub(after.bytes) / BLOCK)
        };
        self.project(number).and_then(left).unwrap_or(u64::MAX)
    }

    /// The answer to statfs(2) in a directory of the project `number`: `whole` is the volume's.
    pub(crate) fn within_quota(&self, number: u32, whole: StatFs) -> StatFs {
        let mut stat = whole;
        let Some(Project { usage, quota: Some(quota), .. }) = self.project(number) else {
            return stat;
        };
        if let Some(most) = quota.bytes {
            let left = most.saturating_sub(usage.bytes) / BLOCK;
            stat.blocks = stat.blocks.min(most / BLOCK);
            stat.blocks_free = stat.blocks_free.min(left);
            stat.blocks_available = stat.blocks_free;
        }
        if let Some(most) = quota.inodes {
            stat.files_free = stat.files_free.min(most.saturating_sub(usage.inodes));
            stat.files = usage.inodes.saturating_add(stat.files_free);
        }
        stat
    }
}
