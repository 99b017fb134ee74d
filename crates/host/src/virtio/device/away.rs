//! A guest whose front end goes away and connects again: what is kept of it, and how each request
//! that was in flight goes on.

use atoll_vfs::FileSystem;
use atoll_vfs::wire::Fixed;
use atoll_vfs::wire::header::InHeader;

use super::{Kept, Service, refuse};
use crate::virtio::Broken;
use crate::virtio::back_end::BackEnd;
use crate::virtio::carried::{Part, Unanswered, Waiting};
use crate::virtio::queue::{Chain, Queue};

impl<F: FileSystem + Send> Service<F> {
    /// Goes on with a request that was in flight when the front end went away. One of which this
    /// session knows nothing is an error.
    pub(super) fn go_on_with(
        &mut self,
        device: &mut BackEnd,
        queue: usize,
        chain: Chain,
    ) -> Result<(), Broken> {
        let BackEnd { memory, queues, .. } = device;
        let mut header = [0; InHeader::SIZE];
        if chain.sent() < header.len() as u64 {
            return Err(Broken("sent no FUSE message"));
        }
        chain.copy(memory, 0, &mut header)?;
        let unique = InHeader::load(&header).unique;
        let place = (queue, chain.head());
        let same = |left: &Unanswered| left.place() == place && left.unique() == unique;
        match self.unanswered.iter().position(same).map(|at| self.unanswered.swap_remove(at)) {
            Some(Unanswered::Waiting(waiting)) => self.held.push(Waiting { chain, ..waiting }),
            Some(Unanswered::Part(part)) => self.parts.push(Part { chain, ..part }),
            None => {
                let len = chain.sent() as usize;
                chain.copy(memory, 0, &mut self.buffers.request[..len])?;
                refuse(memory, &mut queues[queue], chain, &self.buffers.request[..len])?;
                queues[queue].tell(memory)?;
            }
        }
        Ok(())
    }

    /// The session, if it is worth keeping for when the front end connects again: its queues say by
    /// a record what is in flight, and it has shown no window, which would have to be shown anew.
    pub(super) fn keep(&mut self, device: &BackEnd) -> Option<Kept<F>> {
        let notices = device.notices();
        let mut queues = device.queues.iter().enumerate();
        let any = device.queues.iter().any(Queue::has_record);
        let recorded = any
            && queues.all(|(number, queue)| {
                !queue.started || Some(number) == notices || queue.has_record()
            });
        if !recorded || self.window.is_there() || self.moves.has_left() {
            return None;
        }
        let life = self.life.take_if(|life| life.router.has_begun())?;
        let held = std::mem::take(&mut self.held).into_iter();
        let held = held.filter(|waiting| device.queues[waiting.queue].has(&waiting.chain));
        let parts = std::mem::take(&mut self.parts).into_iter();
        let parts = parts.filter(|part| device.queues[part.queue].has(&part.chain));
        let unanswered = held.map(Unanswered::Waiting).chain(parts.map(Unanswered::Part)).collect();
        Some(Kept { life, unanswered, bell: self.bell.clone() })
    }
}
