//! Calls that would hold the file system for long, in steps.
//!
//! A call that frees more extents than one transaction takes has its effect with the first: the
//! record has the new length or no link any more, and the inode is in the list of orphans. Further
//! transactions free the rest, and change nothing that a call can see but the space that is free.
//! Without steps the call makes them all, one after the other. In steps it leaves them to a caller
//! who lets others have the file system between.
//!
//! Until they are made
//! - an inode without links is gone for every call, though its items are there;
//! - a file that was made shorter does not grow: bytes beyond its end would show what is there yet.
//!
//! A crash between two steps is one within the call: a mount ends what is in the list.

use alloc::collections::BTreeSet;

use atoll_block::Addressable;
use atoll_vfs::{Errno, Ino, Rest};

use crate::error::Result;
use crate::fs::Fs;

/// The work that calls have left.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// Whether calls leave anything.
    pub in_steps: bool,
    /// Of the last call.
    pub rest: Option<Rest>,
    /// Inodes without links that are being removed.
    pub dying: BTreeSet<Ino>,
    /// Files with blocks beyond their end.
    pub cut: BTreeSet<Ino>,
}

impl<M: Addressable> Fs<M> {
    /// Removes an inode that nobody can reach any more, whose removal has begun or is listed; in
    /// steps, later.
    pub(crate) fn remove_later(&mut self, ino: Ino) -> Result<()> {
        if !self.left.in_steps {
            return self.remove_orphan(ino);
        }
        self.inodes.remove(ino);
        self.left.dying.insert(ino);
        self.left.rest = Some(Rest::Blocks(ino));
        Ok(())
    }

    /// Frees the blocks beyond the end of a file that was made shorter and is listed; in steps,
    /// later.
    pub(crate) fn free_later(&mut self, ino: Ino, slot: u32) -> Result<()> {
        self.left.cut.insert(ino);
        if self.left.in_steps {
            self.left.rest = Some(Rest::Blocks(ino));
            return Ok(());
        }
        self.free_all_beyond(ino, slot)
    }

    fn free_all_beyond(&mut self, ino: Ino, slot: u32) -> Result<()> {
        while !self.free_beyond(slot)? {}
        self.left.cut.remove(&ino);
        Ok(())
    }

    /// Before a file gets blocks beyond its end: those that it has left there have to be freed.
    ///
    /// # Errors
    /// `EAGAIN`, in steps: the call comes again when that is done.
    #[inline]
    pub(crate) fn before_growth(&mut self, ino: Ino, slot: u32) -> Result<()> {
        if self.left.cut.is_empty() || !self.left.cut.contains(&ino) {
            return Ok(());
        }
        if self.left.in_steps {
            self.left.rest = Some(Rest::After(ino));
            return Err(Errno::EAGAIN.into());
        }
        self.free_all_beyond(ino, slot)
    }

    /// One step of what calls have left of `ino`. Returns whether nothing is left.
    pub(crate) fn free_some(&mut self, ino: Ino) -> Result<bool> {
        if self.left.dying.contains(&ino) {
            let done = self.remove_step(ino)?;
            if done {
                self.left.dying.remove(&ino);
            }
            return Ok(done);
        }
        if !self.left.cut.contains(&ino) {
            return Ok(true);
        }
        let slot = self.load(ino)?;
        let done = self.free_beyond(slot);
        if done == Ok(true) {
            self.left.cut.remove(&ino);
        }
        self.inodes.rest(slot, self.store.durable_window());
        done
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use atoll_block::RamDevice;
    use atoll_vfs::{
        Context, Errno, FallocateMode, FileAt, FileSystem, Handle, Ino, Name, OpenFlags, Rest,
        SeekTo, SetAttr, Timespec,
    };

    use crate::file::{FREE_BUDGET, SEEK_BUDGET, WRITE_MAX};
    use crate::{CheckOptions, FormatOptions, Fs, MountOptions, check, format};

    const CX: Context = Context { uid: 0, gid: 0, now: Timespec { sec: 1, nsec: 0 } };
    const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
    /// Extents of a file, each of one block.
    const EXTENTS: u64 = 2000;
    /// From one to the next, in bytes.
    const STRIDE: u64 = 10 * 4096;
    const END: u64 = EXTENTS * STRIDE;

    fn volume() -> Fs<RamDevice> {
        let mut device = RamDevice::new(1 << 14);
        format(&mut device, &FormatOptions::default()).unwrap();
        mount(device)
    }

    /// In one life of the memory: nothing is lost by the end of a process.
    fn mount(device: RamDevice) -> Fs<RamDevice> {
        let options = MountOptions { incarnation: [1; 16], ..MountOptions::default() };
        Fs::mount(device, &options).unwrap()
    }

    fn name(text: &str) -> Name<'_> {
        Name::new(text.as_bytes()).unwrap()
    }

