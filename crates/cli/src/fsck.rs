//! `atoll fsck`: checks a volume, and puts right what is wrong with it.

use std::path::PathBuf;

use atoll_fs::{CheckOptions, Finding, FsError, Report};
use serde::Serialize;

use crate::failure::{FSCK_OPERATIONAL, FSCK_UNCORRECTED, Failure, Outcome};
use crate::output;
use crate::progress;
use crate::volume::{self, Access};

/// The volume was damaged and no longer is.
const CORRECTED: u8 = 1;

/// Check a volume, and put right what is wrong with it.
///
/// Without --repair nothing is written. What was not closed cleanly is checked as it will be once
/// it is used again.
#[derive(clap::Args)]
#[command(
    after_help = "Exit status, as of fsck(8): 0 nothing is wrong; 1 what was wrong has been put right; \
                        4 something is wrong, and still is; 8 the volume could not be checked; \
                        16 the command line makes no sense. What should be known but is no error is said, \
                        with status 0: what a mount would say of a sync that may have been cut short, or of a \
                        device that had failed."
)]
pub struct Args {
    /// Put right what is wrong. Files without a name get one in /lost+found.
    #[arg(long, short = 'y', visible_short_alias = 'p', short_alias = 'a')]
    repair: bool,
    /// Only look, which is the default.
    #[arg(short = 'n', long = "no", conflicts_with = "repair")]
    look: bool,
    /// Print JSON for programs.
    #[arg(long)]
    json: bool,
    /// Say nothing when nothing is wrong, nor to be known.
    #[arg(short, long)]
    quiet: bool,
    /// The volume.
    volume: PathBuf,
}

#[derive(Serialize)]
struct Checked {
    volume: String,
    status: &'static str,
    clean_unmount: bool,
    journal_records: u64,
    files: u64,
    directories: u64,
    symlinks: u64,
    others: u64,
    orphans: u64,
    blocks: u64,
    free_blocks: u64,
    data_blocks: u64,
    node_blocks: u64,
    findings_total: u64,
    findings: Vec<Found>,
    notes: Vec<String>,
    repair: Option<Repaired>,
}

#[derive(Serialize)]
struct Found {
    kind: String,
    text: String,
}

#[derive(Serialize)]
struct Repaired {
    tree_rebuilt: bool,
    items_salvaged: u64,
    items_lost: u64,
    blocks_lost: u64,
    inodes_reconnected: u64,
}

/// Checks.
pub fn run(args: &Args) -> Outcome {
    let report = check(args).map_err(|failure| failure.with_status(FSCK_OPERATIONAL))?;
    let (name, status) = match (report.is_clean(), report.repaired) {
        (true, _) => ("clean", 0),
        (false, true) => ("repaired", CORRECTED),
        (false, false) => ("damaged", FSCK_UNCORRECTED),
    };
    // The bits of fsck(8) add up: what was found, and that it could not be said.
    let unsaid = |failure: Failure| failure.with_status(status | FSCK_OPERATIONAL);
    say(args, &report, name).map_err(unsaid)?;
    Ok(status)
}

fn say(args: &Args, report: &Report, name: &'static str) -> Result<(), Failure> {
    let shown = output::shown(args.volume.as_os_str());
    if args.json {
        output::json(&json(args, report, name))?;
    } else if !report.is_clean() || !args.quiet || !report.notes.is_empty() {
        output::line(report.to_string().as_bytes())?;
        let verdict = match name {
            "clean" => format!("{shown} is clean"),
            "repaired" => format!("{shown} was damaged, and is repaired"),
            _ => format!("{shown} is damaged; mend it with `atoll fsck --repair {shown}`"),
        };
        output::line(verdict.as_bytes())?;
    }
    Ok(())
}

fn check(args: &Args) -> Result<Report, Failure> {
    let access = if args.repair { Access::Write } else { Access::Read };
    let mut device = volume::open_device(&args.volume, access)?;
    let incarnation = device.incarnation();
    let options = CheckOptions { repair: args.repair, incarnation, now: atoll_host::server::now() };
    let bar = progress::busy("checking");
    let result = atoll_fs::check(&mut device, &options);
    bar.finish_and_clear();
    result.map_err(|error| match error {
        FsError::Full => Failure::new(format!(
            "cannot repair {0}: it has no room for a new tree; make it larger with `atoll grow {0}`, and \
             repair it then",
            args.volume.display()
        )),
        FsError::Corrupt(what) if !volume::says_all(what) => Failure::new(format!(
            "cannot check {}: {what}; too much is lost to find the volume in it",
            args.volume.display()
        )),
        error => volume::unusable(&args.volume, error),
    })
}

fn json(args: &Args, report: &Report, status: &'static str) -> Checked {
    Checked {
        volume: output::text(args.volume.as_os_str()),
        status,
        clean_unmount: report.clean_unmount,
        journal_records: report.journal_records,
        files: report.files,
        directories: report.directories,
        symlinks: report.symlinks,
        others: report.others,
        orphans: report.orphans,
        blocks: report.blocks,
        free_blocks: report.free_blocks,
        data_blocks: report.data_blocks,
        node_blocks: report.node_blocks,
        findings_total: report.count(),
        findings: report.findings.iter().map(found).collect(),
        notes: report.notes.iter().map(ToString::to_string).collect(),
        repair: report.repaired.then_some(Repaired {
            tree_rebuilt: report.tree_rebuilt,
            items_salvaged: report.items_salvaged,
            items_lost: report.items_lost,
            blocks_lost: report.blocks_lost,
            inodes_reconnected: report.inodes_reconnected,
        }),
    }
}

fn found(finding: &Finding) -> Found {
    let debug = format!("{finding:?}");
    let end = debug.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(debug.len());
    Found { kind: debug[..end].to_owned(), text: finding.to_string() }
}
