//! The verbs, one by one.

use super::*;

fn xattr_reasons(inode: Option<&Inode>, name: &[u8]) -> Vec<(bool, Errno)> {
    Vec::from([
        (inode.is_none(), Errno::ESTALE),
        (name.is_empty() || name.len() > 255, Errno::ERANGE),
        (name.contains(&0), Errno::EINVAL),
    ])
}

impl FileSystem for ModelFs {
    fn lookup(&mut self, _: &Context, parent: Ino, name: Name<'_>) -> Result<Attr> {
        let dir = self.dir(parent)?;
        let found = match name.bytes() {
            b"." => Some(parent),
            b".." => Some(dir.parent),
            _ => dir.get(name),
        };
        match found {
            Some(ino) if self.inodes.contains_key(&ino) => Ok(self.inode(ino)?.attr()),
            // `..` of a directory that was removed, whose parent may be gone too.
            _ => self.fail(Errno::ENOENT),
        }
    }

    fn getattr(&mut self, _: &Context, ino: Ino) -> Result<Attr> {
        Ok(self.inode(ino)?.attr())
    }

    fn setattr(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Option<Handle>,
        set: &SetAttr,
    ) -> Result<Attr> {
        let file_type = self.inode(ino)?.attr.file_type();
        if let Some(size) = set.size {
            let mut reasons = Vec::from([
                (file_type == FileType::Directory, Errno::EISDIR),
                (file_type != FileType::Regular, Errno::EINVAL),
                (size > FILE_SIZE_MAX, Errno::EFBIG),
                (size > FILE_SIZE_MAX, Errno::EINVAL),
            ]);
            if let Some(handle) = handle {
                reasons.extend(self.file_handle_reasons(ino, handle, OpenFlags::WRITE));
            }
            self.refuse(&reasons)?;
        }
        let inode = self.inode(ino)?;
        if let Some(mode) = set.mode {
            inode.attr.mode = file_type.mode_bits() | mode & 0o7777;
        }
        inode.attr.uid = set.uid.unwrap_or(inode.attr.uid);
        inode.attr.gid = set.gid.unwrap_or(inode.attr.gid);
        let time = |set| match set {
            SetTime::Now => cx.now,
            SetTime::To(time) => time,
        };
        if let (Some(size), Body::File(content)) = (set.size, &mut inode.body) {
            content.set_size(size);
            inode.content_changed(cx.now);
        }
        inode.attr.atime = set.atime.map_or(inode.attr.atime, time);
        inode.attr.mtime = set.mtime.map_or(inode.attr.mtime, time);
        if *set != SetAttr::default() {
            inode.changed(cx.now);
        }
        Ok(inode.attr())
    }

    fn accessed(&mut self, cx: &Context, ino: Ino) -> bool {
        match self.inode(ino) {
            Ok(inode) if inode.attr().access_is_due(cx.now) => {
                inode.attr.atime = cx.now;
                true
            }
            _ => false,
        }
    }

    fn readlink(&mut self, _: &Context, ino: Ino, target: &mut Vec<u8>) -> Result<()> {
        match &self.inode(ino)?.body {
            Body::Symlink(bytes) => {
                target.extend_from_slice(bytes);
                Ok(())
            }
            _ => self.fail(Errno::EINVAL),
        }
    }

    fn mknod(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        mode: u32,
        rdev: u32,
    ) -> Result<Attr> {
        let file_type = FileType::from_mode(mode);
        let allowed = !matches!(file_type, None | Some(FileType::Directory | FileType::Symlink));
        self.vacancy(parent, name, &[(!allowed, Errno::EINVAL)])?;
        let file_type = file_type.expect("refused above");
        let (body, rdev) = match file_type {
            FileType::Regular => (Body::File(Content::default()), 0),
            FileType::CharDevice | FileType::BlockDevice => (Body::Special, rdev),
            _ => (Body::Special, 0),
        };
        let ino = self.add_inode_in(cx, parent, file_type, mode, rdev, body)?;
        self.add_name(cx, parent, name, ino)?;
        self.getattr(cx, ino)
    }