    fn scattered(fs: &mut Fs<RamDevice>, text: &str) -> (Ino, Handle) {
        let (attr, handle) = fs.create(&CX, Ino::ROOT, name(text), 0o644, RW).unwrap();
        for at in 0..EXTENTS {
            fs.write(&CX, attr.ino, handle, at * STRIDE, b"data").unwrap();
        }
        (attr.ino, handle)
    }

    /// Makes a call, or a step, and holds what it freed against the bound.
    fn bounded<T>(fs: &mut Fs<RamDevice>, call: impl FnOnce(&mut Fs<RamDevice>) -> T) -> T {
        let before = fs.info().free_blocks;
        let value = call(fs);
        // Nodes of the tree become free too.
        let freed = fs.info().free_blocks.saturating_sub(before);
        assert!(freed <= 2 * FREE_BUDGET as u64, "{freed} blocks in one hold");
        value
    }

    /// Takes all steps. Returns how many.
    fn finish(fs: &mut Fs<RamDevice>, ino: Ino) -> usize {
        let mut steps = 1;
        while !bounded(fs, |fs| fs.free_step(ino).unwrap()) {
            steps += 1;
        }
        steps
    }

    fn cut(size: u64) -> SetAttr {
        SetAttr { size: Some(size), ..SetAttr::default() }
    }

    fn is_sound(fs: Fs<RamDevice>) {
        let mut device = fs.unmount().unwrap();
        let report = check(&mut device, &CheckOptions::default()).unwrap();
        assert!(report.is_clean(), "{report:?}");
    }

    /// A search looks at so many extents, and says where to go on.
    #[test]
    fn a_search_is_made_in_steps() {
        let mut fs = volume();
        let (attr, handle) = fs.create(&CX, Ino::ROOT, name("f"), 0o644, RW).unwrap();
        let (ino, keep) = (attr.ino, FallocateMode::empty());
        let count = 3 * SEEK_BUDGET as u64;
        for at in 0..count {
            // Space that is set aside is a hole to those who read.
            fs.fallocate(&CX, ino, handle, at * STRIDE, 4096, keep).unwrap();
        }
        fs.write(&CX, ino, handle, count * STRIDE, b"data").unwrap();
        for in_steps in [false, true] {
            fs.work_in_steps(in_steps);
            let (mut at, mut parts) = (0, 1);
            let found = loop {
                match (fs.seek(&CX, ino, handle, at, SeekTo::Data), fs.take_rest()) {
                    (Err(Errno::EAGAIN), Some(Rest::From(next))) => {
                        assert!(next > at && next <= at + SEEK_BUDGET as u64 * STRIDE);
                        (at, parts) = (next, parts + 1);
                    }
                    (found, rest) => {
                        assert_eq!(rest, None);
                        break found;
                    }
                }
            };
            assert_eq!(found, Ok(count * STRIDE));
            assert_eq!(parts > 5, in_steps, "{parts}");
            assert_eq!(fs.seek(&CX, ino, handle, 0, SeekTo::Hole), Ok(0));
            let beyond = count * STRIDE + 1;
            assert_eq!(fs.seek(&CX, ino, handle, beyond, SeekTo::Hole), Ok(beyond + 3));
            // A copy looks no further than it copies.
            let place = |offset| FileAt { ino, handle, offset };
            let copied = fs.copy_file_range(&CX, place(0), place(1 << 40), 1 << 30).unwrap();
            assert!(copied > 0 && copied <= SEEK_BUDGET as u64 * STRIDE, "{copied}");
            fs.setattr(&CX, ino, None, &cut(beyond + 3)).unwrap();
            assert_eq!(fs.take_rest(), None);
        }
        is_sound(fs);
    }

