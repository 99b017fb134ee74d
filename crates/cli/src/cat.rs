//! `atoll cat`: prints files of a volume.

use std::io::{self, Write};

use atoll_posix::{Errno, OFlags};

use crate::failure::{FAILED, Failure, Outcome};
use crate::location::{self, Location, LocationArg};
use crate::tree::{self, bytes, error};

/// Print files of a volume.
#[derive(clap::Args)]
pub struct Args {
    /// The files.
    #[arg(required = true, value_name = "VOLUME:/PATH")]
    places: Vec<LocationArg>,
}

/// Prints.
pub fn run(args: &Args) -> Outcome {
    let mut status = 0;
    let mut buffer = vec![0; 1 << 20];
    for text in &args.places {
        let (path, inside) = location::in_volume(text)?;
        let mut tree = tree::read_tree(&path)?;
        let mut print = || -> Result<(), Error> {
            let file = tree.open(bytes(&inside), OFlags::empty(), 0).map_err(Error::Read)?;
            loop {
                let got = tree.read(file, &mut buffer).map_err(Error::Read)?;
                if got == 0 {
                    return tree.close(file).map_err(Error::Read);
                }
                io::stdout().write_all(&buffer[..got]).map_err(Error::Write)?;
            }
        };
        match print() {
            Ok(()) => {}
            Err(Error::Read(errno)) => {
                let error = error(errno);
                say!("cannot read {}: {error}", Location::Volume(path, inside));
                status = FAILED;
            }
            // A reader that has gone away wanted no more.
            Err(Error::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
                return Ok(FAILED);
            }
            Err(Error::Write(error)) => {
                return Err(Failure::new(format!("cannot write the output: {error}")));
            }
        }
    }
    Ok(status)
}

enum Error {
    Read(Errno),
    Write(io::Error),
}
