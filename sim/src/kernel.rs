//! The kernel of a mount, as far as it caches: attributes and pages, by the rules of Linux's FUSE.
//!
//! It keeps only *when* it learned something, by the number of a call: that the answer was right
//! then has been judged already.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use atoll_server::leases::caches::KernelCache;
use atoll_server::leases::gate::{Next, Notice};
use atoll_vfs::Ino;

use crate::call::Node;
use crate::machine::Rung;

/// How long a mount that ends has requests answered, so that its kernel can take its notices.
const DRAIN: Duration = Duration::from_secs(2);
/// The pause before it gets a notice again of an inode that it does not know yet: longer than that
/// of a real notifier, which would take thousands of turns until its mount is fenced.
const RETRY: Duration = Duration::from_millis(100);

/// An inode that the kernel knows.
#[derive(Clone, Copy)]
struct Known {
    node: Node,
    /// How often it was given.
    count: u64,
    /// The kernel's version when something made answers old that were on their way.
    version: u64,
    /// The calls by which it learned the attributes and the pages that it has.
    attributes: Option<u64>,
    pages: Option<u64>,
    /// Reads for the page cache that are on their way: the page is locked.
    reading: u32,
    /// Its own calls wait for these reads, and then drop what they brought.
    doomed: bool,
}

impl Known {
    fn new(node: Node) -> Known {
        let (attributes, pages) = (None, None);
        Known { node, count: 0, version: 0, attributes, pages, reading: 0, doomed: false }
    }
}

/// One mount's kernel.
pub struct Kernel {
    /// Its leases.
    pub cache: Arc<KernelCache>,
    /// Rung when there is a notice for it.
    pub bell: Arc<Rung>,
    /// It takes no notices, until its mount is given up.
    pub stubborn: bool,
    /// It has not lied itself, so what it shows is to be right.
    pub is_believed: bool,
    known: BTreeMap<u64, Known>,
    /// Raised by whatever makes answers on their way old.
    version: u64,
    /// The notice that is written to it, and since when.
    telling: Option<(Notice, Duration)>,
    /// The notice is not repeated before this.
    again: Duration,
    /// When its mount ended.
    ended: Option<Duration>,
    /// Its own calls to which it never got an answer.
    pub unanswered: Vec<u64>,
    /// It gets no more notices.
    pub over: bool,
    /// It forgets attributes when it says so, and pages; planted ones do not.
    pub forgets: (bool, bool),
}

impl Kernel {
    /// A kernel that knows the root of its mount.
    pub fn new(cache: Arc<KernelCache>, bell: Arc<Rung>, root: Node) -> Kernel {
        let known = Known { count: u64::MAX, ..Known::new(root) };
        Kernel {
            cache,
            bell,
            stubborn: false,
            is_believed: true,
            known: BTreeMap::from([(root.served.0, known)]),
            version: 0,
            telling: None,
            again: Duration::ZERO,
            ended: None,
            unanswered: Vec::new(),
            over: false,
            forgets: (true, true),
        }
    }

    /// The version when a request is sent.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Whether what was asked for at `version` may be believed of `ino`.
    pub fn is_fresh(&self, ino: Ino, version: u64) -> bool {
        self.known.get(&ino.0).is_none_or(|known| known.version <= version)
    }

    /// It is given an inode, by an answer.
    pub fn given(&mut self, node: Node) {
        let known = self.known.entry(node.served.0).or_insert_with(|| Known::new(node));
        known.count = known.count.saturating_add(1);
    }

    /// It learns attributes by the call number `learned`.
    pub fn learn(&mut self, ino: Ino, learned: u64) {
        if let Some(known) = self.known.get_mut(&ino.0) {
            known.attributes = Some(learned);
        }
    }

    /// The model's inode `ino` changed by a call of its own, which it has the answer to.
    pub fn changed(&mut self, ino: Ino, pages: bool) {
        self.version += 1;
        for known in self.known.values_mut().filter(|known| known.node.model == ino) {
            known.version = self.version;
            known.attributes = None;
            if pages {
                known.pages = None;
                known.doomed = known.reading > 0;
            }
        }
    }

    /// A read for the page cache begins.
    pub fn begin_reading(&mut self, ino: Ino) {
        if let Some(known) = self.known.get_mut(&ino.0) {
            known.reading += 1;
        }
    }

