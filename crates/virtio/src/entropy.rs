//! A source of entropy: VIRTIO 1.2, 5.4.

use atoll_transport::Memory;

use crate::device::{Device, DeviceError};
use crate::platform::{Platform, Region};
use crate::requests::{Requests, settle};

const PLACE: usize = 4096;
/// How often in a row the device may give nothing.
const NOTHINGS: u32 = 16;

/// A source of entropy. Its bytes are the device's choice: a guest that does not trust its host
/// mixes them with what it has.
#[derive(Debug)]
pub struct Entropy<D, P: Platform> {
    device: D,
    requests: Requests<P::Memory>,
    place: Region<P::Memory>,
}

impl<D: Device, P: Platform> Entropy<D, P> {
    /// Sets the source `device` up.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn new(mut device: D, platform: &mut P) -> Result<Self, DeviceError> {
        let agreed = settle(&mut device, 0)?;
        let requests = Requests::begin(&mut device, platform, 0, 4, 1, agreed)?;
        let place = platform.share(PLACE).ok_or(DeviceError::NoMemory)?;
        device.start()?;
        Ok(Entropy { device, requests, place })
    }

    /// Fills `out`.
    ///
    /// # Errors
    /// [`DeviceError`]; `Broken` for a source that gives nothing again and again.
    pub fn fill(&mut self, out: &mut [u8]) -> Result<(), DeviceError> {
        let (mut done, mut nothings) = (0, 0);
        while done < out.len() {
            let len = (out.len() - done).min(PLACE);
            let part = self.place.part(0, len);
            let sent = self.requests.send(&mut self.device, &[], &[part]);
            let head = sent.map_err(|_| DeviceError::Broken)?;
            let written = match self.requests.wait(&mut self.device, head) {
                Ok(written) => written,
                Err(error) => {
                    self.requests.end(&mut self.device);
                    return Err(error);
                }
            };
            nothings = if written == 0 { nothings + 1 } else { 0 };
            if nothings == NOTHINGS {
                return Err(DeviceError::Broken);
            }
            self.place.memory().read(0, &mut out[done..done + written]);
            done += written;
        }
        Ok(())
    }
}
