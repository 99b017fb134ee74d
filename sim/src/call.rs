//! The calls of clients, in words that the served volume and the model both understand.

use atoll_tests::ops::fill_bytes;
use atoll_vfs::{
    Attr, Context, Errno, FallocateMode, FileSystem, FileType, Handle, Ino, Name, OpenFlags,
    RenameFlags, Result, SetAttr, XattrFlags,
};

/// One thing, by the number that the client has of it and by that of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Twin<T> {
    /// The client's.
    pub served: T,
    /// The model's.
    pub model: T,
}

/// The one of the two that a call is asked of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// A session of the server.
    Served,
    /// The model.
    Model,
}

impl<T: Copy> Twin<T> {
    /// The number on one side.
    pub fn on(&self, side: Side) -> T {
        match side {
            Side::Served => self.served,
            Side::Model => self.model,
        }
    }
}

/// An inode.
pub type Node = Twin<Ino>;

/// An open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct File {
    /// The inode that is open.
    pub node: Node,
    /// The handle by which it is open.
    pub handle: Twin<Handle>,
}

/// Names are of one letter.
pub type Letter = u8;

/// A letter that no name has.
const NO_LETTER: Letter = b'-';

/// A call. The fields are the arguments of the verb of that name in [`FileSystem`].
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum Call {
    Lookup {
        parent: Node,
        name: Letter,
    },
    Getattr {
        node: Node,
    },
    Setattr {
        node: Node,
        file: Option<File>,
        set: SetAttr,
    },
    Mknod {
        parent: Node,
        name: Letter,
        mode: u32,
    },
    Mkdir {
        parent: Node,
        name: Letter,
        mode: u32,
    },
    Symlink {
        parent: Node,
        name: Letter,
        len: u16,
    },
    Readlink {
        node: Node,
    },
    Unlink {
        parent: Node,
        name: Letter,
    },
    Rmdir {
        parent: Node,
        name: Letter,
    },
    Rename {
        parent: Node,
        name: Letter,
        new_parent: Node,
        new_name: Letter,
        flags: RenameFlags,
    },
    Link {
        node: Node,
        parent: Node,
        name: Letter,
    },
    Open {
        node: Node,
        flags: OpenFlags,
    },
    Create {
        parent: Node,
        name: Letter,
        mode: u32,
        flags: OpenFlags,
    },
    Read {
        file: File,
        offset: u64,
        len: u32,
    },
    Write {
        file: File,
        offset: u64,
        len: u32,
        fill: u32,
        /// At the end of the file, wherever that is; the bytes are those of a write at `offset`.
        append: bool,
    },
    Fallocate {
        file: File,
        offset: u64,
        len: u64,
        mode: FallocateMode,
    },
    Release {
        file: File,
    },
    Opendir {
        node: Node,
    },
    /// All names of a directory.
    Readdir {
        file: File,
    },
    Releasedir {
        file: File,
    },
    Setxattr {
        node: Node,
        name: Letter,
        len: u32,
        fill: u32,
    },
    Getxattr {
        node: Node,
        name: Letter,
    },
    Removexattr {
        node: Node,
        name: Letter,
    },
}

/// The answer to a call that succeeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Attributes.
    Attr(Attr),
    /// An open file.
    Opened(Handle),
    /// An open file that was made, perhaps.
    Created(Attr, Handle),
    /// Content, a target or a value.
    Bytes(Vec<u8>),
    /// How many bytes were written.
    Wrote(usize),
    /// Names and their types, in order of names.
    Names(Vec<(Vec<u8>, FileType)>),
    /// Nothing more.
    Done,
}

