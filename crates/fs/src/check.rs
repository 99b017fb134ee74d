//! Checking a volume, and repairing it.
//!
//! A check reads everything that is not file data and writes nothing. In this order: [`view`] the
//! volume as a mount would see it; [`tree`] every node; [`items`] every item; [`names`] every name
//! and link; [`projects`] what the inodes of each take; [`space`] every block. [`report`] states
//! the findings, [`repair`] mends them.
//!
//! Memory: 1 bit for each block of every group in use, 8 bytes for each node, 128 bytes for each
//! inode and 32 for each name, and up to twice the length of the journal that is to be replayed. A
//! repair also takes 32 bytes for each item that it salvages.

mod build;
mod items;
mod names;
mod projects;
mod repair;
pub(crate) mod report;
pub(crate) mod space;
mod tree;
pub(crate) mod view;

pub use report::{Counter, FINDINGS_MAX, Finding, ItemFault, ItemKey, NodeFault, Report};

use alloc::vec::Vec;

use atoll_block::Addressable;
use atoll_vfs::{FileType, Timespec};

use crate::error::{FsError, Result};
use items::{Screen, Sink};
use names::{Collect, Namespace};
use projects::Projects;
use space::Usage;
use tree::{Step, Tree};
use view::View;

/// How to check a volume.
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckOptions {
    /// Repair the volume; a sound one is not written to.
    pub repair: bool,
    /// As for [`MountOptions`](crate::MountOptions::incarnation): whether records after the last
    /// commit count.
    pub incarnation: [u8; 16],
    /// The timestamps of inodes that a repair creates.
    pub now: Timespec,
}

/// Checks the volume on `device`, which nobody may have mounted.
///
/// A volume whose journal has not been replayed is checked as it will be once it is. A repair ends
/// with a volume on which another check finds nothing.
///
/// # What a repair does
///
/// - The journal is replayed as by a mount, up to the first malformed record.
/// - Superblocks, map blocks and counters are written anew where they are wrong.
/// - If anything in the tree is wrong, another tree is built, from its sound items and from those
///   that are found in leaves that no way leads to any more. Leaves in which nothing changes are
///   taken over as they are. Items that are malformed or contradict others are left out. A block
///   that several files claim goes to the one with the least inode number, and to nobody if it
///   holds a tree node. Inodes without a name get one in /lost+found, `#` and their number. Where
///   an inode's record is lost but entries or extents are not, it is made up.
///
/// # Crashes
///
/// The journal is emptied first, with the order of writes of a recovery. The new tree goes to free
/// blocks, but not to nodes that the device does not read; then map blocks get the bits of all
/// blocks in use, old and new; then a journal header makes the new tree the volume's; last the map
/// blocks lose the bits of the old. A crash anywhere leaves an image that a repair mends, and from
/// the header on one that is safe to mount. Where there are too few free blocks the rest of the new
/// tree is first written to the emptied journal, as one commit that overwrites the old.
///
/// # Errors
/// There is no volume, or none that this version knows; those of the device;
/// [`FsError::ReadOnlyFeatures`] for a repair of a volume that may only be read; [`FsError::Full`]
/// if a repair has no room for the new tree: grow the volume and repair again.
pub fn check<M: Addressable>(device: &mut M, options: &CheckOptions) -> Result<Report> {
    let mut report = Report::default();
    let mut view = View::open(device, options.incarnation, options.repair, &mut report)?;
    if options.repair && view.sb.read_compatible != 0 {
        return Err(FsError::ReadOnlyFeatures);
    }
    report.blocks = view.sb.block_count;
    let found = examine(&mut view, &mut report, false)?;
    if !options.repair || report.is_clean() {
        return Ok(report);
    }
    if let Err(error) = repair::repair(&mut view, found, options, &mut report) {
        return view.fail(error);
    }
    report.repaired = true;
    Ok(report)
}

/// The findings of an examination of a volume.
struct Volume {
    tree: Tree,
    namespace: Namespace,
    projects: Projects,
    /// Blocks of nodes and extents.
    usage: Usage,
    orphans: Vec<u64>,
    last_ino: u64,
    blocks_lost: u64,
}

impl Volume {
    /// Whether an entry of the list of removals may stay.
    fn is_orphan(&self, ino: u64) -> bool {
        // A file that was being made shorter is listed too.
        ino != 1
            && self
                .namespace
                .get(ino)
                .is_some_and(|i| i.removed || i.file_type == FileType::Regular)
    }
}

/// Goes through the whole volume; with `salvage` through unreachable leaves too.
fn examine<M: Addressable>(
    view: &mut View<'_, M>,
    report: &mut Report,
    salvage: bool,
) -> Result<Volume> {
    let mut usage = Usage::default();
    let mut tree = Tree::walk(view, &mut usage, report);
    if salvage && tree.has_gaps() {
        tree.salvage(view, &usage)?;
    }
    let mut namespace = Namespace::default();
    let mut projects = Projects::default();
    let mut screen = Screen::new(&view.sb, usage);
    let mut collect = Collect { namespace: &mut namespace, projects: &mut projects, report };
    send(view, &tree, &mut screen, &mut collect)?;
    let Screen { usage, orphans, last_ino, blocks_lost, .. } = screen;
    namespace.check(view, &tree, report);
    projects.check(&namespace, report);
    let volume = Volume { tree, namespace, projects, usage, orphans, last_ino, blocks_lost };
    for &ino in &volume.orphans {
        if !volume.is_orphan(ino) {
            report.add(Finding::Orphan { ino });
        }
    }
    volume.usage.compare(view, report);
    for block in view.damaged() {
        if volume.usage.contains(&view.sb, block) {
            report.add(Finding::JournalBlock { block });
        }
    }
    report.free_blocks = volume.usage.free_blocks(&view.sb);
    check_counters(view, &volume, report);
    Ok(volume)
}

/// Sends every item of the tree through the screen.
fn send<M: Addressable, S: Sink>(
    view: &mut View<'_, M>,
    tree: &Tree,
    screen: &mut Screen,
    sink: &mut S,
) -> Result<()> {
    tree.for_each(view, |_, step| match step {
        Step::Item(key, value) => screen.item(key, value, sink),
        Step::Misplaced(key) => {
            sink.finding(Finding::Item { key: key.into(), fault: ItemFault::Misplaced });
            Ok(())
        }
        Step::End(_) => Ok(()),
    })?;
    screen.finish(sink)
}

fn check_counters<M: Addressable>(view: &View<'_, M>, volume: &Volume, report: &mut Report) {
    let Some(state) = view.state else { return };
    let free = volume.usage.free_blocks(&view.sb);
    let inodes = volume.namespace.inodes.iter().filter(|i| !i.unusable).count() as u64;
    let counters =
        [(Counter::FreeBlocks, state.free_blocks, free), (Counter::Inodes, state.inodes, inodes)];
    for (counter, stored, counted) in counters {
        if stored != counted {
            report.add(Finding::Counter { counter, stored, counted });
        }
    }
    let least = volume.last_ino + 1;
    if state.next_ino < least {
        let (counter, stored) = (Counter::NextInode, state.next_ino);
        report.add(Finding::Counter { counter, stored, counted: least });
    }
}
