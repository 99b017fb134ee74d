//! Operations on a volume and on the model, which must agree on every answer, and on everything
//! that is there at the end.

use atoll_block::RamDevice;
use atoll_fs::Fs;
use atoll_vfs::model::{ModelFs, snapshot};
use atoll_vfs::{
    Attr, Context, Errno, FallocateMode, FileSystem, FileType, Handle, Ino, Name, OpenFlags,
    RenameFlags, Result, SeekTo, SetAttr, SetTime, Timespec, XattrFlags,
};

use crate::Script;
use crate::image::{INCARNATION, empty, mount_options};

/// Blocks of the volume: 8 MiB, so that it can become full.
const BLOCKS: u64 = 2048;
/// The most operations of one run.
const OPERATIONS: usize = 2000;

/// Runs the target.
///
/// # Panics
/// When the volume and the model differ.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let mut pair = Pair::new();
    for _ in 0..OPERATIONS {
        if script.is_over() {
            break;
        }
        pair.operation(&mut script);
    }
    pair.finish();
}

/// An inode of both sides.
#[derive(Clone, Copy, Debug)]
struct Node {
    ours: Ino,
    model: Ino,
}

/// An open file of both sides.
#[derive(Clone, Copy, Debug)]
struct Open {
    node: Node,
    ours: Handle,
    model: Handle,
}

struct Pair {
    ours: Fs<RamDevice>,
    model: ModelFs,
    cx: Context,
    nodes: Vec<Node>,
    open: Vec<Open>,
    /// Whether timestamps must agree: they may lag when a process ends without unmounting.
    times: bool,
}

/// Names that meet often, the longest among them.
fn name(script: &mut Script<'_>) -> Vec<u8> {
    let number = script.byte();
    match number % 16 {
        15 => vec![b'a' + number / 64; 255],
        14 => vec![0xff, b'.', number / 64],
        few => vec![b'a' + few],
    }
}

fn offset(script: &mut Script<'_>) -> u64 {
    match script.byte() % 8 {
        0 => 0,
        1..=4 => script.below(40_000),
        5 | 6 => script.below(16) * 4096,
        _ => 1 << script.below(63),
    }
}

impl Pair {
    fn new() -> Pair {
        let cx = Context { uid: 3, gid: 4, now: Timespec { sec: 1, nsec: 0 } };
        let ours = Fs::mount(empty(BLOCKS), &mount_options(INCARNATION, false));
        let root = Node { ours: Ino::ROOT, model: Ino::ROOT };
        Pair {
            ours: ours.expect("a new volume mounts"),
            model: ModelFs::new(0o755, Timespec::default()),
            cx,
            nodes: vec![root],
            open: Vec::new(),
            times: true,
        }
    }

    /// Compares answers. `None` when the call failed; when the volume alone has no room, the model
    /// goes back to its state `before`.
    fn agree<T, U>(
        &mut self,
        what: &str,
        before: ModelFs,
        ours: Result<T>,
        model: Result<U>,
    ) -> Option<(T, U)> {
        match (ours, model) {
            (Ok(ours), Ok(model)) => Some((ours, model)),
            (Err(Errno::ENOSPC), Ok(_)) => {
                self.model = before;
                None
            }
            (Err(ours), Err(model)) => {
                let admissible = self.model.admissible();
                assert!(
                    ours == model || ours == Errno::ENOSPC || admissible.contains(&ours),
                    "{what}: {ours:?}, the model says {model:?} or {admissible:?}"
                );
                None
            }
            (ours, model) => panic!(
                "{what}: {:?}, the model says {:?}",
                ours.map(|_| "success"),
                model.map(|_| "success")
            ),
        }
    }

