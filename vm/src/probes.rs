//! What a guest's kernel sends and hears by its one device for files, counted in the guest: by
//! probes of the kernel (Documentation/trace/kprobetrace.rst), whose histograms add up in place, so
//! that nothing stands between the driver and the device, and every device is counted alike.

use std::collections::BTreeMap;

use crate::{Guest, Image};

/// The protocol by which files come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// FUSE, by a virtio-fs device.
    Fuse,
    /// 9P2000.L, by a virtio-9p device.
    NineP,
}

/// Where a request of FUSE has its operation and length, and the length of its answer:
/// `struct fuse_req` begins with two lists, a pointer, a counter and flags, behind which are both
/// headers (fs/fuse/fuse_i.h, Linux 5.4 to 6.12).
const FUSE: &str = "fuse:fuse_request_end op=+60(%di):u32 sent=+56(%di):u32 got=+96(%di):u32";
/// Where one of 9P has its operation, its length as sent, and the length of its answer:
/// `struct p9_req_t`, with two `struct p9_fcall` (include/net/9p/client.h, Linux 6.1).
const NINEP: &str = "9pnet:p9_client_cb op=+44(%si):u8 sent=+0(+72(%si)):u32 got=+80(%si):u32";
/// What sends FORGET, which is no request: until Linux 6.10, and since.
const FORGETS: [&str; 2] = ["virtio_fs_wake_forget_and_unlock", "virtio_fs_send_forget"];
/// The length of FORGET with its header, in bytes.
const FORGET_LENGTH: u64 = 48;
/// FORGET among the operations.
const FORGET: u32 = 2;
/// The least length of an answer, in bytes: its header.
const fn least(protocol: Protocol) -> u64 {
    match protocol {
        Protocol::Fuse => 16,
        Protocol::NineP => 7,
    }
}

/// One kind of message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Messages {
    /// How many requests.
    pub count: u64,
    /// Bytes of the requests.
    pub sent: u64,
    /// Bytes of the answers.
    pub got: u64,
}

/// What has been counted.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Messages by the number of their operation.
    pub messages: BTreeMap<u32, Messages>,
    /// How often the driver woke the device.
    pub kicks: u64,
    /// How often the device woke the driver.
    pub interrupts: u64,
}

impl Counts {
    /// What came since `before`.
    pub fn since(&self, before: &Counts) -> Counts {
        let messages = self.messages.iter().filter_map(|(operation, now)| {
            let then = before.messages.get(operation).copied().unwrap_or_default();
            let count = now.count - then.count;
            let came = Messages { count, sent: now.sent - then.sent, got: now.got - then.got };
            (count > 0).then_some((*operation, came))
        });
        Counts {
            messages: messages.collect(),
            kicks: self.kicks - before.kicks,
            interrupts: self.interrupts - before.interrupts,
        }
    }

    /// All messages as one kind.
    pub fn total(&self) -> Messages {
        self.messages.values().fold(Messages::default(), |all, kind| Messages {
            count: all.count + kind.count,
            sent: all.sent + kind.sent,
            got: all.got + kind.got,
        })
    }

    /// The kinds by name, the most frequent first.
    pub fn kinds(&self, protocol: Protocol) -> String {
        let mut kinds: Vec<(u64, String)> = self
            .messages
            .iter()
            .map(|(operation, kind)| (kind.count, name(protocol, *operation)))
            .collect();
        kinds.sort_by(|a, b| b.cmp(a));
        let words = kinds.iter().map(|(count, name)| format!("{name} {count}"));
        words.collect::<Vec<String>>().join(", ")
    }
}

/// Probes that are set in a guest.
pub struct Probes {
    protocol: Protocol,
}

impl Probes {
    /// `image` with the modules that a mount by `protocol` needs.
    pub fn modules(protocol: Protocol, image: Image) -> Image {
        match protocol {
            Protocol::Fuse => image,
            Protocol::NineP => image.module("9p").module("9pnet_virtio"),
        }
    }

    /// Sets them in `guest`, which has one device for files.
    ///
    /// # Panics
    /// If its kernel cannot have them.
    #[track_caller]
    pub fn set(guest: &mut Guest, protocol: Protocol) -> Probes {
        let answer = match protocol {
            Protocol::Fuse => FUSE,
            Protocol::NineP => NINEP,
        };
        guest.ok(&format!(
            "mount -t tracefs tracefs /sys/kernel/tracing
             cd /sys/kernel/tracing
             echo 'p:atoll/kick virtio_pci:vp_notify' > kprobe_events
             echo 'p:atoll/answer {answer}' >> kprobe_events
             echo 'hist:keys=op:vals=sent,got' > events/atoll/answer/trigger"
        ));
        if protocol == Protocol::Fuse {
            let [old, new] = FORGETS;
            guest.ok(&format!(
                "cd /sys/kernel/tracing
                 symbol={old}
                 grep -q \" {old}\" /proc/kallsyms || symbol={new}
                 echo \"p:atoll/forget virtiofs:$symbol\" >> kprobe_events"
            ));
        }
        guest.ok("echo 1 > /sys/kernel/tracing/events/atoll/enable");
        Probes { protocol }
    }

