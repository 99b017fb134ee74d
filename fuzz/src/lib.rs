//! Fuzz targets, each a function of bytes. The bytes are a [`Script`]: whatever they are, they mean
//! something.
//!
//! Read in this order: [`image`] the volumes that hostile images are made from; [`mutate`] the
//! damage, with right checksums, without which the code would refuse every image; [`explore`]
//! everything a user may do with a volume; then the targets: [`mount`], [`check`], [`operations`];
//! [`requests`] to a server of the file seam, [`replies`] to a client of it; [`channel`], whose
//! hostile bytes are shared memory; [`device`], a virtio-fs device whose guest and front end
//! are hostile ([`front_end`]); [`driver`], a guest's drivers whose devices are; and [`program`],
//! to be loaded by the bare image.
#![forbid(unsafe_code)]

pub mod channel;
pub mod check;
pub mod device;
pub mod driver;
pub mod explore;
pub mod front_end;
pub mod image;
pub mod metered;
pub mod mount;
pub mod mutate;
pub mod operations;
pub mod program;
pub mod replies;
pub mod requests;
#[cfg(test)]
mod smoke;

/// Bytes, read one decision after the other; zeros once they are used up.
#[derive(Clone, Debug)]
pub struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    /// The decisions in `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Script(bytes)
    }

    /// Whether there are no bytes left.
    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((&byte, rest)) => {
                self.0 = rest;
                byte
            }
            None => 0,
        }
    }

    /// The next number, of eight bytes.
    pub fn number(&mut self) -> u64 {
        u64::from_le_bytes(core::array::from_fn(|_| self.byte()))
    }

    /// A number below `bound`, which is not 0, of two bytes or, if `bound` needs it, four.
    pub fn below(&mut self, bound: u64) -> u64 {
        let count = if bound <= 1 << 16 { 2 } else { 4 };
        let number = (0..count).fold(0, |number, _| number << 8 | u64::from(self.byte()));
        number % bound
    }

    /// One of `choices`.
    pub fn pick<'c, T>(&mut self, choices: &'c [T]) -> &'c T {
        &choices[self.byte() as usize % choices.len()]
    }
}
