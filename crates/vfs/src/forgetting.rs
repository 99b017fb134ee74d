//! Callers that use inodes for a moment, and never say that they are done with them.
//!
//! A program that calls by paths looks names up all the time. What it has not used for long is
//! forgotten for it here, so that a server for kernels, which keeps what it has given until it is
//! forgotten, keeps no more than some: virtiofsd has a descriptor of the host for each.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use crate::errno::Result;
use crate::filesystem::FileSystem;
use crate::locks::Locks;
use crate::types::*;

/// How many inodes are known at a time, beside those that are open.
pub const KNOWN: usize = 4096;

/// What the server has given of an inode.
#[derive(Debug, Default)]
struct Known {
    /// How often.
    count: u64,
    /// Open files, and what callers [hold](FileSystem::recall).
    held: usize,
    /// Used since the last look for one to forget.
    used: bool,
}

/// A [`FileSystem`] that forgets for its callers what they used longest ago.
///
/// What is open stays known, and so does what a caller has had counted by
/// [`recall`](FileSystem::recall), until it is forgotten as often by
/// [`forget`](FileSystem::forget). Of anything else a caller uses the number no longer than for
/// [`KNOWN`] other names.
#[derive(Debug)]
pub struct Forgetting<F> {
    inner: F,
    most: usize,
    known: BTreeMap<Ino, Known>,
    /// In the order in which they are looked at.
    order: VecDeque<Ino>,
    /// How many of them are held, and so count for nothing.
    held: usize,
}

impl<F: FileSystem> Forgetting<F> {
    /// Has `inner` know [`KNOWN`] inodes.
    pub fn new(inner: F) -> Self {
        Self::with(inner, KNOWN)
    }

    /// Has `inner` know `most` inodes.
    fn with(inner: F, most: usize) -> Self {
        let (known, order) = (BTreeMap::new(), VecDeque::new());
        Forgetting { inner, most, known, order, held: 0 }
    }

    /// The file system.
    pub fn inner(&mut self) -> &mut F {
        &mut self.inner
    }

    /// The file system, alone.
    pub fn into_inner(self) -> F {
        self.inner
    }

    fn entry(&mut self, ino: Ino) -> &mut Known {
        let order = &mut self.order;
        self.known.entry(ino).or_insert_with(|| {
            order.push_back(ino);
            Known::default()
        })
    }

    /// The server has given `ino` once more.
    fn given(&mut self, ino: Ino) {
        if ino != Ino::ROOT {
            let known = self.entry(ino);
            known.count += 1;
            known.used = true;
            self.shrink();
        }
    }

    fn named(&mut self, answer: Result<Attr>) -> Result<Attr> {
        if let Ok(attr) = &answer {
            self.given(attr.ino);
        }
        answer
    }

    fn made(&mut self, answer: Result<(Attr, Handle)>) -> Result<(Attr, Handle)> {
        if let Ok((attr, _)) = &answer {
            // Before another is forgotten: it is open.
            self.hold(attr.ino, 1);
            self.given(attr.ino);
        }
        answer
    }

    fn hold(&mut self, ino: Ino, count: usize) {
        if ino != Ino::ROOT && count > 0 {
            let known = self.entry(ino);
            let is_first = known.held == 0;
            known.held = known.held.saturating_add(count);
            self.held += usize::from(is_first);
        }
    }

    fn let_go(&mut self, ino: Ino, count: usize) {
        if let Some(known) = self.known.get_mut(&ino).filter(|known| known.held > 0) {
            known.held = known.held.saturating_sub(count);
            self.held -= usize::from(known.held == 0);
        }
    }

    /// Forgets inodes until there are no more than some beside those that are held.
    fn shrink(&mut self) {
        let mut looks = 2 * self.order.len();
        while self.known.len() - self.held > self.most && looks > 0 {
            looks -= 1;
            let Some(ino) = self.order.pop_front() else { return };
            let Some(known) = self.known.get_mut(&ino) else { continue };
            if known.held > 0 || core::mem::take(&mut known.used) {
                self.order.push_back(ino);
                continue;
            }
            let count = known.count;
            self.known.remove(&ino);
            if count > 0 {
                self.inner.forget(ino, count);
            }
        }
    }
}

/// Asks the file system below.
macro_rules! inner {
    ($self:ident $verb:ident ($($arg:ident),*)) => {
        $self.inner.$verb($($arg),*)
    };
}

/// The same for what gives an inode.
macro_rules! named {
    ($self:ident $verb:ident ($($arg:ident),*)) => {{
        let answer = $self.inner.$verb($($arg),*);
        $self.named(answer)
    }};
}

/// The same for what makes an open file.
macro_rules! made {
    ($self:ident $verb:ident ($($arg:ident),*)) => {{
        let answer = $self.inner.$verb($($arg),*);
        $self.made(answer)
    }};
}

impl<F: FileSystem> FileSystem for Forgetting<F> {
    crate::verbs!(inner: is_submount getattr setattr readlink unlink rmdir rename read
        read_vectored accessed write write_vectored copy_file_range fallocate seek fsync mappable
        readdir readdir_names fsyncdir syncfs begin_sync begin_fsync end_sync checkpoint_step
        work_in_steps take_rest begin_free free_step statfs setxattr getxattr listxattr
        removexattr);
    crate::verbs!(named: mknod mkdir symlink link);
    crate::verbs!(made: create tmpfile);

