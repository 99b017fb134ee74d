//! Putting a volume right: maps and counters in place, the tree by writing it anew.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use atoll_block::{Addressable, BLOCK_SIZE, BlockIndex};
use atoll_vfs::filesystem::FILE_SIZE_MAX;
use atoll_vfs::{Errno, FileType};

use hashbrown::HashSet;

use super::build::{Builder, Nodes};
use super::items::{InodeInfo, Reach, Screen, Sink, made_up_record};
use super::names::{NameInfo, Namespace};
use super::projects::Projects;
use super::report::{Finding, Report};
use super::space::Usage;
use super::tree::Step;
use super::view::View;
use super::{CheckOptions, Volume, examine};
use crate::dir;
use crate::error::{Corruption, FsError, Result};
use crate::hash::dirent_offset;
use crate::inode::InodeRecord;
use crate::journal::{Entry, Journal};
use crate::key::{DIRENT_TIES, Key, Kind, OFFSET_MAX};
use crate::layout::{Block, Superblock, VolumeState, dirent, record};
use crate::superblocks::Superblocks;

const LOST_AND_FOUND: &str = "lost+found";

/// Mends the findings in `found`. The volume is flushed after it.
pub(crate) fn repair<M: Addressable>(
    view: &mut View<'_, M>,
    found: Volume,
    options: &CheckOptions,
    report: &mut Report,
) -> Result<()> {
    Superblocks::read(view.device)?.restore(view.device)?;
    view.settle()?;
    match view.state {
        Some(state) if !report.tree_is_wrong => {
            let state = VolumeState {
                free_blocks: found.usage.free_blocks(&view.sb),
                inodes: found.namespace.inodes.len() as u64,
                next_ino: state.next_ino.max(found.last_ino + 1),
                groups: state.groups.max(found.usage.groups()),
                ..state
            };
            put_state(view, &found.usage, &state)
        }
        _ => {
            drop(found);
            rebuild(view, options, report)
        }
    }
}

/// Makes `state` the volume's state, with the blocks `usage` in use.
fn put_state<M: Addressable>(
    view: &mut View<'_, M>,
    usage: &Usage,
    state: &VolumeState,
) -> Result<()> {
    // Whichever state a crash leaves, no block that it uses is marked free.
    usage.write_maps(view, state.groups, true)?;
    view.device.flush()?;
    view.write_state(state)?;
    usage.write_maps(view, state.groups, false)?;
    Ok(view.device.flush()?)
}

fn rebuild<M: Addressable>(
    view: &mut View<'_, M>,
    options: &CheckOptions,
    report: &mut Report,
) -> Result<()> {
    let mut volume = examine(view, &mut Report::default(), true)?;
    let mut plan = Plan::new(view, &mut volume, options)?;
    if !volume.projects.is_empty() {
        // Their items come first, and what their inodes will take is known last.
        let sb = view.sb.clone();
        let mut rehearsal =
            Target::new(&sb, Usage::default(), |_: &mut View<'_, M>, _, _: &Block| Ok(()));
        let built = emit(view, &volume, &plan, report, false, &mut rehearsal)?;
        plan.projects = built.projects;
    }
    report.tree_rebuilt = true;
    report.items_salvaged = volume.tree.salvaged();
    report.blocks_lost = volume.blocks_lost;
    report.inodes_reconnected = plan.reconnected;
    match write_home(view, &volume, &plan, report) {
        Err(FsError::Full) => write_staged(view, &volume, &plan, report),
        result => result,
    }
}

/// The blocks that are not free for a new tree: those in use, leaves whose items it takes, and
/// nodes that cannot be read, since they may not be written either.
fn in_use(volume: &Volume, sb: &Superblock) -> Usage {
    let mut usage = volume.usage.clone();
    let unreadable = volume.tree.unreadable.iter().copied();
    for block in volume.tree.salvaged_blocks().chain(unreadable) {
        usage.take(sb, block);
    }
    usage
}

/// Writes the new tree to blocks that nothing uses, old nodes and salvaged leaves included among
/// the used, and makes it the volume's.
fn write_home<M: Addressable>(
    view: &mut View<'_, M>,
    volume: &Volume,
    plan: &Plan,
    report: &mut Report,
) -> Result<()> {
    let sb = view.sb.clone();
    let mut target =
        Target::new(&sb, in_use(volume, &sb), |view: &mut View<'_, M>, block, data: &Block| {
            Ok(view.device.write(BlockIndex(block), data)?)
        });
    let tree = emit(view, volume, plan, report, false, &mut target)?.tree;
    view.device.flush()?;
    let usage = final_usage(volume, &target);
    put_state(view, &usage, &plan.state(view, &usage, tree, volume))
}

