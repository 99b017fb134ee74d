//! Quotas are given to directories: makes a project for each, and ends those that are for none.
//!
//! Nobody else uses the volume meanwhile. Each inode gets its project in a transaction of its own,
//! with what it takes; a crash leaves some that have theirs and some that do not, the usage exact,
//! and a project that is not complete: whoever sets quotas next goes on.

use alloc::vec::Vec;

use atoll_block::{Addressable, BLOCK_SIZE, BlockIndex};
use atoll_vfs::{Errno, Ino};

use crate::dir;
use crate::error::{Corruption, Result};
use crate::fs::Fs;
use crate::key::{Key, Kind};
use crate::layout::{inode, project, superblock};
use crate::project::{Project, Quota, item_bytes};
use crate::store::Store;
use crate::table::InodeTable;

impl<M: Addressable> Fs<M> {
    /// Gives the directories of `quotas` their quotas, for as long as the volume stays mounted, and
    /// takes them from all others. Nothing may be open.
    ///
    /// Everything below such a directory belongs to its project from then on: it counts against the
    /// quota, new names for it are made within the directory only, and it is renamed within it
    /// only, by whoever has the volume. That ends when quotas are set without the directory. The
    /// first time takes a walk through all that is below. The usage found there may exceed the
    /// quota.
    ///
    /// A volume that takes no changes keeps its projects as they are.
    ///
    /// # Errors
    /// `EINVAL` if one of the directories lies within another, `ENOTDIR`, `ESTALE`, `EBUSY` if
    /// something is open; those of the device.
    pub fn set_quotas(&mut self, quotas: &[(Ino, Quota)]) -> Result<()> {
        for project in &mut self.store.projects {
            project.quota = None;
        }
        if !self.store.is_read_only() {
            self.make_projects(quotas)?;
        }
        for project in &mut self.store.projects {
            let quota = quotas.iter().find(|(root, _)| *root == project.root);
            project.quota = quota.map(|(_, quota)| *quota).filter(|_| project.complete);
        }
        Ok(())
    }

    /// The quota of the project that `ino` belongs to, and what the project takes.
    ///
    /// # Errors
    /// `ESTALE`; those of the device.
    pub fn project(&mut self, ino: Ino) -> Result<Option<Project>> {
        let number = self.record(ino)?.project;
        Ok(self.store.projects.iter().find(|project| project.number == number).copied())
    }

    /// Has a project for each directory of `quotas`, and no other.
    fn make_projects(&mut self, quotas: &[(Ino, Quota)]) -> Result<()> {
        self.check_roots(quotas)?;
        let is_over = |project: &&Project| !quotas.iter().any(|(root, _)| *root == project.root);
        let over: Vec<u32> = self.store.projects.iter().filter(is_over).map(|p| p.number).collect();
        let lacks = |root: Ino, projects: &[Project]| {
            !projects.iter().any(|project| project.root == root && project.complete)
        };
        if over.is_empty() && !quotas.iter().any(|(root, _)| lacks(*root, &self.store.projects)) {
            return Ok(());
        }
        self.forget_inodes()?;
        self.end_projects(&over)?;
        for (root, _) in quotas {
            if lacks(*root, &self.store.projects) {
                self.make_project(*root)?;
            }
        }
        Ok(())
    }

    /// Whether the directories of `quotas` are apart from each other.
    fn check_roots(&mut self, quotas: &[(Ino, Quota)]) -> Result<()> {
        for (at, (root, _)) in quotas.iter().enumerate() {
            let mut dir = *root;
            let mut steps = self.store.state.inodes;
            while dir != Ino::ROOT {
                let parent = Ino(self.directory(dir)?.parent);
                if quotas.iter().any(|(other, _)| *other == parent) {
                    return Err(Errno::EINVAL.into());
                }
                // In a damaged volume the way can lead back to itself.
                steps = steps.checked_sub(1).ok_or(Corruption::Item)?;
                dir = parent;
            }
            self.directory(*root)?;
            if quotas[..at].iter().any(|(other, _)| other == root) {
                return Err(Errno::EINVAL.into());
            }
        }
        Ok(())
    }

    /// Lets go of the inodes in memory, whose records are about to change.
    fn forget_inodes(&mut self) -> Result<()> {
        if self.has_open() {
            return Err(Errno::EBUSY.into());
        }
        self.commit(false)?;
        self.inodes = InodeTable::default();
        Ok(())
    }