    /// Compares attributes, but for inode number and storage.
    fn same(&self, what: &str, ours: Attr, model: Attr) {
        let plain = |attr: Attr| match self.times {
            true => Attr { ino: Ino::ROOT, blocks: 0, ..attr },
            false => {
                let (atime, mtime, ctime) = Default::default();
                Attr { ino: Ino::ROOT, blocks: 0, atime, mtime, ctime, ..attr }
            }
        };
        assert_eq!(plain(ours), plain(model), "{what}");
    }

    fn node(&mut self, script: &mut Script<'_>) -> Node {
        self.nodes[script.byte() as usize % self.nodes.len()]
    }

    /// Keeps the inode that both sides made or found.
    fn keep(&mut self, what: &str, found: Option<(Attr, Attr)>) -> Option<Node> {
        let (ours, model) = found?;
        self.same(what, ours, model);
        let node = Node { ours: ours.ino, model: model.ino };
        match self.nodes.iter().find(|n| n.ours == node.ours || n.model == node.model) {
            Some(known) => assert!(
                known.ours == node.ours && known.model == node.model,
                "{what}: another inode than the model's"
            ),
            None if self.nodes.len() < 200 => self.nodes.push(node),
            None => {}
        }
        Some(node)
    }

    fn operation(&mut self, script: &mut Script<'_>) {
        let cx = self.cx;
        self.cx.now.nsec += 1;
        let before = self.model.clone();
        match script.byte() % 24 {
            0 | 1 => {
                let (dir, bytes) = (self.node(script), name(script));
                let Ok(name) = Name::new(&bytes) else { return };
                let kind = [FileType::Regular, FileType::Fifo, FileType::Regular];
                let mode = script.pick(&kind).mode_bits() | 0o640;
                let ours = self.ours.mknod(&cx, dir.ours, name, mode, 0);
                let model = self.model.mknod(&cx, dir.model, name, mode, 0);
                let found = self.agree("mknod", before, ours, model);
                self.keep("mknod", found);
            }
            2 => {
                let (dir, bytes) = (self.node(script), name(script));
                let Ok(name) = Name::new(&bytes) else { return };
                let ours = self.ours.mkdir(&cx, dir.ours, name, 0o750);
                let model = self.model.mkdir(&cx, dir.model, name, 0o750);
                let found = self.agree("mkdir", before, ours, model);
                self.keep("mkdir", found);
            }
            3 | 4 => self.create(script, before),
            5 => {
                let (dir, bytes) = (self.node(script), name(script));
                let Ok(name) = Name::new(&bytes) else { return };
                let target = vec![b't'; 1 + script.below(4095) as usize];
                let ours = self.ours.symlink(&cx, dir.ours, name, &target);
                let model = self.model.symlink(&cx, dir.model, name, &target);
                let found = self.agree("symlink", before, ours, model);
                if let Some(node) = self.keep("symlink", found) {
                    let mut text = Vec::new();
                    assert_eq!(self.ours.readlink(&cx, node.ours, &mut text), Ok(()));
                    assert_eq!(text, target);
                }
            }
            6 | 7 => {
                let (dir, bytes) = (self.node(script), name(script));
                let Ok(name) = Name::new(&bytes) else { return };
                let ours = self.ours.unlink(&cx, dir.ours, name);
                let model = self.model.unlink(&cx, dir.model, name);
                self.agree("unlink", before, ours, model);
            }
            8 => {
                let (dir, bytes) = (self.node(script), name(script));
                let Ok(name) = Name::new(&bytes) else { return };
                let ours = self.ours.rmdir(&cx, dir.ours, name);
                let model = self.model.rmdir(&cx, dir.model, name);
                self.agree("rmdir", before, ours, model);
            }
            9 | 10 => {
                let (from, to) = (self.node(script), self.node(script));
                let (old, new) = (name(script), name(script));
                let (Ok(old), Ok(new)) = (Name::new(&old), Name::new(&new)) else { return };
                let flags = RenameFlags::from_bits_retain(script.below(8) as u32);
                let ours = self.ours.rename(&cx, from.ours, old, to.ours, new, flags);
                let model = self.model.rename(&cx, from.model, old, to.model, new, flags);
                self.agree("rename", before, ours, model);
            }
            11 => {
                let (node, dir, bytes) = (self.node(script), self.node(script), name(script));
                let Ok(name) = Name::new(&bytes) else { return };
                let ours = self.ours.link(&cx, node.ours, dir.ours, name);
                let model = self.model.link(&cx, node.model, dir.model, name);
                let found = self.agree("link", before, ours, model);
                self.keep("link", found);
            }
            12 | 13 => {
                let (dir, bytes) = (self.node(script), name(script));
                let Ok(name) = Name::new(&bytes) else { return };
                let ours = self.ours.lookup(&cx, dir.ours, name);
                let model = self.model.lookup(&cx, dir.model, name);
                let found = self.agree("lookup", before, ours, model);
                self.keep("lookup", found);
            }
            14 => {
                let node = self.node(script);
                let set = SetAttr {
                    mode: script.byte().is_multiple_of(4).then_some(0o4711),
                    size: script.byte().is_multiple_of(2).then(|| offset(script)),
                    mtime: script.byte().is_multiple_of(4).then_some(SetTime::Now),
                    uid: script.byte().is_multiple_of(4).then_some(9),
                    ..SetAttr::default()
                };
                let ours = self.ours.setattr(&cx, node.ours, None, &set);
                let model = self.model.setattr(&cx, node.model, None, &set);
                if let Some((ours, model)) = self.agree("setattr", before, ours, model) {
                    self.same("setattr", ours, model);
                }
            }
            15..=18 => self.content(script, before),
            19 => {
                let (node, choice) = (self.node(script), script.byte());
                let xattr = [b"user.a".as_slice(), b"user.b", b"trusted.c"][choice as usize % 3];
                if choice < 160 {
                    let value = vec![choice; script.below(6000) as usize];
                    let flags = XattrFlags::from_bits_truncate(script.below(3) as u32);
                    let ours = self.ours.setxattr(&cx, node.ours, xattr, &value, flags);
                    let model = self.model.setxattr(&cx, node.model, xattr, &value, flags);
                    self.agree("setxattr", before, ours, model);
                } else {
                    let ours = self.ours.removexattr(&cx, node.ours, xattr);
                    let model = self.model.removexattr(&cx, node.model, xattr);
                    self.agree("removexattr", before, ours, model);
                }
            }
            20 => {
                let Some(at) = self.any_open(script) else { return };
                let open = self.open.swap_remove(at);
                let ours = self.ours.release(&cx, open.node.ours, open.ours);
                let model = self.model.release(&cx, open.node.model, open.model);
                self.agree("release", before, ours, model);
            }
            21 => {
                let node = self.node(script);
                let ours = self.ours.getattr(&cx, node.ours);
                let model = self.model.getattr(&cx, node.model);
                if let Some((ours, model)) = self.agree("getattr", before, ours, model) {
                    self.same("getattr", ours, model);
                }
            }
            22 => assert_eq!(self.ours.syncfs(&cx), Ok(())),
            _ => {
                // Rare, since it closes everything.
                let choice = script.byte();
                if choice < 32 {
                    if choice < 16 {
                        assert_eq!(self.ours.syncfs(&cx), Ok(()));
                    } else {
                        self.times = false;
                    }
                    self.end_of_process();
                }
            }
        }
    }

