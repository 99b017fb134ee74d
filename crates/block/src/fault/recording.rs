//! A workload's events, to be cut anywhere afterwards.

use alloc::vec::Vec;
use core::ops::Range;

use super::media::{Event, Media};

/// Everything that happened to a device from a moment on: one run of a workload gives every crash
/// point of it.
#[derive(Clone, Debug)]
pub struct Recording {
    start: Media,
    events: Vec<Event>,
}

impl Recording {
    pub(super) fn new(start: Media) -> Self {
        Recording { start, events: Vec::new() }
    }

    pub(super) fn push(&mut self, event: Event) {
        self.events.push(event);
    }

    /// The events, in order.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Begins to play the events again.
    pub fn replay(&self) -> Replay<'_> {
        Replay { media: self.start.clone(), events: &self.events, done: 0 }
    }
}

/// A medium that goes through the events of a [`Recording`] one by one.
#[derive(Clone, Debug)]
pub struct Replay<'a> {
    media: Media,
    events: &'a [Event],
    done: usize,
}

impl Replay<'_> {
    /// The medium after the events so far.
    pub fn media(&self) -> &Media {
        &self.media
    }

    /// How many events have been carried out.
    pub fn position(&self) -> usize {
        self.done
    }

    /// The event that [`step`](Self::step) would carry out.
    pub fn next_event(&self) -> Option<&Event> {
        self.events.get(self.done)
    }

    /// Carries out the next event; false at the end.
    pub fn step(&mut self) -> bool {
        let Some(event) = self.events.get(self.done) else {
            return false;
        };
        self.media.apply(event);
        self.done += 1;
        true
    }

    /// Carries out events until `position` of them are done, or all.
    pub fn advance_to(&mut self, position: usize) {
        while self.done < position && self.step() {}
    }

    /// The medium if the process ends within the next event, when all but the bytes `missing` of
    /// it are stored (see [`Media::apply_without`]).
    pub fn media_within(&self, missing: Range<u64>) -> Media {
        let mut media = self.media.clone();
        if let Some(event) = self.next_event() {
            media.apply_without(event, missing);
        }
        media
    }
}
