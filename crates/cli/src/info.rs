//! `atoll info`: what is known of a volume as a whole.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use atoll_block::BLOCK_SIZE;
use serde::Serialize;

use crate::failure::Outcome;
use crate::output;
use crate::size;
use crate::volume::{self, Access};

/// Show what is known of a volume as a whole.
#[derive(clap::Args)]
pub struct Args {
    /// Print JSON for programs; sizes are in bytes.
    #[arg(long)]
    json: bool,
    /// The volume.
    volume: PathBuf,
}

#[derive(Serialize)]
struct Info {
    volume: String,
    uuid: String,
    label: String,
    created: String,
    size: u64,
    free: u64,
    inodes: u64,
    tree_height: u32,
    journal: u64,
    block_size: u64,
    format: u32,
    groups: u64,
    groups_made: u64,
    notes: Vec<String>,
}

/// Shows it.
pub fn run(args: &Args) -> Outcome {
    let volume = volume::open(&args.volume, Access::Read)?;
    let info = volume.info();
    let notes = volume.notes().iter().map(ToString::to_string).collect();
    volume::close(&args.volume, volume)?;
    let sb = &info.superblock;
    let end = sb.label.iter().position(|&byte| byte == 0).unwrap_or(sb.label.len());
    let label = OsStr::from_bytes(&sb.label[..end]);
    let info = Info {
        volume: output::text(args.volume.as_os_str()),
        uuid: output::uuid(&sb.uuid),
        label: output::text(label),
        created: format!("{}Z", output::date(sb.created).replace(' ', "T")),
        size: size::of_blocks(sb.block_count),
        free: size::of_blocks(info.free_blocks),
        inodes: info.inodes,
        tree_height: info.tree_height,
        journal: size::of_blocks(sb.ring_blocks),
        block_size: BLOCK_SIZE as u64,
        format: atoll_fs::layout::VERSION,
        groups: sb.group_count(),
        groups_made: info.groups,
        notes,
    };
    if args.json {
        output::json(&info)?;
        return Ok(0);
    }
    for (name, value) in [
        ("volume", output::shown(args.volume.as_os_str())),
        ("label", if end == 0 { "none".to_owned() } else { output::shown(label) }),
        ("UUID", info.uuid),
        ("made", format!("{} UTC", output::date(sb.created))),
        ("size", size::show(info.size)),
        ("free", size::show(info.free)),
        ("files and directories", info.inodes.to_string()),
        ("journal", size::show(info.journal)),
        ("format", info.format.to_string()),
        ("groups in use", format!("{} of {}", info.groups_made, info.groups)),
    ] {
        output::line(format!("{name:<22} {value}").as_bytes())?;
    }
    Ok(0)
}
