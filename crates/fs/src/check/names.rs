//! Names and inodes against each other: links, parents, and the way from the root to everything.

use alloc::boxed::Box;
use alloc::vec::Vec;

use atoll_block::Addressable;
use atoll_vfs::FileType;

use super::items::{InodeInfo, Reach, Sink};
use super::projects::Projects;
use super::report::{Finding, Report};
use super::tree::Tree;
use super::view::View;
use crate::dir;
use crate::error::Result;
use crate::key::{Key, Kind};
use crate::layout::dirent;

/// A directory entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NameInfo {
    pub dir: u64,
    pub offset: u64,
    pub ino: u64,
    pub file_type: FileType,
    /// Not to be kept.
    pub surplus: bool,
}

impl NameInfo {
    pub fn key(&self) -> Key {
        Key::new(self.dir, Kind::Dirent, self.offset)
    }
}

/// All inodes, by number, and all names, by key: 96 and 32 bytes each.
#[derive(Default)]
pub(crate) struct Namespace {
    pub inodes: Vec<InodeInfo>,
    pub names: Vec<NameInfo>,
}

/// Collects what the screen keeps.
pub(crate) struct Collect<'a> {
    pub namespace: &'a mut Namespace,
    pub projects: &'a mut Projects,
    pub report: &'a mut Report,
}

impl Sink for Collect<'_> {
    fn finding(&mut self, finding: Finding) {
        self.report.add(finding);
    }

    fn keep(&mut self, key: Key, value: &[u8]) -> Result<()> {
        self.report.count_item(key);
        self.projects.count(key, value)?;
        if key.kind() == Some(Kind::Dirent) {
            let (ino, file_type, _) = dir::parse(value)?;
            let (dir, offset) = (key.ino, key.offset());
            let ino = ino.0;
            self.namespace.names.push(NameInfo { dir, offset, ino, file_type, surplus: false });
        }
        Ok(())
    }

    fn inode(&mut self, info: InodeInfo) {
        self.report.count_type(info.file_type);
        self.report.data_blocks += info.blocks;
        self.report.orphans += u64::from(info.removed);
        self.namespace.inodes.push(info);
    }
}

impl Namespace {
    fn index(&self, ino: u64) -> Option<usize> {
        self.inodes.binary_search_by_key(&ino, |i| i.ino).ok()
    }

    /// The inode `ino`, if it is one to keep.
    pub fn get(&self, ino: u64) -> Option<&InodeInfo> {
        self.index(ino).map(|i| &self.inodes[i]).filter(|i| !i.unusable)
    }

    /// As [`get`](Self::get).
    pub fn get_mut(&mut self, ino: u64) -> Option<&mut InodeInfo> {
        self.index(ino).map(|i| &mut self.inodes[i]).filter(|i| !i.unusable)
    }

    /// Holds the names against the inodes, and the inodes against the root.
    pub fn check<M: Addressable>(
        &mut self,
        view: &mut View<'_, M>,
        tree: &Tree,
        report: &mut Report,
    ) {
        if self.get(1).is_none() {
            report.add(Finding::NoRoot);
        }
        for at in 0..self.names.len() {
            if let Some(finding) = self.check_name(at, view, tree) {
                report.add(finding);
            }
        }
        self.count_subdirectories();
        self.find_ways(report);
        for info in self.inodes.iter().filter(|i| !i.removed && !i.unusable) {
            check_links(info, report);
        }
    }

