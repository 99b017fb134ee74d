//! The working directory of a file system whose listings have other numbers than its lookups, and
//! of one that lies.

use atoll_posix::{Errno, Options, Posix};
use atoll_vfs::model::ModelFs;
use atoll_vfs::{Attr, Context, DirEntry, FileSystem, Handle, Ino, Name, Result, Timespec, verbs};

/// What is odd about it.
#[derive(Clone, Copy, PartialEq)]
enum Odd {
    /// A listing has the number of another directory for each.
    Numbers,
    /// Each directory lies in itself.
    Parents,
}

struct Lies(ModelFs, Odd);

macro_rules! plain {
    ($self:ident $verb:ident ($($arg:ident),*)) => { $self.0.$verb($($arg),*) };
}

impl FileSystem for Lies {
    verbs!(plain: forget getattr setattr readlink mknod mkdir symlink unlink rmdir rename link open
        create tmpfile read write copy_file_range fallocate seek fsync release opendir releasedir
        fsyncdir syncfs statfs setxattr getxattr listxattr removexattr);

    fn lookup(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<Attr> {
        if self.1 == Odd::Parents && parent != Ino::ROOT {
            return self.0.getattr(cx, parent);
        }
        self.0.lookup(cx, parent, name)
    }

    fn readdir(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        cookie: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let odd = self.1;
        self.0.readdir(cx, ino, handle, cookie, &mut |entry| match odd {
            Odd::Numbers => emit(&DirEntry { ino: Ino(entry.ino.0 ^ 1), ..*entry }),
            Odd::Parents => emit(entry),
        })
    }
}

fn posix(odd: Odd) -> Posix<Lies, fn() -> Timespec> {
    let clock: fn() -> Timespec = Timespec::default;
    let cx = Context { uid: 0, gid: 0, now: Timespec::default() };
    let mut fs = ModelFs::default();
    let name = |text: &'static str| Name::new(text.as_bytes()).expect("a name");
    for called in ["a", "b", "c", "d"] {
        let dir = fs.mkdir(&cx, Ino::ROOT, name(called), 0o755).expect("a new directory");
        fs.mkdir(&cx, dir.ino, name("below"), 0o755).expect("a new directory");
    }
    Posix::new(Lies(fs, odd), clock, &Options::default())
}

#[test]
fn numbers_of_listings_are_not_trusted() {
    let mut px = posix(Odd::Numbers);
    for path in [&b"/a"[..], b"/b", b"/c", b"/d"] {
        for path in [path.to_vec(), [path, b"/below"].concat()] {
            px.chdir(&path).expect("a directory");
            assert_eq!(px.getcwd(), Ok(&path[..]));
        }
    }
}

#[test]
fn a_climb_without_end_ends() {
    let mut px = posix(Odd::Parents);
    px.chdir(b"/a").expect("a directory");
    assert_eq!(px.getcwd(), Err(Errno::ENAMETOOLONG));
}
