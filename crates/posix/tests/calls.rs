//! Calls that cannot be compared with the host: identities, limits, absolute paths, listing, the
//! working directory.

use atoll_posix::attributes::Target;
use atoll_posix::locks::RecordLock;
use atoll_posix::{
    AT_FDCWD, AccessMode, AtFlags, Credentials, Errno, ModeBits, OFlags, Options, Posix, Whence,
};
use atoll_vfs::model::ModelFs;
use atoll_vfs::{AccessTimes, Attr, FallocateMode, LockKind, SetTime, Timespec, XattrFlags};

type Tested = Posix<ModelFs, fn() -> Timespec>;

fn clock() -> Timespec {
    Timespec { sec: 10, nsec: 20 }
}

fn posix() -> Tested {
    Posix::new(ModelFs::default(), clock as fn() -> Timespec, &Options::default())
}

fn touch(posix: &mut Tested, path: &[u8]) {
    let fd = posix.open(path, OFlags::CREAT | OFlags::RDWR, 0o644).expect("a new file");
    posix.close(fd).expect("it is open");
}

#[test]
fn forty_links_and_no_more() {
    let mut px = posix();
    touch(&mut px, b"/file");
    px.symlinkat(b"/file", AT_FDCWD, b"/l1").expect("a new link");
    for i in 2..=41 {
        let (target, path) = (format!("l{}", i - 1), format!("/l{i}"));
        px.symlinkat(target.as_bytes(), AT_FDCWD, path.as_bytes()).expect("a new link");
    }
    assert!(px.stat(b"/l40").is_ok());
    assert_eq!(px.stat(b"/l41"), Err(Errno::ELOOP));
    assert!(px.lstat(b"/l41").is_ok());
}

#[test]
fn absolute_links_begin_at_the_root() {
    let mut px = posix();
    px.mkdir(b"/a", 0o755).expect("a new directory");
    px.mkdir(b"/a/b", 0o755).expect("a new directory");
    touch(&mut px, b"/f");
    px.symlinkat(b"/", AT_FDCWD, b"/a/b/root").expect("a new link");
    px.symlinkat(b"/../..//f", AT_FDCWD, b"/a/b/file").expect("a new link");
    px.chdir(b"/a/b").expect("a directory");
    assert_eq!(px.stat(b"root/f").map(|a| a.ino), px.stat(b"/f").map(|a| a.ino));
    assert_eq!(px.stat(b"file").map(|a| a.ino), px.stat(b"../../f").map(|a| a.ino));
    assert_eq!(px.stat(b"root").map(|a| a.ino.0), Ok(1));
}

#[test]
fn working_directory() {
    let mut px = posix();
    assert_eq!(px.getcwd(), Ok(&b"/"[..]));
    px.mkdir(b"/a", 0o755).expect("a new directory");
    px.mkdir(b"/a/b", 0o755).expect("a new directory");
    px.chdir(b"a/b").expect("a directory");
    assert_eq!(px.getcwd(), Ok(&b"/a/b"[..]));
    assert_eq!(px.getcwd(), Ok(&b"/a/b"[..]));
    // A remembered path is not trusted.
    px.rename(b"/a/b", b"/a/c").expect("renamed");
    assert_eq!(px.getcwd(), Ok(&b"/a/c"[..]));
    px.mkdir(b"/a/b", 0o755).expect("a new directory");
    assert_eq!(px.getcwd(), Ok(&b"/a/c"[..]));
    px.rmdir(b"/a/c").expect("empty");
    assert_eq!(px.getcwd(), Err(Errno::ENOENT));
    assert_eq!(px.open(b"new", OFlags::CREAT | OFlags::RDWR, 0o600), Err(Errno::ENOENT));
    let fd = px.open(b"/a", OFlags::DIRECTORY, 0).expect("a directory");
    px.fchdir(fd).expect("a directory");
    assert_eq!(px.getcwd(), Ok(&b"/a"[..]));
    assert_eq!(px.openat(fd, b"b", OFlags::RDWR, 0), Err(Errno::EISDIR));
    assert_eq!(px.chdir(b"/none"), Err(Errno::ENOENT));
    let file = px.open(b"/f", OFlags::CREAT | OFlags::RDWR, 0o600).expect("a new file");
    assert_eq!(px.fchdir(file), Err(Errno::ENOTDIR));
    assert_eq!(px.openat(file, b"x", OFlags::empty(), 0), Err(Errno::ENOTDIR));
    assert_eq!(px.openat(99, b"x", OFlags::empty(), 0), Err(Errno::EBADF));
    assert!(px.openat(99, b"/f", OFlags::empty(), 0).is_ok(), "absolute paths need no directory");
}

