//! Directories of the host that clients share who do not trust each other, beside programs of the
//! host that some of them have there.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use atoll_host::directory::Options;
use atoll_server::{Access, Credentials, Identity, KnownMost, Session, Volume};
use atoll_tests::fixtures::{root, user};
use atoll_tests::hostdir::HostDir;
use atoll_tests::subject::{RW, name};
use atoll_vfs::{
    Attr, Context, DirEntry, Errno, FileSystem, Ino, Name, OpenFlags, RenameFlags, Result,
    Timespec, verbs,
};

const ROOT: Ino = Ino::ROOT;

fn cx() -> Context {
    Context { uid: 0, gid: 0, now: Timespec::default() }
}

/// What a program of the host does as soon as a name has been looked up.
type Act = Box<dyn FnMut(&Path, &[u8]) + Send>;

/// A directory in which a program of the host is faster than the server.
struct Raced {
    dir: HostDir,
    act: Option<Act>,
    /// The most inodes that it has ever known at a time.
    most: Arc<AtomicUsize>,
}

macro_rules! pass {
    ($self:ident $verb:ident ($($arg:ident),*)) => { $self.dir.$verb($($arg),*) };
}

impl FileSystem for Raced {
    verbs!(pass: forget getattr setattr readlink mknod mkdir symlink unlink rmdir rename link open
        create tmpfile read accessed write copy_file_range fallocate seek fsync release opendir
        readdir releasedir fsyncdir syncfs begin_sync end_sync checkpoint_step work_in_steps
        take_rest free_step statfs setxattr getxattr listxattr removexattr);

