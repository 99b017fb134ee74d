//! Counts what is looked at, for tests of what a search costs.

#[cfg(test)]
thread_local!(static COUNT: std::cell::Cell<u64> = const { std::cell::Cell::new(0) });

/// Passes on something that is looked at.
#[inline]
pub fn count<T>(thing: T) -> T {
    #[cfg(test)]
    COUNT.set(COUNT.get() + 1);
    thing
}

/// How many things were looked at since the last time.
#[cfg(test)]
pub fn take() -> u64 {
    COUNT.take()
}