    fn statfs_below(&mut self, cx: &Context, dir: Ino) -> Result<StatFs> {
        self.inner.statfs_below(cx, dir)
    }

    fn lookup(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<Attr> {
        let answer = self.inner.lookup(cx, parent, name);
        if let Some(parent) = self.known.get_mut(&parent) {
            parent.used = true;
        }
        self.named(answer)
    }

    /// Counts against what was [held](Self::recall); the rest is forgotten when its time comes.
    fn forget(&mut self, ino: Ino, count: u64) {
        self.let_go(ino, usize::try_from(count).unwrap_or(usize::MAX));
    }

    fn recall(&mut self, ino: Ino, count: u64) {
        self.hold(ino, usize::try_from(count).unwrap_or(usize::MAX));
    }

    fn open(&mut self, cx: &Context, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        let handle = self.inner.open(cx, ino, flags)?;
        self.hold(ino, 1);
        Ok(handle)
    }

    fn release(&mut self, cx: &Context, ino: Ino, handle: Handle) -> Result<()> {
        self.let_go(ino, 1);
        self.inner.release(cx, ino, handle)
    }

    fn opendir(&mut self, cx: &Context, ino: Ino) -> Result<Handle> {
        let handle = self.inner.opendir(cx, ino)?;
        self.hold(ino, 1);
        Ok(handle)
    }

    fn releasedir(&mut self, cx: &Context, ino: Ino, handle: Handle) -> Result<()> {
        self.let_go(ino, 1);
        self.inner.releasedir(cx, ino, handle)
    }

    fn shared_locks(&mut self) -> Option<&mut dyn Locks> {
        self.inner.shared_locks()
    }

    fn checkpoint_due(&self) -> bool {
        self.inner.checkpoint_due()
    }

    fn identity(&self) -> [u8; 16] {
        self.inner.identity()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::errno::Errno;
    use crate::model::ModelFs;

    const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

    /// A server for kernels: an inode that it has given, and that was forgotten as often, is none.
    #[derive(Default)]
    struct Counts {
        fs: ModelFs,
        given: BTreeMap<Ino, u64>,
        most: usize,
    }

    impl Counts {
        fn knows(&self, ino: Ino) -> Result<()> {
            if ino == Ino::ROOT || self.given.contains_key(&ino) {
                Ok(())
            } else {
                Err(Errno::ESTALE)
            }
        }

        fn gives(&mut self, attr: Attr) -> Attr {
            *self.given.entry(attr.ino).or_default() += 1;
            self.most = self.most.max(self.given.len());
            attr
        }
    }

    macro_rules! plain {
        ($self:ident $verb:ident ($($arg:ident),*)) => {
            $self.fs.$verb($($arg),*)
        };
    }

    impl FileSystem for Counts {
        crate::verbs!(plain: setattr mknod symlink unlink rmdir rename link tmpfile copy_file_range
            fallocate seek fsync readdir fsyncdir syncfs statfs setxattr getxattr listxattr
            removexattr readlink write);

        fn lookup(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<Attr> {
            self.knows(parent)?;
            let attr = self.fs.lookup(cx, parent, name)?;
            Ok(self.gives(attr))
        }

        fn forget(&mut self, ino: Ino, count: u64) {
            let given = self.given.get_mut(&ino).expect("it was given");
            *given = given.checked_sub(count).expect("as often as that");
            if *given == 0 {
                self.given.remove(&ino);
            }
        }

        fn getattr(&mut self, cx: &Context, ino: Ino) -> Result<Attr> {
            self.knows(ino)?;
            self.fs.getattr(cx, ino)
        }

        fn mkdir(&mut self, cx: &Context, parent: Ino, name: Name<'_>, mode: u32) -> Result<Attr> {
            self.knows(parent)?;
            let attr = self.fs.mkdir(cx, parent, name, mode)?;
            Ok(self.gives(attr))
        }

        fn open(&mut self, cx: &Context, ino: Ino, flags: OpenFlags) -> Result<Handle> {
            self.knows(ino)?;
            self.fs.open(cx, ino, flags)
        }

        fn create(
            &mut self,
            cx: &Context,
            parent: Ino,
            name: Name<'_>,
            mode: u32,
            flags: OpenFlags,
        ) -> Result<(Attr, Handle)> {
            self.knows(parent)?;
            let (attr, handle) = self.fs.create(cx, parent, name, mode, flags)?;
            Ok((self.gives(attr), handle))
        }

        fn read(
            &mut self,
            cx: &Context,
            ino: Ino,
            handle: Handle,
            offset: u64,
            buf: &mut [u8],
        ) -> Result<usize> {
            self.knows(ino)?;
            self.fs.read(cx, ino, handle, offset, buf)
        }

        fn release(&mut self, cx: &Context, ino: Ino, handle: Handle) -> Result<()> {
            self.knows(ino)?;
            self.fs.release(cx, ino, handle)
        }

        fn opendir(&mut self, cx: &Context, ino: Ino) -> Result<Handle> {
            self.knows(ino)?;
            self.fs.opendir(cx, ino)
        }

        fn releasedir(&mut self, cx: &Context, ino: Ino, handle: Handle) -> Result<()> {
            self.knows(ino)?;
            self.fs.releasedir(cx, ino, handle)
        }
    }

    /// What is open, held, or used stays known, and the server knows no more than that and some.
    #[test]
    fn what_was_used_long_ago_is_forgotten() {
        const MOST: usize = 8;
        let cx = Context { uid: 0, gid: 0, now: Timespec { sec: 1, nsec: 0 } };
        let called = |number: u32| alloc::format!("f{number}");
        let mut fs = Forgetting::with(Counts::default(), MOST);
        let name =
            |text: &str| Name::new(text.as_bytes()).map(|name| name.bytes().to_vec()).unwrap();
        let (bytes, link) = (name("d"), name("held"));
        let dir = fs.mkdir(&cx, Ino::ROOT, Name::new(&bytes).unwrap(), 0o755).unwrap().ino;
        let open_dir = fs.opendir(&cx, dir).unwrap();
        let made = fs.create(&cx, dir, Name::new(&link).unwrap(), 0o644, RW).unwrap();
        let (held, handle) = (made.0.ino, made.1);
        // Held without being open.
        fs.recall(held, 1);
        fs.release(&cx, held, handle).unwrap();
        let mut open = VecDeque::new();
        for number in 0..400u32 {
            let text = called(number);
            let (attr, handle) =
                fs.create(&cx, dir, Name::new(text.as_bytes()).unwrap(), 0o644, RW).unwrap();
            fs.write(&cx, attr.ino, handle, 0, text.as_bytes()).unwrap();
            open.push_back((attr.ino, handle, text));
            if open.len() > 3 {
                let (ino, handle, text) = open.pop_front().unwrap();
                let mut found = [0; 9];
                let len = fs.read(&cx, ino, handle, 0, &mut found).unwrap();
                assert_eq!(&found[..len], text.as_bytes());
                fs.release(&cx, ino, handle).unwrap();
            }
            // Looked up again and again, and opened by what came of it.
            let before = called(number / 3);
            let found = fs.lookup(&cx, dir, Name::new(before.as_bytes()).unwrap()).unwrap();
            let again = fs.open(&cx, found.ino, OpenFlags::READ).unwrap();
            fs.release(&cx, found.ino, again).unwrap();
            fs.getattr(&cx, held).unwrap();
        }
        // Beside the directory, what is held, and four open files; one more before another goes.
        let most = fs.inner().most;
        assert!((MOST..=MOST + 7).contains(&most), "{most}");
        fs.forget(held, 1);
        fs.releasedir(&cx, dir, open_dir).unwrap();
        for number in 0..20 {
            let text = called(number);
            fs.mkdir(&cx, Ino::ROOT, Name::new(text.as_bytes()).unwrap(), 0o755).unwrap();
        }
        assert_eq!(fs.getattr(&cx, held), Err(Errno::ESTALE), "nobody holds it any more");
        assert!(fs.order.len() == fs.known.len());
    }

    /// However much is open, what was just given can be used.
    #[test]
    fn what_is_open_leaves_room_for_the_rest() {
        const MOST: usize = 4;
        let cx = Context { uid: 0, gid: 0, now: Timespec { sec: 1, nsec: 0 } };
        let mut fs = Forgetting::with(Counts::default(), MOST);
        let texts: Vec<_> = (0..40).map(|number| alloc::format!("f{number}")).collect();
        let called = |number: usize| Name::new(texts[number].as_bytes()).unwrap();
        let mut open = Vec::new();
        for number in 0..3 * MOST {
            let (attr, handle) = fs.create(&cx, Ino::ROOT, called(number), 0o644, RW).unwrap();
            open.push((attr.ino, handle));
            // Each step of a path is used once the next has been looked up.
            let mut way = vec![Ino::ROOT];
            for step in 1..MOST {
                let parent = *way.last().unwrap();
                let dir = fs.lookup(&cx, parent, called(20 + step));
                let dir = dir.or_else(|_| fs.mkdir(&cx, parent, called(20 + step), 0o755));
                way.push(dir.unwrap().ino);
            }
            for dir in way {
                fs.getattr(&cx, dir).expect("it was given a moment ago");
            }
        }
        // An inode that is open twice counts once.
        let (ino, handle) = open[0];
        let again = fs.open(&cx, ino, OpenFlags::READ).unwrap();
        fs.release(&cx, ino, again).unwrap();
        fs.read(&cx, ino, handle, 0, &mut [0]).unwrap();
        let most = fs.inner().most;
        assert!(most <= 3 * MOST + MOST + 1, "{most}");
        for (ino, handle) in open {
            fs.release(&cx, ino, handle).unwrap();
        }
        fs.mkdir(&cx, Ino::ROOT, called(39), 0o755).unwrap();
        assert!(fs.known.len() <= MOST && fs.order.len() == fs.known.len());
    }
}
