//! A hostile image is checked, then repaired; an image that was found sound, or was repaired, is
//! sound in use.

use atoll_fs::{CheckOptions, Fs, check};

use crate::Script;
use crate::explore;
use crate::image::{CONTEXT, mount_options};
use crate::metered::Metered;
use crate::mutate::hostile;

/// Far more calls than an image of the same size takes.
const CALLS: u64 = 3_000_000;

/// Runs the target.
///
/// # Panics
/// When a check writes, or an image that it calls sound is not.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let (image, incarnation) = hostile(&mut script);
    let options = CheckOptions { repair: false, incarnation, now: CONTEXT.now };
    let mut device = Metered::new(image.clone(), CALLS);
    let report = check(&mut device, &options);
    assert!(device.into_image() == image, "a check without repair wrote to its device");
    if report.is_ok_and(|report| report.is_clean()) {
        use_it(image, incarnation, "an image that was found sound");
        return;
    }

    let mut device = Metered::new(image, CALLS);
    if check(&mut device, &CheckOptions { repair: true, ..options }).is_err() {
        return;
    }
    let image = device.into_image();
    let report = check(&mut Metered::new(image.clone(), CALLS), &options);
    let report = report.expect("what was repaired can be checked");
    assert!(report.is_clean(), "not repaired: {:?}", report.findings);
    use_it(image, incarnation, "a repaired image");
}

/// Mounts an image that must be sound, uses it and checks it afterwards.
fn use_it(image: Vec<u8>, incarnation: [u8; 16], what: &str) {
    let fs = Fs::mount(Metered::new(image, CALLS), &mount_options(incarnation, false));
    let mut fs = fs.unwrap_or_else(|error| panic!("{what} does not mount: {error}"));
    let found = explore::look(&mut fs, &CONTEXT);
    assert_eq!(found.failures, 0, "{what} cannot be read");
    explore::change(&mut fs, &CONTEXT);
    let mut device =
        fs.unmount().unwrap_or_else(|error| panic!("{what} does not unmount: {error}"));
    let options = CheckOptions { repair: false, incarnation, now: CONTEXT.now };
    let report = check(&mut device, &options).expect("a volume can be checked");
    assert!(report.is_clean(), "{what} is not sound after use: {:?}", report.findings);
}
