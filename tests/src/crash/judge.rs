//! Whether a state found after a crash is one of those that the contract allows.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use atoll_vfs::model::{FileContent, Node, Snapshot};

use super::verdicts::Found;
use super::workload::State;

const BLOCK: usize = 4096;

/// The states that a crash may bring back.
#[derive(Clone, Copy)]
pub struct History<'a> {
    /// Before the first operation, and after each.
    pub states: &'a [State],
    /// Whether an operation may be there in part, by its number.
    pub has_parts: &'a dyn Fn(usize) -> bool,
}

/// Leaves the times out that may lag behind.
pub fn without_lag(mut tree: Snapshot) -> Snapshot {
    for times in tree.nodes.values_mut().filter_map(|node| node.times.as_mut()) {
        times.mtime = times.btime;
        times.ctime = times.btime;
    }
    tree
}

/// Leaves the bytes of files out, not their lengths.
pub fn metadata(tree: &Snapshot) -> Snapshot {
    let nodes = tree.nodes.iter().map(|(path, node)| {
        let content = node.content.as_ref();
        let node = Node {
            mode: node.mode,
            nlink: node.nlink,
            uid: node.uid,
            gid: node.gid,
            rdev: node.rdev,
            times: node.times,
            content: content
                .map(|content| FileContent { size: content.size, blocks: BTreeMap::new() }),
            target: node.target.clone(),
            xattrs: node.xattrs.clone(),
            identity: node.identity.clone(),
        };
        (path.clone(), node)
    });
    Snapshot { nodes: nodes.collect() }
}

/// After the end of the process: the state after `returned` operations, or after the one in flight
/// too. `is` is [`without_lag`].
///
/// # Errors
/// How it differs from both.
pub fn process_crash(
    History { states, has_parts }: History<'_>,
    returned: usize,
    is: &Snapshot,
) -> Result<(), String> {
    let in_flight = (returned + 1).min(states.len() - 1);
    let (before, after) = (&states[returned], &states[in_flight]);
    if *is == before.tree || *is == after.tree {
        return Ok(());
    }
    if in_flight > returned && has_parts(returned) && partly(is, before, after) {
        return Ok(());
    }
    let mut error =
        format!("not as before the operation in flight:\n{}", difference(is, &before.tree));
    if in_flight > returned {
        error += &format!("\nand not as after it:\n{}", difference(is, &after.tree));
    }
    Err(error)
}

/// After power loss: the state after some number of operations from `synced` to `in_flight`.
///
/// # Errors
/// How it differs from the first and the last of them.
pub fn power_loss(
    history: History<'_>,
    synced: usize,
    in_flight: usize,
    is: &Found,
) -> Result<(), String> {
    let names = &is.metadata;
    let states = history.states;
    let mut bytes_wrong = None;
    for prefix in synced..=in_flight {
        let fits = *names == states[prefix].metadata
            || prefix < in_flight
                && (history.has_parts)(prefix)
                && metadata_partly(names, &states[prefix].metadata, &states[prefix + 1].metadata);
        if !fits {
            continue;
        }
        match bytes_allowed(states, prefix, in_flight, &is.tree) {
            Ok(()) => return Ok(()),
            Err(error) => bytes_wrong = Some(format!("as after {prefix} operations, but {error}")),
        }
    }
    Err(bytes_wrong.unwrap_or_else(|| {
        format!(
            "no prefix of the operations makes this. Beside the state after the last sync:\n{}\n\
             beside the last state:\n{}",
            difference(names, &states[synced].metadata),
            difference(names, &states[in_flight].metadata),
        )
    }))
}

fn difference(is: &Snapshot, wanted: &Snapshot) -> String {
    is.differences(wanted, 6).join("\n")
}

/// As `before`, but for lengths on the way to those of `after`. All without bytes.
fn metadata_partly(is: &Snapshot, before: &Snapshot, after: &Snapshot) -> bool {
    is.nodes.len() == before.nodes.len()
        && is.nodes.iter().all(|(path, node)| {
            let (Some(before), Some(after)) = (before.nodes.get(path), after.nodes.get(path))
            else {
                return false;
            };
            let size = |node: &Node| node.content.as_ref().map_or(0, |content| content.size);
            let (low, high) = (size(before).min(size(after)), size(before).max(size(after)));
            let same = Node { content: before.content.clone(), ..node.clone() };
            same == *before && (low..=high).contains(&size(node))
        })
}

