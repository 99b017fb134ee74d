//! Views: memory in which clients find answers without asking. Nothing is in them but what is true
//! just now, what everybody may be told of, and what the session may read.

use std::any::Any;
use std::cell::RefCell;

use atoll_server::host::ViewMemory;
use atoll_transport::Shared;
use atoll_vfs::Errno;
use atoll_vfs::view::{Entry, Malformed, Size, ViewReader, ViewWriter};

use crate::call::Lax;
use crate::plant::Plant;
use crate::world::{Outcome, World, trace};

/// The smallest that there is, so that what is in it has to make room.
const SIZE: Size = Size { generations: 8, attrs: 8, entries: 8, long_entries: 8, pages: 8 };
/// Bytes of a file that are looked at.
const LOOK: usize = 8192;

thread_local! {
    /// Memory of Views that have ended: what is mapped into many places is never given back.
    static POOL: RefCell<Vec<Shared<'static>>> = const { RefCell::new(Vec::new()) };
}

fn memory() -> Shared<'static> {
    let pooled = POOL.with(|pool| pool.borrow_mut().pop());
    if let Some(memory) = pooled {
        memory.write(0, &vec![0; memory.len()]);
        return memory;
    }
    let len = SIZE.bytes();
    let bytes: &'static mut [u8] = Box::leak(vec![0; len + 64].into_boxed_slice());
    let at = bytes.as_ptr().align_offset(64);
    Shared::from_slice(&mut bytes[at..at + len])
}

/// The memory of one View.
pub struct View {
    memory: Shared<'static>,
    writer: ViewWriter<'static>,
}

impl View {
    /// One with nothing in it.
    ///
    /// # Errors
    /// The memory cannot hold it.
    pub fn new() -> Result<View, Malformed> {
        let memory = memory();
        Ok(View { memory, writer: ViewWriter::new(memory, SIZE)? })
    }

    /// The client's half of a View that the machine has made.
    pub fn reader(memory: &dyn Any) -> Option<ViewReader<'static>> {
        let view = memory.downcast_ref::<View>()?;
        ViewReader::new(view.memory).ok()
    }
}

impl ViewMemory for View {
    fn writer(&mut self) -> &mut ViewWriter<'static> {
        &mut self.writer
    }

    fn size(&self) -> Size {
        SIZE
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.writer.close();
        POOL.with(|pool| pool.borrow_mut().push(self.memory));
    }
}

impl World {
    /// The client number `at` looks at all that its View says of what it knows.
    pub(crate) fn look(&mut self, at: usize) -> Outcome<()> {
        let seat = &self.seats[at];
        let (Some(view), id) = (seat.view, seat.id) else { return Ok(()) };
        let nodes = seat.nodes.clone();
        let is_stale = self.options.plant == Some(Plant::StaleView);
        let mut found = 0;
        for &node in &nodes {
            let ino = node.served.0;
            let lax = Lax { times: self.mirror.lags(node.model), birth: false };
            let model = self.mirror.attr(node);
            if model.is_none() && self.disk.has_failed() {
                // A device that failed may keep what was to go with its last handle.
                continue;
            }
            let late = if is_stale { self.seats[at].seen.remove(&ino) } else { None };
            if let Some(shown) = late.or(view.attr(ino)) {
                if is_stale {
                    self.seats[at].seen.extend(view.attr(ino).map(|shown| (ino, shown)));
                }
                if model.is_none_or(|model| lax.seen(&model) != lax.seen(&shown)) {
                    return Err(format!("a View shows {shown:?}, where the model has {model:?}"));
                }
                found += 1;
                self.mirror.told_of(node.model);
            }
            for letter in b'a'..=b'd' {
                let model = self.mirror.lookup(node, letter);
                match (view.lookup(ino, &[letter]), model) {
                    (None, _) => continue,
                    (Some(Entry::Missing), Err(Errno::ENOENT)) => {}
                    (Some(Entry::Found(child)), Ok(is)) => {
                        let known = nodes.iter().find(|node| node.served.0 == child);
                        if known.is_some_and(|known| known.model != is) {
                            return Err(format!("a View shows {child} where inode {is} is"));
                        }
                    }
                    (Some(shown), model) => {
                        return Err(format!("a View shows {shown:?}, and the model {model:?}"));
                    }
                }
                found += 1;
                self.mirror.told_of_name(node.model, letter);
            }
            let mut bytes = vec![0; LOOK];
            let Some(len) = view.read(ino, 0, &mut bytes) else { continue };
            bytes.truncate(len);
            let seat = &self.seats[at];
            let may_read = seat.files.iter().any(|open| open.file.node == node && open.reads);
            if len > 0 && !may_read {
                return Err(format!("a View shows the content of {node:?}, which is not open"));
            }
            if !self.mirror.has_content(node, &bytes) {
                return Err(format!("a View shows other content of {node:?} than there is"));
            }
            found += 1;
            self.mirror.told_of(node.model);
        }
        trace!(self, "session {} looks: {found} answers in its View", id.0);
        self.counts.looks += found;
        self.note(&[21, id.0, found]);
        Ok(())
    }
}
