//! What no program does: numbers beyond all files, and trees that are deeper than any path.

use super::*;

/// Trees that are deeper than any path, whose directories are not all open: each inode is found
/// where it is, and not where something else is; all of the way to a file is durable with it.
#[test]
fn a_tree_may_be_deeper_than_a_path() {
    const DEPTH: usize = 4300;
    let mut fs = fresh(Bounds { directories: 16, ..Bounds::default() });
    let path = fs.path().to_owned();
    let mut way = vec![ROOT];
    // Names of several lengths, so that they fill paths.
    let called = |depth: usize| "d".repeat(1 + depth % 40);
    for depth in 0..DEPTH {
        way.push(fs.mkdir(&cx(), way[depth], name(&called(depth)), 0o700).unwrap().ino);
    }
    let bottom = way[DEPTH];
    let (file, handle) = fs.create(&cx(), bottom, name("f"), 0o600, RW).unwrap();
    for depth in [1, 8, 9, 10, 1000, DEPTH - 1, DEPTH, 4096, 7] {
        assert_eq!(fs.getattr(&cx(), way[depth]).map(|attr| attr.ino), Ok(way[depth]), "{depth}");
    }
    let everything = fs.begin_fsync(&cx(), file.ino, handle, false).unwrap().is_none();
    assert!(everything, "names above it are new");
    fs.release(&cx(), file.ino, handle).unwrap();
    // Something else at a place on the way, and the same again.
    let (first, aside) = (path.join(called(0)), path.join("aside"));
    let forgotten = way[20];
    assert!(fs.getattr(&cx(), way[4000]).is_ok());
    fs::rename(&first, &aside).unwrap();
    let others: std::path::PathBuf = (0..30).map(called).collect();
    fs::create_dir_all(path.join(others)).unwrap();
    for _ in 0..2 {
        // Others have the descriptors.
        let fillers: Vec<Ino> = (0..40)
            .map(|number| format!("x{number}"))
            .map(|at| match fs.mkdir(&cx(), ROOT, name(&at), 0o700) {
                Ok(attr) => attr.ino,
                Err(_) => look(&mut fs, ROOT, &at).unwrap().ino,
            })
            .collect();
        for ino in fillers {
            let _ = fs.getattr(&cx(), ino);
        }
    }
    assert_eq!(fs.getattr(&cx(), forgotten), Err(Errno::ESTALE), "another is there");
    assert_eq!(fs.getattr(&cx(), way[3000]), Err(Errno::ESTALE), "nothing is there");
    fs::remove_dir_all(&first).unwrap();
    fs::rename(&aside, &first).unwrap();
    assert_eq!(fs.getattr(&cx(), forgotten).map(|attr| attr.ino), Ok(forgotten));
    // From the bottom up, as rm -r goes.
    fs.unlink(&cx(), bottom, name("f")).unwrap();
    for depth in (0..DEPTH).rev() {
        fs.rmdir(&cx(), way[depth], name(&called(depth))).unwrap();
    }
}

/// Numbers that no program says: a virtual machine's kernel may be any.
#[test]
fn extreme_numbers_are_errors_or_nothing() {
    const NUMBERS: [u64; 12] = [
        0,
        1,
        4095,
        (1 << 31) - 1,
        1 << 31,
        u32::MAX as u64,
        (1 << 44) - 4096,
        (1 << 44) + 1,
        i64::MAX as u64 - 1,
        i64::MAX as u64,
        1 << 63,
        u64::MAX,
    ];
    let (uid, gid) = (cx().uid, cx().gid);
    for owners in [Owners::of_process(), Owners::Squashed { uid, gid }] {
        let options = Options { owners: Some(owners), ..Options::default() };
        let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let (mut dir, _) = HostDir::with(parent, &options).unwrap();
        let (file, handle) = dir.create(&cx(), ROOT, name("f"), 0o644, RW).unwrap();
        let below = dir.mkdir(&cx(), ROOT, name("d"), 0o755).unwrap().ino;
        let link = dir.symlink(&cx(), ROOT, name("l"), b"f").unwrap().ino;
        let listing = dir.opendir(&cx(), ROOT).unwrap();
        for ino in [file.ino, below, link, ROOT] {
            for (uid, gid) in [(Some(u32::MAX), None), (None, Some(u32::MAX))] {
                let set = SetAttr { uid, gid, ..SetAttr::default() };
                assert_eq!(dir.setattr(&cx(), ino, None, &set), Err(Errno::EINVAL));
            }
        }
        let mut buf = [0; 16];
        for number in NUMBERS {
            let whole = number as u32;
            for other in NUMBERS {
                let time = Timespec { sec: number as i64, nsec: other as u32 };
                for time in [SetTime::To(time), SetTime::Now] {
                    let (atime, mtime) = (Some(time), Some(time));
                    let set = SetAttr { atime, mtime, ..SetAttr::default() };
                    let _ = dir.setattr(&cx(), file.ino, Some(handle), &set);
                }
                // More would be much to set aside.
                if other < 1 << 30 {
                    for mode in 0..0x20 {
                        let mode = FallocateMode::from_bits_retain(mode);
                        let _ = dir.fallocate(&cx(), file.ino, handle, number, other, mode);
                    }
                }
            }
            let set = |set: SetAttr| SetAttr { mtime: None, ..set };
            for set in [
                set(SetAttr { size: Some(number), ..SetAttr::default() }),
                set(SetAttr { mode: Some(whole), ..SetAttr::default() }),
            ] {
                let _ = dir.setattr(&cx(), file.ino, Some(handle), &set);
                let _ = dir.setattr(&cx(), below, None, &set);
                let _ = dir.setattr(&cx(), link, None, &set);
            }
            let _ = dir.read(&cx(), file.ino, handle, number, &mut buf);
            let _ = dir.write(&cx(), file.ino, handle, number, b"data");
            let _ = dir.seek(&cx(), file.ino, handle, number, SeekTo::Data);
            let _ = dir.seek(&cx(), file.ino, handle, number, SeekTo::Hole);
            let _ = dir.readdir(&cx(), ROOT, listing, number, &mut |_| true);
            let _ = dir.open(&cx(), file.ino, OpenFlags::from_bits_retain(whole));
            let _ = dir.mknod(&cx(), ROOT, name("n"), whole, whole);
            let _ = dir.mkdir(&cx(), ROOT, name("m"), whole);
            for cx in [
                Context { uid: whole, ..cx() },
                Context { gid: whole, ..cx() },
                Context { now: Timespec { sec: number as i64, nsec: whole }, ..cx() },
            ] {
                let made = dir.create(&cx, ROOT, name("c"), whole, RW);
                if let Ok((made, handle)) = made {
                    dir.release(&cx, made.ino, handle).unwrap();
                    dir.unlink(&cx, ROOT, name("c")).unwrap();
                }
                let _ = dir.accessed(&cx, file.ino);
            }
            for ino in [Ino(number), file.ino] {
                let _ = dir.getattr(&cx(), ino);
                let _ = dir.release(&cx(), ino, Handle(number));
                let _ = dir.lookup(&cx(), ino, name(".."));
            }
        }
        assert!(dir.getattr(&cx(), file.ino).is_ok());
    }
}