#[test]
fn remembered_paths_are_forgotten_in_time() {
    let options = Options { sole_user: true, ..Options::default() };
    let mut px = Posix::new(ModelFs::default(), clock as fn() -> Timespec, &options);
    for dir in [&b"/a"[..], b"/a/b", b"/other"] {
        px.mkdir(dir, 0o755).expect("a new directory");
    }
    touch(&mut px, b"/a/b/one");
    touch(&mut px, b"/other/two");
    assert!(px.stat(b"/a/b/one").is_ok());
    assert!(px.stat(b"/a/b/one").is_ok(), "by memory");
    assert_eq!(px.stat(b"/a/b/").map(|a| a.ino), px.stat(b"/a/b").map(|a| a.ino));
    assert_eq!(px.stat(b"/a/b//").map(|a| a.ino), px.stat(b"/a/b").map(|a| a.ino));
    assert!(px.stat(b"/a/b/one").is_ok());
    px.rename(b"/a/b", b"/c").expect("renamed");
    assert_eq!(px.stat(b"/a/b/one"), Err(Errno::ENOENT));
    assert!(px.stat(b"/c/one").is_ok());
    px.renameat2(AT_FDCWD, b"/c", AT_FDCWD, b"/other", atoll_vfs::RenameFlags::EXCHANGE)
        .expect("exchanged");
    assert!(px.stat(b"/c/two").is_ok() && px.stat(b"/other/one").is_ok());
    px.unlink(b"/c/two").expect("there");
    px.rmdir(b"/c").expect("empty");
    assert_eq!(px.stat(b"/c/two"), Err(Errno::ENOENT));
    px.symlinkat(b"other", AT_FDCWD, b"/c").expect("a new link");
    assert!(px.stat(b"/c/one").is_ok());
    px.unlink(b"/c").expect("there");
    assert_eq!(px.stat(b"/c/one"), Err(Errno::ENOENT), "what links were part of is not remembered");
    // A relative path is another one in another directory.
    px.mkdir(b"/x", 0o755).expect("a new directory");
    px.mkdir(b"/x/other", 0o755).expect("a new directory");
    assert!(px.stat(b"other/one").is_ok());
    px.chdir(b"/x").expect("a directory");
    assert_eq!(px.stat(b"other/one"), Err(Errno::ENOENT));
}

#[test]
fn the_table_has_a_limit_and_gives_the_lowest_number() {
    let options = Options { descriptor_limit: 130, first_descriptor: 5, ..Options::default() };
    let mut px = Posix::new(ModelFs::default(), clock, &options);
    let first = px.open(b"/f", OFlags::CREAT | OFlags::RDWR, 0o600).expect("a new file");
    assert_eq!(first, 5);
    for fd in 6..135 {
        assert_eq!(px.dup(first), Ok(fd));
    }
    assert_eq!(px.dup(first), Err(Errno::EMFILE));
    assert_eq!(px.open(b"/g", OFlags::CREAT | OFlags::RDWR, 0o600), Err(Errno::EMFILE));
    assert_eq!(px.stat(b"/g"), Err(Errno::ENOENT), "nothing was created in vain");
    for fd in [77, 6, 134] {
        px.close(fd).expect("it is open");
    }
    assert_eq!(px.dup_from(first, 7, true), Ok(77));
    assert_eq!(px.descriptor_flags(77), Ok(true));
    assert_eq!(px.dup_from(first, 7, false), Ok(134));
    assert_eq!(px.dup(first), Ok(6));
    assert_eq!(px.dup_from(first, 135, false), Err(Errno::EINVAL));
    assert_eq!(px.dup_from(first, -1, false), Err(Errno::EINVAL));
    assert_eq!(px.dup2(first, 135), Err(Errno::EBADF));
    assert_eq!(px.dup2(first, 4), Err(Errno::EBADF));
    assert_eq!(px.dup3(first, first, OFlags::empty()), Err(Errno::EINVAL));
    px.close_on_exec();
    assert_eq!(px.fstat(77), Err(Errno::EBADF));
    assert!(px.fstat(76).is_ok());
    drop(px.into_fs());
}

