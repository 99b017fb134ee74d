//! Copying from file to file: the bytes stay on this side.

use atoll_vfs::filesystem::{COPY_MAX, copied_len};
use atoll_vfs::{Context, Errno, FileAt, FileSystem, OpenFlags, Result, Room};

use crate::guarded::Guarded;
use crate::leases::observer::{Content, Now};
use crate::open::handles::Open;
use crate::rights::rates::Work;
use crate::session::Session;
use crate::session::call::Call;
use crate::session::concerns::CHANGE;

impl<F: FileSystem + Send> Session<F> {
    /// Copies as much as one hold of the volume's lock does. Returns how many bytes.
    pub(crate) fn copy_once(
        &mut self,
        cx: &Context,
        (source, from): (&Open, u64),
        (target, to): (&Open, u64),
        len: u64,
    ) -> Result<u64> {
        let copied = self.call_by(cx, CHANGE, target, |call| {
            call.state.involved.add(source.ino);
            let flags = target.flags.unwrap_or(OpenFlags::empty());
            if !source.is_readable() || !flags.contains(OpenFlags::WRITE) {
                return Err(Errno::EBADF);
            }
            if flags.contains(OpenFlags::APPEND) {
                return Err(Errno::EBADF);
            }
            let from = FileAt { ino: source.ino, handle: source.handle, offset: from };
            let to = FileAt { ino: target.ino, handle: target.handle, offset: to };
            let size = call.state.fs.getattr(&call.cx, source.ino)?.size;
            let most = call.own.access.limits.transfer as u64;
            let mut len = copied_len(from, to, len, size)?.min(most);
            if len == 0 {
                return Ok(0);
            }
            call.drop_privileges(target.ino)?;
            let Call { state, cx, own, .. } = call;
            let state: &mut Guarded<F> = state;
            // Bytes in the memory of a mapped file are not in the file yet, and have to come there.
            let by_hand = state.is_mapped(source.ino) || state.is_mapped(target.ino);
            if by_hand {
                len = len.min(COPY_MAX);
            }
            let written = to.offset..to.offset + len;
            let was = state.size_before(cx, own.id, target.ino, written, to.offset)?;
            let (mut data, mut last) = (Vec::new(), [0]);
            let copied = if by_hand {
                data.resize(len as usize, 0);
                let got = state.fs.read(cx, from.ino, from.handle, from.offset, &mut data)?;
                let mut room = Room::from(&mut data[..got]);
                state.read_mapped(from.ino, from.offset, &mut room)?;
                state.fs.write(cx, to.ino, to.handle, to.offset, &data[..got])?.len as u64
            } else {
                let copied = state.fs.copy_file_range(cx, from, to, len)?;
                if was.is_some() && copied > 0 {
                    let at = from.offset + copied - 1;
                    state.fs.read(cx, from.ino, from.handle, at, &mut last)?;
                }
                copied
            };
            if copied > 0 && state.content_observed(target.ino) {
                let now = match by_hand {
                    true => Now::Bytes { data: data[..copied as usize].into(), cached: false },
                    false => Now::Until(last[0]),
                };
                let end = to.offset + copied;
                let grew = was.map(|was| (was, end)).filter(|(was, is)| is > was);
                let (ino, offset) = (to.ino, to.offset);
                let content = Content { ino, offset, len: copied, now, grew };
                state.tell_content(cx, own.id, content);
            }
            // A kernel does not say whether the descriptor has O_NOATIME now: as it was opened.
            let traced = !source.flags.is_some_and(|flags| flags.contains(OpenFlags::NOATIME));
            if state.relatime && copied > 0 && traced && !own.access.read_only {
                state.accessed(cx, own.id, source.ino);
            }
            Ok(copied)
        })?;
        if let Some(meter) = &self.meter {
            meter.note(Work { operations: 0, bytes: copied });
        }
        Ok(copied)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use atoll_vfs::{Handle, Ino, Name, SetAttr, XattrFlags};

    use super::*;
    use crate::leases::caches::Lends;
    use crate::leases::gate::Next;
    use crate::testing::Noted;
    use crate::{Access, Credentials};

    const CX: Context = Context { uid: 0, gid: 0, now: atoll_vfs::Timespec { sec: 0, nsec: 0 } };
    const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

    fn at(ino: Ino, handle: Handle, offset: u64) -> FileAt {
        FileAt { ino, handle, offset }
    }

    /// Kernels that read the copy are told how long it has become, and by which byte.
    #[test]
    fn kernels_are_told() {
        let volume = crate::testing::volume();
        let session =
            || volume.session(Credentials::default(), Access::default()).expect("a session");
        let (mut owner, mut reader) = (session(), session());
        let cache = reader.begin_cache(Lends::Pages, Arc::new(Noted::default())).unwrap();
        let name = Name::new(b"f").unwrap();
        let (attr, handle) = owner.create(&CX, Ino::ROOT, name, 0o644, RW).unwrap();
        owner.write(&CX, attr.ino, handle, 0, b"content").unwrap();
        let ino = reader.lookup(&CX, Ino::ROOT, name).unwrap().ino;
        let read = reader.open(&CX, ino, OpenFlags::READ).unwrap();
        cache.buffered(ino.0, read.0);
        let (from, to) = (at(attr.ino, handle, 2), at(attr.ino, handle, 100));
        assert_eq!(owner.copy_file_range(&CX, from, to, 3), Ok(3));
        let mut grown = None;
        while let Next::Tell(notice) = cache.next() {
            grown = grown.or(notice.grown);
            cache.told();
        }
        assert_eq!(grown, Some((103, b'e')));
    }

    /// A copy needs the right to read one file and to write the other, and takes from the latter
    /// the privileges that a write takes.
    #[test]
    fn both_files_are_judged() {
        let volume = crate::testing::volume();
        let session = |read_only| {
            let access = Access { read_only, ..Access::default() };
            volume.session(Credentials::default(), access).unwrap()
        };
        let mut owner = session(false);
        let [a, b] = [b"a", b"b"].map(|name| {
            let name = Name::new(name).unwrap();
            let (attr, handle) = owner.create(&CX, Ino::ROOT, name, 0o644, RW).unwrap();
            (attr.ino, handle)
        });
        owner.write(&CX, a.0, a.1, 0, b"content").unwrap();
        let capability = b"security.capability";
        owner.setxattr(&CX, b.0, capability, b"c", XattrFlags::empty()).unwrap();
        let read = owner.open(&CX, a.0, OpenFlags::READ).unwrap();
        let append = owner.open(&CX, b.0, RW | OpenFlags::APPEND).unwrap();
        let write = owner.open(&CX, b.0, OpenFlags::WRITE).unwrap();
        let mut copy = |from: (Ino, Handle), to: (Ino, Handle)| {
            owner.copy_file_range(&CX, at(from.0, from.1, 0), at(to.0, to.1, 0), 99)
        };
        let refused = Err(Errno::EBADF);
        assert_eq!(copy((a.0, read), (b.0, append)), refused);
        assert_eq!(copy((b.0, write), a), refused);
        assert_eq!(copy(b, (a.0, read)), refused);
        assert_eq!(copy(a, (b.0, Handle(999))), refused);
        assert_eq!(copy(a, a), Err(Errno::EINVAL));
        let mut value = Vec::new();
        owner.getxattr(&CX, b.0, capability, &mut value).unwrap();
        assert_eq!(value, b"c", "what was not copied takes nothing");
        let copied = owner.copy_file_range(&CX, at(a.0, read, 1), at(b.0, write, 2), 99);
        assert_eq!(copied, Ok(6));
        let gone = owner.getxattr(&CX, b.0, capability, &mut value);
        assert_eq!(gone, Err(Errno::ENODATA));
        let mut content = [0; 9];
        assert_eq!(owner.read(&CX, b.0, b.1, 0, &mut content), Ok(8));
        assert_eq!(&content, b"\0\0ontent\0");
        assert_eq!(owner.setattr(&CX, b.0, None, &SetAttr::default()).unwrap().size, 8);

        let mut looking = session(true);
        let ino = looking.lookup(&CX, Ino::ROOT, Name::new(b"a").unwrap()).unwrap().ino;
        let handle = looking.open(&CX, ino, OpenFlags::READ).unwrap();
        let copied = looking.copy_file_range(&CX, at(ino, handle, 0), at(ino, handle, 20), 1);
        assert_eq!(copied, Err(Errno::EROFS));
    }
}