/// Writes the new tree over the old one by way of the journal.
fn write_staged<M: Addressable>(
    view: &mut View<'_, M>,
    volume: &Volume,
    plan: &Plan,
    report: &mut Report,
) -> Result<()> {
    if view.header.is_none() {
        // Nothing can be lost with a tree whose root is not known.
        view.write_state(&VolumeState {
            root: view.sb.group_start + view.sb.front_len(0) as u64,
            height: 1,
            next_ino: 2,
            free_blocks: 0,
            inodes: 0,
            groups: 1,
        })?;
    }
    let sb = view.sb.clone();
    let used = in_use(volume, &sb);
    // Once without writing, to see which leaves must stay.
    let mut rehearsal =
        Target::new(&sb, Usage::default(), |_: &mut View<'_, M>, _, _: &Block| Ok(()));
    emit(view, volume, plan, report, true, &mut rehearsal)?;
    let mut avoid = volume.usage.clone();
    for &block in &volume.tree.nodes {
        avoid.release(&sb, block);
    }
    for &block in rehearsal.adopted.iter().chain(&volume.tree.unreadable) {
        avoid.take(&sb, block);
    }
    let mut journal = view.journal();
    let mut target = Target::new(&sb, avoid, |view: &mut View<'_, M>, block, data: &Block| {
        match used.contains(&sb, block) {
            true => stage(view, &mut journal, block, data),
            false => Ok(view.device.write(BlockIndex(block), data)?),
        }
    });
    let tree = emit(view, volume, plan, report, true, &mut target)?.tree;
    let usage = final_usage(volume, &target);
    let state = plan.state(view, &usage, tree, volume);
    usage.write_maps(view, state.groups, true)?;
    view.device.flush()?;
    journal.begin(record::MARK, Some(&state));
    append(view, &mut journal)?;
    view.device.flush()?;
    view.reload()?;
    view.settle()?;
    usage.write_maps(view, state.groups, false)?;
    Ok(view.device.flush()?)
}

fn stage<M: Addressable>(
    view: &mut View<'_, M>,
    journal: &mut Journal,
    block: u64,
    data: &Block,
) -> Result<()> {
    journal.begin(0, None);
    let block = BlockIndex(block);
    journal.add(&Entry { block, offset: 0, bytes: data, init: true, data: false });
    append(view, journal)
}

fn append<M: Addressable>(view: &mut View<'_, M>, journal: &mut Journal) -> Result<()> {
    match journal.append(view.device) {
        Err(FsError::Refused(Errno::ENOSPC)) => Err(FsError::Full),
        other => other,
    }
}

/// The blocks in use once the new tree is the volume's.
fn final_usage<W>(volume: &Volume, target: &Target<'_, W>) -> Usage {
    let mut usage = volume.usage.clone();
    for &block in &volume.tree.nodes {
        usage.release(target.sb, block);
    }
    for &block in target.written.iter().chain(&target.adopted) {
        usage.take(target.sb, block);
    }
    usage
}

/// Where the nodes of the new tree go.
struct Target<'a, W> {
    sb: &'a Superblock,
    avoid: Usage,
    hint: u64,
    written: Vec<u64>,
    /// Leaves of the old tree that are leaves of the new.
    adopted: Vec<u64>,
    sink: W,
}

impl<'a, W> Target<'a, W> {
    fn new(sb: &'a Superblock, avoid: Usage, sink: W) -> Self {
        Target { sb, avoid, hint: 0, written: Vec::new(), adopted: Vec::new(), sink }
    }
}

/// A [`Target`] with the volume at hand.
struct Output<'o, 'a, 'd, M, W> {
    view: &'o mut View<'d, M>,
    target: &'o mut Target<'a, W>,
}

