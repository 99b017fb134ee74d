//! A device that does what it likes with its bells.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixListener;
use std::sync::mpsc::channel;

use rustix::fs::{OFlags, fcntl_setfl};

use super::*;

/// Longer than any call takes on a loaded machine.
const LONG: Duration = Duration::from_secs(60);

/// The device has both bells of a queue, and can set the flags of what it shares.
#[test]
fn bells_never_block_the_driver() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    let mut driver = VhostUser::connect(&socket, &Shares::default()).unwrap();
    let (device, _) = listener.accept().unwrap();
    driver.rings = (0..QUEUES).map(|_| None).collect();
    let addresses = Addresses { descriptors: 0, available: 0, used: 0 };
    (0..2).for_each(|number| driver.start_queue(number, 4, &addresses).unwrap());
    let theirs = |bell: &EventFd| {
        let bell = bell.try_clone().unwrap();
        // SAFETY: open as long as `bell` is.
        fcntl_setfl(unsafe { BorrowedFd::borrow_raw(bell.as_raw_fd()) }, OFlags::empty()).unwrap();
        bell
    };
    let bells = [0, 1].map(|number| {
        let ring = driver.rings[number].as_ref().unwrap();
        (theirs(&ring.kick.theirs), theirs(&ring.call))
    });
    let (tell, told) = channel();
    let (goes, go) = channel();
    std::thread::spawn(move || {
        // One queue's bell is rung: all are looked after by who sleeps.
        tell.send(driver.sleep(1)).unwrap();
        go.recv().unwrap();
        // Often enough to fill what can be filled.
        (0..20_000).for_each(|_| driver.ring(0));
        tell.send(Ok(())).unwrap();
        // Each ring is heard once, and that the device has gone each time.
        for _ in 0..2 {
            tell.send(driver.sleep(0)).unwrap();
        }
    });
    bells[0].1.write(1).unwrap();
    assert_eq!(told.recv_timeout(LONG), Ok(Ok(())));
    let _ = bells[0].0.write(u64::MAX - 1);
    goes.send(()).unwrap();
    assert_eq!(told.recv_timeout(LONG), Ok(Ok(())));
    drop(device);
    assert_eq!(told.recv_timeout(LONG), Ok(Err(DeviceError::Lost)));
    assert_eq!(told.recv_timeout(LONG), Ok(Err(DeviceError::Lost)));
}

#[test]
fn places_name_sockets() {
    let (fs, disk) = (Path::new("vhost-user:/run/s"), Path::new("vhost-user-blk:/run/s"));
    assert_eq!([socket(fs), socket(disk)], [Some(Path::new("/run/s")), None]);
    assert_eq!([disk_socket(fs), disk_socket(disk)], [None, Some(Path::new("/run/s"))]);
    for other in ["vhost-user-blk:", "vhost-user:", "/run/s", "x/vhost-user-blk:/run/s"] {
        assert_eq!([socket(Path::new(other)), disk_socket(Path::new(other))], [None; 2], "{other}");
    }
}
