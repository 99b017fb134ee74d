//! Defects that the checker has to find: clients of a right file system that are wrong in one way.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use atoll_vfs::*;

use super::clients::{Locked, forward_common, to_inner};

/// A planted defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// Pages once read are kept although others write them.
    StaleRead,
    /// An append goes to where the end was a moment ago.
    LostAppend,
    /// A rename is a link and an unlink: for a moment there are both names.
    BothNames,
    /// A rename is an unlink of the old name and a link of the new one: for a moment there is none.
    NoName,
    /// Names once found are kept although others remove them.
    StaleLookup,
    /// A page is written in two halves.
    TornWrite,
    /// A truncation is done at the client's next call.
    LateTruncate,
    /// An exchange is three renames.
    ThreeRenames,
    /// Whether the new name of a rename that must not replace is free is asked before, not in it.
    LateReplace,
    /// A directory is removed at the client's next call.
    LateRmdir,
    /// A directory is listed in two parts.
    TwoLists,
}

impl Defect {
    /// All of them.
    pub const ALL: [Defect; 11] = [
        Defect::StaleRead,
        Defect::LostAppend,
        Defect::BothNames,
        Defect::NoName,
        Defect::StaleLookup,
        Defect::TornWrite,
        Defect::LateTruncate,
        Defect::ThreeRenames,
        Defect::LateReplace,
        Defect::LateRmdir,
        Defect::TwoLists,
    ];
}

/// A change that is put off to the next call.
enum Late {
    Truncate(Context, Ino, Option<Handle>, SetAttr),
    Rmdir(Context, Ino, Vec<u8>),
}

/// A client with a defect.
pub struct Planted<F> {
    fs: Locked<F>,
    defect: Defect,
    pages: HashMap<(Ino, u64), Vec<u8>>,
    names: HashMap<(Ino, Vec<u8>), Attr>,
    late: Option<Late>,
    /// Handles that append.
    appending: HashSet<Handle>,
}

impl<F: FileSystem> Planted<F> {
    /// `n` clients of `fs` that all have `defect`.
    pub fn clients(fs: F, n: usize, defect: Defect) -> Vec<Self> {
        let plant = |fs| Planted {
            fs,
            defect,
            pages: HashMap::new(),
            names: HashMap::new(),
            late: None,
            appending: HashSet::new(),
        };
        Locked::clients(fs, n).into_iter().map(plant).collect()
    }

    fn inner(&mut self) -> &mut Locked<F> {
        let _ = match self.late.take() {
            Some(Late::Truncate(cx, ino, handle, set)) => {
                self.fs.setattr(&cx, ino, handle, &set).map(drop)
            }
            Some(Late::Rmdir(cx, parent, name)) => {
                Name::new(&name).and_then(|name| self.fs.rmdir(&cx, parent, name))
            }
            None => Ok(()),
        };
        &mut self.fs
    }
}

/// Long enough for another client to look.
fn pause() {
    std::thread::sleep(Duration::from_micros(50));
}

impl<F: FileSystem> FileSystem for Planted<F> {
    forward_common!();

    fn open(&mut self, cx: &Context, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        let handle = self.inner().open(cx, ino, flags)?;
        if flags.contains(OpenFlags::APPEND) {
            self.appending.insert(handle);
        }
        Ok(handle)
    }

