//! A file system under a sequence of operations, and its answers.

use super::*;
use crate::subject::RW;

/// The outcome of an operation, comparable between file systems.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It succeeded and has nothing to say.
    Done,
    /// The attributes that it returned.
    Attr(Seen),
    /// Bytes: of a file, a link or an attribute's value.
    Bytes(Vec<u8>),
    /// Where a write went.
    Written(Written),
    /// The offset that a seek found.
    Offset(u64),
    /// A listing, or names of attributes (with 0).
    Names(BTreeMap<Vec<u8>, u32>),
    /// Entries from a stream, in the file system's own order, and whether it ended.
    Stream(Vec<(Vec<u8>, u32)>, bool),
    /// The slot was empty.
    Nothing,
    /// It failed.
    Failed(Errno),
}

/// Attributes without those that each implementor may choose.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// The inode, numbered in the order in which a world has seen them.
    pub id: u32,
    /// Type and permission bits.
    pub mode: u32,
    /// Hard links.
    pub nlink: u32,
    /// Owner and group.
    pub owner: (u32, u32),
    /// Device number.
    pub rdev: u32,
    /// Length, except of a directory.
    pub size: Option<u64>,
    /// atime, mtime, ctime and btime, where they are the caller's.
    pub times: Option<[Timespec; 4]>,
}

/// An open directory and where its listing is.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    /// The directory.
    pub ino: Ino,
    /// Its handle.
    pub handle: Handle,
    /// Where to go on.
    pub cookie: u64,
}

/// The inodes, files and streams behind operations' slots in one file system.
#[derive(Clone, Debug)]
pub struct World {
    nodes: [Ino; NODES as usize],
    files: [Option<(Ino, Handle, OpenFlags)>; FILES as usize],
    streams: [Option<Stream>; STREAMS as usize],
    ids: HashMap<Ino, u32>,
    times: bool,
}

impl World {
    /// A world that knows the root only. `times`: whether timestamps are compared.
    pub fn new(times: bool) -> Self {
        World {
            nodes: [Ino::ROOT; NODES as usize],
            files: [None; FILES as usize],
            streams: [None; STREAMS as usize],
            ids: HashMap::from([(Ino::ROOT, 0)]),
            times,
        }
    }

    /// The inode in a slot.
    pub fn node(&self, slot: u8) -> Ino {
        self.nodes[slot as usize]
    }

    /// The open file in a slot.
    pub fn file(&self, slot: u8) -> Option<(Ino, Handle, OpenFlags)> {
        self.files[slot as usize]
    }

    /// The open file in a slot, or in the next one that is in use: calls on nothing find no bugs.
    pub fn near(&self, slot: u8) -> Option<(Ino, Handle, OpenFlags)> {
        (0..FILES).find_map(|i| self.file((slot + i) % FILES))
    }

    /// The open directory in a slot.
    pub fn stream(&self, slot: u8) -> Option<Stream> {
        self.streams[slot as usize]
    }

    /// Forgets all handles: their holder is gone.
    pub fn close_all(&mut self) {
        self.files = [None; FILES as usize];
        self.streams = [None; STREAMS as usize];
    }

    /// The operation that must come before `op` because it takes a slot that is in use.
    pub fn before(&self, op: &Op) -> Option<Op> {
        match *op {
            Op::Open { file, .. } | Op::Create { file, .. } | Op::Tmpfile { file, .. } => {
                self.file(file).map(|_| Op::Release { file })
            }
            Op::Opendir { stream, .. } => self.stream(stream).map(|_| Op::Releasedir { stream }),
            _ => None,
        }
    }

    /// The number of `ino` in the order of first sight.
    pub fn id(&mut self, ino: Ino) -> u32 {
        let next = self.ids.len() as u32;
        *self.ids.entry(ino).or_insert(next)
    }

    fn see(&mut self, attr: &Attr) -> Outcome {
        let Attr { ino, mode, nlink, uid, gid, rdev, size, atime, mtime, ctime, btime, .. } = *attr;
        let is_dir = attr.file_type() == FileType::Directory;
        Outcome::Attr(Seen {
            id: self.id(ino),
            mode,
            nlink,
            owner: (uid, gid),
            rdev,
            size: (!is_dir).then_some(size),
            times: self.times.then_some([atime, mtime, ctime, btime]),
        })
    }

    /// Puts an inode into a slot for its type.
    fn keep(&mut self, into: u8, attr: &Attr) -> Outcome {
        let slots =
            if attr.file_type() == FileType::Directory { 1..FIRST_FILE } else { FIRST_FILE..NODES };
        let slot = slots.start + into % (slots.end - slots.start);
        self.nodes[slot as usize] = attr.ino;
        self.see(attr)
    }

    /// Carries out `op` on `fs`. [`World::before`] has been carried out.
    pub fn apply(&mut self, fs: &mut (impl FileSystem + ?Sized), cx: &Context, op: &Op) -> Outcome {
        match self.call(fs, cx, op) {
            Ok(outcome) => outcome,
            Err(error) => Outcome::Failed(error),
        }
    }