/// As `before`, but for bytes and lengths on the way to those of `after`.
fn partly(is: &Snapshot, before: &State, after: &State) -> bool {
    metadata_partly(&metadata(is), &before.metadata, &after.metadata)
        && is.nodes.iter().all(|(path, node)| {
            let content = |state: &'_ State| state.tree.nodes.get(path)?.content.clone();
            let Some(bytes) = &node.content else { return true };
            let known: Vec<FileContent> = [before, after].into_iter().filter_map(content).collect();
            stray_byte(bytes, &known.iter().collect::<Vec<_>>()).is_none()
        })
}

/// Every byte is one that its file had there after `prefix` operations, or one that a later one up
/// to `in_flight` stored over it.
fn bytes_allowed(
    states: &[State],
    prefix: usize,
    in_flight: usize,
    is: &Snapshot,
) -> Result<(), String> {
    let state = &states[prefix];
    let nothing = FileContent::default();
    for (path, node) in &is.nodes {
        let Some(bytes) = &node.content else { continue };
        let Some(ino) = state.inodes.get(path) else { continue };
        let content = |i: usize| states[i].contents.get(ino);
        let had = content(prefix).map_or(&nothing, |content| content);
        if had == bytes {
            continue;
        }
        let changed = |i: &usize| match (content(*i), content(*i + 1)) {
            (Some(before), Some(after)) => !Rc::ptr_eq(before, after),
            (_, after) => after.is_some(),
        };
        let later: Vec<Step<'_>> = (prefix..in_flight)
            .filter(changed)
            .filter_map(|i| Some((content(i).map_or(&nothing, |content| content), content(i + 1)?)))
            .map(|(before, after)| Step { before, after })
            .collect();
        if let Some(at) = unexplained_byte(bytes, had, &later) {
            let stored: BTreeSet<u8> = later.iter().map(|step| step.after.byte(at)).collect();
            return Err(format!(
                "{} has {:#04x} at {at}, where it had {:#04x} then and later {stored:02x?}",
                String::from_utf8_lossy(path),
                bytes.byte(at),
                had.byte(at),
            ));
        }
    }
    Ok(())
}

/// A file before and after an operation.
struct Step<'a> {
    before: &'a FileContent,
    after: &'a FileContent,
}

/// The first byte of `bytes` that is neither the one that the file `had` nor one that a step in
/// `later` stored over it. Workloads write no zeros: a zero is stored where there was something, as
/// by a hole. Where a file ended, and was made longer, nothing was written: bytes that it had
/// before it was made shorter do not become zeros until that is durable.
fn unexplained_byte(bytes: &FileContent, had: &FileContent, later: &[Step<'_>]) -> Option<u64> {
    let mut indices: BTreeSet<u64> = bytes.blocks.keys().copied().collect();
    indices.extend(had.blocks.keys());
    for index in indices {
        let start = index * BLOCK as u64;
        let len = bytes.size.saturating_sub(start).min(BLOCK as u64) as usize;
        let (is, had) = (block_of(bytes, index), block_of(had, index));
        if is[..len] == had[..len] {
            continue;
        }
        // Each with the bytes of the block before it, after it, and how many there were after it.
        let steps: Vec<(&[u8], &[u8], usize)> = later
            .iter()
            .map(|step| {
                let after_len = step.after.size.saturating_sub(start).min(len as u64) as usize;
                (block_of(step.before, index), block_of(step.after, index), after_len)
            })
            .collect();
        for at in (0..len).filter(|&at| is[at] != had[at]) {
            let stored = |&(before, after, after_len): &(&[u8], &[u8], usize)| {
                after[at] == is[at] && at < after_len && (is[at] != 0 || before[at] != 0)
            };
            if !steps.iter().any(stored) {
                return Some(start + at as u64);
            }
        }
    }
    None
}

/// A block of a file, zeros where there is none.
fn block_of(content: &FileContent, index: u64) -> &[u8] {
    static ZEROS: [u8; BLOCK] = [0; BLOCK];
    content.blocks.get(&index).map_or(&ZEROS[..], |block| &block[..])
}

/// The first byte of `bytes` that none of `known` has at its place. Past its end each has zeros.
fn stray_byte(bytes: &FileContent, known: &[&FileContent]) -> Option<u64> {
    let mut indices: BTreeSet<u64> = bytes.blocks.keys().copied().collect();
    known.iter().for_each(|content| indices.extend(content.blocks.keys()));
    for index in indices {
        let start = index * BLOCK as u64;
        let len = bytes.size.saturating_sub(start).min(BLOCK as u64) as usize;
        let is = block_of(bytes, index);
        let known: Vec<&[u8]> = known.iter().map(|content| block_of(content, index)).collect();
        if known.iter().any(|block| block[..len] == is[..len]) {
            continue;
        }
        let stray = (0..len).find(|&at| known.iter().all(|block| block[at] != is[at]));
        if let Some(at) = stray {
            return Some(start + at as u64);
        }
    }
    None
}