#[test]
fn listing_in_small_pieces_and_by_places() {
    let mut px = posix();
    px.mkdir(b"/d", 0o755).expect("a new directory");
    let mut expected: Vec<String> = (0..300).map(|i| format!("entry-{i}")).collect();
    for name in &expected {
        touch(&mut px, format!("/d/{name}").as_bytes());
    }
    expected.extend([".".into(), "..".into()]);
    expected.sort();
    let fd = px.open(b"/d", OFlags::DIRECTORY, 0).expect("a directory");
    assert_eq!(px.getdents(fd, &mut [0; 16]), Err(Errno::EINVAL));
    let mut stream = px.fdopendir(fd).expect("a directory");
    let mut all = Vec::new();
    loop {
        let before = stream.tell();
        let Some(entry) = stream.next(&mut px).expect("listed") else { break };
        all.push((before, String::from_utf8(entry.name.to_vec()).expect("text")));
    }
    let mut names: Vec<String> = all.iter().map(|(_, name)| name.clone()).collect();
    names.sort();
    assert_eq!(names, expected);
    for (place, name) in all.iter().step_by(37) {
        stream.seek(&mut px, *place).expect("a place");
        let entry = stream.next(&mut px).expect("listed").expect("an entry");
        assert_eq!(entry.name, name.as_bytes());
    }
    px.lseek(fd, 0, Whence::Set).expect("the beginning");
    let (mut count, mut buf) = (0, [0; 100]);
    loop {
        let n = px.getdents(fd, &mut buf).expect("listed");
        let mut at = 0;
        while at < n {
            at += u16::from_ne_bytes([buf[at + 16], buf[at + 17]]) as usize;
            count += 1;
        }
        if n == 0 {
            break;
        }
    }
    assert_eq!(count, expected.len());
}

#[test]
fn files_without_names() {
    let mut px = posix();
    let fd = px.open(b"/", OFlags::TMPFILE | OFlags::RDWR, 0o600).expect("a new file");
    assert_eq!(px.write(fd, b"later"), Ok(5));
    assert_eq!(px.fstat(fd).map(|a| a.nlink), Ok(0));
    px.linkat(fd, b"", AT_FDCWD, b"/named", AtFlags::EMPTY_PATH).expect("linked");
    assert_eq!(px.stat(b"/named").map(|a| (a.size, a.nlink)), Ok((5, 1)));
    assert_eq!(px.open(b"/", OFlags::TMPFILE, 0o600), Err(Errno::EINVAL));
    assert_eq!(px.open(b"/named", OFlags::TMPFILE | OFlags::RDWR, 0), Err(Errno::ENOTDIR));
}

#[test]
fn vectors_and_holes() {
    let mut px = posix();
    let fd = px.open(b"/f", OFlags::CREAT | OFlags::RDWR, 0o600).expect("a new file");
    assert_eq!(px.writev(fd, [&b"ab"[..], b"", b"cde"]), Ok(5));
    assert_eq!(px.lseek(fd, 0, Whence::Current), Ok(5));
    assert_eq!(px.pwritev(fd, [&b"X"[..], b"Y"], 1), Ok(2));
    px.lseek(fd, 0, Whence::Set).expect("the beginning");
    let (mut one, mut two) = ([0; 3], [0; 9]);
    assert_eq!(px.readv(fd, [&mut one[..], &mut two[..]]), Ok(5));
    assert_eq!((&one, &two[..2]), (b"aXY", &b"de"[..]));
    assert_eq!(px.preadv(fd, [&mut one[..]], -1), Err(Errno::EINVAL));
    px.ftruncate(fd, 1 << 20).expect("a hole");
    assert_eq!(px.lseek(fd, 0, Whence::Data), Ok(0));
    let hole = px.lseek(fd, 0, Whence::Hole).expect("a hole");
    assert!((5..1 << 20).contains(&hole));
    assert_eq!(px.lseek(fd, 1 << 20, Whence::Data), Err(Errno::ENXIO));
    assert_eq!(px.lseek(fd, i64::MAX, Whence::Current), Err(Errno::EOVERFLOW));
    let punch = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
    px.fallocate(fd, punch, 0, 5).expect("punched");
    assert_eq!(px.pread(fd, &mut one, 0), Ok(3));
    assert_eq!(one, [0; 3]);
    assert_eq!(px.fallocate(fd, FallocateMode::PUNCH_HOLE, 0, 5), Err(Errno::EOPNOTSUPP));
    assert_eq!(px.fallocate(fd, FallocateMode::empty(), 0, 0), Err(Errno::EINVAL));
    assert_eq!(px.fallocate(fd, FallocateMode::empty(), i64::MAX, 1), Err(Errno::EFBIG));
}

