//! `atoll dump`: everything on disk, for debugging.

use std::fmt;
use std::path::PathBuf;

use atoll_fs::{DumpOptions, Element, FsError, ItemValue};
use serde_json::{Value, json};

use crate::failure::{Failure, Outcome};
use crate::output;
use crate::volume::{self, Access};

/// Show everything on disk, element by element, for debugging.
///
/// Damaged elements are shown as such. Metadata is shown as it is once the journal is replayed;
/// file data is not shown. docs/FORMAT.md explains the elements.
#[derive(clap::Args)]
pub struct Args {
    /// Show the journal's records, and of the rest only what other options name.
    #[arg(long)]
    records: bool,
    /// Show the map blocks, and of the rest only what other options name.
    #[arg(long)]
    maps: bool,
    /// Show the nodes of the tree, and of the rest only what other options name.
    #[arg(long)]
    nodes: bool,
    /// Show the items of the tree, and of the rest only what other options name.
    #[arg(long)]
    items: bool,
    /// Print a JSON object for each element, on a line of its own.
    #[arg(long)]
    json: bool,
    /// The volume.
    volume: PathBuf,
}

/// Shows it.
pub fn run(args: &Args) -> Outcome {
    let mut device = volume::open_device(&args.volume, Access::Read)?;
    let incarnation = device.incarnation();
    // Two damaged superblocks would be all that it shows of another file.
    if let Err(error @ FsError::Corrupt(what)) = atoll_fs::read_superblock(&mut device)
        && volume::says_all(what)
    {
        return Err(volume::unusable(&args.volume, error));
    }
    let all = !(args.records || args.maps || args.nodes || args.items);
    let options = DumpOptions {
        incarnation,
        records: all || args.records,
        maps: all || args.maps,
        nodes: all || args.nodes,
        items: all || args.items,
    };
    let mut outcome = Ok(());
    let visited = atoll_fs::visit(&mut device, &options, &mut |element| {
        let line = if args.json { object(element).to_string() } else { element.to_string() };
        outcome = output::line(line.as_bytes());
        outcome.is_ok()
    });
    outcome?;
    visited.map_err(|error| {
        Failure::new(format!("cannot read all of {}: {error}", args.volume.display()))
    })?;
    Ok(0)
}

/// The value of `result` by `show`, or its error.
fn or_error<T, E: fmt::Debug>(result: &Result<T, E>, show: impl FnOnce(&T) -> Value) -> Value {
    match result {
        Ok(value) => show(value),
        Err(error) => json!({ "error": format!("{error:?}") }),
    }
}

/// An element for programs: its kind, its numbers, and the line that people get.
fn object(element: &Element<'_>) -> Value {
    let (kind, mut fields) = match element {
        Element::Superblock { block, superblock } => (
            "superblock",
            json!({ "block": block, "superblock": or_error(superblock, |sb| json!({
                "block_count": sb.block_count,
                "ring_start": sb.ring_start,
                "ring_blocks": sb.ring_blocks,
                "group_start": sb.group_start,
                "generation": sb.generation,
                "uuid": output::uuid(&sb.uuid),
            })) }),
        ),
        Element::JournalHeader { block, header, current } => (
            "journal header",
            json!({ "block": block, "current": current, "sound": header.is_some(),
                    "generation": header.map(|h| h.generation),
                    "clean": header.map(|h| h.clean), "failed": header.map(|h| h.failed) }),
        ),
        Element::Record { position, sequence, len, mark, flushed, covers, sound, .. } => (
            "record",
            json!({ "position": position, "sequence": sequence, "len": len, "mark": mark,
                    "flushed": flushed, "covers": covers, "sound": sound }),
        ),
        Element::Change { block, offset, len, init, data } => (
            "change",
            json!({ "block": block, "offset": offset, "len": len, "init": init, "data": data }),
        ),
        Element::State(state) => (
            "state",
            json!({ "root": state.root, "height": state.height, "next_inode": state.next_ino,
                    "free_blocks": state.free_blocks, "inodes": state.inodes,
                    "groups": state.groups }),
        ),
        Element::Map { group, block, blocks, used, damaged } => (
            "map",
            json!({ "group": group, "block": block, "blocks": blocks,
                    "used": or_error(used, |used| json!(used)), "damaged": damaged }),
        ),
        Element::Node { block, level, cells, in_journal } => (
            "node",
            json!({ "block": block, "level": level, "cells": or_error(cells, |cells| json!(cells)),
                    "in_journal": in_journal }),
        ),
        Element::Child { key, block } => {
            ("child", json!({ "inode": key.ino, "offset": key.offset, "block": block }))
        }
        Element::Item { key, value } => {
            let mut fields =
                json!({ "inode": key.ino, "offset": key.offset, "item": key.kind_name() });
            match value {
                ItemValue::Entry { ino, .. } => fields["names"] = json!(ino),
                ItemValue::Extent { start, len, unwritten } => {
                    fields["start"] = json!(start);
                    fields["len"] = json!(len);
                    fields["unwritten"] = json!(unwritten);
                }
                ItemValue::Malformed(_) => fields["malformed"] = json!(true),
                _ => {}
            }
            ("item", fields)
        }
        _ => ("element", json!({})),
    };
    fields["kind"] = json!(kind);
    fields["text"] = json!(element.to_string());
    fields
}
