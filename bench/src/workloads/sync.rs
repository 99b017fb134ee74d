//! The cost of durability.

use crate::calls::{Calls, O_APPEND, O_CREAT, O_RDONLY, O_WRONLY};
use crate::record::Broken;

use super::{Pattern, Run, check, path, whole};

/// The point is the number of bytes appended before each fsync; `append` is the time of both, each
/// one being a sample.
pub fn append_fsync<C: Calls>(calls: &mut C, run: &mut Run) -> Result<(), Broken> {
    let len = run.point as usize;
    let rounds = if run.smoke { 3 } else { 300 };
    let pattern = Pattern::new(len);
    let name = path("file");
    let file = calls.open(&name, O_WRONLY | O_CREAT | O_APPEND)?;
    for round in 0..rounds {
        run.record.time("append", 1, || {
            whole(calls.write(file, pattern.slice(round, len))?, len, "write")?;
            Ok(calls.sync(file)?)
        })?;
    }
    calls.close(file)?;
    let file = calls.open(&name, O_RDONLY)?;
    let mut buf = vec![0; len];
    for round in 0..rounds {
        let n = calls.read(file, &mut buf)?;
        check(&buf[..n], pattern.slice(round, len), "file")?;
    }
    Ok(calls.close(file)?)
}