    fn mkdir(&mut self, cx: &Context, parent: Ino, name: Name<'_>, mode: u32) -> Result<Attr> {
        self.vacancy(parent, name, &[])?;
        let body = Body::Directory(Directory::new(parent));
        let ino = self.add_inode_in(cx, parent, FileType::Directory, mode, 0, body)?;
        self.add_name(cx, parent, name, ino)?;
        self.getattr(cx, ino)
    }

    fn symlink(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        target: &[u8],
    ) -> Result<Attr> {
        self.vacancy(
            parent,
            name,
            &[
                (target.is_empty(), Errno::ENOENT),
                (target.len() > SYMLINK_MAX, Errno::ENAMETOOLONG),
            ],
        )?;
        let body = Body::Symlink(target.to_vec());
        let ino = self.add_inode_in(cx, parent, FileType::Symlink, 0o777, 0, body)?;
        self.add_name(cx, parent, name, ino)?;
        self.getattr(cx, ino)
    }

    fn unlink(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<()> {
        let ino = self.entry(parent, name)?;
        let is_dir = self.inode(ino)?.is_dir();
        self.refuse(&[(is_dir, Errno::EISDIR)])?;
        self.dir(parent)?.remove(name);
        self.inode(parent)?.content_changed(cx.now);
        self.drop_link(cx, parent, ino)
    }

    fn rmdir(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<()> {
        let ino = self.entry(parent, name)?;
        let empty = self.dir(ino)?.entries.is_empty();
        self.refuse(&[(!empty, Errno::ENOTEMPTY)])?;
        self.dir(parent)?.remove(name);
        self.inode(parent)?.content_changed(cx.now);
        self.drop_link(cx, parent, ino)
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
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let noreplace = flags.contains(RenameFlags::NOREPLACE);
        let source = self.peek(parent, name);
        let target = self.peek(new_parent, new_name);
        let body =
            |ino: Option<Ino>| ino.and_then(|ino| self.inodes.get(&ino)).map(|inode| &inode.body);
        let source_is_dir = matches!(body(source), Some(Body::Directory(_)));
        let (target_is_dir, target_is_empty) = match body(target) {
            Some(Body::Directory(dir)) => (true, dir.entries.is_empty()),
            _ => (false, true),
        };
        let same = target.is_some() && target == source;
        let replaces = source.is_some() && target.is_some() && !exchange && !same;
        let dead = self.inodes.get(&new_parent).is_some_and(|i| i.is_dir() && i.attr.nlink == 0);
        let into_itself =
            source_is_dir && source.is_some_and(|source| self.is_above(source, new_parent));
        let out_of_itself =
            target_is_dir && target.is_some_and(|target| self.is_above(target, parent));
        let mut reasons = self.parent_reasons(parent, name);
        reasons.extend(self.parent_reasons(new_parent, new_name));
        reasons.extend([
            (!flags.agree(), Errno::EINVAL),
            (dead || source.is_none() || exchange && target.is_none(), Errno::ENOENT),
            (into_itself || exchange && out_of_itself, Errno::EINVAL),
            (noreplace && target.is_some(), Errno::EEXIST),
            (replaces && source_is_dir && !target_is_dir, Errno::ENOTDIR),
            (replaces && !source_is_dir && target_is_dir, Errno::EISDIR),
            (replaces && !target_is_empty, Errno::ENOTEMPTY),
        ]);
        self.refuse(&reasons)?;
        let source = source.expect("refused above");
        if same {
            return Ok(());
        }

        if exchange {
            let target = target.expect("refused above");
            self.dir(parent)?.set(name, target);
            self.dir(new_parent)?.set(new_name, source);
            self.moved(cx, target, new_parent, parent)?;
        } else {
            if flags.contains(RenameFlags::WHITEOUT) {
                let device = FileType::CharDevice;
                let left = self.add_inode_in(cx, parent, device, 0, 0, Body::Special)?;
                self.add_name(cx, parent, name, left)?;
            } else {
                self.dir(parent)?.remove(name);
            }
            self.dir(new_parent)?.set(new_name, source);
            if let Some(target) = target {
                self.drop_link(cx, new_parent, target)?;
            }
        }
        self.moved(cx, source, parent, new_parent)?;
        self.inode(parent)?.content_changed(cx.now);
        self.inode(new_parent)?.content_changed(cx.now);
        Ok(())
    }

    fn link(
        &mut self,
        cx: &Context,
        ino: Ino,
        new_parent: Ino,
        new_name: Name<'_>,
    ) -> Result<Attr> {
        let inode = self.inodes.get(&ino);
        let is_dir = inode.is_some_and(Inode::is_dir);
        let full = !is_dir && inode.is_some_and(|inode| inode.attr.nlink >= LINK_MAX);
        let stale = inode.is_none();
        self.vacancy(
            new_parent,
            new_name,
            &[(stale, Errno::ESTALE), (is_dir, Errno::EPERM), (full, Errno::EMLINK)],
        )?;
        self.add_name(cx, new_parent, new_name, ino)?;
        self.inode(ino)?.changed(cx.now);
        self.getattr(cx, ino)
    }

    fn open(&mut self, cx: &Context, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        match self.inode(ino)?.attr.file_type() {
            FileType::Regular => {}
            FileType::Directory => return self.fail(Errno::EISDIR),
            FileType::Symlink => return self.fail(Errno::ELOOP),
            _ => return self.fail(Errno::ENXIO),
        }
        if flags.contains(OpenFlags::TRUNC) {
            self.file(ino).set_size(0);
            self.inode(ino)?.content_changed(cx.now);
        }
        self.add_handle(ino, Some(flags))
    }

    fn create(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        if !name.is_dot_or_dot_dot()
            && let Some(ino) = self.dir(parent)?.get(name)
        {
            if flags.contains(OpenFlags::EXCL) {
                return self.fail(Errno::EEXIST);
            }
            let handle = self.open(cx, ino, flags)?;
            return Ok((self.getattr(cx, ino)?, handle));
        }
        let mode = FileType::Regular.mode_bits() | mode & 0o7777;
        let attr = self.mknod(cx, parent, name, mode, 0)?;
        Ok((attr, self.add_handle(attr.ino, Some(flags))?))
    }

    fn tmpfile(
        &mut self,
        cx: &Context,
        parent: Ino,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        self.dir(parent)?;
        let dead = self.inode(parent)?.attr.nlink == 0;
        self.refuse(&[(dead, Errno::ENOENT)])?;
        let body = Body::File(Content::default());
        let ino = self.add_inode_in(cx, parent, FileType::Regular, mode, 0, body)?;
        let handle = self.add_handle(ino, Some(flags))?;
        Ok((self.getattr(cx, ino)?, handle))
    }

    fn read(
        &mut self,
        _: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        self.file_handle(ino, handle, OpenFlags::READ)?;
        Ok(self.file(ino).read(offset, buf))
    }

    fn write(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<Written> {
        let append = self.file_flags(ino, handle).is_some_and(|f| f.contains(OpenFlags::APPEND));
        let offset = if append { self.file(ino).size() } else { offset };
        let fits = checked_end(offset, data.len() as u64).is_ok();
        let mut reasons = self.file_handle_reasons(ino, handle, OpenFlags::WRITE);
        reasons.extend([(!fits, Errno::EFBIG), (offset > FILE_SIZE_MAX, Errno::EINVAL)]);
        self.refuse(&reasons)?;
        if !data.is_empty() {
            self.file(ino).write(offset, data);
            self.inode(ino)?.content_changed(cx.now);
        }
        Ok(Written { len: data.len(), offset })
    }

    fn copy_file_range(&mut self, cx: &Context, from: FileAt, to: FileAt, len: u64) -> Result<u64> {
        let size = match self.inodes.get(&from.ino).map(|inode| &inode.body) {
            Some(Body::File(content)) => content.size(),
            _ => 0,
        };
        let len = copied_len(from, to, len, size);
        let flags = self.file_flags(to.ino, to.handle);
        let appends = flags.is_some_and(|flags| flags.contains(OpenFlags::APPEND));
        let mut reasons = self.file_handle_reasons(from.ino, from.handle, OpenFlags::READ);
        reasons.extend(self.file_handle_reasons(to.ino, to.handle, OpenFlags::WRITE));
        reasons.extend([
            (appends, Errno::EBADF),
            (len == Err(Errno::EINVAL), Errno::EINVAL),
            (len == Err(Errno::EFBIG), Errno::EFBIG),
            // Where a write of nothing would be refused.
            (to.offset > FILE_SIZE_MAX && len != Ok(0), Errno::EINVAL),
        ]);
        self.refuse(&reasons)?;
        let len = len?.min(COPY_MAX);
        if len > 0 {
            let source = self.file(from.ino).clone();
            self.file(to.ino).take(to.offset, &source, from.offset..from.offset + len);
            self.inode(to.ino)?.content_changed(cx.now);
        }
        Ok(len)
    }

    fn fallocate(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        len: u64,
        mode: FallocateMode,
    ) -> Result<()> {
        let known = [
            FallocateMode::empty(),
            FallocateMode::KEEP_SIZE,
            FallocateMode::KEEP_SIZE | FallocateMode::PUNCH_HOLE,
            FallocateMode::ZERO_RANGE,
            FallocateMode::ZERO_RANGE | FallocateMode::KEEP_SIZE,
        ];
        let punch = mode.contains(FallocateMode::PUNCH_HOLE);
        let end = checked_end(offset, len);
        let mut reasons = self.file_handle_reasons(ino, handle, OpenFlags::WRITE);
        reasons.extend([
            (!known.contains(&mode), Errno::EOPNOTSUPP),
            (len == 0 || offset > FILE_SIZE_MAX, Errno::EINVAL),
            (end.is_err(), Errno::EFBIG),
            (!punch && len.div_ceil(content::BLOCK) > CAPACITY, Errno::ENOSPC),
        ]);
        self.refuse(&reasons)?;
        let range = offset..end?;
        let content = self.file(ino);
        if !punch && !mode.contains(FallocateMode::KEEP_SIZE) {
            content.set_size(content.size().max(range.end));
        }
        if punch {
            content.punch(range);
        } else if mode.contains(FallocateMode::ZERO_RANGE) {
            content.zero_allocated(range);
        } else {
            content.allocate(range);
        }
        self.inode(ino)?.content_changed(cx.now);
        Ok(())
    }

    fn seek(
        &mut self,
        _: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        to: SeekTo,
    ) -> Result<u64> {
        self.file_handle(ino, handle, OpenFlags::empty())?;
        match self.file(ino).seek(offset, to) {
            Ok(at) => Ok(at),
            Err(error) => self.fail(error),
        }
    }

    fn fsync(&mut self, _: &Context, ino: Ino, handle: Handle, _: bool) -> Result<()> {
        self.file_handle(ino, handle, OpenFlags::empty())
    }

    fn release(&mut self, _: &Context, ino: Ino, handle: Handle) -> Result<()> {
        let open = self.open.get(&handle.0);
        let is_it = open.is_some_and(|open| open.ino == ino && open.flags.is_some());
        let alive = self.inodes.contains_key(&ino);
        self.refuse(&[(!is_it, Errno::EBADF), (!alive, Errno::ESTALE)])?;
        self.close(ino, handle);
        Ok(())
    }

    fn opendir(&mut self, _: &Context, ino: Ino) -> Result<Handle> {
        self.dir(ino)?;
        self.add_handle(ino, None)
    }

    fn readdir(
        &mut self,
        _: &Context,
        ino: Ino,
        handle: Handle,
        cookie: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.dir_handle(ino, handle)?;
        let inode = &self.inodes[&ino];
        let Body::Directory(dir) = &inode.body else { return Ok(()) };
        if inode.attr.nlink == 0 {
            return Ok(());
        }
        let entry = |ino: Ino, cookie, name| DirEntry {
            ino,
            file_type: self.inodes[&ino].attr.file_type(),
            cookie,
            name,
        };
        if cookie < COOKIE_DOT && !emit(&entry(ino, COOKIE_DOT, b".")) {
            return Ok(());
        }
        if cookie < COOKIE_DOT_DOT && !emit(&entry(dir.parent, COOKIE_DOT_DOT, b"..")) {
            return Ok(());
        }
        for (&at, name) in dir.order.range(cookie.saturating_add(1)..) {
            if !emit(&entry(dir.entries[name].ino, at, name)) {
                break;
            }
        }
        Ok(())
    }

    fn releasedir(&mut self, _: &Context, ino: Ino, handle: Handle) -> Result<()> {
        self.dir_handle(ino, handle)?;
        self.close(ino, handle);
        Ok(())
    }

    fn fsyncdir(&mut self, _: &Context, ino: Ino, handle: Handle) -> Result<()> {
        self.dir_handle(ino, handle)
    }

    fn syncfs(&mut self, _: &Context) -> Result<()> {
        self.refuse(&[])
    }

    fn statfs(&mut self, _: &Context) -> Result<StatFs> {
        let used: u64 = self
            .inodes
            .values()
            .map(|inode| match &inode.body {
                Body::File(content) => content.allocated(),
                _ => 0,
            })
            .sum();
        let files = self.inodes.len() as u64;
        Ok(StatFs {
            block_size: content::BLOCK as u32,
            blocks: CAPACITY,
            blocks_free: CAPACITY.saturating_sub(used),
            blocks_available: CAPACITY.saturating_sub(used),
            files: files + CAPACITY,
            files_free: CAPACITY,
            name_max: NAME_MAX as u32,
        })
    }

    fn setxattr(
        &mut self,
        cx: &Context,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        let inode = self.inodes.get(&ino);
        let exists = inode.is_some_and(|inode| inode.xattrs.contains_key(name));
        let names: usize =
            inode.map_or(0, |inode| inode.xattrs.keys().map(|name| name.len() + 1).sum());
        let full = !exists && names + name.len() + 1 > XATTR_LIST_MAX;
        let mut reasons = xattr_reasons(inode, name);
        reasons.extend([
            (value.len() > XATTR_SIZE_MAX, Errno::E2BIG),
            (exists && flags.contains(XattrFlags::CREATE), Errno::EEXIST),
            (!exists && flags.contains(XattrFlags::REPLACE), Errno::ENODATA),
            (full, Errno::ENOSPC),
        ]);
        self.refuse(&reasons)?;
        let inode = self.inode(ino)?;
        inode.xattrs.insert(name.to_vec(), value.to_vec());
        inode.changed(cx.now);
        Ok(())
    }

    fn getxattr(&mut self, _: &Context, ino: Ino, name: &[u8], value: &mut Vec<u8>) -> Result<()> {
        let inode = self.inodes.get(&ino);
        let missing = inode.is_some_and(|inode| !inode.xattrs.contains_key(name));
        let mut reasons = xattr_reasons(inode, name);
        reasons.push((missing, Errno::ENODATA));
        self.refuse(&reasons)?;
        value.extend_from_slice(&self.inode(ino)?.xattrs[name]);
        Ok(())
    }

    fn listxattr(&mut self, _: &Context, ino: Ino, names: &mut Vec<u8>) -> Result<()> {
        for name in self.inode(ino)?.xattrs.keys() {
            names.extend_from_slice(name);
            names.push(0);
        }
        Ok(())
    }

    fn removexattr(&mut self, cx: &Context, ino: Ino, name: &[u8]) -> Result<()> {
        let inode = self.inodes.get(&ino);
        let missing = inode.is_some_and(|inode| !inode.xattrs.contains_key(name));
        let mut reasons = xattr_reasons(inode, name);
        reasons.push((missing, Errno::ENODATA));
        self.refuse(&reasons)?;
        let inode = self.inode(ino)?;
        inode.xattrs.remove(name);
        inode.changed(cx.now);
        Ok(())
    }
}
