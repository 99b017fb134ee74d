//! Ranges of files that the server shows in a window: SETUPMAPPING and REMOVEMAPPING.

use alloc::vec;
use core::time::Duration;

use atoll_transport::Transport;

use super::Client;
use super::call::error;
use crate::errno::{Errno, Result};
use crate::types::{Context, Ino};
use crate::windowed::{Asked, Mapper, Mapping, Span, Validity};
use crate::wire::header::OutHeader;
use crate::wire::mappings::{
    FUSE_SETUPMAPPING_FLAG_READ, FUSE_SETUPMAPPING_FLAG_WRITE, RemovemappingOne, SetupmappingIn,
    Unmapped,
};
use crate::wire::{Fixed, Request};

/// No handle: the server judges by what the session has open, and what the caller may open.
const NO_HANDLE: u64 = u64::MAX;

impl<T: Transport> Mapper for Client<T> {
    fn validity(&self) -> Validity {
        match self.lent.attributes {
            Duration::ZERO => Validity::Moment,
            valid => Validity::For(valid),
        }
    }

    fn begin_map(&mut self, cx: &Context, ino: Ino, mapping: &Mapping) -> Result<Asked> {
        let Mapping { offset, span, write } = *mapping;
        let whole = |bytes: u64| bytes.is_multiple_of(self.map_unit);
        if ![offset, span.at, span.len].into_iter().all(whole) {
            return Err(Errno::EINVAL);
        }
        let to_write = if write { FUSE_SETUPMAPPING_FLAG_WRITE } else { 0 };
        let args = SetupmappingIn {
            fh: NO_HANDLE,
            foffset: offset,
            len: span.len,
            flags: FUSE_SETUPMAPPING_FLAG_READ | to_write,
            moffset: span.at,
        };
        let token = self.send(cx, ino, &Request::Setupmapping(args), 0)?;
        Ok(Asked { token, unique: self.unique })
    }

    fn is_mapped(&mut self, asked: &Asked) -> bool {
        // Of a server that is lost `end_map` tells.
        self.transport.ready(&asked.token).unwrap_or(true)
    }

    fn end_map(&mut self, asked: Asked) -> Result<()> {
        let mut message = [0; OutHeader::SIZE];
        let got = self.transport.receive(asked.token, &mut message, &mut []);
        let got = got.map_err(|_| Errno::EIO)?;
        let header = OutHeader::load(&message);
        if got.message != OutHeader::SIZE || header.unique != asked.unique {
            return Err(Errno::EIO);
        }
        if header.error == 0 { Ok(()) } else { Err(error(header.error)) }
    }

    fn unmap(&mut self, cx: &Context, ino: Ino, spans: &[Span]) -> Result<()> {
        let mut bytes = vec![0; spans.len() * RemovemappingOne::SIZE];
        for (place, span) in bytes.chunks_exact_mut(RemovemappingOne::SIZE).zip(spans) {
            RemovemappingOne { moffset: span.at, len: span.len }.store(place);
        }
        let ranges = Unmapped::new(&bytes).ok_or(Errno::EINVAL)?;
        self.simple(cx, ino, &Request::Removemapping(ranges))
    }
    /// Nothing is kept here.
    fn stored(&mut self, _: Ino) {}

    /// As there.
    fn written_back(&mut self, _: Ino) {}
}
