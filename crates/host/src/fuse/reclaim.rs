//! Whether a server can do without OPEN: not on every kernel.
//!
//! From Linux 6.9 on the kernel lets go of the last reference of a file that was read ahead in the
//! thread that answers the READ, if files are opened without a request. The server then frees
//! memory for itself, and may wait for pages that only it can write. Later ones leave that to a
//! thread of their own: 6.12.64, 6.18.3, 6.19. Before, a server that the kernel knows as one by
//! whose help memory is freed (PR_SET_IO_FLUSHER) never does.

/// The first releases of a line in which it is mended, and the first of all lines after.
const MENDED: [(u32, u32, u32); 2] = [(6, 12, 64), (6, 18, 3)];
const MENDED_FROM: (u32, u32) = (6, 19);
const BROKEN_FROM: (u32, u32) = (6, 9);

/// Whether files may be opened without a request on this kernel. What is decided for the thread
/// that asks holds for the threads that it starts.
pub(crate) fn may_open_implicitly() -> bool {
    let release = rustix::system::uname();
    let is_mended = release.release().to_str().ok().and_then(version).is_some_and(is_mended);
    is_mended || rustix::process::configure_io_flusher_behavior(true).is_ok()
}

fn is_mended((major, minor, patch): (u32, u32, u32)) -> bool {
    let line = (major, minor);
    let in_line = |&(a, b, c): &(u32, u32, u32)| line == (a, b) && patch >= c;
    line < BROKEN_FROM || line >= MENDED_FROM || MENDED.iter().any(in_line)
}

/// The numbers that the name of a release begins with.
fn version(release: &str) -> Option<(u32, u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    let mut next = || numbers.next()?.ok();
    Some((next()?, next()?, next().unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases() {
        for (release, mended) in [
            ("6.1.0-44-amd64", true),
            ("6.8", true),
            ("6.9.0", false),
            ("6.12.63+deb13-amd64", false),
            ("6.12.64", true),
            ("6.17.9", false),
            ("6.18.2-fc", false),
            ("6.18.44-fc-v782", true),
            ("6.19.0-rc1", true),
            ("7.0", true),
        ] {
            assert_eq!(version(release).map(is_mended), Some(mended), "{release}");
        }
        assert_eq!(version("new"), None);
    }
}
