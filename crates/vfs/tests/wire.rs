//! Messages: what is written is what is read, and what is none is refused.

use atoll_vfs::filesystem::FILE_SIZE_MAX;
use atoll_vfs::wire::attributes::*;
use atoll_vfs::wire::directory::*;
use atoll_vfs::wire::files::*;
use atoll_vfs::wire::header::{InHeader, OutHeader};
use atoll_vfs::wire::locks::*;
use atoll_vfs::wire::mappings::*;
use atoll_vfs::wire::names::*;
use atoll_vfs::wire::notices::*;
use atoll_vfs::wire::session::*;
use atoll_vfs::wire::xattrs::*;
use atoll_vfs::wire::{Fixed, Malformed, Message, Request};
use atoll_vfs::{Attr, Data, DirEntry, Errno, FileType, Ino, Name, OpenFlags, Timespec};
use proptest::prelude::*;

/// A structure of any bytes.
fn any_fixed<T: Fixed + std::fmt::Debug>() -> impl Strategy<Value = T> {
    proptest::collection::vec(any::<u8>(), T::SIZE).prop_map(|bytes| T::load(&bytes))
}

fn name_bytes() -> impl Strategy<Value = Vec<u8>> {
    let byte = any::<u8>().prop_map(|byte| if matches!(byte, 0 | b'/') { b'x' } else { byte });
    proptest::collection::vec(byte, 1..=255)
}

fn time() -> impl Strategy<Value = Timespec> {
    (any::<i64>(), 0..1_000_000_000_u32).prop_map(|(sec, nsec)| Timespec { sec, nsec })
}

/// The bytes that requests point to.
#[derive(Clone, Debug)]
struct Parts {
    name: Vec<u8>,
    other: Vec<u8>,
    data: Vec<u8>,
    forgets: Vec<u8>,
    numbers: Vec<u8>,
}

fn parts() -> impl Strategy<Value = Parts> {
    let bytes = |len| proptest::collection::vec(any::<u8>(), len);
    (name_bytes(), name_bytes(), bytes(0..300), 0..20_usize, bytes(128..129)).prop_map(
        |(name, other, mut data, forgets, numbers)| {
            data.push(0);
            Parts { name, other, data, forgets: vec![7; forgets * ForgetOne::SIZE], numbers }
        },
    )
}

/// One of every request.
fn requests(p: &Parts) -> Vec<Request<'_>> {
    fn of<T: Fixed>(p: &Parts) -> T {
        T::load(&p.numbers)
    }
    let name = Name::new(&p.name).expect("a name");
    let new_name = Name::new(&p.other).expect("a name");
    let data = &p.data[..];
    let size = data.len() as u32;
    vec![
        Request::Lookup { name },
        Request::Forget(of(p)),
        Request::BatchForget(Forgets::new(&p.forgets).expect("whole ones")),
        Request::Getattr(of(p)),
        Request::Setattr(of(p)),
        Request::Readlink,
        Request::Symlink { name, target: data },
        Request::Mknod { args: of(p), name },
        Request::Mkdir { args: of(p), name },
        Request::Unlink { name },
        Request::Rmdir { name },
        Request::Rename { args: of(p), name, new_name },
        Request::Link { args: of(p), new_name },
        Request::Open(of(p)),
        Request::Create { args: of(p), name },
        Request::Tmpfile(of(p)),
        Request::Read(of(p)),
        Request::Write { args: WriteIn { size, ..of(p) }, data: data.into() },
        Request::Fallocate(of(p)),
        Request::Lseek(of(p)),
        Request::Flush(of(p)),
        Request::Fsync(of(p)),
        Request::Release(of(p)),
        Request::Opendir(of(p)),
        Request::Readdir(of(p)),
        Request::Readdirplus(of(p)),
        Request::Releasedir(of(p)),
        Request::Fsyncdir(of(p)),
        Request::Syncfs,
        Request::Statfs,
        Request::Setxattr { args: SetxattrIn { size, ..of(p) }, name: &p.name, value: data },
        Request::Getxattr { args: of(p), name: &p.name },
        Request::Listxattr(of(p)),
        Request::Removexattr { name: &p.name },
        Request::Access(of(p)),
        Request::Getlk(of(p)),
        Request::Setlk(of(p)),
        Request::Setlkw(of(p)),
        Request::Init(of(p)),
        Request::Destroy,
        Request::Interrupt(of(p)),
        Request::CopyFileRange(of(p)),
        Request::CopyFileRange64(of(p)),
        Request::Statx(of(p)),
        Request::Setupmapping(of(p)),
        Request::Removemapping(Unmapped::new(&p.forgets).expect("whole ones")),
        Request::Poll(of(p)),
        Request::Bmap(of(p)),
        Request::Ioctl(of(p)),
        Request::NotifyReply { args: NotifyRetrieveIn { size, ..of(p) }, data },
    ]
}

