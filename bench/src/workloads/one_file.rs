//! Calls on one file that move no data: lseek and fstat.

use crate::calls::{Calls, O_CREAT, O_RDWR, SEEK_SET};
use crate::record::Broken;

use super::{Run, path, whole};

const SIZE: u64 = 1 << 20;

fn file<C: Calls>(calls: &mut C) -> Result<i32, Broken> {
    let file = calls.open(&path("file"), O_RDWR | O_CREAT)?;
    let data = vec![1; SIZE as usize];
    whole(calls.write(file, &data)?, data.len(), "write")?;
    Ok(file)
}

/// The point is the number of calls, `total` their time together.
pub fn lseek<C: Calls>(calls: &mut C, run: &mut Run) -> Result<(), Broken> {
    let file = file(calls)?;
    run.steady(|run| {
        let count = run.point;
        run.record.time("total", 1, || {
            for call in 0..count {
                let at = call.wrapping_mul(4099) % SIZE;
                if calls.seek(file, at as i64, SEEK_SET)? != at {
                    return Err(Broken("lseek went elsewhere".into()));
                }
            }
            Ok(())
        })
    })?;
    Ok(calls.close(file)?)
}

/// The point is the number of calls, `total` their time together.
pub fn fstat<C: Calls>(calls: &mut C, run: &mut Run) -> Result<(), Broken> {
    let file = file(calls)?;
    run.steady(|run| {
        let count = run.point;
        run.record.time("total", 1, || {
            for _ in 0..count {
                if calls.stat(file)?.size != SIZE {
                    return Err(Broken("fstat told another size".into()));
                }
            }
            Ok(())
        })
    })?;
    Ok(calls.close(file)?)
}
