//! Memories that nobody has any more, which go: after a while, or for others that need the room.
//!
//! What was stored into one is written back first, in steps between which others have the volume.
//! Whoever has it meanwhile keeps it. It is freed without the lock.

use std::ops::Range;

use atoll_vfs::{Context, FileSystem, Ino, Result, Timespec};

use super::files::Orphan;
use super::memory::{Place, piece_of};
use super::{REST, volume_context};
use crate::session::Session;
use crate::volume::{ITSELF, Volume};

/// The most memories that go for one that needs room.
const ENDED_AT_ONCE: usize = 16;

impl<F: FileSystem + Send> Volume<F> {
    /// Writes back what is due, and ends the mappings that nobody uses: to be called every
    /// [`WRITE_BACK_INTERVAL`](super::WRITE_BACK_INTERVAL). `goes_on` is called after each step.
    ///
    /// # Errors
    /// As [`write_back`](Self::write_back).
    pub fn tend_mappings(&self, now: Timespec, goes_on: &dyn Fn()) -> Result<()> {
        let (mut due, mut unused) = (Vec::new(), Vec::new());
        {
            // Freed when the lock has been released.
            let _gone: Vec<Orphan>;
            let mut guard = self.lock()?;
            let mapped = &mut guard.mapped;
            _gone = mapped.orphans.extract_if(.., |orphan| !orphan.pages.is_shared()).collect();
            let mut rested = false;
            for (ino, file) in &mut mapped.files {
                let mut is_used = false;
                for (place, memory) in file.memories_mut() {
                    // One of them, so that it takes no time.
                    rested = rested || memory.pages.rest();
                    memory.unused = memory.grace == 0 && !memory.pages.is_shared();
                    memory.grace = memory.grace.saturating_sub(1);
                    is_used |= !memory.unused;
                    unused.extend(memory.unused.then_some((*ino, place)));
                }
                if is_used && file.rests.is_none_or(|until| until <= self.host.uptime()) {
                    due.push(*ino);
                }
            }
        }
        let mut result = Ok(());
        for ino in due {
            let begun = self.host.uptime();
            result = result.and(self.write_back_range(ITSELF, ino, 0..u64::MAX, now, goes_on));
            if let Some(file) = self.lock()?.mapped.files.get_mut(&ino) {
                let ended = self.host.uptime();
                file.rests = Some(ended + ended.saturating_sub(begun) * REST);
            }
        }
        for (ino, place) in unused {
            // What finds no space is lost when nobody has it any more.
            let written = self.write_back_range(ITSELF, ino, place.range(), now, goes_on);
            result = result.and(written).and(self.end_unused(ino, place, now));
        }
        result
    }

    /// Ends a memory that nobody had, and that was written back since, if nobody has it still.
    fn end_unused(&self, ino: Ino, place: Place, now: Timespec) -> Result<()> {
        let _gone;
        let mut state = self.lock()?;
        let file = state.mapped.files.get(&ino);
        if file.and_then(|file| file.memory(place)).is_some_and(|memory| memory.unused) {
            _gone = state.end_memory(&volume_context(now), ino, place);
        }
        Ok(())
    }

    /// Ends the pieces of `range` of `ino` that nobody has: it is to be mapped as a whole.
    ///
    /// # Errors
    /// Those of writing back what was stored there.
    pub(super) fn end_unused_pieces(
        &self,
        ino: Ino,
        range: &Range<u64>,
        now: Timespec,
    ) -> Result<()> {
        let mut unused = Vec::new();
        {
            let mut state = self.lock()?;
            let Some(file) = state.mapped.files.get_mut(&ino) else { return Ok(()) };
            let first = piece_of(range.start);
            for (start, memory) in file.pieces.range_mut(first..range.end.max(first)) {
                memory.unused = !memory.pages.is_shared();
                unused.extend(memory.unused.then_some(*start));
            }
        }
        for start in unused {
            let place = Place::Piece(start);
            self.write_back_range(ITSELF, ino, place.range(), now, &|| {})?;
            self.end_unused(ino, place, now)?;
        }
        Ok(())
    }
}

impl<F: FileSystem + Send> Session<F> {
    /// Ends some mappings that nobody uses now, for this session, which wants to map and finds no
    /// room: its own before others', and those first that were asked for long ago. Who was told a
    /// token and has not come for the memory yet begins again. Returns whether there were any.
    pub fn make_room(&mut self, cx: &Context) -> bool {
        let id = self.own.id;
        let unused: Vec<_> = {
            let _gone: Vec<Orphan>;
            let Ok(mut guard) = self.volume.lock() else { return false };
            let mapped = &mut guard.mapped;
            _gone = mapped.orphans.extract_if(.., |orphan| !orphan.pages.is_shared()).collect();
            let mut all: Vec<_> = mapped
                .files
                .iter_mut()
                .flat_map(|(ino, file)| file.memories_mut().map(|(place, m)| (*ino, place, m)))
                .collect();
            all.sort_by_key(|(_, _, m)| (!m.sessions.contains_key(&id), m.used));
            let unused = all.into_iter().filter_map(|(ino, place, memory)| {
                memory.unused = !memory.pages.is_shared();
                memory.unused.then_some((ino, place))
            });
            unused.take(ENDED_AT_ONCE).collect()
        };
        let mut any = false;
        for (ino, place) in unused {
            let written = self.volume.write_back_range(ITSELF, ino, place.range(), cx.now, &|| {});
            any |= written.and_then(|()| self.volume.end_unused(ino, place, cx.now)).is_ok();
        }
        any
    }
}
