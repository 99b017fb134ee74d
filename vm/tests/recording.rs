//! The requests that the kernel of a Linux guest sends to a virtio-fs device, counted at the stock
//! server. docs/VIRTIO-FS.md has the table that this prints.
#![allow(missing_docs)]

use std::collections::BTreeMap;

use atoll_vm::{Guest, Machine, Virtiofsd, programs};

/// The steps: each one's name, and its script.
const STEPS: [(&str, &str); 13] = [
    ("mount", "mount -t virtiofs f /mnt"),
    ("ls -l of 1,000 files, cold", "ls -l /mnt/many > /tmp/list"),
    ("ls -l of 1,000 files, again", "ls -l /mnt/many > /tmp/list"),
    ("read 1 MiB by 64 KiB, cold", "dd if=/mnt/file of=/dev/null bs=64k"),
    ("read 1 MiB by 64 KiB, again", "dd if=/mnt/file of=/dev/null bs=64k"),
    ("write 1 MiB by 4 KiB", "dd if=/dev/zero of=/mnt/new bs=4k count=256"),
    ("write 1 MiB in one", "dd if=/dev/zero of=/mnt/new bs=1M count=1 conv=notrunc"),
    ("read and write 1 MiB with O_DIRECT", "calls direct /mnt/file"),
    ("map 1 MiB, read, store, msync", "calls map /mnt/file"),
    ("record locks", "calls lock /mnt/file"),
    ("flock", "calls flock /mnt/file"),
    ("rm of 100 files", "rm /mnt/few/*"),
    ("umount", "umount /mnt"),
];

#[test]
fn what_a_guest_sends() {
    record(&[&["cache=auto"]]);
}

#[test]
#[ignore = "prints what each kind of caching comes to, for docs/VIRTIO-FS.md"]
fn what_a_guest_sends_by_caching() {
    record(&[&["cache=auto"], &["cache=none"], &["cache=always", "writeback"]]);
}

/// Prints what comes for each step, with each of these options of the server.
fn record(kinds: &[&[&str]]) {
    use std::os::unix::fs::MetadataExt;
    if std::fs::metadata("/proc/self").expect("/proc").uid() != 0 {
        println!("skipped: the stock virtiofsd needs root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (name, count) in [("many", 1000), ("few", 100)] {
        let inner = folder.path().join(name);
        std::fs::create_dir(&inner).unwrap();
        (0..count).for_each(|i| std::fs::write(inner.join(i.to_string()), "x").unwrap());
    }
    std::fs::write(folder.path().join("file"), vec![1; 1 << 20]).unwrap();
    for options in kinds {
        let (few, file) = (folder.path().join("few"), folder.path().join("file"));
        (0..100).for_each(|i| std::fs::write(few.join(i.to_string()), "x").unwrap());
        assert!(file.exists());
        let more = ["log_level=debug", "posix_lock", "flock"];
        let server = Virtiofsd::start(folder.path(), &[*options, &more].concat());
        let mut guest =
            Guest::boot(&Machine::new().virtiofs("f", &server.socket()), &programs::image());
        println!("{}", options.join(","));
        let mut before = BTreeMap::new();
        for (name, script) in STEPS {
            let ran = guest.run(script);
            // Requests that have no answer may come a little later.
            guest.ok("usleep 200000");
            let now = server.requests();
            let of_step: Vec<String> = now
                .iter()
                .map(|(kind, count)| (kind, count - before.get(kind).unwrap_or(&0)))
                .filter(|(_, count)| *count > 0)
                .map(|(kind, count)| format!("{kind} {count}"))
                .collect();
            println!("| {name} | {} | {} |", of_step.join(", "), ran.status);
            if ran.status != 0 {
                println!("{}", ran.output);
            }
            before = now;
        }
        // A Linux guest has no way to say that a request is given up.
        assert!(!before.contains_key("INTERRUPT"), "{before:?}");
        guest.end();
    }
}