fn rewritten<T: Fixed + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    let value = T::load(bytes);
    let mut out = vec![0xaa; T::SIZE + 1];
    value.store(&mut out);
    assert_eq!(out[..T::SIZE], bytes[..T::SIZE]);
    assert_eq!(out[T::SIZE], 0xaa);
    assert_eq!(T::get(&out), Some((value, &[0xaa][..])));
    assert_eq!(T::get(&out[..T::SIZE - 1]), None);
}

/// The entry at the front of `bytes` with what is known of its inode (`nodeid` 0: nothing) and the
/// time of creation, and what follows, or `None`.
fn get_direntplus(
    bytes: &[u8],
    btime: bool,
) -> Option<(DirEntry<'_>, EntryOut, Option<Time>, &[u8])> {
    let (known, mut rest) = EntryOut::get(bytes)?;
    let mut born = None;
    if btime {
        let (time, after) = Time::get(rest)?;
        (born, rest) = (Some(time), after);
    }
    let (entry, rest) = get_dirent(rest)?;
    Some((entry, known, born, rest))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn requests_are_read_as_they_were_written(
        p in parts(),
        header in any_fixed::<InHeader>(),
        time in proptest::option::of(time()),
    ) {
        for request in requests(&p) {
            let mut out = vec![0xaa; 2048];
            let len = request.encode(&header, time, &mut out).expect("room");
            prop_assert!(out[len..].iter().all(|&byte| byte == 0xaa));
            // With the data beside it, and after it where there is no time at the end.
            let data = request.data().to_vec();
            let whole = [&out[..len], &data].concat();
            for (message, data) in [(&out[..len], &data[..]), (&whole[..], &[][..])] {
                if data.is_empty() && !request.data().is_empty() && time.is_some() {
                    continue;
                }
                let read = Message::decode(message, data).expect("a message");
                prop_assert_eq!(read.request, Ok(request));
                prop_assert_eq!(read.time, time);
                prop_assert_eq!(read.header.unique, header.unique);
                prop_assert_eq!(read.header.nodeid, header.nodeid);
                prop_assert_eq!(read.header.uid, header.uid);
                prop_assert_eq!(read.header.gid, header.gid);
            }
            // What is written may come in pieces.
            let (front, back) = data.split_at(data.len() / 2);
            let pieces = [front, back];
            let read = Message::decode(&out[..len], Data::new(&pieces)).expect("a message");
            let one = back.is_empty() || matches!(request, Request::Write { .. });
            prop_assert_eq!(read.request, if one { Ok(request) } else { Err(Errno::EINVAL) });
            // Too little room, and a message that is cut off.
            prop_assert_eq!(request.encode(&header, time, &mut out[..len - 1]), None);
            prop_assert_eq!(Message::decode(&out[..len - 1], request.data()), Err(Malformed));
        }
    }

    #[test]
    fn structures_are_read_as_they_were_written(
        bytes in proptest::collection::vec(any::<u8>(), 300)
    ) {
        rewritten::<InHeader>(&bytes);
        rewritten::<OutHeader>(&bytes);
        rewritten::<EntryOut>(&bytes);
        rewritten::<AttrOut>(&bytes);
        rewritten::<StatfsOut>(&bytes);
        rewritten::<Time>(&bytes);
        rewritten::<OpenOut>(&bytes);
        rewritten::<WriteOut>(&bytes);
        rewritten::<LseekOut>(&bytes);
        rewritten::<GetxattrOut>(&bytes);
        rewritten::<LkOut>(&bytes);
        rewritten::<InitIn>(&bytes);
        rewritten::<InitOut>(&bytes);
        rewritten::<Dirent>(&bytes);
        rewritten::<ForgetOne>(&bytes);
        rewritten::<StatxOut>(&bytes);
        rewritten::<CopyFileRangeOut>(&bytes);
        rewritten::<SetxattrExtIn>(&bytes);
        rewritten::<RemovemappingOne>(&bytes);
        rewritten::<IoctlIovec>(&bytes);
        rewritten::<IoctlOut>(&bytes);
        rewritten::<PollOut>(&bytes);
        rewritten::<BmapOut>(&bytes);
        rewritten::<NotifyPollWakeupOut>(&bytes);
        rewritten::<NotifyInvalInodeOut>(&bytes);
        rewritten::<NotifyInvalEntryOut>(&bytes);
        rewritten::<NotifyDeleteOut>(&bytes);
        rewritten::<NotifyStoreOut>(&bytes);
        rewritten::<NotifyRetrieveOut>(&bytes);
        rewritten::<NotifyPruneOut>(&bytes);
    }

    #[test]
    fn attributes_survive(
        numbers in any::<[u64; 3]>(),
        words in any::<[u32; 4]>(),
        times in [time(), time(), time(), time()],
        mode in 0..0o10000_u32,
    ) {
        let attr = Attr {
            ino: Ino(numbers[0] | 1),
            mode: FileType::Symlink.mode_bits() | mode,
            nlink: words[0],
            uid: words[1],
            gid: words[2],
            rdev: words[3],
            size: numbers[1] % (FILE_SIZE_MAX + 1),
            blocks: numbers[2] % (FILE_SIZE_MAX / 512 + 1),
            atime: times[0],
            mtime: times[1],
            ctime: times[2],
            btime: times[3],
        };
        let raw = RawAttr::from(&attr);
        prop_assert_eq!(raw.checked(attr.ino, attr.btime), Some(attr));
        prop_assert_eq!(raw.checked(Ino(0), attr.btime), None);
        let long = RawAttr { size: FILE_SIZE_MAX + 1 + numbers[1] / 2, ..raw };
        prop_assert_eq!(long.checked(attr.ino, attr.btime), None);
        let large = RawAttr { blocks: FILE_SIZE_MAX / 512 + 1 + numbers[2] / 2, ..raw };
        prop_assert_eq!(large.checked(attr.ino, attr.btime), None);
        let late = RawAttr { mtimensec: 1_000_000_000, ..raw };
        prop_assert_eq!(late.checked(attr.ino, attr.btime), None);
        prop_assert_eq!(RawAttr { mode, ..raw }.checked(attr.ino, attr.btime), None);
    }

    #[test]
    fn entries_survive(
        entries in proptest::collection::vec((1..u64::MAX, 1..u64::MAX, name_bytes()), 1..20),
        btime in any::<bool>(),
    ) {
        let (mut plain, mut plus) = (vec![0xaa; 16 << 10], vec![0xaa; 16 << 10]);
        let (mut at, mut plus_at) = (0, 0);
        let entry = |(ino, cookie, name): &'_ (u64, u64, Vec<u8>)| {
            (Ino(*ino), FileType::Fifo, *cookie, name.clone())
        };
        for (ino, file_type, cookie, name) in entries.iter().map(entry) {
            let entry = DirEntry { ino, file_type, cookie, name: &name };
            at = put_dirent(&entry, &mut plain, at).expect("room");
            let end = put_direntplus(&entry, None, Terms::default(), btime, &mut plus, plus_at).expect("room");
            prop_assert_eq!(end - plus_at, direntplus_size(name.len(), btime));
            prop_assert!(put_dirent(&entry, &mut plain[..at], at).is_none());
            plus_at = end;
        }
        let (mut rest, mut plus_rest) = (&plain[..at], &plus[..plus_at]);
        for (ino, file_type, cookie, name) in entries.iter().map(entry) {
            let wanted = DirEntry { ino, file_type, cookie, name: &name };
            let (read, after) = get_dirent(rest).expect("an entry");
            prop_assert_eq!(read, wanted);
            rest = after;
            let (read, known, _, after) = get_direntplus(plus_rest, btime).expect("an entry");
            prop_assert_eq!((read, known.nodeid), (wanted, 0));
            plus_rest = after;
        }
        prop_assert!(rest.is_empty() && plus_rest.is_empty());
    }

    #[test]
    fn open_flags_survive(bits in 0..32_u32) {
        let flags = OpenFlags::from_bits_truncate(bits);
        prop_assert_eq!(open_flags(open_bits(flags)), flags);
    }
}

