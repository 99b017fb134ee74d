//! `atoll cat`: prints files of a volume.

use std::io::{self, Write};

use crate::failure::{FAILED, Failure, Outcome};
use crate::location::{self, Location, LocationArg};
use crate::tree::Tree;
use crate::volume;

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
        let mut tree = volume::read_tree(&path)?;
        let mut print = || -> Result<(), Error> {
            let file = tree.open(&inside).map_err(Error::Read)?;
            let mut offset = 0;
            loop {
                let got = tree.read(file, offset, &mut buffer).map_err(Error::Read)?;
                if got == 0 {
                    return tree.close(file).map_err(Error::Read);
                }
                io::stdout().write_all(&buffer[..got]).map_err(Error::Write)?;
                offset += got as u64;
            }
        };
        match print() {
            Ok(()) => {}
            Err(Error::Read(error)) => {
                eprintln!("atoll: cannot read {}: {error}", Location::Volume(path, inside));
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
    Read(io::Error),
    Write(io::Error),
}
