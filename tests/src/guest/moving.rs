//! A guest that goes on at another device: its front end takes the state and gives it.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::{VhostTransferStateDirection, VhostTransferStatePhase};

use super::{Guest, Setup, memory};

impl Guest {
    /// Stops all queues and takes the device's state, as a front end does whose guest moves.
    ///
    /// # Errors
    /// When the device does not give it.
    pub fn save(&mut self) -> Result<Vec<u8>, vhost::Error> {
        for queue in 0..self.rings.len() {
            self.stop(queue);
        }
        self.take_state()
    }

    /// Takes the device's state, whose queues do not run.
    ///
    /// # Errors
    /// As [`save`](Self::save).
    pub fn take_state(&mut self) -> Result<Vec<u8>, vhost::Error> {
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        self.ask_to_move(VhostTransferStateDirection::SAVE, writer.into())?;
        let mut state = Vec::new();
        reader.read_to_end(&mut state).expect("the state");
        self.moved()?;
        Ok(state)
    }

    /// Asks the device to give its state by `pipe`, or to take one.
    ///
    /// # Errors
    /// When it does not.
    pub fn ask_to_move(
        &self,
        direction: VhostTransferStateDirection,
        pipe: OwnedFd,
    ) -> Result<(), vhost::Error> {
        let phase = VhostTransferStatePhase::STOPPED;
        match self.front_end.set_device_state_fd(direction, phase, pipe)? {
            None => Ok(()),
            Some(_) => panic!("the pipe of the front end does"),
        }
    }

    /// Asks what became of that: CHECK_DEVICE_STATE.
    ///
    /// # Errors
    /// When it came to nothing.
    pub fn moved(&self) -> Result<(), vhost::Error> {
        self.front_end.check_device_state()
    }

    /// Goes on with the device at `path`, which is given `state`: memory and rings are as they
    /// were.
    ///
    /// # Errors
    /// When the device does not go on with it; then the guest is where it was, with its queues
    /// stopped.
    pub fn move_to(&mut self, path: &Path, state: &[u8]) -> Result<(), vhost::Error> {
        self.stand_at(path, state)?;
        self.hand_memory();
        self.resume();
        Ok(())
    }

    /// The same of a guest that does not run there yet.
    ///
    /// # Errors
    /// As [`move_to`](Self::move_to).
    pub fn stand_at(&mut self, path: &Path, state: &[u8]) -> Result<(), vhost::Error> {
        let memory = self.memory.try_clone().expect("a descriptor");
        let there = Guest::meet(path, self.setup, memory.into());
        there.load(state)?;
        let Guest { front_end, socket, .. } = there;
        (self.front_end, self.socket) = (front_end, socket);
        Ok(())
    }

    /// A guest that comes from elsewhere, with `state` and nothing in flight.
    ///
    /// # Errors
    /// As [`move_to`](Self::move_to).
    pub fn arrive(path: &Path, setup: Setup, state: &[u8]) -> Result<Guest, vhost::Error> {
        let mut guest = Guest::meet(path, setup, memory(setup));
        guest.load(state)?;
        guest.begin();
        Ok(guest)
    }

    /// Gives the device a state.
    ///
    /// # Errors
    /// When it does not go on with it.
    pub fn load(&self, state: &[u8]) -> Result<(), vhost::Error> {
        let (reader, mut writer) = std::io::pipe().expect("a pipe");
        self.ask_to_move(VhostTransferStateDirection::LOAD, reader.into())?;
        // One that does not want all of it closes its end.
        let _ = writer.write_all(state);
        drop(writer);
        self.moved()
    }

    /// Goes on after [`save`](Self::save): what is in flight stays so.
    pub fn resume(&mut self) {
        (0..self.rings.len()).for_each(|queue| self.start(queue, self.rings[queue].base));
    }
}
