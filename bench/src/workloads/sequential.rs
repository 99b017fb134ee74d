//! One large file, from its beginning to its end.

use std::time::Instant;

use crate::calls::{Calls, O_CREAT, O_RDONLY, O_WRONLY};
use crate::record::Broken;

use super::{Pattern, Run, check, path, whole};

const CHUNK: usize = 64 << 10;

/// The point is the size of the file in MiB, moved by 64 KiB. `cold` is the first write, `steady`
/// one of the file made anew later, `overwrite` one over the file that is there, `read` reads it;
/// all in MB/s.
pub fn sequential<C: Calls>(calls: &mut C, run: &mut Run) -> Result<(), Broken> {
    let name = path("file");
    let chunks = (run.point << 20) / CHUNK as u64;
    let pattern = Pattern::new(CHUNK);
    let mut shift = 0;
    let mut buf = vec![0; CHUNK];
    let mut pass = |calls: &mut C, run: &mut Run, metric: &str| -> Result<(), Broken> {
        shift += 1;
        let begin = Instant::now();
        let file = calls.open(&name, O_WRONLY | O_CREAT)?;
        for chunk in 0..chunks {
            whole(calls.write(file, pattern.slice(chunk + shift, CHUNK))?, CHUNK, "write")?;
        }
        calls.close(file)?;
        run.record.add(metric, speed(chunks, begin));

        let begin = Instant::now();
        let file = calls.open(&name, O_RDONLY)?;
        for chunk in 0..chunks {
            let n = calls.read(file, &mut buf)?;
            check(&buf[..n], pattern.slice(chunk + shift, CHUNK), "file")?;
        }
        whole(calls.read(file, &mut buf)?, 0, "end of file")?;
        calls.close(file)?;
        run.record.add("read", speed(chunks, begin));
        Ok(())
    };
    pass(calls, run, "cold")?;
    let passes = if run.smoke { 1 } else { 2 };
    for _ in 0..passes {
        calls.unlink(&name)?;
        pass(calls, run, "steady")?;
    }
    for _ in 0..passes {
        pass(calls, run, "overwrite")?;
    }
    Ok(())
}

/// MB/s since `begin`.
fn speed(chunks: u64, begin: Instant) -> f64 {
    (chunks * CHUNK as u64) as f64 / 1e6 / begin.elapsed().as_secs_f64()
}
