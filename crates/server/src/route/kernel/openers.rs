//! Who has files open through a kernel whose programs are several users': none may have all that
//! there may be.

use std::collections::HashMap;

use atoll_vfs::wire::Request;

/// The most files and directories that a user other than the superuser has open.
const MOST: usize = 65_536;

/// The open files of each user but the superuser.
#[derive(Default)]
pub(super) struct Openers {
    by_handle: HashMap<u64, u32>,
    counts: HashMap<u32, usize>,
}

impl Openers {
    /// Whether `request` is for one open file too many of the user `uid`.
    pub fn refuses(&self, request: &Request<'_>, uid: u32) -> bool {
        matches!(
            request,
            Request::Open(_) | Request::Opendir(_) | Request::Create { .. } | Request::Tmpfile(_)
        ) && self.counts.get(&uid).is_some_and(|count| *count >= MOST)
    }

    /// The user `uid` has opened `handle`.
    pub fn opened(&mut self, handle: u64, uid: u32) {
        if uid != 0 && self.by_handle.insert(handle, uid).is_none() {
            *self.counts.entry(uid).or_default() += 1;
        }
    }

    /// Whoever has opened `handle` has closed it.
    pub fn closed(&mut self, handle: u64) {
        let Some(uid) = self.by_handle.remove(&handle) else { return };
        if let Some(count) = self.counts.get_mut(&uid) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_vfs::wire::files::OpenIn;

    #[test]
    fn nobody_takes_what_others_need() {
        let mut openers = Openers::default();
        let open = Request::Open(OpenIn::default());
        for handle in 0..MOST as u64 {
            assert!(!openers.refuses(&open, 7));
            openers.opened(handle, 7);
            openers.opened(1 << 40 | handle, 0);
        }
        assert!(openers.refuses(&open, 7));
        assert!(!openers.refuses(&open, 8) && !openers.refuses(&open, 0));
        openers.closed(1 << 40);
        openers.closed(5);
        assert!(!openers.refuses(&open, 7));
    }
}
