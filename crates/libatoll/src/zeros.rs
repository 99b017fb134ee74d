//! The memory of a volume in memory.

/// So many zeros, which take no memory before they are changed; `None` where the system has not so
/// much.
pub fn zeros(len: u64) -> Option<Vec<u8>> {
    let len = usize::try_from(len).ok()?;
    if len == 0 {
        return Some(Vec::new());
    }
    let layout = std::alloc::Layout::array::<u8>(len).ok()?;
    // SAFETY: the layout is not empty.
    let memory = unsafe { std::alloc::alloc_zeroed(layout) };
    // SAFETY: if there is memory, it is of the allocator and layout that a vector of this length
    // has, and all of it is written.
    (!memory.is_null()).then(|| unsafe { Vec::from_raw_parts(memory, len, len) })
}