#[test]
fn copies() {
    let mut px = posix();
    let flags = OFlags::RDWR | OFlags::CREAT;
    let mut open = |path: &[u8], more| px.openat(AT_FDCWD, path, flags | more, 0o644).unwrap();
    let (from, to, append) =
        (open(b"/f", OFlags::empty()), open(b"/t", OFlags::empty()), open(b"/t", OFlags::APPEND));
    let data: Vec<u8> = (0..3 << 20).map(|i: u32| (i >> 9) as u8 | 1).collect();
    assert_eq!(px.write(from, &data), Ok(data.len()));
    // More than the file system copies at once; the offsets of the descriptors move on.
    assert_eq!(px.lseek(from, 100, Whence::Set), Ok(100));
    let rest = data.len() - 100;
    assert_eq!(px.copy_file_range((from, None), (to, None), usize::MAX), Ok(rest));
    assert_eq!(px.lseek(from, 0, Whence::Current), Ok(data.len() as i64));
    assert_eq!(px.lseek(to, 0, Whence::Current), Ok(rest as i64));
    let mut copy = vec![0; data.len()];
    assert_eq!(px.pread(to, &mut copy, 0), Ok(rest));
    assert!(copy[..rest] == data[100..]);
    assert_eq!(px.copy_file_range((from, None), (to, None), 9), Ok(0));
    // Offsets beside: the descriptors' own stay.
    let (mut a, mut b) = (3, 5);
    assert_eq!(px.copy_file_range((from, Some(&mut a)), (to, Some(&mut b)), 4), Ok(4));
    assert_eq!((a, b, px.lseek(to, 0, Whence::Current)), (7, 9, Ok(rest as i64)));
    // Ranges that overlap only by a part that would come later change nothing.
    let (mut a, mut b) = (0, 2 << 20);
    let overlapping = px.copy_file_range((from, Some(&mut a)), (from, Some(&mut b)), 3 << 20);
    assert_eq!((overlapping, a), (Err(Errno::EINVAL), 0));
    assert_eq!(px.pread(from, &mut copy, 0), Ok(data.len()));
    assert!(copy == data);
    let mut below = -1;
    let refused = px.copy_file_range((from, Some(&mut below)), (to, None), 1);
    assert_eq!(refused, Err(Errno::EINVAL));
    assert_eq!(px.copy_file_range((from, None), (append, None), 1), Err(Errno::EBADF));
    assert_eq!(px.copy_file_range((99, None), (to, None), 1), Err(Errno::EBADF));
}

#[test]
fn extended_attributes() {
    let mut px = posix();
    touch(&mut px, b"/f");
    px.symlinkat(b"f", AT_FDCWD, b"/l").expect("a new link");
    let (f, none) = (Target::path(b"/f"), XattrFlags::empty());
    let link = Target::Path(AT_FDCWD, b"/l", AtFlags::SYMLINK_NOFOLLOW);
    px.setxattr(Target::path(b"/l"), b"user.k", b"value", none).expect("set");
    assert_eq!(px.getxattr(f, b"user.k", &mut []), Ok(5));
    assert_eq!(px.getxattr(f, b"user.k", &mut [0; 4]), Err(Errno::ERANGE));
    let mut value = [0; 8];
    assert_eq!(px.getxattr(f, b"user.k", &mut value), Ok(5));
    assert_eq!(&value[..5], b"value");
    assert_eq!(px.setxattr(f, b"user.k", b"", XattrFlags::CREATE), Err(Errno::EEXIST));
    assert_eq!(px.setxattr(f, b"user.n", b"", XattrFlags::REPLACE), Err(Errno::ENODATA));
    assert_eq!(px.setxattr(f, b"user.", b"", none), Err(Errno::EINVAL));
    assert_eq!(px.setxattr(f, b"", b"", none), Err(Errno::ERANGE));
    assert_eq!(px.setxattr(f, b"other.k", b"", none), Err(Errno::EOPNOTSUPP));
    assert_eq!(px.setxattr(f, b"user.k", &vec![0; 65537], none), Err(Errno::E2BIG));
    assert_eq!(px.setxattr(link, b"user.k", b"", none), Err(Errno::EPERM));
    assert_eq!(px.getxattr(link, b"user.k", &mut []), Err(Errno::ENODATA));
    assert_eq!(px.listxattr(f, &mut [0; 6]), Err(Errno::ERANGE));
    let mut names = [0; 7];
    assert_eq!(px.listxattr(f, &mut names), Ok(7));
    assert_eq!(&names, b"user.k\0");
    px.removexattr(f, b"user.k").expect("there");
    assert_eq!(px.removexattr(f, b"user.k"), Err(Errno::ENODATA));
}

