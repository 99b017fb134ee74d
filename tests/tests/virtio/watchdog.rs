//! The threads of devices, as the watchdog sees them.

use std::io::Write;
use std::os::unix::net::UnixListener;
use std::sync::mpsc::channel;

use atoll_host::virtio::device::Device;
use atoll_host::virtio::pulse::Pulse;

use super::*;

/// Asks twice, as the watchdog does at intervals.
fn lives(pulse: &Pulse) -> bool {
    pulse.lives();
    std::thread::sleep(Duration::from_millis(20));
    pulse.lives()
}

/// One that waits for nothing, or for its front end, does not hang; one that does not end what it
/// does for a guest does.
#[test]
fn a_thread_that_hangs_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("d");
    let listener = UnixListener::bind(&path).unwrap();
    let (stopped, stop) = std::io::pipe().unwrap();
    let pulse = Arc::<Pulse>::default();
    let (go, goes) = channel::<()>();
    let (begins, begun) = channel();
    let theirs = Arc::clone(&pulse);
    let thread = std::thread::spawn(move || {
        let (socket, _) = listener.accept().unwrap();
        let options = DeviceOptions {
            tag: "data".to_owned(),
            queues: 1,
            kernel: KernelOptions { untold: Some(0), ..KernelOptions::default() },
            spin: Duration::ZERO,
            window: 0,
            copies: false,
            tells: false,
        };
        let begin = Box::new(move || {
            begins.send(()).unwrap();
            let _ = goes.recv();
            Err("it is refused".to_owned())
        });
        let device = Device::<Fs<RamDevice>>::new(socket, options, 0, None, theirs, begin, None);
        let device = device.unwrap();
        device.serve(stopped.as_fd()).map(|kept| kept.is_some())
    });
    assert!(lives(&pulse), "it has no front end");
    let mut guest = Guest::connect(&path, Setup::default());
    assert!(lives(&pulse), "it waits for requests");
    let mut body = [7u32, 38, 128 << 10, 0].map(u32::to_le_bytes).concat();
    body.resize(64, 0);
    let slot = guest.submit(1, 26, 0, &body, 0);
    begun.recv_timeout(Duration::from_secs(30)).unwrap();
    assert!(!lives(&pulse), "it hangs");
    assert!(!lives(&pulse), "and goes on to");
    go.send(()).unwrap();
    assert_eq!(guest.answer(1, slot).unwrap().0, EIO);
    assert!(lives(&pulse), "it has come to an end");
    // Half of a message: the rest never comes.
    guest.socket().write_all(&[1, 0, 0]).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert!(lives(&pulse), "that it waits is its front end's affair");
    drop((guest, stop));
    let _ = thread.join().unwrap();
}

/// With a server: it says that it lives, whatever front ends do.
#[test]
fn a_front_end_does_not_stop_the_watchdog() {
    let told = Arc::<AtomicU64>::default();
    let served = Served::new(Options { watchdog: Some(Arc::clone(&told)), ..Options::default() });
    let mut guest = served.guest();
    let file = create(&mut guest, "f");
    let silent = served.other();
    silent.socket().write_all(&[1, 0, 0]).unwrap();
    let begun = Instant::now();
    while told.load(Ordering::Relaxed) < 4 {
        assert!(begun.elapsed() < Duration::from_secs(30), "it is silent");
        assert_eq!(write(&mut guest, file, 0, b"goes on"), 0);
        std::thread::sleep(Duration::from_millis(10));
    }
    drop((guest, silent));
    served.end();
}
