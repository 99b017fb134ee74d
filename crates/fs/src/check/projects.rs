//! The usage of each project by its inodes, counted.

use alloc::vec::Vec;

use super::names::Namespace;
use super::report::{Finding, Report};
use crate::error::Result;
use crate::inode::InodeRecord;
use crate::key::{Key, Kind};
use crate::layout::{extent, get32};
use crate::project::{Project, Usage};

/// The projects, by number, and what was seen of their inodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Projects {
    projects: Vec<(Project, Usage)>,
    /// The inode whose items are being seen, if it belongs to one of them: which.
    current: Option<usize>,
    /// Whether any inode belongs to one that is not there.
    missing: bool,
}

impl Projects {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.projects.is_empty() && !self.missing
    }

    fn index(&self, number: u32) -> Option<usize> {
        self.projects.iter().position(|(project, _)| project.number == number)
    }

    /// Whether an inode may belong to `number`.
    pub fn has(&self, number: u32) -> bool {
        number == 0 || self.index(number).is_some()
    }

    /// Takes the next item, which is sound. They come in the order of their keys: projects first,
    /// and an inode's record before its other items.
    pub fn count(&mut self, key: Key, value: &[u8]) -> Result<()> {
        let blocks = match key.kind() {
            Some(Kind::Project) => {
                self.projects.push((Project::parse(key, value)?, Usage::default()));
                return Ok(());
            }
            Some(Kind::Orphan) => return Ok(()),
            Some(Kind::Inode) => {
                let project = InodeRecord::parse(value)?.project;
                self.current = self.index(project);
                self.missing |= !self.has(project);
                0
            }
            Some(Kind::Extent) => u64::from(get32(value, extent::LEN)),
            _ => 0,
        };
        if let Some(current) = self.current {
            self.projects[current].1.add_item(key, blocks, value);
        }
        Ok(())
    }

    /// Compares what was counted with what the projects say.
    pub fn check(&self, namespace: &Namespace, report: &mut Report) {
        if self.missing {
            for info in namespace.inodes.iter().filter(|info| !self.has(info.project)) {
                report.add(Finding::NoProject { ino: info.ino, project: info.project });
            }
        }
        for (Project { number, usage, .. }, counted) in &self.projects {
            if usage != counted {
                let (project, stored, counted) = (*number, *usage, *counted);
                report.add(Finding::Usage { project, stored, counted });
            }
        }
    }

    /// The value of a project's item with what its inodes take.
    pub fn corrected(&self, key: Key, value: &[u8]) -> Result<Vec<u8>> {
        let mut project = Project::parse(key, value)?;
        // Nothing has been counted while that is yet to come.
        if let Some(at) = self.index(project.number) {
            project.usage = self.projects[at].1;
        }
        Ok(project.emit().to_vec())
    }
}