#[test]
fn whole_file_locks() {
    let mut px = posix();
    touch(&mut px, b"/f");
    let open = |px: &mut Tested| px.open(b"/f", OFlags::RDWR, 0).expect("it is there");
    let (a, b) = (open(&mut px), open(&mut px));
    let c = px.dup(a).expect("room");
    let (shared, exclusive) = (Some(LockKind::Shared), Some(LockKind::Exclusive));
    let flock =
        |px: &mut Tested, fd, kind| px.flock(fd, kind, false).map(|wait| assert!(wait.is_none()));
    flock(&mut px, a, shared).expect("free");
    flock(&mut px, b, shared).expect("shared");
    assert_eq!(flock(&mut px, c, exclusive), Err(Errno::EAGAIN));
    px.close(b).expect("it is open");
    flock(&mut px, c, exclusive).expect("its own lock");
    let d = open(&mut px);
    assert_eq!(flock(&mut px, d, shared), Err(Errno::EAGAIN));
    px.close(a).expect("it is open");
    assert_eq!(flock(&mut px, d, shared), Err(Errno::EAGAIN), "c has it still");
    px.close(c).expect("it is open");
    flock(&mut px, d, shared).expect("free");
}

#[test]
fn locks_of_bytes() {
    let mut px = posix();
    touch(&mut px, b"/f");
    let open = |px: &mut Tested| px.open(b"/f", OFlags::RDWR, 0).expect("it is there");
    let (a, b) = (open(&mut px), open(&mut px));
    let of = |of_description, kind, start, len| RecordLock {
        kind,
        whence: Whence::Set,
        start,
        len,
        pid: 7,
        of_description,
    };
    let (shared, exclusive) = (Some(LockKind::Shared), Some(LockKind::Exclusive));
    let set =
        |px: &mut Tested, fd, lock| px.lock(fd, &lock, false).map(|wait| assert!(wait.is_none()));
    // Those of the process do not see each other, those of descriptions do.
    set(&mut px, a, of(false, exclusive, 0, 10)).expect("free");
    set(&mut px, b, of(false, exclusive, 0, 10)).expect("its own");
    assert_eq!(set(&mut px, a, of(true, shared, 9, 1)), Err(Errno::EAGAIN));
    set(&mut px, a, of(true, exclusive, 10, 0)).expect("free");
    assert_eq!(set(&mut px, b, of(true, shared, 1 << 40, 1)), Err(Errno::EAGAIN));
    let found = px.lock_in_the_way(b, &of(false, shared, 5, 100)).expect("open");
    let found = found.map(|lock| (lock.kind, lock.start, lock.len, lock.pid));
    assert_eq!(found, Some((exclusive, 10, 0, u32::MAX)));
    // A piece out of the middle, and another kind there.
    set(&mut px, a, of(true, None, 20, 10)).expect("its own");
    set(&mut px, b, of(true, exclusive, 20, 10)).expect("free");
    assert_eq!(set(&mut px, b, of(true, exclusive, 19, 1)), Err(Errno::EAGAIN));
    assert_eq!(set(&mut px, b, of(true, exclusive, 30, 1)), Err(Errno::EAGAIN));
    set(&mut px, a, of(true, shared, 10, 5)).expect("its own");
    set(&mut px, b, of(true, shared, 10, 5)).expect("both only read");
    assert_eq!(set(&mut px, b, of(true, shared, 10, 6)), Err(Errno::EAGAIN));
    // The process's go with any descriptor of the file, a description's with its last.
    let c = px.dup(a).expect("room");
    let d = open(&mut px);
    px.close(d).expect("it is open");
    set(&mut px, b, of(true, exclusive, 0, 10)).expect("free");
    px.close(a).expect("it is open");
    assert_eq!(set(&mut px, b, of(true, exclusive, 15, 1)), Err(Errno::EAGAIN));
    px.close(c).expect("it is open");
    set(&mut px, b, of(true, exclusive, 15, 1)).expect("free");
    // A lock that the file is not open for, and locks of no range.
    let reader = px.open(b"/f", OFlags::empty(), 0).expect("it is there");
    assert_eq!(set(&mut px, reader, of(false, exclusive, 0, 1)), Err(Errno::EBADF));
    assert_eq!(set(&mut px, reader, of(false, shared, -1, 1)), Err(Errno::EINVAL));
    assert_eq!(set(&mut px, reader, of(false, shared, i64::MAX, 2)), Err(Errno::EOVERFLOW));
}