    fn lookup(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<Attr> {
        let key = (parent, name.bytes().to_vec());
        if let Some(attr) = self.names.get(&key) {
            return Ok(*attr);
        }
        let attr = self.inner().lookup(cx, parent, name)?;
        if self.defect == Defect::StaleLookup {
            self.names.insert(key, attr);
        }
        Ok(attr)
    }

    fn setattr(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Option<Handle>,
        set: &SetAttr,
    ) -> Result<Attr> {
        if self.defect == Defect::LateTruncate {
            let attr = self.inner().getattr(cx, ino)?;
            self.late = Some(Late::Truncate(*cx, ino, handle, *set));
            return Ok(attr);
        }
        self.inner().setattr(cx, ino, handle, set)
    }

    fn rmdir(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<()> {
        if self.defect != Defect::LateRmdir {
            return self.inner().rmdir(cx, parent, name);
        }
        if self.inner().lookup(cx, parent, name)?.file_type() != FileType::Directory {
            return Err(Errno::ENOTDIR);
        }
        self.late = Some(Late::Rmdir(*cx, parent, name.bytes().to_vec()));
        Ok(())
    }

    fn readdir(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        cookie: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        if self.defect != Defect::TwoLists {
            return self.inner().readdir(cx, ino, handle, cookie, emit);
        }
        // `.`, `..` and one more.
        let (mut first, mut next) = (3, cookie);
        self.inner().readdir(cx, ino, handle, cookie, &mut |entry| {
            let took = first > 0 && emit(entry);
            if took {
                (first, next) = (first - 1, entry.cookie);
            }
            took
        })?;
        pause();
        self.inner().readdir(cx, ino, handle, next, emit)
    }

    fn rename(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        new_parent: Ino,
        new_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let defect = self.defect;
        let fs = self.inner();
        let same = (parent, name) == (new_parent, new_name);
        if defect == Defect::ThreeRenames && flags == RenameFlags::EXCHANGE && !same {
            let aside = Name::new(b"aside")?;
            fs.lookup(cx, new_parent, new_name)?;
            fs.rename(cx, parent, name, parent, aside, RenameFlags::empty())?;
            let back = fs.rename(cx, new_parent, new_name, parent, name, RenameFlags::empty());
            pause();
            let to = if back.is_ok() { (new_parent, new_name) } else { (parent, name) };
            let _ = fs.rename(cx, parent, aside, to.0, to.1, RenameFlags::empty());
            return back;
        }
        if defect == Defect::LateReplace && flags == RenameFlags::NOREPLACE {
            if fs.lookup(cx, new_parent, new_name).is_ok() {
                return Err(Errno::EEXIST);
            }
            pause();
            return fs.rename(cx, parent, name, new_parent, new_name, RenameFlags::empty());
        }
        let by_links = flags.is_empty() && (parent, name) != (new_parent, new_name);
        let from = fs.lookup(cx, parent, name).ok();
        let free = fs.lookup(cx, new_parent, new_name).is_err();
        let file = from.filter(|attr| by_links && free && attr.file_type() == FileType::Regular);
        // Held open: its last name may go first.
        let held = file
            .and_then(|attr| Some((attr.ino, self.fs.open(cx, attr.ino, OpenFlags::READ).ok()?)));
        let Some((ino, handle)) = held else {
            return self.fs.rename(cx, parent, name, new_parent, new_name, flags);
        };
        match self.defect {
            Defect::BothNames => {
                let _ = self.fs.link(cx, ino, new_parent, new_name);
                pause();
                let _ = self.fs.unlink(cx, parent, name);
            }
            Defect::NoName => {
                let _ = self.fs.unlink(cx, parent, name);
                pause();
                let _ = self.fs.link(cx, ino, new_parent, new_name);
            }
            _ => {
                self.fs.release(cx, ino, handle)?;
                return self.fs.rename(cx, parent, name, new_parent, new_name, flags);
            }
        }
        self.fs.release(cx, ino, handle)
    }

    fn read(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        if let Some(page) = self.pages.get(&(ino, offset)) {
            buf[..page.len()].copy_from_slice(page);
            return Ok(page.len());
        }
        let len = self.inner().read(cx, ino, handle, offset, buf)?;
        if self.defect == Defect::StaleRead {
            self.pages.insert((ino, offset), buf[..len].to_vec());
        }
        Ok(len)
    }

    fn write(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<Written> {
        self.pages.clear();
        let (defect, appends) = (self.defect, self.appending.contains(&handle));
        let fs = self.inner();
        if defect == Defect::LostAppend && appends {
            let end = fs.getattr(cx, ino)?.size;
            pause();
            let plain = fs.open(cx, ino, OpenFlags::WRITE)?;
            let written = fs.write(cx, ino, plain, end, data);
            fs.release(cx, ino, plain)?;
            return written;
        }
        if defect == Defect::TornWrite && !appends {
            let half = data.len() / 2;
            fs.write(cx, ino, handle, offset, &data[..half])?;
            pause();
            fs.write(cx, ino, handle, offset + half as u64, &data[half..])?;
            return Ok(Written { len: data.len(), offset });
        }
        fs.write(cx, ino, handle, offset, data)
    }
}