#[test]
fn refused_messages() {
    let decode = |opcode: u32, body: &[u8], data: &[u8]| {
        let len = (InHeader::SIZE + body.len() + data.len()) as u32;
        let mut message = vec![0; InHeader::SIZE];
        InHeader { len, opcode, ..InHeader::default() }.store(&mut message);
        message.extend_from_slice(body);
        Message::decode(&message, data).map(|message| message.request.map(drop))
    };
    use atoll_vfs::wire::opcode::*;
    assert_eq!(decode(9999, b"", b""), Ok(Err(Errno::ENOSYS)));
    assert_eq!(decode(FUSE_LOOKUP, b"no end", b""), Ok(Err(Errno::EINVAL)));
    assert_eq!(decode(FUSE_LOOKUP, b"a/b\0", b""), Ok(Err(Errno::EINVAL)));
    assert_eq!(decode(FUSE_LOOKUP, b"\0", b""), Ok(Err(Errno::ENOENT)));
    assert_eq!(decode(FUSE_UNLINK, &[b'x'; 300], b""), Ok(Err(Errno::EINVAL)));
    let long = [&[b'x'; 256][..], b"\0"].concat();
    assert_eq!(decode(FUSE_UNLINK, &long, b""), Ok(Err(Errno::ENAMETOOLONG)));
    assert_eq!(decode(FUSE_READ, &[0; 39], b""), Ok(Err(Errno::EINVAL)));
    // A size that is not that of the data; data in two places.
    assert_eq!(decode(FUSE_WRITE, &[0; 40], b"x"), Ok(Err(Errno::EINVAL)));
    assert_eq!(decode(FUSE_WRITE, &[0; 41], b"x"), Ok(Err(Errno::EINVAL)));
    assert_eq!(decode(FUSE_SYMLINK, b"a\0", b"target"), Ok(Err(Errno::EINVAL)));
    assert_eq!(decode(FUSE_SYMLINK, b"a\0", b"target\0"), Ok(Ok(())));
    assert_eq!(decode(FUSE_SETXATTR, &[0; 8], b""), Ok(Err(Errno::EINVAL)));
    assert_eq!(decode(FUSE_GETXATTR, &[0; 9], b""), Ok(Err(Errno::ERANGE)));
    assert_eq!(decode(FUSE_BATCH_FORGET, &[0xff; 24], b""), Ok(Err(Errno::EINVAL)));
    assert_eq!(decode(FUSE_REMOVEMAPPING, &[0xff; 20], b""), Ok(Err(Errno::EINVAL)));
    assert_eq!(decode(FUSE_REMOVEMAPPING, &[0; 5], b""), Ok(Err(Errno::EINVAL)));
    assert_eq!(decode(FUSE_NOTIFY_REPLY, &[0; 41], b""), Ok(Err(Errno::EINVAL)));
    assert_eq!(Message::decode(&[0; 39], b""), Err(Malformed));
    // More extensions than there is message.
    let mut message = [0; 48];
    let header = InHeader { len: 48, opcode: FUSE_READLINK, ..InHeader::default() };
    InHeader { total_extlen: 2, ..header }.store(&mut message);
    assert_eq!(Message::decode(&message, b""), Err(Malformed));
    InHeader { total_extlen: 1, ..header }.store(&mut message);
    assert!(Message::decode(&message, b"").is_ok_and(|message| message.time.is_none()));
}

