//! A hostile image is mounted, looked at, changed, unmounted, mounted again.

use atoll_fs::Fs;

use crate::Script;
use crate::explore;
use crate::image::{CONTEXT, mount_options};
use crate::metered::Metered;
use crate::mutate::hostile;

/// Far more calls than a sound volume of the same size takes.
const CALLS: u64 = 3_000_000;

/// Runs the target.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let (image, incarnation) = hostile(&mut script);
    let read_only = script.byte().is_multiple_of(8);
    let options = mount_options(incarnation, read_only);
    let device = Metered::new(image.clone(), CALLS);
    let Ok(mut fs) = Fs::mount(device, &options) else { return };
    let _ = fs.info();
    explore::look(&mut fs, &CONTEXT);
    explore::change(&mut fs, &CONTEXT);
    explore::look(&mut fs, &CONTEXT);
    // Whether the volume is unmounted or the process ends: the next mount must get on with either.
    let device = if script.byte().is_multiple_of(2) {
        match fs.unmount() {
            Ok(device) => device,
            Err(_) => return,
        }
    } else {
        fs.device().clone()
    };
    let left = device.into_image();
    assert!(!read_only || left == image, "a read-only mount wrote to its device");
    let device = Metered::new(left, CALLS);
    if let Ok(mut fs) = Fs::mount(device, &mount_options(incarnation, false)) {
        explore::look(&mut fs, &CONTEXT);
    }
}