#[test]
fn append_can_be_switched() {
    let mut px = posix();
    let fd = px.open(b"/f", OFlags::CREAT | OFlags::WRONLY, 0o600).expect("a new file");
    px.write(fd, b"0123").expect("room");
    px.unlink(b"/f").expect("there");
    px.set_status_flags(fd, OFlags::APPEND).expect("open");
    assert_eq!(px.status_flags(fd), Ok(OFlags::WRONLY | OFlags::APPEND));
    px.lseek(fd, 0, Whence::Set).expect("the beginning");
    px.write(fd, b"45").expect("room");
    assert_eq!(px.lseek(fd, 0, Whence::Current), Ok(6));
    px.set_status_flags(fd, OFlags::empty()).expect("open");
    px.lseek(fd, 0, Whence::Set).expect("the beginning");
    px.write(fd, b"ab").expect("room");
    assert_eq!(px.fstat(fd).map(|a| (a.size, a.nlink)), Ok((6, 0)));
}

#[test]
fn mode_bits_decide() {
    let root = Credentials { uid: 0, gid: 0 };
    let user = Credentials { uid: 7, gid: 7 };
    let other = Credentials { uid: 8, gid: 8 };
    let policy = ModeBits { groups: [9].into() };
    let mut px = Posix::with_policy(ModelFs::default(), clock, &Options::default(), policy);
    px.mkdir(b"/tmp", 0o777).expect("root may");
    px.chmod(Target::path(b"/tmp"), 0o1777).expect("root may");
    px.set_credentials(user);
    assert_eq!(px.mkdir(b"/x", 0o755), Err(Errno::EACCES));
    px.mkdir(b"/tmp/u", 0o700).expect("everyone may");
    let create = OFlags::CREAT | OFlags::RDWR;
    let fd = px.open(b"/tmp/u/f", create, 0o600).expect("its own");
    px.close(fd).expect("it is open");
    let fd = px.open(b"/tmp/shared", create, 0o640).expect("everyone may");
    px.close(fd).expect("it is open");
    let fd = px.open(b"/tmp/u/readonly", create, 0o400).expect("a new file may be written to");
    px.write(fd, b"x").expect("the descriptor allows it");
    assert_eq!(px.open(b"/tmp/u/readonly", OFlags::RDWR, 0), Err(Errno::EACCES));
    assert_eq!(px.open(b"/tmp/u/readonly", create, 0), Err(Errno::EACCES));

    px.set_credentials(other);
    assert_eq!(px.stat(b"/tmp/u/f"), Err(Errno::EACCES));
    assert_eq!(px.open(b"/tmp/shared", OFlags::empty(), 0), Err(Errno::EACCES));
    assert_eq!(px.unlink(b"/tmp/shared"), Err(Errno::EPERM), "the sticky bit");
    assert_eq!(px.rename(b"/tmp/shared", b"/tmp/mine"), Err(Errno::EPERM));
    assert_eq!(px.truncate(b"/tmp/shared", 0), Err(Errno::EACCES));
    assert_eq!(px.chmod(Target::path(b"/tmp/shared"), 0o777), Err(Errno::EPERM));
    assert_eq!(px.chown(Target::path(b"/tmp/shared"), Some(8), None), Err(Errno::EPERM));
    let now = [Some(SetTime::Now); 2];
    assert_eq!(px.utimens(Target::path(b"/tmp/shared"), now), Err(Errno::EACCES));

    px.set_credentials(user);
    let shared = Target::path(b"/tmp/shared");
    px.chown(shared, None, Some(9)).expect("a group of its own");
    assert_eq!(px.chown(shared, None, Some(10)), Err(Errno::EPERM));
    px.set_credentials(other);
    let fd = px.open(b"/tmp/shared", OFlags::empty(), 0).expect("the group may read");
    assert_eq!(px.write(fd, b"x"), Err(Errno::EBADF));
    let write = AccessMode::WRITE;
    assert_eq!(px.faccessat(AT_FDCWD, b"/tmp/shared", write, AtFlags::empty()), Err(Errno::EACCES));
    px.set_credentials(root);
    assert_eq!(px.faccessat(AT_FDCWD, b"/tmp/shared", write, AtFlags::empty()), Ok(()));
    let execute = AccessMode::EXECUTE;
    let executed = px.faccessat(AT_FDCWD, b"/tmp/shared", execute, AtFlags::empty());
    assert_eq!(executed, Err(Errno::EACCES), "nobody may execute it");
    px.unlink(b"/tmp/u/f").expect("root may");
}