    fn create(&mut self, script: &mut Script<'_>, before: ModelFs) {
        let (cx, dir, bytes) = (self.cx, self.node(script), name(script));
        let Ok(name) = Name::new(&bytes) else { return };
        let flags = OpenFlags::from_bits_truncate(script.byte().into());
        let ours = self.ours.create(&cx, dir.ours, name, 0o600, flags);
        let model = self.model.create(&cx, dir.model, name, 0o600, flags);
        let Some(((attr, ours), (model_attr, model))) = self.agree("create", before, ours, model)
        else {
            return;
        };
        if let Some(node) = self.keep("create", Some((attr, model_attr))) {
            self.open.push(Open { node, ours, model });
        }
    }

    fn any_open(&mut self, script: &mut Script<'_>) -> Option<usize> {
        let byte = script.byte() as usize;
        (!self.open.is_empty()).then(|| byte % self.open.len())
    }

    fn content(&mut self, script: &mut Script<'_>, before: ModelFs) {
        let cx = self.cx;
        let Some(at) = self.any_open(script) else { return };
        let Open { node, ours, model } = self.open[at];
        let (choice, at) = (script.byte() % 8, offset(script));
        match choice {
            0..=3 => {
                let data = vec![script.byte() | 1; script.below(20_000) as usize];
                let done = self.ours.write(&cx, node.ours, ours, at, &data);
                // Where room ran out within the data, the model takes as much.
                let len = done.map_or(data.len(), |written| written.len);
                let expected = self.model.write(&cx, node.model, model, at, &data[..len]);
                if let Some((ours, model)) = self.agree("write", before, done, expected) {
                    assert_eq!(ours, model, "write");
                }
            }
            4 | 5 => {
                let mut bytes = vec![0xaa; script.below(20_000) as usize];
                let mut expected = bytes.clone();
                let ours = self.ours.read(&cx, node.ours, ours, at, &mut bytes);
                let model = self.model.read(&cx, node.model, model, at, &mut expected);
                if let Some((ours, model)) = self.agree("read", before, ours, model) {
                    assert_eq!(ours, model, "bytes read");
                    assert!(bytes[..ours] == expected[..ours], "other bytes than the model's");
                }
            }
            6 => {
                let len = script.below(100_000);
                let mode = FallocateMode::from_bits_truncate(script.byte().into());
                let ours = self.ours.fallocate(&cx, node.ours, ours, at, len, mode);
                let model = self.model.fallocate(&cx, node.model, model, at, len, mode);
                self.agree("fallocate", before, ours, model);
            }
            _ => {
                let to = *script.pick(&[SeekTo::Data, SeekTo::Hole]);
                let answer = self.ours.seek(&cx, node.ours, ours, at, to);
                let expected = self.model.seek(&cx, node.model, model, at, to);
                assert!(
                    answer == expected
                        || self.model.seek_admits(node.model, at, to, answer)
                        || answer.is_err_and(|error| self.model.admissible().contains(&error)),
                    "seek to {to:?} from {at}: {answer:?}, the model says {expected:?}"
                );
            }
        }
    }