impl<'d, M, W> Nodes for Output<'_, '_, 'd, M, W>
where
    M: Addressable,
    W: FnMut(&mut View<'d, M>, u64, &Block) -> Result<()>,
{
    fn allocate(&mut self) -> Result<u64> {
        let Target { sb, avoid, hint, written, .. } = self.target;
        let block = avoid.find_free(sb, *hint).ok_or(FsError::Full)?;
        avoid.take(sb, block);
        *hint = block + 1;
        written.push(block);
        Ok(block)
    }

    fn write(&mut self, block: u64, data: &Block) -> Result<()> {
        (self.target.sink)(self.view, block, data)
    }
}

/// A tree that has been built.
struct Built {
    /// Its root and height.
    tree: (u64, u32),
    /// The usage of each project by its inodes.
    projects: Projects,
}

/// Sends all items through the screen once more, and those to be kept to a new tree.
fn emit<'d, M, W>(
    view: &mut View<'d, M>,
    volume: &Volume,
    plan: &Plan,
    report: &mut Report,
    tight: bool,
    target: &mut Target<'_, W>,
) -> Result<Built>
where
    M: Addressable,
    W: FnMut(&mut View<'d, M>, u64, &Block) -> Result<()>,
{
    let mut nodes = Usage::default();
    for &block in &volume.tree.nodes {
        nodes.take(&view.sb, block);
    }
    let mut screen = Screen::new(&view.sb, nodes.clone());
    let mut fixer = Fixer {
        volume,
        additions: &plan.additions,
        next_name: 0,
        kept: Vec::new(),
        lost: 0,
        projects: plan.projects.clone(),
        counted: Projects::default(),
    };
    let mut builder = Builder::new(tight);
    // The items of the leaf that is being read, to see whether it stays as it is.
    let mut before: Vec<(Key, Vec<u8>)> = Vec::new();
    let mut is_whole = true;
    let sb = view.sb.clone();
    volume.tree.for_each(view, |view, step| {
        let leaf = match step {
            Step::Item(key, value) => {
                before.push((key, value.to_vec()));
                return screen.item(key, value, &mut fixer);
            }
            Step::Misplaced(_) => {
                fixer.lost += 1;
                is_whole = false;
                return Ok(());
            }
            Step::End(leaf) => leaf,
        };
        let is_whole = core::mem::replace(&mut is_whole, true) && before == fixer.kept;
        // A salvaged leaf is no node of the tree, and an extent that was salvaged too may claim it.
        let is_ours =
            |&block: &u64| nodes.contains(&sb, block) || !volume.usage.contains(&sb, block);
        if let Some(block) = leaf.filter(|_| is_whole).filter(is_ours)
            && let (Some((first, _)), Some((last, _))) = (before.first(), before.last())
        {
            target.adopted.push(block);
            let mut output = Output { view, target: &mut *target };
            builder.push_leaf(*first, *last, block, &mut output)?;
            fixer.kept.clear();
        }
        before.clear();
        let mut output = Output { view, target: &mut *target };
        for (key, value) in fixer.kept.drain(..) {
            builder.push(key, &value, &mut output)?;
        }
        Ok(())
    })?;
    screen.finish(&mut fixer)?;
    fixer.add_before(None)?;
    report.items_lost = fixer.lost;
    let mut output = Output { view, target: &mut *target };
    for (key, value) in fixer.kept {
        builder.push(key, &value, &mut output)?;
    }
    Ok(Built { tree: builder.finish(&mut output)?, projects: fixer.counted })
}

/// Corrects the items that the screen keeps, and adds missing ones.
struct Fixer<'a> {
    volume: &'a Volume,
    /// By key; those before have been added.
    additions: &'a [(Key, Vec<u8>)],
    /// The screen keeps names in the order in which they were collected.
    next_name: usize,
    kept: Vec<(Key, Vec<u8>)>,
    lost: u64,
    /// The usage that projects are to say.
    projects: Projects,
    /// Their usage by all that was kept.
    counted: Projects,
}

impl Fixer<'_> {
    /// Adds the items that belong before `key`.
    fn add_before(&mut self, key: Option<Key>) -> Result<()> {
        while let Some(((at, value), rest)) = self.additions.split_first()
            && key.is_none_or(|key| *at < key)
        {
            self.counted.count(*at, value)?;
            self.kept.push((*at, value.clone()));
            self.additions = rest;
        }
        Ok(())
    }

    fn fix_record(volume: &Volume, info: &InodeInfo, value: &[u8]) -> Result<Vec<u8>> {
        let mut record = InodeRecord::parse(value)?;
        if !volume.projects.has(record.project) {
            record.project = 0;
        }
        if !info.removed {
            record.nlink = info.links();
            record.blocks = info.blocks;
        }
        if info.file_type == FileType::Directory && !info.removed {
            record.parent = if info.ino == 1 { 1 } else { info.parent };
        }
        if info.made_up && info.file_type == FileType::Regular {
            record.size = info.end_block.saturating_mul(BLOCK_SIZE as u64).min(FILE_SIZE_MAX);
        }
        Ok(record.emit().to_vec())
    }
}