    fn call(
        &mut self,
        fs: &mut (impl FileSystem + ?Sized),
        cx: &Context,
        op: &Op,
    ) -> Result<Outcome> {
        let bytes = match *op {
            Op::Lookup { name, .. }
            | Op::Mknod { name, .. }
            | Op::Mkdir { name, .. }
            | Op::Symlink { name, .. }
            | Op::Unlink { name, .. }
            | Op::Rmdir { name, .. }
            | Op::Rename { name, .. }
            | Op::Link { name, .. }
            | Op::Create { name, .. } => name_bytes(name),
            _ => b"-".to_vec(),
        };
        let at = Name::new(&bytes)?;
        Ok(match *op {
            Op::Lookup { parent, into, .. } => {
                let attr = fs.lookup(cx, self.node(parent), at)?;
                self.keep(into, &attr)
            }
            Op::Getattr { node } => self.see(&fs.getattr(cx, self.node(node))?),
            Op::Setattr { node, file, set } => {
                let (ino, handle) = match file {
                    None => (self.node(node), None),
                    Some(file) => match self.near(file) {
                        None => return Ok(Outcome::Nothing),
                        Some((ino, handle, _)) => (ino, Some(handle)),
                    },
                };
                self.see(&fs.setattr(cx, ino, handle, &set)?)
            }
            Op::Readlink { node } => {
                let mut target = Vec::new();
                fs.readlink(cx, self.node(node), &mut target)?;
                Outcome::Bytes(target)
            }
            Op::Mknod { parent, into, mode, .. } => {
                let attr = fs.mknod(cx, self.node(parent), at, mode, 0x103)?;
                self.keep(into, &attr)
            }
            Op::Mkdir { parent, into, mode, .. } => {
                let attr = fs.mkdir(cx, self.node(parent), at, mode)?;
                self.keep(into, &attr)
            }
            Op::Symlink { parent, into, len, .. } => {
                let target = pattern(u64::from(len), len.into());
                let attr = fs.symlink(cx, self.node(parent), at, &target)?;
                self.keep(into, &attr)
            }
            Op::Unlink { parent, .. } => done(fs.unlink(cx, self.node(parent), at)?),
            Op::Rmdir { parent, .. } => done(fs.rmdir(cx, self.node(parent), at)?),
            Op::Rename { parent, new_parent, new_name, flags, .. } => {
                let new_bytes = name_bytes(new_name);
                let to = Name::new(&new_bytes)?;
                let (from, new_parent) = (self.node(parent), self.node(new_parent));
                fs.rename(cx, from, at, new_parent, to, flags)?;
                // What is left is seen at once, as what other calls make.
                match flags.contains(RenameFlags::WHITEOUT) {
                    true => self.see(&fs.lookup(cx, from, at)?),
                    false => Outcome::Done,
                }
            }
            Op::Link { node, parent, .. } => {
                self.see(&fs.link(cx, self.node(node), self.node(parent), at)?)
            }
            Op::Open { node, file, flags } => {
                let ino = self.node(node);
                let handle = fs.open(cx, ino, flags)?;
                self.files[file as usize] = Some((ino, handle, flags));
                Outcome::Done
            }
            Op::Create { parent, into, file, mode, flags, .. } => {
                let (attr, handle) = fs.create(cx, self.node(parent), at, mode, flags)?;
                self.files[file as usize] = Some((attr.ino, handle, flags));
                self.keep(into, &attr)
            }
            Op::Tmpfile { parent, into, file, mode, flags } => {
                let (attr, handle) = fs.tmpfile(cx, self.node(parent), mode, flags)?;
                self.files[file as usize] = Some((attr.ino, handle, flags));
                self.keep(into, &attr)
            }
            Op::Read { file, .. }
            | Op::Write { file, .. }
            | Op::Copy { file, .. }
            | Op::Fallocate { file, .. }
            | Op::Seek { file, .. }
            | Op::Fsync { file, .. } => match self.near(file) {
                None => Outcome::Nothing,
                Some((ino, handle, _)) => self.call_on_file(fs, cx, op, ino, handle)?,
            },
            Op::Release { file } => match self.file(file) {
                None => Outcome::Nothing,
                Some((ino, handle, _)) => {
                    self.files[file as usize] = None;
                    done(fs.release(cx, ino, handle)?)
                }
            },
            Op::List { node } => {
                let ino = self.node(node);
                let handle = fs.opendir(cx, ino)?;
                let mut listed = Vec::new();
                let result = fs.readdir(cx, ino, handle, 0, &mut |entry| {
                    listed.push((entry.name.to_vec(), entry.ino));
                    true
                });
                fs.releasedir(cx, ino, handle)?;
                result?;
                listed.sort();
                Outcome::Names(listed.into_iter().map(|(name, ino)| (name, self.id(ino))).collect())
            }
            Op::Opendir { node, stream } => {
                let ino = self.node(node);
                let handle = fs.opendir(cx, ino)?;
                self.streams[stream as usize] = Some(Stream { ino, handle, cookie: 0 });
                Outcome::Done
            }
            Op::Readdir { stream, .. } | Op::Fsyncdir { stream } | Op::Releasedir { stream } => {
                match self.stream(stream) {
                    None => Outcome::Nothing,
                    Some(at) => self.call_on_stream(fs, cx, op, at)?,
                }
            }
            Op::Syncfs => done(fs.syncfs(cx)?),
            Op::Statfs => {
                let statfs = fs.statfs(cx)?;
                let (all, free) = (statfs.blocks, statfs.blocks_free);
                let sane = statfs.blocks_available <= free && free <= all;
                if !sane || statfs.files_free > statfs.files {
                    return Err(Errno::EUCLEAN);
                }
                Outcome::Done
            }
            Op::Setxattr { node, name, len, fill, flags } => {
                let value = fill_bytes(fill, 0, len as usize);
                done(fs.setxattr(cx, self.node(node), &xattr_name(name), &value, flags)?)
            }
            Op::Getxattr { node, name } => {
                let mut value = Vec::new();
                fs.getxattr(cx, self.node(node), &xattr_name(name), &mut value)?;
                Outcome::Bytes(value)
            }
            Op::Listxattr { node } => {
                let mut names = Vec::new();
                fs.listxattr(cx, self.node(node), &mut names)?;
                let names = names.split(|&b| b == 0).filter(|name| !name.is_empty());
                Outcome::Names(names.map(|name| (name.to_vec(), 0)).collect())
            }
            Op::Removexattr { node, name } => {
                done(fs.removexattr(cx, self.node(node), &xattr_name(name))?)
            }
        })
    }

