//! Ranges that stay shown, for who maps them into an address space.

use super::ranges::{Found, Key};
use super::{Mapper, Mapping, Window, Windowed};
use crate::errno::{Errno, Result};
use crate::types::{Context, Handle, Ino};

impl<F: Mapper, W: Window> Windowed<F, W> {
    /// The window, if there is one.
    pub fn window(&self) -> Option<&W> {
        self.window.as_ref()
    }

    /// The length of a range, in bytes.
    pub fn range(&self) -> u64 {
        self.policy.range
    }

    /// Has range `number` of `ino`, which is open, shown until it is unpinned as often, also if the
    /// file ends in it: where it begins in the window, in bytes. It is asked for to be written.
    ///
    /// # Errors
    /// `ENODEV` without a window; `EBADF` when the file is not open here; `ENOMEM` when all of the
    /// window is pinned; those of [`Mapper::end_map`].
    pub fn pin(&mut self, cx: &Context, ino: Ino, number: u64) -> Result<u64> {
        if self.window.is_none() {
            return Err(Errno::ENODEV);
        }
        if !self.files.contains_key(&ino) {
            return Err(Errno::EBADF);
        }
        self.hear();
        let key = (ino, number);
        let found = match self.ranges.find(key) {
            Some(Found::Shown(place)) => Some(place),
            Some(Found::Coming(place)) => self.wait_for(place),
            None => None,
        };
        let place = match found {
            Some(place) => place,
            None => self.show(cx, key)?,
        };
        self.ranges.used(place);
        self.ranges.pin(place);
        if let Some(file) = self.files.get_mut(&ino) {
            file.pins += 1;
        }
        Ok(self.span(place).at)
    }

    /// Has a range shown that is not, and waits for it: its place.
    fn show(&mut self, cx: &Context, key: Key) -> Result<usize> {
        let offset = key.1.checked_mul(self.policy.range).ok_or(Errno::EINVAL)?;
        let place = self.vacant(cx).ok_or(Errno::ENOMEM)?;
        let span = self.span(place);
        let asked = self.inner.begin_map(cx, key.0, &Mapping { offset, span, write: true })?;
        self.ranges.coming(place, key);
        match self.inner.end_map(asked) {
            Ok(()) => self.ranges.shown(place),
            Err(error) => {
                self.ranges.freed(place);
                return Err(error);
            }
        }
        Ok(place)
    }

    /// Takes a [pin](Self::pin) back. With the `handle` by which something may have been stored the
    /// file's times are set when it is closed, or looked at.
    pub fn unpin(&mut self, ino: Ino, number: u64, stored: Option<Handle>) {
        let Some(Found::Shown(place)) = self.ranges.find((ino, number)) else { return };
        self.ranges.unpin(place);
        if let Some(file) = self.files.get_mut(&ino) {
            file.pins = file.pins.saturating_sub(1);
            file.stored = stored.or(file.stored);
        }
        self.inner.stored(ino);
    }

    /// What is stored in a range that is pinned nobody tells: nothing is kept of its file.
    pub(super) fn keep_nothing(&mut self, ino: Ino) {
        if self.files.get(&ino).is_some_and(|file| file.pins > 0) {
            self.inner.stored(ino);
        }
    }
}