#[test]
fn setattr_says_what_setattr_means() {
    use atoll_vfs::{SetAttr, SetTime};
    let all = SetAttr {
        mode: Some(0o4755),
        uid: Some(1),
        gid: Some(2),
        size: Some(3),
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::To(Timespec { sec: -5, nsec: 999_999_999 })),
    };
    assert_eq!(SetattrIn::new(Some(9), &all).changes(), Some((Some(9), all)));
    let none = SetAttr::default();
    assert_eq!(SetattrIn::new(None, &none).changes(), Some((None, none)));
    let unknown = SetattrIn { valid: 1 << 12, ..SetattrIn::default() };
    assert_eq!(unknown.changes(), None);
    let late = SetattrIn { valid: FATTR_ATIME, atimensec: 1_000_000_000, ..SetattrIn::default() };
    assert_eq!(late.changes(), None);
}

#[test]
fn extensions_need_the_flag_and_the_word() {
    let offer = InitIn::new(FUSE_ASYNC_READ, Extensions::all());
    assert_eq!(offer.extensions(), Extensions::all());
    assert_eq!(InitIn { flags2: 0, ..offer }.extensions(), Extensions::empty());
    assert_eq!(InitIn { atoll: 0, ..offer }.extensions(), Extensions::empty());
    assert_eq!(InitIn { flags: 0, ..offer }.extensions(), Extensions::empty());
}
