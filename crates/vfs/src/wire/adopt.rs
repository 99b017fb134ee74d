//! Atoll's own request: to use an open file of another session of the same volume.

use super::fixed::fixed;

fixed! {
    /// The arguments of ADOPT: the token, as whoever has a descriptor of the file learns it. The
    /// answer is that of OPEN: a handle of the asking session, with the rights of the original.
    AdoptIn = "atoll_adopt_in" 16 {
        token: [u64; 2],
    }
}