    fn call_on_file(
        &mut self,
        fs: &mut (impl FileSystem + ?Sized),
        cx: &Context,
        op: &Op,
        ino: Ino,
        handle: Handle,
    ) -> Result<Outcome> {
        Ok(match *op {
            Op::Read { offset, len, .. } => {
                let mut buf = vec![0xee; len as usize];
                let (at, _) = cut(offset, buf.len());
                let (front, back) = buf.split_at_mut(at);
                let n = if back.is_empty() {
                    fs.read(cx, ino, handle, offset, front)?
                } else {
                    let mut room = Room::new(vec![front, back]);
                    fs.read_vectored(cx, ino, handle, offset, &mut room)?
                };
                buf.truncate(n);
                Outcome::Bytes(buf)
            }
            Op::Write { offset, len, fill, .. } => {
                let data = fill_bytes(fill, offset, len as usize);
                let (first, second) = cut(offset, data.len());
                let pieces = [&data[..first], &data[first..second], &data[second..]];
                let data = Data::new(&pieces);
                let mut written = fs.write_vectored(cx, ino, handle, offset, data)?;
                if data.is_empty() {
                    // The place of an empty write does not count.
                    written.offset = offset;
                }
                Outcome::Written(written)
            }
            Op::Copy { offset, to, to_offset, len, .. } => {
                let from = FileAt { ino, handle, offset };
                let (ino, handle, _) = self.near(to).unwrap_or((ino, handle, RW));
                let to = FileAt { ino, handle, offset: to_offset };
                let len = fs.copy_file_range(cx, from, to, len)? as usize;
                Outcome::Written(Written { len, offset: to_offset })
            }
            Op::Fallocate { offset, len, mode, .. } => {
                done(fs.fallocate(cx, ino, handle, offset, len, mode)?)
            }
            Op::Seek { offset, to, .. } => Outcome::Offset(fs.seek(cx, ino, handle, offset, to)?),
            Op::Fsync { data_only, .. } => done(fs.fsync(cx, ino, handle, data_only)?),
            _ => unreachable!("an operation on an open file"),
        })
    }

    fn call_on_stream(
        &mut self,
        fs: &mut (impl FileSystem + ?Sized),
        cx: &Context,
        op: &Op,
        at: Stream,
    ) -> Result<Outcome> {
        let Stream { ino, handle, cookie } = at;
        Ok(match *op {
            Op::Readdir { stream, count } => {
                let mut listed = Vec::new();
                let mut ended = true;
                let mut next = cookie;
                fs.readdir(cx, ino, handle, cookie, &mut |entry| {
                    ended = listed.len() < usize::from(count);
                    if ended {
                        next = entry.cookie;
                        listed.push((entry.name.to_vec(), entry.ino));
                    }
                    ended
                })?;
                let cookie = if ended { 0 } else { next };
                self.streams[stream as usize] = Some(Stream { cookie, ..at });
                let listed = listed.into_iter().map(|(name, ino)| (name, self.id(ino))).collect();
                Outcome::Stream(listed, ended)
            }
            Op::Fsyncdir { .. } => done(fs.fsyncdir(cx, ino, handle)?),
            Op::Releasedir { stream } => {
                self.streams[stream as usize] = None;
                done(fs.releasedir(cx, ino, handle)?)
            }
            _ => unreachable!("an operation on an open directory"),
        })
    }
}

/// The outcome of a call that returns nothing.
fn done((): ()) -> Outcome {
    Outcome::Done
}

/// Where the data of a call is cut into pieces of memory: of one in three.
fn cut(offset: u64, len: usize) -> (usize, usize) {
    if (offset + len as u64).is_multiple_of(3) { (len / 3, len - len / 7) } else { (len, len) }
}