impl Sink for Fixer<'_> {
    fn finding(&mut self, finding: Finding) {
        self.lost += u64::from(matches!(finding, Finding::Item { .. }));
    }

    fn keep(&mut self, key: Key, value: &[u8]) -> Result<()> {
        self.add_before(Some(key))?;
        let namespace = &self.volume.namespace;
        let mut value = value.to_vec();
        match key.kind() {
            Some(Kind::Orphan) if !self.volume.is_orphan(key.offset()) => return Ok(()),
            Some(Kind::Inode) => {
                let Some(info) = namespace.get(key.ino) else {
                    self.lost += 1;
                    return Ok(());
                };
                value = Self::fix_record(self.volume, info, &value)?;
            }
            Some(Kind::Dirent) => {
                let name = namespace.names.get(self.next_name).filter(|n| n.key() == key);
                let name = name.ok_or(Corruption::Item)?;
                self.next_name += 1;
                if name.surplus {
                    self.lost += 1;
                    return Ok(());
                }
                let info = namespace.get(name.ino).ok_or(Corruption::Item)?;
                value[dirent::TYPE] = info.file_type.dirent_type();
            }
            Some(Kind::Symlink | Kind::Xattr) if namespace.get(key.ino).is_none() => {
                self.lost += 1;
                return Ok(());
            }
            Some(Kind::Project) => value = self.projects.corrected(key, &value)?,
            _ => {}
        }
        self.counted.count(key, &value)?;
        self.kept.push((key, value));
        Ok(())
    }

    fn inode(&mut self, _info: InodeInfo) {}
}

/// The additions to the tree: a root, names for inodes without one, and a directory for these.
struct Plan {
    additions: Vec<(Key, Vec<u8>)>,
    /// The usage of each project by its inodes once all is done.
    projects: Projects,
    /// The keys of the names among them.
    taken: HashSet<(u64, u64)>,
    next_ino: u64,
    reconnected: u64,
}

impl Plan {
    fn new<M: Addressable>(
        view: &mut View<'_, M>,
        volume: &mut Volume,
        options: &CheckOptions,
    ) -> Result<Plan> {
        let next = view.state.map_or(2, |s| s.next_ino);
        let next = if next > OFFSET_MAX { 2 } else { next };
        let next_ino = next.max(volume.last_ino + 1).max(2);
        let mut plan = Plan {
            additions: Vec::new(),
            projects: Projects::default(),
            taken: HashSet::new(),
            next_ino,
            reconnected: 0,
        };
        if volume.namespace.get(1).is_none() {
            plan.add_inode(volume, 1, 1, options);
        }
        plan.reconnect(view, volume, options)?;
        // Links and parents of added inodes are known only now.
        for (key, value) in &mut plan.additions {
            if key.kind() == Some(Kind::Inode)
                && let Some(info) = volume.namespace.get(key.ino)
            {
                *value = Fixer::fix_record(volume, info, value)?;
            }
        }
        plan.additions.sort();
        Ok(plan)
    }

    /// The state of the volume with the new tree.
    fn state<M: Addressable>(
        &self,
        view: &View<'_, M>,
        usage: &Usage,
        (root, height): (u64, u32),
        volume: &Volume,
    ) -> VolumeState {
        let next_ino = self.next_ino;
        let inodes = volume.namespace.inodes.iter().filter(|i| !i.unusable).count() as u64;
        VolumeState {
            root,
            height,
            next_ino,
            free_blocks: usage.free_blocks(&view.sb),
            inodes,
            groups: view.state.map_or(1, |s| s.groups).max(usage.groups()),
        }
    }

    /// Adds a directory.
    fn add_inode(&mut self, volume: &mut Volume, ino: u64, parent: u64, options: &CheckOptions) {
        let file_type = FileType::Directory;
        let mut record = made_up_record(file_type, options.now);
        record.parent = parent;
        let info = InodeInfo {
            ino,
            file_type,
            stored_links: 0,
            stored_parent: parent,
            project: 0,
            blocks: 0,
            end_block: 0,
            made_up: true,
            unusable: false,
            removed: false,
            names: 1,
            subdirectories: 0,
            parent,
            name: None,
            reach: Reach::Known,
        };
        self.additions.push((Key::inode(ino), record.emit().to_vec()));
        let inodes = &mut volume.namespace.inodes;
        let at = inodes.partition_point(|i| i.ino < ino);
        inodes.insert(at, info);
    }

