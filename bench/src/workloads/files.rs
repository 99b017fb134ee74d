//! Many files: 1 to 100 files of 1 MiB, written by 4 KiB, all of them, then read, all of them.

use std::ffi::CString;

use crate::calls::{Calls, O_CREAT, O_RDONLY, O_WRONLY};
use crate::record::Broken;
use crate::resident::Resident;

use super::{Pattern, Run, check, path, whole};

const CHUNK: usize = 4096;
const CHUNKS: u64 = 256;

/// The point is the number of files. `cold` and `steady` as for read after write; `memory` is how
/// much more memory the process has resident than before its first call, in KiB: its own, and pages
/// that it has mapped.
pub fn many_files<C: Calls>(calls: &mut C, run: &mut Run, before: Resident) -> Result<(), Broken> {
    measure(calls, run, run.point)?;
    run.record.add("memory", Resident::now()?.since(before).total());
    Ok(())
}

/// The same with 100 files; the point is the memory that the process may use, in MiB.
pub fn small_memory<C: Calls>(calls: &mut C, run: &mut Run) -> Result<(), Broken> {
    let files = if run.smoke { 10 } else { 100 };
    measure(calls, run, files)
}

fn measure<C: Calls>(calls: &mut C, run: &mut Run, files: u64) -> Result<(), Broken> {
    let pattern = Pattern::new(CHUNK);
    let names: Vec<CString> = (0..files).map(|file| path(&format!("file{file}"))).collect();
    let mut shift = 0;
    let mut buf = [0; CHUNK];
    let mut pass = |calls: &mut C, run: &mut Run, metric: &str| {
        shift += 1;
        run.record.time(metric, 1, || {
            for (number, name) in (0..).zip(&names) {
                let file = calls.open(name, O_WRONLY | O_CREAT)?;
                for chunk in 0..CHUNKS {
                    let data = pattern.slice(number * CHUNKS + chunk + shift, CHUNK);
                    whole(calls.write(file, data)?, CHUNK, "write")?;
                }
                calls.close(file)?;
            }
            for (number, name) in (0..).zip(&names) {
                let file = calls.open(name, O_RDONLY)?;
                for chunk in 0..CHUNKS {
                    let n = calls.read(file, &mut buf)?;
                    let data = pattern.slice(number * CHUNKS + chunk + shift, CHUNK);
                    check(&buf[..n], data, "file")?;
                }
                whole(calls.read(file, &mut buf)?, 0, "end of file")?;
                calls.close(file)?;
            }
            Ok(())
        })
    };
    pass(calls, run, "cold")?;
    run.steady(|run| {
        for name in &names {
            calls.unlink(name)?;
        }
        pass(calls, run, "steady")
    })?;
    run.steady(|run| pass(calls, run, "overwrite"))
}
