//! The beginning and the end of a session.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use atoll_transport::Transport;

use super::kernels::Tree;
use super::{Client, DATA_MIN};
use crate::errno::{Errno, Result};
use crate::lent::Lent;
use crate::types::{Context, Ino, Timespec};
use crate::wire::session::{
    FUSE_ASYNC_READ, FUSE_ATOMIC_O_TRUNC, FUSE_BIG_WRITES, FUSE_EXPORT_SUPPORT, FUSE_MAP_ALIGNMENT,
    FUSE_MAX_PAGES, InitIn, InitOut, MAJOR, MINOR_MIN,
};
use crate::wire::{Extensions, Fixed, REPLY_MAX, REQUEST_MAX, Request};

/// The FUSE features that a client makes use of.
const FEATURES: u64 = FUSE_ASYNC_READ
    | FUSE_ATOMIC_O_TRUNC
    | FUSE_EXPORT_SUPPORT
    | FUSE_BIG_WRITES
    | FUSE_MAX_PAGES
    | FUSE_MAP_ALIGNMENT;
/// What a server that says nothing of it maps by.
const PAGE: u64 = 4096;

/// The terms that a client offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientOptions {
    /// The most data of one request or reply, in bytes; at least 4096 are used.
    pub max_data: u32,
    /// The extensions to offer.
    pub extensions: Extensions,
}

impl Default for ClientOptions {
    /// 1 MiB; all extensions.
    fn default() -> Self {
        ClientOptions { max_data: 1 << 20, extensions: Extensions::all() }
    }
}

fn nobody() -> Context {
    Context { uid: 0, gid: 0, now: Timespec::default() }
}

impl<T: Transport> Client<T> {
    /// Begins a session with the server on the other side of `transport`.
    ///
    /// # Errors
    /// `EIO` when the server is lost or speaks another protocol, and whatever it answers.
    pub fn connect(transport: T, options: ClientOptions) -> Result<Self> {
        let mut client = Client {
            transport,
            agreed: Extensions::empty(),
            truncates: false,
            copies: true,
            max_data: (options.max_data as usize).max(DATA_MIN),
            map_unit: PAGE,
            unique: 0,
            open: BTreeMap::new(),
            lent: Lent::default(),
            unread: VecDeque::new(),
            waits: 0,
            forgets: Vec::new(),
            tree: Tree::default(),
            listing: Vec::new(),
            request: [0; REQUEST_MAX],
            reply: [0; REPLY_MAX],
        };
        let offer = InitIn::new(FEATURES, options.extensions);
        client.call(&nobody(), Ino(0), &Request::Init(offer), InitOut::SIZE, &mut [])?;
        let answer = InitOut::load(client.body());
        if answer.major != MAJOR || answer.minor < MINOR_MIN {
            return Err(Errno::EIO);
        }
        client.agreed = answer.extensions() & options.extensions;
        client.truncates = answer.features() & FUSE_ATOMIC_O_TRUNC != 0;
        if answer.features() & FUSE_MAP_ALIGNMENT != 0 {
            // A unit that no length has shows nothing.
            client.map_unit = 1u64.checked_shl(answer.map_alignment.into()).unwrap_or(u64::MAX);
        }
        // FUSE limits what is read by the pages that a request may have, 32 unless it says more.
        let pages = match answer.max_pages {
            pages if answer.features() & FUSE_MAX_PAGES != 0 => pages,
            _ => 32,
        };
        let most = (answer.max_write as usize).min(usize::from(pages) * 4096);
        client.max_data = client.max_data.min(most.max(DATA_MIN));
        Ok(client)
    }

    /// The agreed extensions to FUSE.
    pub fn agreed(&self) -> Extensions {
        self.agreed
    }

    /// How many requests it has sent.
    pub fn requests(&self) -> u64 {
        self.unique / 2
    }

    /// The way to the server.
    pub fn transport(&mut self) -> &mut T {
        &mut self.transport
    }

    /// Ends the session. The server closes all that was open.
    pub fn disconnect(mut self) -> T {
        self.forget_now();
        let _ = self.simple(&nobody(), Ino(0), &Request::Destroy);
        let _ = self.read_answers(0);
        self.transport
    }
}
