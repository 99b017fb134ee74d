//! How a kernel that hears of no change, that of a virtual machine, is told of files.

use atoll_vfs::FileSystem;
use atoll_vfs::wire::attributes::Terms;

use super::{FOR_EVER, KernelOptions, Others};
use crate::session::Session;

/// The length of reads and writes that suits a virtual machine, in bytes, for which each is a
/// message: the buffers of the C library are as long.
const BLOCK: u32 = 64 << 10;

/// The terms for a kernel that begins, if they are others than the usual. One that is alone may
/// rely on all but what its own calls change without its expecting it: they take set-ID bits and
/// set times of last access, and what it stores into a window reaches files later. Of a directory
/// of the host others may change what they had better not.
pub(super) fn of<F: FileSystem + Send>(
    options: &KernelOptions,
    session: &Session<F>,
) -> Option<Terms> {
    let KernelOptions { others, untold, window, unchanging, .. } = *options;
    untold?;
    let mut terms = Terms::all(options.valid());
    // Linux maps files through a window by pages, and only if these are their blocks.
    if !window {
        terms.block = BLOCK;
    }
    if others == Others::None && !unchanging {
        terms.names = FOR_EVER;
        if !window && !session.volume().is_foreign() && !session.sets_access_times() {
            terms.attributes = FOR_EVER;
        }
    }
    Some(terms)
}

#[cfg(test)]
mod tests {
    use atoll_vfs::AccessTimes;

    use super::*;
    use crate::{Access, Credentials};

    #[test]
    fn a_kernel_relies_on_what_only_it_changes() {
        let told = |options: KernelOptions, access_times| {
            let volume = crate::testing::volume();
            volume.set_access_times(access_times).unwrap();
            let session = volume.session(Credentials::default(), Access::default()).unwrap();
            of(&options, &session)
        };
        let shared = KernelOptions { untold: Some(0), ..KernelOptions::default() };
        let alone = KernelOptions { others: Others::None, ..shared };
        let (never, at_times) = (AccessTimes::Noatime, AccessTimes::Relatime);

        // Nothing, where others change it too.
        let terms = told(shared, never).unwrap();
        assert_eq!(terms, Terms { block: BLOCK, ..Terms::default() });
        // Blocks that are no pages break Linux's windows.
        let terms = told(KernelOptions { window: true, ..shared }, never).unwrap();
        assert_eq!(terms, Terms::default());
        // All, but a write takes set-ID bits.
        let terms = told(alone, never).unwrap();
        assert_eq!((terms.names, terms.of(0o100_644)), (FOR_EVER, FOR_EVER));
        assert_eq!((terms.of(0o104_755), terms.of(0o102_755)), (1, 1));
        // A read sets a time, a store comes later.
        let window = KernelOptions { window: true, ..alone };
        for terms in [told(alone, at_times), told(window, never)] {
            let terms = terms.unwrap();
            assert_eq!((terms.names, terms.of(0o100_644)), (FOR_EVER, 1));
        }
        // A kernel that is told has leases.
        assert_eq!(told(KernelOptions::default(), never), None);
    }
}