#[test]
fn names_and_paths_have_limits() {
    let mut px = posix();
    touch(&mut px, &[b"/", &vec![b'n'; 255][..]].concat());
    assert_eq!(px.stat(&[b"/", &vec![b'n'; 256][..]].concat()), Err(Errno::ENAMETOOLONG));
    assert_eq!(px.stat(&vec![b'/'; 4096]), Err(Errno::ENAMETOOLONG));
    assert!(px.stat(&vec![b'/'; 4095]).is_ok());
    assert_eq!(px.stat(b""), Err(Errno::ENOENT));
    assert_eq!(px.stat(b"/a\0b"), Err(Errno::EINVAL));
    assert!(px.fstatat(AT_FDCWD, b"", AtFlags::EMPTY_PATH).is_ok());
    assert_eq!(px.fstatat(3, b"", AtFlags::EMPTY_PATH), Err(Errno::EBADF));
    let target = vec![b't'; 4096];
    assert_eq!(px.symlinkat(&target, AT_FDCWD, b"/l"), Err(Errno::ENAMETOOLONG));
    px.symlinkat(&target[..4095], AT_FDCWD, b"/l").expect("a new link");
    assert_eq!(px.readlinkat(AT_FDCWD, b"/l", &mut [0; 5000]), Ok(4095));
    assert_eq!(px.readlinkat(AT_FDCWD, b"/l", &mut []), Err(Errno::EINVAL));
}

#[test]
fn a_path_only_descriptor_only_names() {
    let mut px = posix();
    touch(&mut px, b"/f");
    let fd = px.open(b"/f", OFlags::PATH | OFlags::RDWR, 0).expect("it is there");
    assert_eq!(px.read(fd, &mut [0; 1]), Err(Errno::EBADF));
    assert_eq!(px.write(fd, b"x"), Err(Errno::EBADF));
    assert_eq!(px.lseek(fd, 0, Whence::Set), Err(Errno::EBADF));
    assert_eq!(px.fsync(fd, false), Err(Errno::EBADF));
    assert_eq!(px.ftruncate(fd, 0), Err(Errno::EBADF));
    assert_eq!(px.chmod(Target::Descriptor(fd), 0), Err(Errno::EBADF));
    px.unlink(b"/f").expect("there");
    assert_eq!(px.fstat(fd).map(|a| a.nlink), Ok(0), "the descriptor keeps it");
    px.symlinkat(b"none", AT_FDCWD, b"/l").expect("a new link");
    let fd = px.open(b"/l", OFlags::PATH | OFlags::NOFOLLOW, 0).expect("the link itself");
    assert_eq!(px.readlinkat(fd, b"", &mut [0; 9]), Ok(4));
}

#[test]
fn identity_and_mask_of_what_is_created() {
    let mut px = posix();
    px.set_credentials(Credentials { uid: 5, gid: 6 });
    assert_eq!(px.umask(0o7077), 0o022);
    assert_eq!(px.umask(0o077), 0o077);
    let fd = px.open(b"/f", OFlags::CREAT | OFlags::RDWR, 0o6777).expect("a new file");
    let attr = px.fstat(fd).expect("open");
    assert_eq!((attr.mode, attr.uid, attr.gid), (0o106700, 5, 6));
    assert_eq!(attr.ctime, clock());
    px.mkdir(b"/d", 0o7777).expect("a new directory");
    assert_eq!(px.stat(b"/d").map(|a| a.mode), Ok(0o041700));
    px.chown(Target::Descriptor(fd), Some(1), None).expect("unchecked");
    assert_eq!(px.fstat(fd).map(|a| (a.mode, a.uid, a.gid)), Ok((0o102700, 1, 6)));
}

/// A call that reads, and the file of [`READS`] whose time of last access it is about.
type Reads = (&'static str, &'static [u8], fn(&mut Tested, OFlags));

