//! Structures of a fixed layout: declared once, read from and written to bytes.
//!
//! Numbers are in the order of bytes of the machine, as FUSE has them: both sides run on it.

/// A value with a fixed place in bytes.
pub trait Fixed: Copy {
    /// Its length in bytes.
    const SIZE: usize;

    /// The value at the front of `bytes`.
    ///
    /// # Panics
    /// When `bytes` are fewer than [`SIZE`](Self::SIZE). [`get`](Self::get) checks.
    fn load(bytes: &[u8]) -> Self;

    /// Writes the value to the front of `out`.
    ///
    /// # Panics
    /// When `out` is shorter than [`SIZE`](Self::SIZE).
    fn store(&self, out: &mut [u8]);

    /// The value at the front of `bytes` and what follows it, or `None` when they are too few.
    #[inline]
    fn get(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (own, rest) = bytes.split_at_checked(Self::SIZE)?;
        Some((Self::load(own), rest))
    }
}

macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl Fixed for $number {
            const SIZE: usize = size_of::<$number>();
            #[inline]
            fn load(bytes: &[u8]) -> Self {
                let mut own = [0; Self::SIZE];
                own.copy_from_slice(&bytes[..Self::SIZE]);
                <$number>::from_ne_bytes(own)
            }
            #[inline]
            fn store(&self, out: &mut [u8]) {
                out[..Self::SIZE].copy_from_slice(&self.to_ne_bytes());
            }
        }
    )*};
}
numbers!(u16 u32 i32 u64);

impl<T: Fixed, const N: usize> Fixed for [T; N] {
    const SIZE: usize = T::SIZE * N;
    #[inline]
    fn load(bytes: &[u8]) -> Self {
        core::array::from_fn(|i| T::load(&bytes[i * T::SIZE..]))
    }
    #[inline]
    fn store(&self, out: &mut [u8]) {
        for (i, value) in self.iter().enumerate() {
            value.store(&mut out[i * T::SIZE..]);
        }
    }
}

/// The layout of a structure, for comparing it with linux/fuse.h.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Its name in linux/fuse.h.
    pub c_name: &'static str,
    /// Its length in bytes.
    pub size: usize,
    /// The name and length of each field, in order.
    pub fields: &'static [(&'static str, usize)],
}

/// Declares structures with the fields of linux/fuse.h, and lists them in `LAYOUTS`.
macro_rules! fixed {
    ($($(#[$meta:meta])* $name:ident = $c_name:literal $size:literal {
        $($field:ident: $type:ty,)*
    })*) => {
        /// The structures of this module.
        pub const LAYOUTS: &[$crate::wire::fixed::Layout] = &[$($name::LAYOUT,)*];
        $(
            $(#[$meta])*
            ///
            #[doc = concat!("`", $c_name, "` of linux/fuse.h, field by field.")]
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            #[allow(missing_docs)]
            pub struct $name { $(pub $field: $type,)* }

            impl $name {
                /// Where its fields are.
                pub const LAYOUT: $crate::wire::fixed::Layout = $crate::wire::fixed::Layout {
                    c_name: $c_name,
                    size: <$name as $crate::wire::fixed::Fixed>::SIZE,
                    fields: &[$((
                        stringify!($field),
                        <$type as $crate::wire::fixed::Fixed>::SIZE,
                    ),)*],
                };
            }

            impl $crate::wire::fixed::Fixed for $name {
                const SIZE: usize = 0 $(+ <$type as $crate::wire::fixed::Fixed>::SIZE)*;
                #[inline]
                fn load(bytes: &[u8]) -> Self {
                    let mut rest = &bytes[..Self::SIZE];
                    $(
                        let (own, after) =
                            rest.split_at(<$type as $crate::wire::fixed::Fixed>::SIZE);
                        let $field = <$type as $crate::wire::fixed::Fixed>::load(own);
                        rest = after;
                    )*
                    let _ = rest;
                    $name { $($field,)* }
                }
                #[inline]
                fn store(&self, out: &mut [u8]) {
                    let mut rest = &mut out[..Self::SIZE];
                    $(
                        let (own, after) =
                            rest.split_at_mut(<$type as $crate::wire::fixed::Fixed>::SIZE);
                        $crate::wire::fixed::Fixed::store(&self.$field, own);
                        rest = after;
                    )*
                    let _ = rest;
                }
            }

            const _: () = assert!(<$name as $crate::wire::fixed::Fixed>::SIZE == $size);
        )*
    };
}
pub(super) use fixed;

/// Declares numbers under the names of linux/fuse.h, and lists them in `CONSTANTS`.
macro_rules! constants {
    ($type:ty: $($name:ident = $value:expr, $text:literal;)*) => {
        $(#[doc = $text] pub const $name: $type = $value;)*
        /// Every number of this module with its name in linux/fuse.h.
        #[allow(clippy::unnecessary_cast)]
        pub const CONSTANTS: &[(&str, u64)] = &[$((stringify!($name), $name as u64),)*];
    };
}
pub(super) use constants;