    /// A call and each step free no more than a transaction does, whatever the file.
    #[test]
    fn what_frees_much_is_done_in_steps() {
        let mut fs = volume();
        let all = fs.info().free_blocks;
        let (ino, handle) = scattered(&mut fs, "cut");
        fs.work_in_steps(true);
        let attr = bounded(&mut fs, |fs| fs.setattr(&CX, ino, None, &cut(100)).unwrap());
        assert_eq!((attr.size, fs.take_rest()), (100, Some(Rest::Blocks(ino))));
        assert!(finish(&mut fs, ino) > 10);
        fs.release(&CX, ino, handle).unwrap();

        fs.work_in_steps(false);
        let (ino, handle) = scattered(&mut fs, "gone");
        fs.work_in_steps(true);
        bounded(&mut fs, |fs| fs.unlink(&CX, Ino::ROOT, name("gone")).unwrap());
        assert_eq!(fs.take_rest(), None, "it is open");
        bounded(&mut fs, |fs| fs.release(&CX, ino, handle).unwrap());
        assert_eq!(fs.take_rest(), Some(Rest::Blocks(ino)));
        // It is gone for every call.
        assert_eq!(fs.getattr(&CX, ino), Err(Errno::ESTALE));
        assert_eq!(fs.open(&CX, ino, OpenFlags::READ), Err(Errno::ESTALE));
        assert!(finish(&mut fs, ino) > 10);

        fs.work_in_steps(false);
        let (ino, handle) = scattered(&mut fs, "holes");
        fs.work_in_steps(true);
        let punches = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
        let (mut at, mut parts) = (0, 0);
        loop {
            bounded(&mut fs, |fs| fs.fallocate(&CX, ino, handle, at, END - at, punches).unwrap());
            parts += 1;
            let Some(Rest::From(next)) = fs.take_rest() else { break };
            assert!(next > at && next < END);
            at = next;
        }
        assert!(parts > 10, "{parts}");
        assert_eq!(fs.getattr(&CX, ino).unwrap().blocks, 0);
        // The host may take long for each block, so it is blocks that count.
        let (mut at, most) = (0, WRITE_MAX / 4096);
        loop {
            let before = fs.info().free_blocks;
            let all = FallocateMode::ZERO_RANGE;
            fs.fallocate(&CX, ino, handle, at, (8 << 20) - at, all).unwrap();
            let taken = before.saturating_sub(fs.info().free_blocks);
            assert!(taken <= most + 8, "{taken} blocks in one hold");
            let Some(Rest::From(next)) = fs.take_rest() else { break };
            at = next;
        }
        assert_eq!(fs.getattr(&CX, ino).unwrap().blocks, (8 << 20) / 512);
        fs.release(&CX, ino, handle).unwrap();
        for text in ["cut", "holes"] {
            fs.unlink(&CX, Ino::ROOT, name(text)).unwrap();
        }
        fs.syncfs(&CX).unwrap();
        assert!(all - fs.info().free_blocks < 64, "blocks are lost");
        is_sound(fs);
    }

    /// A file whose blocks are not all freed does not grow over them; otherwise it is used as any.
    #[test]
    fn what_was_cut_stays_cut() {
        for (number, size) in [0, 5 * STRIDE].into_iter().enumerate() {
            let mut fs = volume();
            let (ino, handle) = scattered(&mut fs, "file");
            fs.work_in_steps(true);
            fs.setattr(&CX, ino, None, &cut(size)).unwrap();
            fs.take_rest();
            let waits = |fs: &mut Fs<RamDevice>| fs.take_rest() == Some(Rest::After(ino));
            assert_eq!(fs.write(&CX, ino, handle, END, b"x"), Err(Errno::EAGAIN));
            assert!(waits(&mut fs));
            assert_eq!(fs.setattr(&CX, ino, None, &cut(END)), Err(Errno::EAGAIN));
            assert!(waits(&mut fs));
            let keep = FallocateMode::KEEP_SIZE;
            assert_eq!(fs.fallocate(&CX, ino, handle, 0, END, keep), Err(Errno::EAGAIN));
            assert!(waits(&mut fs));
            assert!(!fs.free_step(ino).unwrap());
            // Cut again, written within, removed and given a name again while it is open.
            fs.setattr(&CX, ino, None, &cut(size / 2)).unwrap();
            if size > 0 {
                fs.write(&CX, ino, handle, STRIDE / 2, b"within").unwrap();
            }
            fs.unlink(&CX, Ino::ROOT, name("file")).unwrap();
            fs.link(&CX, ino, Ino::ROOT, name("again")).unwrap();
            if number == 0 {
                // The process ends here.
                let device = fs.store.into_device();
                fs = mount(device);
                let blocks = fs.getattr(&CX, ino).unwrap().blocks;
                assert_eq!((blocks, fs.open(&CX, ino, RW).is_ok()), (0, true));
            } else {
                finish(&mut fs, ino);
                fs.setattr(&CX, ino, None, &cut(END)).unwrap();
                let mut content = Vec::new();
                content.resize(END as usize, 1);
                fs.read(&CX, ino, handle, 0, &mut content).unwrap();
                assert!(content[size as usize / 2..].iter().all(|&byte| byte == 0));
            }
            is_sound(fs);
        }
    }

    /// A caller who changes his mind finds the rest done by the call that needs it.
    #[test]
    fn without_steps_growth_ends_what_was_left() {
        let mut fs = volume();
        let (ino, handle) = scattered(&mut fs, "file");
        fs.work_in_steps(true);
        fs.setattr(&CX, ino, None, &cut(0)).unwrap();
        fs.work_in_steps(false);
        fs.write(&CX, ino, handle, END, b"x").unwrap();
        assert_eq!(fs.getattr(&CX, ino).unwrap().blocks, 8);
        assert!(fs.free_step(ino).unwrap());
        is_sound(fs);
    }
}