    /// What has been counted until now.
    ///
    /// # Panics
    /// If a count is missing, or the lengths of answers are none: then the kernel's structures are
    /// others.
    #[track_caller]
    pub fn counts(&self, guest: &mut Guest) -> Counts {
        let text = guest.ok("cd /sys/kernel/tracing
             cat kprobe_profile events/atoll/answer/hist
             grep 'virtio[0-9]' /proc/interrupts");
        let counts = parse(&text, self.protocol);
        let counts = counts.unwrap_or_else(|| panic!("a count is missing in\n{text}"));
        let all = counts.total();
        assert!(all.got >= all.count * least(self.protocol), "the answers have no length:\n{text}");
        counts
    }
}

/// The counts in what a guest has printed.
fn parse(text: &str, protocol: Protocol) -> Option<Counts> {
    let mut counts = Counts::default();
    let mut forgets = 0;
    let mut profiled = 0;
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            // The probe, how often it was hit, and how often it was missed.
            [probe @ ("kick" | "forget" | "answer"), hits, missed] => {
                let hits: u64 = hits.parse().ok()?;
                (missed == "0").then_some(())?;
                profiled += 1;
                match probe {
                    "kick" => counts.kicks = hits,
                    "forget" => forgets = hits,
                    _ => {}
                }
            }
            ["{", "op:", operation, "}", "hitcount:", count, "sent:", sent, "got:", got] => {
                let number = |word: &str| word.parse::<u64>().ok();
                let (count, sent, got) = (number(count)?, number(sent)?, number(got)?);
                counts.messages.insert(operation.parse().ok()?, Messages { count, sent, got });
            }
            ["Dropped:", dropped] => (dropped == "0").then_some(())?,
            // The interrupt, a count for each processor, its chip, its kind, its name.
            [interrupt, .., name] if interrupt.ends_with(':') && name.starts_with("virtio") => {
                let numbers = words[1..].iter().map_while(|word| word.parse::<u64>().ok());
                counts.interrupts += numbers.sum::<u64>();
            }
            _ => {}
        }
    }
    if forgets > 0 {
        let sent = forgets * FORGET_LENGTH;
        counts.messages.insert(FORGET, Messages { count: forgets, sent, got: 0 });
    }
    (profiled == if protocol == Protocol::Fuse { 3 } else { 2 }).then_some(counts)
}

/// What `protocol` calls an operation.
fn name(protocol: Protocol, operation: u32) -> String {
    let names: &[(u32, &str)] = match protocol {
        Protocol::Fuse => &FUSE_NAMES,
        Protocol::NineP => &NINEP_NAMES,
    };
    let found = names.iter().find(|(number, _)| *number == operation);
    found.map_or_else(|| format!("operation {operation}"), |(_, name)| (*name).to_owned())
}

/// Of linux/fuse.h.
const FUSE_NAMES: [(u32, &str); 30] = [
    (1, "LOOKUP"),
    (2, "FORGET"),
    (3, "GETATTR"),
    (4, "SETATTR"),
    (8, "MKNOD"),
    (9, "MKDIR"),
    (10, "UNLINK"),
    (11, "RMDIR"),
    (12, "RENAME"),
    (14, "OPEN"),
    (15, "READ"),
    (16, "WRITE"),
    (17, "STATFS"),
    (18, "RELEASE"),
    (20, "FSYNC"),
    (22, "GETXATTR"),
    (23, "LISTXATTR"),
    (25, "FLUSH"),
    (26, "INIT"),
    (27, "OPENDIR"),
    (28, "READDIR"),
    (29, "RELEASEDIR"),
    (30, "FSYNCDIR"),
    (34, "ACCESS"),
    (35, "CREATE"),
    (38, "DESTROY"),
    (44, "READDIRPLUS"),
    (48, "SETUPMAPPING"),
    (49, "REMOVEMAPPING"),
    (50, "SYNCFS"),
];

/// Of include/net/9p/9p.h.
const NINEP_NAMES: [(u32, &str); 18] = [
    (8, "statfs"),
    (12, "lopen"),
    (14, "lcreate"),
    (22, "readlink"),
    (24, "getattr"),
    (26, "setattr"),
    (30, "xattrwalk"),
    (40, "readdir"),
    (50, "fsync"),
    (52, "lock"),
    (72, "mkdir"),
    (76, "unlinkat"),
    (100, "version"),
    (104, "attach"),
    (110, "walk"),
    (116, "read"),
    (118, "write"),
    (120, "clunk"),
];

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "  kick     37    0
  answer   5     0
  forget   2     0
# event histogram
{ op:          1 } hitcount:          4  sent:        160  got:        640
{ op:         15 } hitcount:          1  sent:         80  got:       4112

Totals:
    Hits: 5
    Dropped: 0
 24:          0          1   PCI-MSI 16384-edge      virtio0-config
 25:         30          5   PCI-MSI 16385-edge      virtio0-requests
";

    #[test]
    fn counts_are_read_and_subtracted() {
        let counts = parse(SAID, Protocol::Fuse).unwrap();
        assert_eq!((counts.kicks, counts.interrupts), (37, 36));
        let all = counts.total();
        assert_eq!((all.count, all.sent, all.got), (7, 160 + 80 + 96, 640 + 4112));
        assert_eq!(counts.kinds(Protocol::Fuse), "LOOKUP 4, FORGET 2, READ 1");
        let mut before = counts.clone();
        before.messages.remove(&15);
        assert_eq!(counts.since(&before).kinds(Protocol::Fuse), "READ 1");
        assert_eq!(counts.since(&before).kicks, 0);
    }

    #[test]
    fn what_was_missed_is_no_count() {
        for (what, instead) in [("37    0", "37    1"), ("Dropped: 0", "Dropped: 3")] {
            assert!(parse(&SAID.replace(what, instead), Protocol::Fuse).is_none());
        }
        assert!(parse(&SAID.replace("forget", "other"), Protocol::Fuse).is_none());
    }
}