    fn lookup(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<Attr> {
        let found = self.dir.lookup(cx, parent, name);
        self.most.fetch_max(self.dir.inner().known().0, Ordering::Relaxed);
        if let Some(act) = &mut self.act {
            act(self.dir.path(), name.bytes());
        }
        found
    }
}

/// A directory that everybody may write, and its volume.
fn shared(options: &Options, act: Option<Act>) -> (std::path::PathBuf, Arc<Volume<Raced>>) {
    let (path, volume, _) = shared_within(options, act, KnownMost::default());
    (path, volume)
}

/// The same, of which clients know at most so much. It says how much they have known at a time.
fn shared_within(
    options: &Options,
    act: Option<Act>,
    most: KnownMost,
) -> (std::path::PathBuf, Arc<Volume<Raced>>, Arc<AtomicUsize>) {
    let (dir, _) = HostDir::with(Path::new(env!("CARGO_TARGET_TMPDIR")), options).unwrap();
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let path = dir.path().to_owned();
    let had = Arc::<AtomicUsize>::default();
    let volume = atoll_host::server::volume(Raced { dir, act, most: Arc::clone(&had) }, "v");
    volume.set_foreign(most).unwrap();
    (path, volume, had)
}

fn session(volume: &Arc<Volume<Raced>>, peer: Credentials) -> Session<Raced> {
    let identity = if peer.uid == 0 { Identity::Checked } else { Identity::Peer };
    volume.session(peer, Access { identity, ..Access::default() }).unwrap()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// What one client knows no other makes unknown, whatever it says that it has forgotten.
#[test]
fn nobody_forgets_for_another() {
    let (path, volume) = shared(&Options::default(), None);
    fs::create_dir(path.join("d")).unwrap();
    fs::write(path.join("d/f"), b"x").unwrap();
    let know = |session: &mut Session<Raced>| {
        let dir = session.lookup(&cx(), ROOT, name("d")).unwrap().ino;
        (dir, session.lookup(&cx(), dir, name("f")).unwrap().ino)
    };
    let mut victims = [root(), user()].map(|peer| session(&volume, peer));
    let mut known = (ROOT, ROOT);
    for victim in &mut victims {
        known = know(victim);
    }
    for peer in [root(), user()] {
        let mut hostile = session(&volume, peer);
        let mut forget = |hostile: &mut Session<Raced>| {
            for ino in [known.1, known.0, ROOT] {
                hostile.forget(ino, u64::MAX);
                hostile.forget(ino, 1);
            }
            for victim in &mut victims {
                assert!(victim.getattr(&cx(), known.1).is_ok());
                assert!(victim.lookup(&cx(), known.0, name("f")).is_ok());
                victim.forget(known.1, 1);
            }
        };
        // Never given, given, and found by its number once more.
        forget(&mut hostile);
        know(&mut hostile);
        forget(&mut hostile);
        know(&mut hostile);
        for _ in 0..100 {
            let _ = hostile.lookup(&cx(), known.1, name("."));
        }
        forget(&mut hostile);
        know(&mut hostile);
        drop(hostile);
        for victim in &mut victims {
            assert!(victim.getattr(&cx(), known.1).is_ok());
        }
    }
}

/// When they have forgotten, or ended, the memory of it comes back.
#[test]
fn the_table_is_as_long_as_what_clients_know() {
    let (path, volume) = shared(&Options::default(), None);
    for number in 0..3000 {
        fs::write(path.join(number.to_string()), b"").unwrap();
    }
    for peer in [root(), user()] {
        for _ in 0..2 {
            let mut session = session(&volume, peer.clone());
            let mut look =
                |number: usize| session.lookup(&cx(), ROOT, name(&number.to_string())).unwrap().ino;
            let known: Vec<Ino> = (0..3000).map(&mut look).collect();
            let handle = session.open(&cx(), known[7], OpenFlags::READ).unwrap();
            let _ = handle;
            for ino in &known[..1000] {
                session.forget(*ino, 1);
            }
        }
    }
    let mut fs = volume.into_inner().ok().flatten().expect("all sessions have ended");
    let (inodes, _) = fs.dir.inner().known();
    assert_eq!(inodes, 1, "the root");
}

/// A client that looks up and never forgets, by as many sessions as it likes, has its own oldest
/// inodes forgotten, and takes nothing from another user.
#[test]
fn a_hoarder_forgets_its_own() {
    const FILES: usize = 4000;
    const MOST: KnownMost = KnownMost { of_user: 500, of_all: 800 };
    /// What each session has beyond that.
    const ASSURED: usize = 1024;
    for (hoarder, victim) in [(root(), user()), (user(), root())] {
        let (path, volume, had) = shared_within(&Options::default(), None, MOST);
        for number in 0..FILES {
            fs::write(path.join(number.to_string()), b"x").unwrap();
        }
        let look = |session: &mut Session<Raced>, number: usize| {
            session.lookup(&cx(), ROOT, name(&number.to_string())).unwrap().ino
        };
        let mut victim = session(&volume, victim);
        let known: Vec<Ino> = (0..1200).map(|number| look(&mut victim, number)).collect();
        let mut sessions: Vec<_> = (0..3).map(|_| session(&volume, hoarder.clone())).collect();
        let mut stale = Vec::new();
        for session in &mut sessions {
            let first = look(session, FILES - 1);
            let handle = session.open(&cx(), first, OpenFlags::READ).unwrap();
            let hoard: Vec<Ino> = (1200..FILES).map(|number| look(session, number)).collect();
            for _ in 0..3 {
                for number in 1200..FILES {
                    look(session, number);
                }
            }
            let mut byte = [0];
            assert_eq!(session.read(&cx(), first, handle, 0, &mut byte), Ok(1), "it is open");
            let latest = hoard[hoard.len() - 2];
            assert!(session.getattr(&cx(), latest).is_ok());
            let oldest = session.getattr(&cx(), hoard[0]).map(|attr| attr.ino);
            stale.push(oldest);
        }
        assert_eq!(stale, [Err(Errno::ESTALE); 3], "each has met its bound");
        for ino in &known {
            assert!(victim.getattr(&cx(), *ino).is_ok(), "another user's is known");
        }
        let bound = 1 + 4 * ASSURED + MOST.of_all + 64;
        let had = had.load(Ordering::Relaxed);
        assert!(had > 2 * ASSURED && had <= bound, "{had}");
        // What it was given it may forget still, as often as it likes.
        for session in &mut sessions {
            (0..FILES).for_each(|number| {
                let ino = look(session, number);
                session.forget(ino, u64::MAX);
            });
        }
        for ino in &known {
            assert!(victim.getattr(&cx(), *ino).is_ok());
        }
        drop((sessions, victim));
        let mut fs = volume.into_inner().ok().flatten().expect("all sessions have ended");
        assert_eq!(fs.dir.inner().known().0, 1, "the root");
    }
}

/// Calls that look at names for themselves, and opens of what is forgotten, leave nothing known.
#[test]
fn what_no_client_was_given_is_not_known() {
    for peer in [root(), user()] {
        let (path, volume) = shared(&Options::default(), None);
        let mut session = session(&volume, peer.clone());
        for number in 0..300 {
            let (a, b) = (format!("a{number}"), format!("b{number}"));
            fs::write(path.join(&a), b"").unwrap();
            chown(path.join(&a), Some(peer.uid), Some(peer.gid)).unwrap_or(());
            fs::hard_link(path.join(&a), path.join(format!("c{number}"))).unwrap();
            let flags = RenameFlags::empty();
            if session.rename(&cx(), ROOT, name(&a), ROOT, name(&b), flags).is_err() {
                assert!(!is_root(), "an ordinary user's server");
                continue;
            }
            let made = session.create(&cx(), ROOT, name(&b), 0o600, OpenFlags::EXCL).map(drop);
            assert_eq!(made, Err(Errno::EEXIST));
            let both = session.mkdir(&cx(), ROOT, name(&b), 0o700).map(drop);
            assert_eq!(both, Err(Errno::EEXIST));
            let (attr, handle) = session.create(&cx(), ROOT, name(&b), 0o600, RW).unwrap();
            session.forget(attr.ino, 1);
            session.release(&cx(), attr.ino, handle).unwrap();
            session.unlink(&cx(), ROOT, name(&b)).unwrap();
        }
        drop(session);
        let mut fs = volume.into_inner().ok().flatten().expect("all sessions have ended");
        let (inodes, _) = fs.dir.inner().known();
        assert!(inodes <= 1 + 64, "{inodes}");
    }
}

/// A program of the host puts another's file in the place of a name that its client makes, once it
/// was looked up. The client gets what it may have, or nothing.
#[test]
fn what_is_opened_is_what_was_judged() {
    if !is_root() {
        // Only the superuser's server opens what its clients may not.
        return;
    }
    for there_before in [false, true] {
        let act: Act = Box::new(move |path, name| {
            if name != b"x" {
                return;
            }
            // A file of the superuser's comes, in the place of the one that was found or of none.
            let _ = fs::rename(path.join("secret"), path.join("x"));
        });
        let (path, volume) = shared(&Options::default(), Some(act));
        let secret = path.join("secret");
        for flags in [OpenFlags::READ, RW, RW | OpenFlags::TRUNC] {
            fs::write(&secret, b"secret").unwrap();
            fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
            let _ = fs::remove_file(path.join("x"));
            if there_before {
                fs::write(path.join("x"), b"mine").unwrap();
                chown(path.join("x"), Some(user().uid), Some(user().gid)).unwrap();
            }
            let mut client = session(&volume, user());
            match client.create(&cx(), ROOT, name("x"), 0o666, flags) {
                Err(Errno::EACCES | Errno::ESTALE) => {}
                Err(error) => panic!("{error}"),
                Ok((attr, handle)) => {
                    assert_eq!(attr.uid, user().uid);
                    let mut found = [0; 16];
                    let len = client.read(&cx(), attr.ino, handle, 0, &mut found).unwrap();
                    assert_ne!(&found[..len], b"secret");
                }
            }
            assert_eq!(fs::read(path.join("x")).unwrap(), b"secret");
            fs::remove_file(path.join("x")).unwrap();
        }
    }
}

/// A program of the host moves directories out of the subtree of a client, which has them open or
/// known: what is around their new place is not the client's, on whatever way it goes up.
#[test]
fn nothing_around_what_the_host_moves_out_of_a_subtree() {
    let (path, volume) = shared(&Options::default(), None);
    for dir in ["own", "own/a", "own/a/b", "other", "other/deep"] {
        fs::create_dir(path.join(dir)).unwrap();
        fs::set_permissions(path.join(dir), PermissionsExt::from_mode(0o777)).unwrap();
    }
    fs::write(path.join("other/secret"), b"secret").unwrap();
    fs::write(path.join("other/deep/secret"), b"secret").unwrap();
    // Others' clients know all of it.
    let mut all = session(&volume, root());
    let look = |s: &mut Session<Raced>, at: Ino, part: &str| {
        s.lookup(&cx(), at, name(part)).map(|attr| attr.ino)
    };
    let other = look(&mut all, ROOT, "other").unwrap();
    let deep = look(&mut all, other, "deep").unwrap();
    look(&mut all, ROOT, "own").unwrap();
    for peer in [root(), user()] {
        for to in ["other/b", "other/deep/b", "b"] {
            let identity = if peer.uid == 0 { Identity::Checked } else { Identity::Peer };
            let access = Access { identity, subtree: Some("/own".into()), ..Access::default() };
            let mut s = volume.session(peer.clone(), access).unwrap();
            let a = look(&mut s, ROOT, "a").unwrap();
            let b = look(&mut s, a, "b").unwrap();
            let handle = s.opendir(&cx(), b).unwrap();
            assert_eq!(look(&mut s, b, ".."), Ok(a));
            assert_eq!(look(&mut s, a, ".."), Ok(ROOT));
            fs::rename(path.join("own/a/b"), path.join(to)).unwrap();
            assert_eq!(look(&mut s, b, ".."), Err(Errno::ESTALE), "{to}");
            // It is the client's still, as it is a process's that has it open.
            let made = s.mkdir(&cx(), b, name("c"), 0o777).unwrap().ino;
            assert_eq!(look(&mut s, made, ".."), Err(Errno::ESTALE));
            // Nor what the listing names.
            let mut named = Vec::new();
            let mut note = |entry: &DirEntry<'_>| {
                named.push(entry.ino);
                true
            };
            s.readdir(&cx(), b, handle, 0, &mut note).unwrap();
            named.extend([other, deep]);
            for ino in named.into_iter().filter(|ino| ![ROOT, a, b, made].contains(ino)) {
                for part in ["..", "secret", "deep", "other"] {
                    assert_eq!(look(&mut s, ino, part), Err(Errno::ESTALE), "{to} {ino} {part}");
                }
                assert_eq!(s.getattr(&cx(), ino).map(|attr| attr.ino), Err(Errno::ESTALE));
            }
            s.rmdir(&cx(), b, name("c")).unwrap();
            // Back inside it is as before.
            fs::rename(path.join(to), path.join("own/a/b")).unwrap();
            assert_eq!(look(&mut s, b, ".."), Ok(a));
        }
    }
}
