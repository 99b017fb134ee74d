//! The judge of rights: Linux's permission bits, by the model's attributes before a call, for a
//! user who is in no groups but his own.

use atoll_vfs::{Attr, Errno, FileType, OpenFlags, SetTime};

use crate::call::{Call, Letter, Node};
use crate::mirror::Mirror;
use crate::seat::Role;

const READ: u32 = 4;
const WRITE: u32 = 2;
const SEARCH: u32 = 1;

/// The rights that opening with `flags` takes.
fn opening(flags: OpenFlags) -> u32 {
    let mut wants = 0;
    if flags.contains(OpenFlags::READ) {
        wants |= READ;
    }
    if flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNC) {
        wants |= WRITE;
    }
    wants
}

/// One user, and the model as it is before his call.
struct Caller<'a> {
    uid: u32,
    mirror: &'a mut Mirror,
}

impl Caller<'_> {
    fn has(&self, attr: &Attr, wants: u32) -> bool {
        let shift = match () {
            () if attr.uid == self.uid => 6,
            () if attr.gid == self.uid => 3,
            () => 0,
        };
        attr.mode >> shift & wants == wants
    }

    /// Whether he has `wants` on a node of this type. Other types, and missing nodes, are for the
    /// model to refuse.
    fn may(&mut self, node: Node, file_type: FileType, wants: u32) -> bool {
        let attr = self.mirror.attr(node).filter(|attr| attr.file_type() == file_type);
        attr.is_none_or(|attr| self.has(&attr, wants))
    }

    fn may_in(&mut self, dir: Node, wants: u32) -> bool {
        self.may(dir, FileType::Directory, wants)
    }

    fn owns(&mut self, node: Node) -> bool {
        self.mirror.attr(node).is_none_or(|attr| attr.uid == self.uid)
    }

    /// Whether he could copy the file as well as give it a name, or it is his.
    fn may_link(&mut self, node: Node) -> bool {
        let Some(attr) = self.mirror.attr(node) else { return true };
        let is_plain = attr.file_type() == FileType::Regular;
        let is_set_id = attr.mode & 0o4000 != 0 || attr.mode & 0o2010 == 0o2010;
        let copies = is_plain && !is_set_id && self.has(&attr, READ | WRITE);
        copies || attr.uid == self.uid
    }

    fn named(&mut self, dir: Node, name: Letter) -> Option<Attr> {
        let model = self.mirror.lookup(dir, name).ok()?;
        self.mirror.attr(Node { served: model, model })
    }

    fn is_allowed(&mut self, call: &Call) -> bool {
        match *call {
            Call::Lookup { parent, .. } => self.may_in(parent, SEARCH),
            Call::Mknod { parent, .. }
            | Call::Mkdir { parent, .. }
            | Call::Symlink { parent, .. }
            | Call::Unlink { parent, .. }
            | Call::Rmdir { parent, .. } => self.may_in(parent, WRITE | SEARCH),
            Call::Link { node, parent, .. } => {
                self.may_in(parent, WRITE | SEARCH) && self.may_link(node)
            }
            Call::Rename { parent, name, new_parent, new_name, .. } => {
                let (moved, other) = (self.named(parent, name), self.named(new_parent, new_name));
                let is_same = moved.map(|attr| attr.ino) == other.map(|attr| attr.ino);
                if is_same {
                    return self.may_in(parent, SEARCH) && self.may_in(new_parent, SEARCH);
                }
                // A directory that changes its parent has its `..` rewritten.
                let moves = parent.model != new_parent.model;
                let is_held = |attr: &Attr| {
                    moves && attr.file_type() == FileType::Directory && !self.has(attr, WRITE)
                };
                let held = moved.iter().any(is_held);
                !held
                    && self.may_in(parent, WRITE | SEARCH)
                    && self.may_in(new_parent, WRITE | SEARCH)
            }
            Call::Open { node, flags } => self.may(node, FileType::Regular, opening(flags)),
            Call::Opendir { node } => self.may_in(node, READ),
            Call::Create { parent, name, flags, .. } => {
                let found = self.named(parent, name);
                self.may_in(parent, SEARCH)
                    && match found {
                        Some(attr) if attr.file_type() == FileType::Regular => {
                            flags.contains(OpenFlags::EXCL) || self.has(&attr, opening(flags))
                        }
                        Some(_) => true,
                        None => self.may_in(parent, WRITE),
                    }
            }
            Call::Setattr { node, file, ref set } => {
                let cuts = set.size.is_some() && file.is_none();
                let owned = set.mode.is_some() || matches!(set.mtime, Some(SetTime::To(_)));
                (!cuts || self.may(node, FileType::Regular, WRITE)) && (!owned || self.owns(node))
            }
            Call::Setxattr { node, .. } | Call::Removexattr { node, .. } => {
                self.may_in(node, WRITE) && self.may(node, FileType::Regular, WRITE)
            }
            Call::Getxattr { node, .. } => {
                self.may_in(node, READ) && self.may(node, FileType::Regular, READ)
            }
            // A client that has it open, or knows it, may.
            _ => true,
        }
    }
}

/// Whether permissions allow `role` to make `call`, as the model is before it.
pub fn allows(mirror: &mut Mirror, role: Role, call: &Call) -> bool {
    role.is_free() || Caller { uid: role.uid(), mirror }.is_allowed(call)
}

/// Whether the server may refuse with `error` what the model, which judges nobody, would do. The
/// volume is never full.
pub fn may_refuse(mirror: &mut Mirror, role: Role, call: &Call, error: Errno) -> bool {
    let node = call.nodes()[0];
    let attr = node.and_then(|node| mirror.attr(node));
    match error {
        Errno::EROFS => role.is_read_only() && call.has_effect(),
        // Linux has attributes of users at regular files and directories alone.
        Errno::EPERM if matches!(call, Call::Setxattr { .. } | Call::Removexattr { .. }) => {
            let has = [FileType::Regular, FileType::Directory];
            attr.is_some_and(|attr| !has.contains(&attr.file_type())) || !allows(mirror, role, call)
        }
        Errno::EACCES | Errno::EPERM => {
            // A handle that is not open for writing helps nobody.
            let bare = match *call {
                Call::Setattr { node, set, .. } => Call::Setattr { node, file: None, set },
                call => call,
            };
            !allows(mirror, role, &bare)
        }
        // A file without a name is for clients that have it open.
        Errno::ENOENT if matches!(call, Call::Link { .. }) => {
            !role.is_free() && attr.is_some_and(|attr| attr.nlink == 0)
        }
        // The inode has moved out of the client's sight; or the client has forgotten it and still
        // names it.
        Errno::ESTALE => role.is_subtree() || role.is_hostile(),
        _ => false,
    }
}