    /// It has got the pages, by the call number `learned`; or nothing.
    pub fn end_reading(&mut self, ino: Ino, learned: Option<u64>) {
        if let Some(known) = self.known.get_mut(&ino.0) {
            known.reading = known.reading.saturating_sub(1);
            let learned = learned.filter(|_| !known.doomed);
            known.doomed &= known.reading > 0;
            // The pages that it had before are of another place in the file.
            known.pages = match (known.pages, learned) {
                (Some(had), Some(learned)) => Some(had.min(learned)),
                (had, learned) => had.or(learned),
            };
        }
    }

    /// A file is opened by an answer that does not say FOPEN_KEEP_CACHE.
    pub fn drop_pages(&mut self, ino: Ino) {
        if let Some(known) = self.known.get_mut(&ino.0) {
            known.pages = None;
        }
    }

    /// The call by which it learned the attributes of `ino` that it shows without asking.
    pub fn attributes(&self, ino: Ino) -> Option<u64> {
        self.known.get(&ino.0)?.attributes
    }

    /// The same for its pages.
    pub fn pages(&self, ino: Ino) -> Option<u64> {
        self.known.get(&ino.0)?.pages
    }

    /// The data that it shows without asking: inodes of the model, the call by which it learned
    /// each, and whether it is the content.
    pub fn shows(&self) -> impl Iterator<Item = (Ino, u64, bool)> + '_ {
        self.known.values().filter(|_| self.is_believed).flat_map(|known| {
            let attributes = known.attributes.map(|learned| (known.node.model, learned, false));
            let pages = known.pages.map(|learned| (known.node.model, learned, true));
            [attributes, pages].into_iter().flatten()
        })
    }

    /// Forgets an inode that nothing uses. Returns how often it was given.
    pub fn forget(&mut self, ino: Ino) -> Option<u64> {
        let known = self.known.get(&ino.0)?;
        if known.count == u64::MAX || known.reading > 0 {
            return None;
        }
        self.known.remove(&ino.0).map(|known| known.count)
    }

    /// Its mount ends. Reads that were on their way have failed, and the calls `unanswered`.
    pub fn end(&mut self, now: Duration, unanswered: Vec<u64>) {
        self.unanswered = unanswered;
        self.ended.get_or_insert(now);
        self.known.values_mut().for_each(|known| known.reading = 0);
    }

    /// Whether its notifier has something to do.
    pub fn has_news(&self, now: Duration) -> bool {
        if self.over {
            return false;
        }
        match &self.telling {
            _ if self.is_late(now) => true,
            Some((notice, _)) => !self.stubborn && now >= self.again && !self.is_locked(notice),
            None => self.bell.is_rung(),
        }
    }

    /// When it has something to do if nothing else happens.
    pub fn until(&self) -> Option<Duration> {
        let late = self.ended.map(|ended| ended + DRAIN + Duration::from_micros(1));
        let again = self.telling.as_ref().filter(|_| !self.stubborn).map(|_| self.again);
        late.into_iter().chain(again).min().filter(|_| !self.over)
    }

    fn is_late(&self, now: Duration) -> bool {
        self.ended.is_some_and(|ended| now > ended + DRAIN)
    }

    fn is_locked(&self, notice: &Notice) -> bool {
        let known = self.known.get(&notice.ino);
        notice.pages && known.is_some_and(|known| known.reading > 0)
    }

    /// Its notifier takes one step.
    pub fn turn(&mut self, now: Duration) {
        if self.is_late(now) {
            self.give_up();
        } else if let Some((notice, since)) = self.telling.clone() {
            self.take(notice, now, since);
        } else {
            match self.cache.next() {
                Next::Tell(notice) => self.telling = Some((notice, now)),
                // The bell rings again for notices that come after this look.
                Next::Nothing => self.bell.hear(),
                Next::Over => self.give_up(),
            }
        }
    }

    /// Nobody waits for it any more, and nothing is promised of what it shows.
    fn give_up(&mut self) {
        self.over = true;
        self.known.clear();
        self.cache.give_up();
    }

    fn take(&mut self, notice: Notice, now: Duration, since: Duration) {
        match self.known.get_mut(&notice.ino) {
            Some(known) => {
                if self.forgets.0 {
                    self.version += 1;
                    known.version = self.version;
                    known.attributes = None;
                }
                if notice.pages && self.forgets.1 {
                    known.pages = None;
                }
            }
            None if self.cache.is_coming(&notice, now.saturating_sub(since)) => {
                self.again = now + RETRY;
                return;
            }
            None => {}
        }
        self.telling = None;
        self.cache.told();
    }
}