    /// Ends the projects `over`: their inodes belong to none, wherever they are.
    fn end_projects(&mut self, over: &[u32]) -> Result<()> {
        if over.is_empty() {
            return Ok(());
        }
        let mut next = Key::inode(Ino::ROOT.0);
        loop {
            self.store.cache.begin_operation();
            let Some(place) = self.store.seek(next)? else { break };
            let ino = Ino(place.key.ino);
            if place.key == Key::inode(ino.0) && over.contains(&self.store.read_inode(ino)?.project)
            {
                self.store.transact(true, |store| store.set_project(ino, 0))?;
            }
            // The other items of the inode are not looked at.
            next = Key::new(ino.0.saturating_add(1), Kind::Inode, 0);
        }
        for &number in over {
            self.store.transact(true, |store| store.remove(Key::project(number)))?;
            self.store.projects.retain(|project| project.number != number);
        }
        Ok(())
    }

    /// Makes a project for the directory `root`, or goes on with it, until it is complete.
    fn make_project(&mut self, root: Ino) -> Result<()> {
        self.store.announce_projects()?;
        let projects = &self.store.projects;
        let number = match projects.iter().find(|project| project.root == root) {
            Some(project) => project.number,
            None => {
                let taken = |number: &u32| projects.iter().any(|p| p.number == *number);
                let number = (1..=u32::MAX).find(|n| !taken(n)).ok_or(Errno::ENOSPC)?;
                let new = Project {
                    number,
                    root,
                    usage: Default::default(),
                    complete: false,
                    quota: None,
                };
                self.store
                    .transact(false, |store| store.insert(Key::project(number), &new.emit()))?;
                self.store.projects.push(new);
                number
            }
        };
        self.fill_project(root, number)?;
        self.store.transact(true, |store| {
            let place = store.find(Key::project(number))?.ok_or(Corruption::Item)?;
            store.update(&place, project::FLAGS, &project::COMPLETE.to_le_bytes());
            Ok(())
        })?;
        for project in self.store.projects.iter_mut().filter(|p| p.number == number) {
            project.complete = true;
        }
        Ok(())
    }

    /// Puts everything below `root` in the project `number`. A file that has a name in another
    /// project too stays in that which came first.
    fn fill_project(&mut self, root: Ino, number: u32) -> Result<()> {
        let mut way = alloc::vec![(root, Key::new(root.0, Kind::Dirent, 0))];
        self.join(root, number)?;
        while let Some((dir, next)) = way.last_mut() {
            self.store.cache.begin_operation();
            let place = self.store.seek(*next)?.filter(|p| p.key.is(dir.0, Kind::Dirent));
            let Some(place) = place else {
                way.pop();
                continue;
            };
            *next = place.key.next();
            let (ino, ..) = dir::parse(self.store.value(&place))?;
            if self.join(ino, number)? {
                if way.len() as u64 > self.store.state.inodes {
                    return Err(Corruption::Item.into());
                }
                way.push((ino, Key::new(ino.0, Kind::Dirent, 0)));
            }
        }
        Ok(())
    }

    /// Puts `ino` in the project `number` if it is in none. Returns whether it is a directory.
    fn join(&mut self, ino: Ino, number: u32) -> Result<bool> {
        self.store.cache.begin_operation();
        let record = self.store.read_inode(ino)?;
        if record.project == 0 {
            self.store.transact(true, |store| store.set_project(ino, number))?;
        }
        Ok(record.is_dir())
    }
}

impl<M: Addressable> Store<M> {
    /// Within a transaction: puts an inode, with all that it takes, in the project `number`.
    fn set_project(&mut self, ino: Ino, number: u32) -> Result<()> {
        let record = self.read_inode(ino)?;
        let mut bytes = (record.blocks * BLOCK_SIZE as u64) as i64;
        let mut key = Key::inode(ino.0);
        while let Some(place) = self.seek(key)?.filter(|place| place.key.ino == ino.0) {
            if place.key.kind() != Some(Kind::Extent) {
                bytes += item_bytes(self.value(&place).len());
            }
            key = place.key.next();
        }
        self.charge(record.project, -bytes, -1);
        self.charge(number, bytes, 1);
        let place = self.inode_place(ino)?;
        self.update(&place, inode::PROJECT, &number.to_le_bytes());
        Ok(())
    }

    /// Says in both superblocks that the volume has projects, before it has the first: a version
    /// that knows none would take them for damage.
    fn announce_projects(&mut self) -> Result<()> {
        if self.superblock.has_projects() {
            return Ok(());
        }
        let mut new = self.superblock.clone();
        new.incompatible |= superblock::PROJECTS;
        new.generation += 1;
        for index in [BlockIndex(0), new.copy_index()] {
            let mut b = [0; BLOCK_SIZE];
            new.emit(&mut b, index);
            self.device.write(index, &b)?;
            self.device.flush_range(index, 1)?;
        }
        self.superblock = new;
        Ok(())
    }
}