const READS: [Reads; 8] = [
    ("read", b"/f", |px, flags| {
        with(px, b"/f", flags, |px, fd| px.read(fd, &mut [0; 4]).map(drop))
    }),
    ("pread", b"/f", |px, flags| {
        with(px, b"/f", flags, |px, fd| px.pread(fd, &mut [0; 4], 2).map(drop));
    }),
    ("readv", b"/f", |px, flags| {
        with(px, b"/f", flags, |px, fd| px.readv(fd, [&mut [0; 2][..], &mut [0; 9]]).map(drop));
    }),
    ("at the end", b"/f", |px, flags| {
        with(px, b"/f", flags, |px, fd| px.pread(fd, &mut [0; 4], 99).map(drop));
    }),
    ("getdents", b"/d", |px, flags| {
        with(px, b"/d", flags, |px, fd| px.getdents(fd, &mut [0; 400]).map(drop));
    }),
    ("a stream", b"/d", |px, flags| {
        with(px, b"/d", flags, |px, fd| {
            let mut stream = px.fdopendir(fd)?;
            while stream.next(px)?.is_some() {}
            Ok(())
        });
    }),
    ("readlink", b"/l", |px, _| {
        px.readlinkat(AT_FDCWD, b"/l", &mut [0; 9]).expect("a link");
    }),
    ("following", b"/l", |px, _| {
        px.stat(b"/l").expect("it leads to the file");
    }),
];

fn with(
    px: &mut Tested,
    path: &[u8],
    flags: OFlags,
    call: fn(&mut Tested, i32) -> Result<(), Errno>,
) {
    let fd = px.open(path, flags, 0).expect("it is there");
    call(px, fd).expect("it can be read");
    px.close(fd).expect("it is open");
}

#[test]
fn what_reads_sets_the_time_of_last_access_when_that_is_due() {
    let old = Timespec { sec: 3, nsec: 0 };
    let ahead = Timespec { sec: 11, nsec: 0 };
    for access_times in [AccessTimes::Noatime, AccessTimes::Relatime] {
        let options = Options { access_times, ..Options::default() };
        let mut px = Posix::new(ModelFs::default(), clock as fn() -> Timespec, &options);
        let fd = px.open(b"/f", OFlags::CREAT | OFlags::RDWR, 0o644).expect("a new file");
        px.write(fd, b"content").expect("room");
        px.mkdir(b"/d", 0o755).expect("a new directory");
        px.symlinkat(b"f", AT_FDCWD, b"/l").expect("a new link");
        for (what, path, call) in READS {
            let nofollow = AtFlags::SYMLINK_NOFOLLOW;
            for (due, atime) in [(true, old), (false, ahead)] {
                let times = [Some(SetTime::To(atime)), None];
                px.utimens(Target::Path(AT_FDCWD, path, nofollow), times).expect("it is there");
                let before = px.lstat(path).expect("it is there");
                if path != b"/l" {
                    call(&mut px, OFlags::NOATIME);
                    assert_eq!(px.lstat(path), Ok(before), "{what} with O_NOATIME");
                }
                call(&mut px, OFlags::empty());
                let sets = due && access_times == AccessTimes::Relatime;
                let atime = if sets { clock() } else { atime };
                assert_eq!(
                    px.lstat(path),
                    Ok(Attr { atime, ..before }),
                    "{what}, {access_times:?}"
                );
            }
        }
        // Neither does a call that reads nothing, nor a descriptor with O_NOATIME.
        let times = [Some(SetTime::To(old)), None];
        px.utimens(Target::Descriptor(fd), times).expect("open");
        let before = px.fstat(fd);
        assert_eq!(px.pread(fd, &mut [], 0), Ok(0));
        px.set_status_flags(fd, OFlags::NOATIME).expect("open");
        assert_eq!(px.status_flags(fd), Ok(OFlags::RDWR | OFlags::NOATIME));
        assert_eq!(px.pread(fd, &mut [0; 1], 0), Ok(1));
        assert_eq!(px.fstat(fd), before);
    }
}

#[test]
fn leaving_no_trace_is_for_owners() {
    let policy = ModeBits::default();
    let options = Options::default();
    let mut px =
        Posix::with_policy(ModelFs::default(), clock as fn() -> Timespec, &options, policy);
    let fd = px.open(b"/f", OFlags::CREAT | OFlags::RDWR, 0o666).expect("a new file");
    px.close(fd).expect("it is open");
    px.set_credentials(Credentials { uid: 5, gid: 6 });
    assert_eq!(px.open(b"/f", OFlags::NOATIME, 0), Err(Errno::EPERM));
    let fd = px.open(b"/f", OFlags::empty(), 0).expect("all may read it");
    assert_eq!(px.set_status_flags(fd, OFlags::NOATIME), Err(Errno::EPERM));
}
