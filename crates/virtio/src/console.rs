//! A console: VIRTIO 1.2, 5.3. One port; output waits until the device has it.

use atoll_transport::Memory;

use crate::device::{Device, DeviceError};
use crate::platform::{Platform, Region};
use crate::queue::{Head, OfferError};
use crate::requests::{Requests, settle};

const INPUT: u16 = 0;
const OUTPUT: u16 = 1;
const ENTRIES: u16 = 4;
/// The place for what comes, and for what goes out.
const PLACE: usize = 4096;

/// A console.
#[derive(Debug)]
pub struct Console<D, P: Platform> {
    device: D,
    platform: P,
    input: Requests<P::Memory>,
    output: Requests<P::Memory>,
    place: Region<P::Memory>,
    /// The buffer for input is the device's.
    waiting: Option<Head>,
    /// What has come and was not read: from, up to.
    come: (usize, usize),
}

impl<D: Device, P: Platform> Console<D, P> {
    /// Sets the console `device` up.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn new(mut device: D, mut platform: P) -> Result<Self, DeviceError> {
        let agreed = settle(&mut device, 0)?;
        let input = Requests::begin(&mut device, &mut platform, INPUT, ENTRIES, 1, agreed)?;
        let output = Requests::begin(&mut device, &mut platform, OUTPUT, ENTRIES, 1, agreed)?;
        let place = platform.share(2 * PLACE).ok_or(DeviceError::NoMemory)?;
        device.start()?;
        Ok(Console { device, platform, input, output, place, waiting: None, come: (0, 0) })
    }

    /// The platform that it was made with.
    pub fn platform(&mut self) -> &mut P {
        &mut self.platform
    }

    /// Writes all of `text`.
    ///
    /// # Errors
    /// [`DeviceError`]; a part may have been written.
    pub fn write(&mut self, text: &[u8]) -> Result<(), DeviceError> {
        for piece in text.chunks(PLACE) {
            self.place.memory().write(PLACE, piece);
            let part = self.place.part(PLACE, piece.len());
            let head = self.output.send(&mut self.device, &[part], &[]).map_err(refused)?;
            let written = self.output.wait(&mut self.device, head);
            if let Err(error) = written {
                self.output.end(&mut self.device);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Reads what has come, as much as fits; 0 when nothing has. Never waits.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn read(&mut self, out: &mut [u8]) -> Result<usize, DeviceError> {
        if self.come.0 == self.come.1 {
            self.come = (0, self.input()?);
        }
        let (from, end) = self.come;
        let len = out.len().min(end - from);
        self.place.memory().read(from, &mut out[..len]);
        self.come.0 += len;
        Ok(len)
    }

    /// How many bytes have come at the front of the place for them, if any have.
    fn input(&mut self) -> Result<usize, DeviceError> {
        let head = match self.waiting {
            Some(head) => head,
            None => {
                let part = self.place.part(0, PLACE);
                self.input.send(&mut self.device, &[], &[part]).map_err(refused)?
            }
        };
        let come = self.input.answer(head)?;
        self.waiting = if come.is_some() { None } else { Some(head) };
        Ok(come.unwrap_or(0))
    }

    /// Passes a moment in which input may come.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn pause(&mut self, turn: u64) -> Result<(), DeviceError> {
        self.device.pause(INPUT, turn).map(drop)
    }
}

fn refused(error: OfferError) -> DeviceError {
    match error {
        OfferError::Broken => DeviceError::Broken,
        OfferError::Full | OfferError::Shape => DeviceError::Unsupported,
    }
}
