//! Directories: listing one, and one with very many files.

use std::ffi::CString;

use crate::calls::{Calls, O_CREAT, O_EXCL, O_RDONLY, O_WRONLY};
use crate::record::Broken;

use super::{Random, Run, path};

/// The point is the number of entries. `total` is the time of 1,000 listings of the whole
/// directory, inode numbers only.
pub fn readdir<C: Calls>(calls: &mut C, run: &mut Run) -> Result<(), Broken> {
    let listings = if run.smoke { 10 } else { 1000 };
    let folder = path("dir");
    calls.mkdir(&folder)?;
    let mut expected = 0u64;
    for name in names(run.point) {
        let file = calls.open(&name, O_WRONLY | O_CREAT | O_EXCL)?;
        expected = expected.wrapping_add(calls.stat(file)?.ino);
        calls.close(file)?;
    }
    // `.` and `..` are listed too; what they are called by the first listing must stay.
    let (count, sum) = listing(calls, &folder)?;
    if count != run.point + 2 {
        return Err(Broken(format!("{count} entries listed, {} made", run.point)));
    }
    let dots = sum.wrapping_sub(expected);
    run.steady(|run| {
        run.record.time("total", 1, || {
            for _ in 0..listings {
                if listing(calls, &folder)? != (count, expected.wrapping_add(dots)) {
                    return Err(Broken("two listings of one directory differ".into()));
                }
            }
            Ok(())
        })
    })
}

/// The number of entries of `folder` and the sum of their inode numbers.
fn listing<C: Calls>(calls: &mut C, folder: &CString) -> Result<(u64, u64), Broken> {
    let (mut count, mut sum) = (0, 0u64);
    calls.list(folder, |ino| {
        count += 1;
        sum = sum.wrapping_add(ino);
    })?;
    Ok((count, sum))
}

/// The point is the number of files in one directory. `create`, `open` and `unlink` are
/// microseconds for each file, the close of what was opened included; files are made in the order
/// of their names, opened and unlinked in shuffled order.
pub fn one_directory<C: Calls>(calls: &mut C, run: &mut Run) -> Result<(), Broken> {
    let files = run.point;
    let folder = path("dir");
    calls.mkdir(&folder)?;
    let names: Vec<CString> = names(files).collect();
    let mut random = Random(files);
    run.record.time("create", files, || {
        for name in &names {
            let file = calls.open(name, O_WRONLY | O_CREAT | O_EXCL)?;
            calls.close(file)?;
        }
        Ok(())
    })?;
    let (listed, _) = listing(calls, &folder)?;
    let order = random.order(files);
    run.record.time("open", files, || {
        for &number in &order {
            let file = calls.open(&names[number as usize], O_RDONLY)?;
            calls.close(file)?;
        }
        Ok(())
    })?;
    let order = random.order(files);
    run.record.time("unlink", files, || {
        for &number in &order {
            calls.unlink(&names[number as usize])?;
        }
        Ok(())
    })?;
    let (left, _) = listing(calls, &folder)?;
    if (listed, left) != (files + 2, 2) {
        return Err(Broken(format!("{listed} entries of {files} listed, {left} after removal")));
    }
    Ok(())
}

fn names(count: u64) -> impl Iterator<Item = CString> {
    (0..count).map(|number| path(&format!("dir/file{number:07}")))
}
