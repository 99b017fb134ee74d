//! What a guest's kernel counts of its messages is what the server gets.
#![allow(missing_docs)]

use atoll_vm::{Guest, Machine, Probes, Protocol, Virtiofsd, programs};

#[test]
fn each_message_is_counted_once() {
    use std::os::unix::fs::MetadataExt;
    if std::fs::metadata("/proc/self").expect("/proc").uid() != 0 {
        println!("skipped: the stock virtiofsd needs root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Virtiofsd::start(folder.path(), &["cache=none", "log_level=debug"]);
    let machine = Machine::new().virtiofs("f", &server.socket());
    let mut guest = Guest::boot(&machine, &programs::image());
    let probes = Probes::set(&mut guest, Protocol::Fuse);
    guest.ok("mount -t virtiofs f /mnt; usleep 300000");
    let (log, before) = (server.requests(), probes.counts(&mut guest));
    guest.ok("passes write /mnt/file 65536 4096 sequence; passes read /mnt/file 65536 4096 random
         mkdir /mnt/d; passes create /mnt/d 10; passes list /mnt/d 10; passes remove /mnt/d 10
         usleep 300000");
    let counted = probes.counts(&mut guest).since(&before);
    let now = server.requests();
    let since = |kind: &str, now: usize| now - log.get(kind).copied().unwrap_or_default();
    let got: usize = now.iter().map(|(kind, count)| since(kind, *count)).sum();
    let all = counted.total();
    assert_eq!(all.count, got as u64, "{} and {now:?}", counted.kinds(Protocol::Fuse));
    for kind in ["LOOKUP", "FORGET", "WRITE", "READ", "CREATE", "UNLINK", "GETATTR"] {
        let words = format!("{kind} {}", since(kind, now[kind]));
        let kinds = counted.kinds(Protocol::Fuse);
        assert!(kinds.split(", ").any(|each| each == words), "{words}: {kinds}");
    }
    // A header of 40 bytes and 40 more go before what is written, and a header of 16 before what is
    // read.
    let [write, read] = [16, 15].map(|operation| counted.messages[&operation]);
    assert_eq!((write.count, write.sent), (16, 16 * (4096 + 80)));
    assert_eq!((read.count, read.got), (16, 16 * (4096 + 16)));
    // None is woken more often than there are messages.
    assert!((1..=all.count).contains(&counted.kicks), "{counted:?}");
    assert!((1..=all.count).contains(&counted.interrupts), "{counted:?}");
    guest.end();
}
