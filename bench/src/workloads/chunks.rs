//! Read after write: a file of 1 MiB in chunks, in shuffled order, each written and read back.

use crate::calls::{Calls, O_CREAT, O_RDWR, SEEK_SET};
use crate::record::Broken;

use super::{Pattern, Random, Run, check, path, whole};

const FILE: usize = 1 << 20;

/// The point is the size of a chunk. `cold` is the first pass of the process, `steady` a later one;
/// both make the file anew, from open to close. `overwrite` goes over a file that is there.
pub fn read_after_write<C: Calls>(calls: &mut C, run: &mut Run) -> Result<(), Broken> {
    let chunk = run.point as usize;
    let pattern = Pattern::new(chunk);
    let order = Random(run.point).order((FILE / chunk) as u64);
    let mut buf = vec![0; chunk];
    let name = path("file");
    let mut shift = 0;

    let mut pass = |calls: &mut C, run: &mut Run, metric: &str| -> Result<(), Broken> {
        shift += 1;
        run.record.time(metric, 1, || {
            let file = calls.open(&name, O_RDWR | O_CREAT)?;
            for &index in &order {
                let at = (index * chunk as u64) as i64;
                let data = pattern.slice(index + shift, chunk);
                calls.seek(file, at, SEEK_SET)?;
                whole(calls.write(file, data)?, chunk, "write")?;
                calls.seek(file, at, SEEK_SET)?;
                let n = calls.read(file, &mut buf)?;
                check(&buf[..n], data, "chunk")?;
            }
            calls.close(file)?;
            Ok(())
        })?;
        // That the chunks stand in their places shows only when all have been written.
        let file = calls.open(&name, O_RDWR)?;
        for index in 0..order.len() as u64 {
            let n = calls.pread(file, &mut buf, index * chunk as u64)?;
            check(&buf[..n], pattern.slice(index + shift, chunk), "file")?;
        }
        whole(calls.pread(file, &mut buf, FILE as u64)?, 0, "end of file")?;
        Ok(calls.close(file)?)
    };

    pass(calls, run, "cold")?;
    run.steady(|run| {
        calls.unlink(&name)?;
        pass(calls, run, "steady")
    })?;
    run.steady(|run| pass(calls, run, "overwrite"))
}