    /// The process ends without unmounting, and the volume is mounted again.
    fn end_of_process(&mut self) {
        let device = self.ours.device().clone();
        self.ours = Fs::mount(device, &mount_options(INCARNATION, false))
            .expect("a volume mounts after the end of its process");
        self.model = self.model.without_handles();
        self.open.clear();
        let model = &mut self.model;
        let cx = self.cx;
        self.nodes.retain(|node| model.getattr(&cx, node.model).is_ok());
    }

    /// Compares everything that is there.
    fn finish(mut self) {
        self.compare("at the end");
        self.times = false;
        self.end_of_process();
        self.compare("after the end of the process");
        let device = self.ours.unmount().expect("memory does not fail");
        let options = mount_options(INCARNATION, false);
        self.ours = Fs::mount(device, &options).expect("an unmounted volume mounts");
        self.compare("after unmounting");
    }

    fn compare(&mut self, when: &str) {
        let mut ours = snapshot(&mut self.ours).expect("the volume can be walked");
        let mut model = snapshot(&mut self.model).expect("the model can be walked");
        if !self.times {
            (ours, model) = (ours.without_times(), model.without_times());
        }
        let differences = ours.differences(&model, 10);
        assert!(differences.is_empty(), "{when}: {}", differences.join("; "));
    }
}
