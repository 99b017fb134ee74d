//! The findings in images, so that equal images are examined once.
//!
//! A volume's content after a crash depends on the content of its device and on the life that
//! mounts it, and on nothing else: no time, no chance. Many crashes of one workload leave the same
//! content.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use atoll_block::FaultDevice;
use atoll_vfs::model::Snapshot;

use super::judge;

/// The content that a volume was found to have.
#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    /// As `tree`, without the bytes of files. Compared first: most differences show here.
    pub metadata: Snapshot,
    /// Everything that has a name, without the times that may lag behind.
    pub tree: Snapshot,
}

impl Found {
    /// The two views of `whole`.
    pub fn new(whole: Snapshot) -> Found {
        let tree = judge::without_lag(whole);
        Found { metadata: judge::metadata(&tree), tree }
    }
}

/// The content of a device, and who mounts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    content: u64,
    life: [u8; 16],
}

impl Key {
    /// The key of the content that a mount of `device` reads.
    pub fn new(device: &FaultDevice, life: [u8; 16]) -> Key {
        Key { content: device.media().current().fingerprint(), life }
    }
}

/// The findings in the images of one workload, as long as all are mounted with the same options.
#[derive(Debug, Default)]
pub struct Verdicts {
    found: HashMap<Key, Rc<Found>>,
    /// Each that is found, once.
    different: Vec<Rc<Found>>,
    used: HashSet<Key>,
}

/// How many different findings are kept: crashes that lie far apart in a long workload never leave
/// the same.
const DIFFERENT_MAX: usize = 32;

impl Verdicts {
    /// The finding in an image like this.
    pub fn found(&self, key: &Key) -> Option<Rc<Found>> {
        self.found.get(key).cloned()
    }

    /// Notes the finding in an image that was sound in every respect.
    pub fn note(&mut self, key: Key, found: Found) -> Rc<Found> {
        let known = self.different.iter().rev().find(|known| ***known == found).cloned();
        let found = known.unwrap_or_else(|| {
            if self.different.len() == DIFFERENT_MAX {
                self.different.clear();
                self.found.clear();
            }
            let found = Rc::new(found);
            self.different.push(found.clone());
            found
        });
        self.found.insert(key, found.clone());
        found
    }

    /// Notes that an image is used on. Returns whether it is the first time.
    pub fn first_use(&mut self, key: Key) -> bool {
        self.used.insert(key)
    }
}