    /// Gives every inode that has no name one in /lost+found.
    fn reconnect<M: Addressable>(
        &mut self,
        view: &mut View<'_, M>,
        volume: &mut Volume,
        options: &CheckOptions,
    ) -> Result<()> {
        let inodes = &volume.namespace.inodes;
        let lost: Vec<u64> =
            inodes.iter().filter(|i| Namespace::is_lost(i)).map(|i| i.ino).collect();
        if lost.is_empty() {
            return Ok(());
        }
        let home = self.lost_and_found(view, volume, options)?;
        for ino in lost {
            let at = (0..).find_map(|n| match n {
                0 => self.free_entry(view, volume, home, &format!("#{ino}")),
                n => self.free_entry(view, volume, home, &format!("#{ino}.{n}")),
            });
            let Some(info) = volume.namespace.get_mut(ino) else { continue };
            let is_dir = info.file_type == FileType::Directory;
            info.names = 1;
            info.parent = if is_dir { home } else { 0 };
            if let Some((offset, name)) = at {
                self.add_entry(home, offset, &name, ino, info.file_type);
            }
            if is_dir && let Some(home) = volume.namespace.get_mut(home) {
                home.subdirectories += 1;
            }
            self.reconnected += 1;
        }
        Ok(())
    }

    fn add_entry(&mut self, dir: u64, offset: u64, name: &str, ino: u64, file_type: FileType) {
        self.taken.insert((dir, offset));
        let mut value = Vec::from(ino.to_le_bytes());
        value.push(file_type.dirent_type());
        value.extend_from_slice(name.as_bytes());
        self.additions.push((Key::new(dir, Kind::Dirent, offset), value));
    }

    /// The directory /lost+found, or another of such a name if that is taken, made if need be.
    fn lost_and_found<M: Addressable>(
        &mut self,
        view: &mut View<'_, M>,
        volume: &mut Volume,
        options: &CheckOptions,
    ) -> Result<u64> {
        for n in 0..=u64::MAX {
            let name = match n {
                0 => String::from(LOST_AND_FOUND),
                n => format!("{LOST_AND_FOUND}.{n}"),
            };
            if let Some(ino) = self.entry(view, volume, 1, &name) {
                if volume.namespace.get(ino).is_some_and(|i| i.file_type == FileType::Directory) {
                    return Ok(ino);
                }
                continue;
            }
            let Some((offset, name)) = self.free_entry(view, volume, 1, &name) else { continue };
            let ino = self.fresh_ino(volume);
            self.add_inode(volume, ino, 1, options);
            self.add_entry(1, offset, &name, ino, FileType::Directory);
            if let Some(root) = volume.namespace.get_mut(1) {
                root.subdirectories += 1;
            }
            return Ok(ino);
        }
        Err(FsError::Full)
    }

    /// A number that no inode has.
    fn fresh_ino(&mut self, volume: &Volume) -> u64 {
        if self.next_ino <= OFFSET_MAX {
            self.next_ino += 1;
            return self.next_ino - 1;
        }
        // The numbers have run out, which takes a damaged volume: the first gap will do.
        let gap = volume.namespace.inodes.iter().zip(1..).find(|(i, n)| i.ino != *n);
        gap.map_or(self.next_ino, |(_, n)| n)
    }

    /// The names of `dir` that are kept and stand from `base` on where one hash has its place.
    fn ties(volume: &Volume, dir: u64, base: u64) -> &[NameInfo] {
        let names = &volume.namespace.names;
        let from = names.partition_point(|n| (n.dir, n.offset) < (dir, base));
        let to = names.partition_point(|n| (n.dir, n.offset) < (dir, base + DIRENT_TIES));
        &names[from..to]
    }

    /// The inode that `name` in `dir` names.
    fn entry<M: Addressable>(
        &self,
        view: &mut View<'_, M>,
        volume: &Volume,
        dir: u64,
        name: &str,
    ) -> Option<u64> {
        let base = dirent_offset(&view.sb.hash_key, name.as_bytes());
        let found = Self::ties(volume, dir, base).iter().filter(|n| !n.surplus).find(|n| {
            let value = volume.tree.fetch(view, n.key()).unwrap_or_default();
            dir::parse(&value).is_ok_and(|(_, _, found)| found == name.as_bytes())
        });
        found.map(|n| n.ino)
    }

    /// The name with the offset that it can have in `dir`, unless it is there or has too many ties.
    fn free_entry<M: Addressable>(
        &self,
        view: &mut View<'_, M>,
        volume: &Volume,
        dir: u64,
        name: &str,
    ) -> Option<(u64, String)> {
        if self.entry(view, volume, dir, name).is_some() {
            return None;
        }
        let base = dirent_offset(&view.sb.hash_key, name.as_bytes());
        let ties = Self::ties(volume, dir, base);
        let offset = (base..base + DIRENT_TIES)
            .find(|&o| ties.iter().all(|n| n.offset != o) && !self.taken.contains(&(dir, o)))?;
        Some((offset, name.into()))
    }
}
