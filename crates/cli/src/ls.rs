//! `atoll ls`: lists directories in a volume.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use atoll_vfs::{Attr, FileType};
use serde::Serialize;

use crate::failure::{FAILED, Failure, Outcome};
use crate::location::{self, LocationArg};
use crate::output;
use crate::tree::{self, Tree};

/// List files in a volume.
#[derive(clap::Args)]
pub struct Args {
    /// Show permissions, links, owner, group, size and time of change (UTC).
    #[arg(short)]
    long: bool,
    /// Show names that begin with a dot too.
    #[arg(short)]
    all: bool,
    /// Show directories themselves, not what is in them.
    #[arg(short)]
    directory: bool,
    /// List subdirectories too.
    #[arg(short = 'R')]
    recursive: bool,
    /// Print JSON for programs. In names a byte that is no UTF-8 is `\xNN`, and a backslash is two.
    #[arg(long)]
    json: bool,
    /// What to list.
    #[arg(required = true, value_name = "VOLUME[:/PATH]")]
    places: Vec<LocationArg>,
}

/// A file as programs read it.
#[derive(Serialize)]
struct Listed {
    path: String,
    #[serde(rename = "type")]
    kind: &'static str,
    inode: u64,
    mode: String,
    links: u64,
    uid: u32,
    gid: u32,
    size: u64,
    stored: u64,
    mtime: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

/// Lists.
pub fn run(args: &Args) -> Outcome {
    let mut listed = Vec::new();
    let mut status = 0;
    for text in &args.places {
        let (path, inside) = location::in_volume(text)?;
        let mut tree = tree::read_tree(&path)?;
        let mut listing =
            Listing { args, tree: &mut tree, listed: &mut listed, status: &mut status };
        listing.top(&inside, args.places.len() > 1)?;
    }
    if args.json {
        output::json(&listed)?;
    }
    Ok(status)
}

struct Listing<'a> {
    args: &'a Args,
    tree: &'a mut dyn Tree,
    listed: &'a mut Vec<Listed>,
    status: &'a mut u8,
}

impl Listing<'_> {
    fn complain(&mut self, path: &Path, error: &std::io::Error) {
        say!("cannot list {}: {error}", path.display());
        *self.status = FAILED;
    }

    fn top(&mut self, path: &Path, several: bool) -> Result<(), Failure> {
        let meta = match self.tree.meta(path, !self.args.long) {
            Ok(meta) => meta,
            Err(error) => {
                self.complain(path, &error);
                return Ok(());
            }
        };
        if !meta.is_dir() || self.args.directory {
            return self.show(path, path.as_os_str().as_bytes(), &meta);
        }
        self.directory(path, several || self.args.recursive)
    }

    fn directory(&mut self, path: &Path, heading: bool) -> Result<(), Failure> {
        let names = match self.tree.list(path) {
            Ok(names) => names,
            Err(error) => {
                self.complain(path, &error);
                return Ok(());
            }
        };
        if heading && !self.args.json {
            output::line(&[&*output::to_print(path.as_os_str().as_bytes()), b":"].concat())?;
        }
        let mut below = Vec::new();
        for name in names {
            if !self.args.all && name.as_bytes().starts_with(b".") {
                continue;
            }
            let child = path.join(&name);
            match self.tree.meta(&child, false) {
                Ok(meta) => {
                    self.show(&child, name.as_bytes(), &meta)?;
                    if meta.is_dir() {
                        below.push(child);
                    }
                }
                Err(error) => self.complain(&child, &error),
            }
        }
        if self.args.recursive {
            for child in below {
                if !self.args.json {
                    output::line(b"")?;
                }
                self.directory(&child, true)?;
            }
        }
        Ok(())
    }

    fn show(&mut self, path: &Path, name: &[u8], meta: &Attr) -> Result<(), Failure> {
        let is_link = meta.file_type() == FileType::Symlink;
        let target = if is_link && (self.args.json || self.args.long) {
            self.tree.read_link(path).ok()
        } else {
            None
        };
        if self.args.json {
            self.listed.push(Listed {
                path: output::text(path.as_os_str()),
                kind: output::kind(meta.file_type()),
                inode: meta.ino.0,
                mode: format!("{:04o}", meta.mode & 0o7777),
                links: meta.nlink.into(),
                uid: meta.uid,
                gid: meta.gid,
                size: meta.size,
                stored: meta.blocks * 512,
                mtime: format!(
                    "{}.{:09}Z",
                    output::date(meta.mtime).replace(' ', "T"),
                    meta.mtime.nsec
                ),
                target: target.map(|target| output::text(&target)),
            });
            return Ok(());
        }
        if !self.args.long {
            return output::line(&output::to_print(name));
        }
        let mut line = format!(
            "{} {:>3} {:>5} {:>5} {:>12} {} ",
            output::mode(meta.file_type(), meta.mode),
            meta.nlink,
            meta.uid,
            meta.gid,
            meta.size,
            output::date(meta.mtime),
        )
        .into_bytes();
        line.extend_from_slice(&output::to_print(name));
        if let Some(target) = target {
            line.extend_from_slice(b" -> ");
            line.extend_from_slice(&output::to_print(target.as_bytes()));
        }
        output::line(&line)
    }
}