    /// Counts one name. Returns its fault, if it has one.
    fn check_name<M: Addressable>(
        &mut self,
        at: usize,
        view: &mut View<'_, M>,
        tree: &Tree,
    ) -> Option<Finding> {
        let mut text = |name: &NameInfo| -> Box<[u8]> {
            let value = tree.fetch(view, name.key()).unwrap_or_default();
            value.get(dirent::NAME..).unwrap_or_default().into()
        };
        let name = self.names[at];
        let NameInfo { dir, ino, .. } = name;
        let Some(index) = self.index(ino).filter(|&i| {
            let info = &self.inodes[i];
            !info.unusable && !info.removed
        }) else {
            self.names[at].surplus = true;
            return Some(Finding::Dangling { dir, name: text(&name), ino });
        };
        let info = &mut self.inodes[index];
        if info.file_type != FileType::Directory {
            info.names += 1;
        } else if ino == 1 {
            self.names[at].surplus = true;
            return Some(Finding::DirectoryNamed { dir, name: text(&name), ino });
        } else if let Some(kept) = info.name {
            // A directory with several names keeps the one in its own parent, else the first.
            let surplus = if dir == info.stored_parent && info.parent != info.stored_parent {
                info.name = Some(at as u32);
                info.parent = dir;
                kept as usize
            } else {
                at
            };
            self.names[surplus].surplus = true;
            let lost = self.names[surplus];
            return Some(Finding::DirectoryNamed { dir: lost.dir, name: text(&lost), ino });
        } else {
            info.name = Some(at as u32);
            info.parent = dir;
            info.names = 1;
        }
        let is = self.inodes[index].file_type;
        (is != name.file_type).then(|| Finding::EntryType { dir, name: text(&name), ino, is })
    }

    fn count_subdirectories(&mut self) {
        for at in 0..self.inodes.len() {
            let InodeInfo { parent, file_type, .. } = self.inodes[at];
            if file_type == FileType::Directory
                && parent != 0
                && let Some(parent) = self.get_mut(parent)
            {
                parent.subdirectories += 1;
            }
        }
    }

    /// Goes from every directory up to the root, or to where the way ends.
    fn find_ways(&mut self, report: &mut Report) {
        if let Some(root) = self.get_mut(1) {
            root.reach = Reach::Known;
        }
        let mut way = Vec::new();
        for at in 0..self.inodes.len() {
            let mut next = Some(at);
            while let Some(i) = next {
                let info = &mut self.inodes[i];
                let is_live = info.file_type == FileType::Directory && !info.removed;
                if !is_live || info.reach == Reach::Known {
                    break;
                }
                if info.reach == Reach::OnTheWay {
                    // The way led back to itself: cut it here.
                    report.add(Finding::Cycle { ino: info.ino });
                    let (parent, name) = (info.parent, info.name.take());
                    info.parent = 0;
                    info.names = 0;
                    if let Some(name) = name {
                        self.names[name as usize].surplus = true;
                    }
                    if let Some(parent) = self.get_mut(parent) {
                        parent.subdirectories = parent.subdirectories.saturating_sub(1);
                    }
                    break;
                }
                info.reach = Reach::OnTheWay;
                way.push(i);
                let parent = info.parent;
                next = if parent == 0 { None } else { self.index(parent) };
            }
            for i in way.drain(..) {
                self.inodes[i].reach = Reach::Known;
            }
        }
    }

    /// Whether no name leads to an inode that should have one.
    pub fn is_lost(info: &InodeInfo) -> bool {
        info.names == 0 && info.ino != 1 && !info.removed && !info.unusable
    }
}

/// Compares an inode's record of its names with the names.
fn check_links(info: &InodeInfo, report: &mut Report) {
    let InodeInfo { ino, file_type, .. } = *info;
    if Namespace::is_lost(info) {
        report.add(Finding::Unreachable { ino, file_type });
        return;
    }
    let is_dir = file_type == FileType::Directory;
    let parent = if ino == 1 { 1 } else { info.parent };
    let counted = info.links();
    if info.made_up {
        return;
    }
    if info.stored_links != counted {
        report.add(Finding::Links { ino, stored: info.stored_links, counted });
    }
    if is_dir && info.stored_parent != parent {
        report.add(Finding::Parent { ino, stored: info.stored_parent, parent });
    }
}

impl InodeInfo {
    /// The links that the record should give.
    pub fn links(&self) -> u32 {
        match self.file_type {
            _ if self.removed => 0,
            FileType::Directory => self.subdirectories.saturating_add(2),
            _ => self.names,
        }
    }
}
