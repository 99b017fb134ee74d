//! A file system whose long calls are made in steps, as a server makes them: what a call leaves to
//! be freed is freed bit by bit between later calls, so that crashes come between.

use std::collections::BTreeSet;

use atoll_vfs::*;

use crate::rng::Rng;

/// How often a step is taken before a call, of a hundred times.
const PERCENT: u64 = 40;

/// The file system, whole or in steps.
#[derive(Debug)]
pub struct InSteps<F> {
    /// Below.
    pub fs: F,
    rng: Rng,
    left: BTreeSet<Ino>,
    /// How many steps were taken.
    pub steps: u64,
}

impl<F: FileSystem> InSteps<F> {
    /// `fs`, which works in steps if `yes`.
    pub fn new(mut fs: F, yes: bool) -> Self {
        fs.work_in_steps(yes);
        InSteps { fs, rng: Rng::new(1), left: BTreeSet::new(), steps: 0 }
    }

    fn step(&mut self, ino: Ino) -> Result<()> {
        self.steps += 1;
        if self.fs.free_step(ino)? {
            self.left.remove(&ino);
        }
        Ok(())
    }

    /// Makes a call; what it waits for is freed first.
    fn call<T>(&mut self, mut call: impl FnMut(&mut F) -> Result<T>) -> Result<T> {
        if let Some(&ino) = self.left.first()
            && self.rng.chance(PERCENT)
        {
            self.step(ino)?;
        }
        loop {
            let result = call(&mut self.fs);
            match self.fs.take_rest() {
                Some(Rest::Blocks(ino)) => {
                    self.left.insert(ino);
                }
                Some(Rest::After(ino)) if result.is_err() => {
                    self.left.insert(ino);
                    while self.left.contains(&ino) {
                        self.step(ino)?;
                    }
                    continue;
                }
                _ => {}
            }
            return result;
        }
    }
}

macro_rules! below {
    ($self:ident $verb:ident ($($arg:ident),*)) => { $self.fs.$verb($($arg),*) };
}

macro_rules! in_steps {
    ($self:ident $verb:ident ($($arg:ident),*)) => { $self.call(|fs| fs.$verb($($arg),*)) };
}

impl<F: FileSystem> FileSystem for InSteps<F> {
    verbs!(below: forget getattr readlink read read_vectored accessed seek fsync opendir readdir releasedir
        fsyncdir syncfs begin_sync end_sync checkpoint_step statfs getxattr listxattr);
    verbs!(in_steps: lookup setattr mknod mkdir symlink unlink rmdir rename link open create tmpfile
        write write_vectored copy_file_range release setxattr removexattr);

    fn fallocate(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        len: u64,
        mode: FallocateMode,
    ) -> Result<()> {
        let end = offset.saturating_add(len);
        let (mut offset, mut len) = (offset, len);
        loop {
            let mut next = None;
            self.call(|fs| {
                fs.fallocate(cx, ino, handle, offset, len, mode)?;
                next = fs.take_rest();
                Ok(())
            })?;
            match next {
                Some(Rest::From(from)) => (offset, len) = (from, end.saturating_sub(from)),
                _ => return Ok(()),
            }
        }
    }
}
