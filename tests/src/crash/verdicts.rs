//! What was found in images, so that equal ones are looked at once.
//!
//! What a volume holds after a crash depends on the content of its device and on the life that mounts it, and on
//! nothing else: no time, no chance. Many crashes of one workload leave the same content.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use atoll_block::FaultDevice;
use atoll_vfs::model::Snapshot;

use super::judge;

/// What a volume was found to hold.
#[derive(Debug)]
pub struct Found {
    /// Everything that has a name.
    pub whole: Snapshot,
    /// The same without the times that may lag behind.
    pub tree: Snapshot,
    /// The same without the bytes of files either.
    pub metadata: Snapshot,
}

impl Found {
    /// What `whole` says.
    pub fn new(whole: Snapshot) -> Found {
        let tree = judge::without_lag(&whole);
        let metadata = judge::metadata(&tree);
        Found { whole, tree, metadata }
    }
}

/// The content of a device, and who mounts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    content: u64,
    life: [u8; 16],
}

impl Key {
    /// That of what a mount of `device` reads.
    pub fn new(device: &FaultDevice, life: [u8; 16]) -> Key {
        Key { content: device.media().current().fingerprint(), life }
    }
}

/// What was found in the images of one workload, as long as all are mounted with the same means.
#[derive(Debug, Default)]
pub struct Verdicts {
    found: HashMap<Key, Rc<Found>>,
    used: HashSet<Key>,
}

impl Verdicts {
    /// What was found in an image like this.
    pub fn found(&self, key: &Key) -> Option<Rc<Found>> {
        self.found.get(key).cloned()
    }

    /// Notes what was found in an image that was sound in every respect.
    pub fn note(&mut self, key: Key, found: Rc<Found>) {
        self.found.insert(key, found);
    }

    /// Notes that an image is used on. Returns whether it is the first time.
    pub fn first_use(&mut self, key: Key) -> bool {
        self.used.insert(key)
    }
}