/// Has `fs` carry out a call that names one entry of a directory.
fn named<T>(letter: Letter, call: impl FnOnce(Name<'_>) -> Result<T>) -> Result<T> {
    call(Name::new(&[letter])?)
}

impl Call {
    /// Has `fs` carry it out.
    ///
    /// # Errors
    /// The verb's.
    pub fn ask(&self, fs: &mut impl FileSystem, cx: &Context, side: Side) -> Result<Answer> {
        let node = |node: &Node| node.on(side);
        let attr = |attr: Result<Attr>| attr.map(Answer::Attr);
        let done = |done: Result<()>| done.map(|()| Answer::Done);
        match self {
            Call::Lookup { parent, name } => {
                named(*name, |name| attr(fs.lookup(cx, node(parent), name)))
            }
            Call::Getattr { node: of } => attr(fs.getattr(cx, node(of))),
            Call::Setattr { node: of, file, set } => {
                attr(fs.setattr(cx, node(of), file.map(|file| file.handle.on(side)), set))
            }
            Call::Mknod { parent, name, mode } => {
                let mode = FileType::Regular.mode_bits() | mode;
                named(*name, |name| attr(fs.mknod(cx, node(parent), name, mode, 0)))
            }
            Call::Mkdir { parent, name, mode } => {
                named(*name, |name| attr(fs.mkdir(cx, node(parent), name, *mode)))
            }
            Call::Symlink { parent, name, len } => {
                let target = fill_bytes(u32::from(*len), 0, usize::from(*len));
                named(*name, |name| attr(fs.symlink(cx, node(parent), name, &target)))
            }
            Call::Readlink { node: of } => {
                let mut target = Vec::new();
                fs.readlink(cx, node(of), &mut target).map(|()| Answer::Bytes(target))
            }
            Call::Unlink { parent, name } => {
                named(*name, |name| done(fs.unlink(cx, node(parent), name)))
            }
            Call::Rmdir { parent, name } => {
                named(*name, |name| done(fs.rmdir(cx, node(parent), name)))
            }
            Call::Rename { parent, name, new_parent, new_name, flags } => {
                let (from, to) = (node(parent), node(new_parent));
                named(*name, |name| {
                    named(*new_name, |new| done(fs.rename(cx, from, name, to, new, *flags)))
                })
            }
            Call::Link { node: of, parent, name } => {
                named(*name, |name| attr(fs.link(cx, node(of), node(parent), name)))
            }
            Call::Open { node: of, flags } => fs.open(cx, node(of), *flags).map(Answer::Opened),
            Call::Create { parent, name, mode, flags } => named(*name, |name| {
                let (attr, handle) = fs.create(cx, node(parent), name, *mode, *flags)?;
                Ok(Answer::Created(attr, handle))
            }),
            Call::Read { file, offset, len } => {
                let mut bytes = vec![0; *len as usize];
                let (ino, handle) = (node(&file.node), file.handle.on(side));
                let read = fs.read(cx, ino, handle, *offset, &mut bytes)?;
                bytes.truncate(read);
                Ok(Answer::Bytes(bytes))
            }
            Call::Write { file, offset, len, fill, append } => {
                let bytes = fill_bytes(*fill, *offset, *len as usize);
                let (ino, handle) = (node(&file.node), file.handle.on(side));
                let offset = if *append { fs.getattr(cx, ino)?.size } else { *offset };
                let written = fs.write(cx, ino, handle, offset, &bytes)?;
                Ok(Answer::Wrote(written.len))
            }
            Call::Fallocate { file, offset, len, mode } => {
                let (ino, handle) = (node(&file.node), file.handle.on(side));
                done(fs.fallocate(cx, ino, handle, *offset, *len, *mode))
            }
            Call::Release { file } => done(fs.release(cx, node(&file.node), file.handle.on(side))),
            Call::Opendir { node: of } => fs.opendir(cx, node(of)).map(Answer::Opened),
            Call::Readdir { file } => list(fs, cx, node(&file.node), file.handle.on(side)),
            Call::Releasedir { file } => {
                done(fs.releasedir(cx, node(&file.node), file.handle.on(side)))
            }
            Call::Setxattr { node: of, name, len, fill } => {
                let value = fill_bytes(*fill, 0, *len as usize);
                let name = [b"user.", &[*name][..]].concat();
                done(fs.setxattr(cx, node(of), &name, &value, XattrFlags::empty()))
            }
            Call::Getxattr { node: of, name } => {
                let mut value = Vec::new();
                let name = [b"user.", &[*name][..]].concat();
                fs.getxattr(cx, node(of), &name, &mut value).map(|()| Answer::Bytes(value))
            }
            Call::Removexattr { node: of, name } => {
                let name = [b"user.", &[*name][..]].concat();
                done(fs.removexattr(cx, node(of), &name))
            }
        }
    }

    /// Whether it may change something, a file's being open included.
    pub fn has_effect(&self) -> bool {
        !matches!(
            self,
            Call::Lookup { .. }
                | Call::Getattr { .. }
                | Call::Readlink { .. }
                | Call::Read { .. }
                | Call::Readdir { .. }
                | Call::Getxattr { .. }
        )
    }

    /// Whether a crash may leave a part of it.
    pub fn has_parts(&self) -> bool {
        matches!(self, Call::Write { .. } | Call::Fallocate { .. })
    }

    /// The nodes that it names.
    pub fn nodes(&self) -> [Option<Node>; 2] {
        match self {
            Call::Lookup { parent, .. }
            | Call::Mknod { parent, .. }
            | Call::Mkdir { parent, .. }
            | Call::Symlink { parent, .. }
            | Call::Unlink { parent, .. }
            | Call::Rmdir { parent, .. }
            | Call::Create { parent, .. } => [Some(*parent), None],
            Call::Rename { parent, new_parent, .. } => [Some(*parent), Some(*new_parent)],
            Call::Link { node, parent, .. } => [Some(*node), Some(*parent)],
            Call::Getattr { node }
            | Call::Setattr { node, .. }
            | Call::Readlink { node }
            | Call::Open { node, .. }
            | Call::Opendir { node }
            | Call::Setxattr { node, .. }
            | Call::Getxattr { node, .. }
            | Call::Removexattr { node, .. } => [Some(*node), None],
            Call::Read { file, .. }
            | Call::Write { file, .. }
            | Call::Fallocate { file, .. }
            | Call::Release { file }
            | Call::Readdir { file }
            | Call::Releasedir { file } => [Some(file.node), None],
        }
    }

    /// The open file or directory that it names.
    pub fn file(&self) -> Option<File> {
        match *self {
            Call::Setattr { file, .. } => file,
            Call::Read { file, .. }
            | Call::Write { file, .. }
            | Call::Fallocate { file, .. }
            | Call::Release { file }
            | Call::Readdir { file }
            | Call::Releasedir { file } => Some(file),
            _ => None,
        }
    }

    /// Whether it closes a file or a directory.
    pub fn closes(&self) -> bool {
        matches!(self, Call::Release { .. } | Call::Releasedir { .. })
    }

    /// The letters in its message.
    pub fn letters(&self) -> [Letter; 2] {
        match *self {
            Call::Setxattr { name, .. }
            | Call::Getxattr { name, .. }
            | Call::Removexattr { name, .. } => [name, NO_LETTER],
            _ => self.names().map(|named| named.map_or(NO_LETTER, |(_, letter)| letter)),
        }
    }

    /// The names that it names, each with its directory.
    pub fn names(&self) -> [Option<(Node, Letter)>; 2] {
        match *self {
            Call::Lookup { parent, name }
            | Call::Mknod { parent, name, .. }
            | Call::Mkdir { parent, name, .. }
            | Call::Symlink { parent, name, .. }
            | Call::Unlink { parent, name }
            | Call::Rmdir { parent, name }
            | Call::Link { parent, name, .. }
            | Call::Create { parent, name, .. } => [Some((parent, name)), None],
            Call::Rename { parent, name, new_parent, new_name, .. } => {
                [Some((parent, name)), Some((new_parent, new_name))]
            }
            _ => [None, None],
        }
    }
}

fn list(fs: &mut impl FileSystem, cx: &Context, ino: Ino, handle: Handle) -> Result<Answer> {
    let mut names = Vec::new();
    fs.readdir(cx, ino, handle, 0, &mut |entry| {
        names.push((entry.name.to_vec(), entry.file_type));
        true
    })?;
    names.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    Ok(Answer::Names(names))
}

/// The attributes of an inode that both sides must agree on: numbers, storage and the size of a
/// directory are their own.
pub fn shown(attr: &Attr) -> Attr {
    let size = if attr.file_type() == FileType::Directory { 0 } else { attr.size };
    Attr { ino: Ino(0), blocks: 0, size, ..*attr }
}

/// The attributes that are not compared.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lax {
    /// The times of the last changes, which may lag behind after the end of a process.
    pub times: bool,
    /// The time of creation, of which Linux's FUSE says nothing.
    pub birth: bool,
}

impl Lax {
    /// The attributes that are compared.
    pub fn seen(self, attr: &Attr) -> Attr {
        let mut attr = shown(attr);
        if self.times {
            (attr.mtime, attr.ctime) = Default::default();
        }
        if self.birth {
            attr.btime = Default::default();
        }
        attr
    }
}

/// Whether the two sides say the same.
pub fn agree(
    served: &Result<Answer>,
    model: &Result<Answer>,
    admissible: &[Errno],
    lax: Lax,
) -> bool {
    match (served, model) {
        (Ok(Answer::Attr(a)), Ok(Answer::Attr(b)))
        | (Ok(Answer::Created(a, _)), Ok(Answer::Created(b, _))) => lax.seen(a) == lax.seen(b),
        (Ok(Answer::Opened(_)), Ok(Answer::Opened(_))) => true,
        // Of a removed directory the volume still lists these, and the model nothing.
        (Ok(Answer::Names(a)), Ok(Answer::Names(b))) if b.is_empty() => {
            a.iter().all(|(name, _)| matches!(&name[..], b"." | b".."))
        }
        (Ok(a), Ok(b)) => a == b,
        (Err(error), Err(_)) => admissible.contains(error),
        _ => false,
    }
}
