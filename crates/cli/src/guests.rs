//! Virtual machines that `atoll serve` serves: `--vhost-user`.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use atoll_host::directory::Owners;
use atoll_host::server::bind::bind_stream;
use atoll_host::server::guests::{AWAY, Guest, Ids};
use atoll_host::server::rules::Rules;
use atoll_host::virtio::device::{DeviceOptions, RANGE, REQUEST_QUEUES, TAG, WINDOW_MAX};
use atoll_server::rights::idmap::{IdMap, IdRange};
use atoll_server::route::kernel::{KernelOptions, Others};

use crate::failure::Failure;

/// A device for a virtual machine, as people write it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VhostUser {
    /// Where the front end finds it.
    pub socket: PathBuf,
    volume: Option<String>,
    read_only: bool,
    tag: Option<String>,
    cache: Cache,
    ids: Ids,
    queues: u16,
    window: u64,
    copies: bool,
}

/// The window of a device with `dax` alone, in bytes.
const WINDOW: u64 = 256 << 20;

/// The bytes of a window, as people write them.
fn window(text: &str) -> Option<u64> {
    let (digits, unit) = match text.strip_suffix(['M', 'm']) {
        Some(digits) => (digits, 1 << 20),
        None => (text.strip_suffix(['G', 'g'])?, 1 << 30),
    };
    let len = digits.parse::<u64>().ok()?.checked_mul(unit)?;
    (len.is_power_of_two() && (RANGE..=WINDOW_MAX).contains(&len)).then_some(len)
}

/// The knowledge that the guest's kernel may rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cache {
    /// Nothing.
    None,
    /// All that it learns, for so many seconds.
    Seconds(u64),
    /// What a guest that takes notices has not been told to forget; of all others nothing.
    Told,
    /// All that it learns: nobody else uses the volume.
    Alone,
}

impl FromStr for VhostUser {
    type Err = String;

    fn from_str(text: &str) -> Result<VhostUser, String> {
        let mut parts = text.split(',');
        let first = parts.next().unwrap_or_default();
        let (socket, volume) = match first.split_once('=') {
            Some((socket, volume)) => (socket, Some(volume)),
            None => (first, None),
        };
        let (volume, read_only) = match volume.and_then(|volume| volume.strip_suffix(":ro")) {
            Some(volume) => (Some(volume), true),
            None => (volume, false),
        };
        if socket.is_empty() || volume.is_some_and(str::is_empty) {
            return Err("write SOCKET or SOCKET=VOLUME, with the name of a volume".to_owned());
        }
        let mut device = VhostUser {
            socket: socket.into(),
            volume: volume.map(str::to_owned),
            read_only,
            tag: None,
            cache: Cache::None,
            ids: Ids::FrontEnd,
            queues: 1,
            window: 0,
            copies: false,
        };
        for part in parts {
            match part.split_once('=') {
                Some(("tag", tag)) => device.tag = Some(tag.to_owned()),
                Some(("cache", "none")) => device.cache = Cache::None,
                Some(("cache", "told")) => device.cache = Cache::Told,
                Some(("cache", "alone")) => device.cache = Cache::Alone,
                Some(("cache", seconds)) => {
                    device.cache = Cache::Seconds(seconds.parse().map_err(|_| {
                        format!("cache={seconds}: none, told, alone, or a number of seconds")
                    })?);
                }
                Some(("ids", "guest")) => device.ids = Ids::Guest,
                Some(("ids", ids)) => {
                    device.ids = whose(ids).map_err(|why| format!("ids={ids}: {why}"))?;
                }
                Some(("queues", queues)) => {
                    let number = queues.parse().ok();
                    device.queues =
                        number.filter(|n| (1..=REQUEST_QUEUES).contains(n)).ok_or_else(|| {
                            format!("queues={queues}: a number from 1 to {REQUEST_QUEUES}")
                        })?;
                }
                None if part == "dax" => device.window = WINDOW,
                None if part == "copies" => device.copies = true,
                Some(("dax", size)) => {
                    device.window = window(size)
                        .ok_or_else(|| format!("dax={size}: a power of two from 2M to 512M"))?;
                }
                _ => {
                    return Err(format!(
                        "`{part}` is none of tag=NAME, cache=WHAT, ids=WHOSE, queues=NUMBER, \
                         dax[=SIZE] and copies"
                    ));
                }
            }
        }
        Ok(device)
    }
}

/// As whom requests act: UID:GID, or ranges GUEST:HOST:COUNT.
fn whose(ids: &str) -> Result<Ids, String> {
    let numbers = |part: &str| -> Option<Vec<u32>> {
        part.split(':').map(|number| number.parse().ok()).collect()
    };
    let parts: Option<Vec<Vec<u32>>> = ids.split('+').map(numbers).collect();
    let parts = parts.unwrap_or_default();
    if let [fixed] = &parts[..]
        && let [uid, gid] = fixed[..]
    {
        return Ok(Ids::Fixed(uid, gid));
    }
    let range = |part: &Vec<u32>| match part[..] {
        [guest, host, count] => Some(IdRange { guest, host, count }),
        _ => None,
    };
    match parts.iter().map(range).collect::<Option<Vec<IdRange>>>() {
        Some(ranges) if !ranges.is_empty() => {
            IdMap::new(&ranges).map(Ids::Mapped).map_err(|error| error.to_string())
        }
        _ => Err("guest, UID:GID, or GUEST:HOST:COUNT, with more of those after a +".to_owned()),
    }
}

impl VhostUser {
    /// The name of its volume, one of `names`; without a name the only one.
    fn volume<'a>(&'a self, names: &[&'a str]) -> Result<&'a str, Failure> {
        match (&self.volume, names) {
            (Some(volume), names) if names.contains(&volume.as_str()) => Ok(volume),
            (Some(volume), names) => Err(Failure::new(format!(
                "--vhost-user {}={volume}: no such volume is served, but: {}",
                self.socket.display(),
                names.join(", ")
            ))),
            (None, [only]) => Ok(only),
            (None, names) => Err(Failure::new(format!(
                "--vhost-user {}: name the volume with =VOLUME, one of: {}",
                self.socket.display(),
                names.join(", ")
            ))),
        }
    }

    /// Binds its socket.
    pub fn bind(&self, rules: &Rules, names: &[&str], spin: Duration) -> Result<Guest, Failure> {
        let volume = self.volume(names)?;
        let tag = self.tag.as_deref().unwrap_or(volume);
        if tag.is_empty() || tag.len() > TAG || tag.contains(char::is_whitespace) {
            return Err(Failure::new(format!(
                "`{tag}` is no tag for a guest: up to {TAG} bytes, without spaces; give one with tag=NAME"
            )));
        }
        let kernel = match self.cache {
            Cache::None | Cache::Told => {
                KernelOptions { untold: Some(0), ..KernelOptions::default() }
            }
            Cache::Seconds(untold) => {
                KernelOptions { untold: Some(untold), ..KernelOptions::default() }
            }
            Cache::Alone => {
                KernelOptions { others: Others::None, untold: Some(0), ..KernelOptions::default() }
            }
        };
        let kernel = match self.ids {
            // The rest of a server does so as its user.
            Ids::Mapped(_) if Owners::of_process() != Owners::Kept => {
                return Err(Failure::new(
                    "ids=GUEST:HOST:COUNT: only the superuser's server makes files for others"
                        .to_owned(),
                ));
            }
            Ids::Mapped(ids) => KernelOptions { ids: Some(ids), ..kernel },
            _ => kernel,
        };
        // Nobody else has it, and this guest may only look.
        let unchanging = self.read_only && self.cache == Cache::Alone;
        let window = self.window > 0;
        let kernel = KernelOptions { window, unchanging, ..kernel };
        let listener = bind_stream(&self.socket, rules.admit_others()).map_err(Failure::new)?;
        Ok(Guest {
            listener,
            rules: rules.clone(),
            volume: volume.to_owned(),
            read_only: self.read_only,
            ids: self.ids,
            away: AWAY,
            device: DeviceOptions {
                tag: tag.to_owned(),
                queues: self.queues,
                kernel,
                spin,
                window: self.window,
                copies: self.copies,
                tells: self.cache == Cache::Told,
            },
        })
    }
}

/// How QEMU attaches the device number `number` at `socket`, and how its guest mounts it.
pub fn how_to(number: usize, socket: &Path, tag: &str, window: bool) -> String {
    // Only QEMU's generic device has a window.
    let device = match window {
        true => format!(
            "vhost-user-test-device-pci,chardev=fs{number},virtio-id=26,num_vqs=2,vq_size=1024,config_size=40"
        ),
        false => format!("vhost-user-fs-pci,chardev=fs{number},tag={tag},queue-size=1024"),
    };
    format!(
        "virtual machines: qemu-system-x86_64 -m 1G -object memory-backend-memfd,id=mem,size=1G,share=on \
         -numa node,memdev=mem -chardev socket,id=fs{number},path={} \
         -device {device}; in the guest: \
         mount -t virtiofs {tag} DIRECTORY",
        socket.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_as_people_write_them() {
        let read = |text: &str| text.parse::<VhostUser>();
        let plain = VhostUser {
            socket: "/run/g".into(),
            volume: None,
            read_only: false,
            tag: None,
            cache: Cache::None,
            ids: Ids::FrontEnd,
            queues: 1,
            window: 0,
            copies: false,
        };
        assert_eq!(read("/run/g"), Ok(plain.clone()));
        let all = "/run/g=v:ro,tag=data,cache=5,ids=1000:100,queues=4,dax=64M,copies";
        let expected = VhostUser {
            volume: Some("v".to_owned()),
            read_only: true,
            tag: Some("data".to_owned()),
            cache: Cache::Seconds(5),
            ids: Ids::Fixed(1000, 100),
            queues: 4,
            window: 64 << 20,
            copies: true,
            ..plain.clone()
        };
        assert_eq!(read(all), Ok(expected));
        assert_eq!(read("/run/g,cache=told").unwrap().cache, Cache::Told);
        assert_eq!(read("/run/g,cache=alone").unwrap().cache, Cache::Alone);
        assert_eq!(read("/run/g,cache=none,ids=guest").unwrap().ids, Ids::Guest);
        let range = |guest, host, count| IdRange { guest, host, count };
        let ranges = [range(0, 100_000, 1000), range(1000, 1000, 1)];
        let mapped = Ids::Mapped(IdMap::new(&ranges).unwrap());
        assert_eq!(read("/run/g,ids=0:100000:1000+1000:1000:1").unwrap().ids, mapped);
        for (ids, why) in [
            ("0:1:0", "at least one number"),
            ("0:4294967295:1", "nobody's"),
            ("0:10:5+4:20:5", "in common"),
            ("0:1:2:3", "GUEST:HOST:COUNT"),
            ("0:1+2:3", "GUEST:HOST:COUNT"),
            ("0:1:2+", "GUEST:HOST:COUNT"),
            ("0:-1:2", "GUEST:HOST:COUNT"),
            ("", "GUEST:HOST:COUNT"),
        ] {
            let said = read(&format!("s,ids={ids}")).unwrap_err();
            assert!(said.contains(why), "{ids}: {said}");
        }
        for wrong in [
            "",
            "=v",
            "s=",
            "s=:ro",
            "s,tag",
            "s,cache=x",
            "s,cache=-1",
            "s,ids=1",
            "s,ids=a:b",
            "s,queues=0",
            "s,queues=9",
            "s,ro",
            "s,dax=",
            "s,dax=0M",
            "s,dax=3M",
            "s,dax=1M",
            "s,dax=1G",
            "s,dax=64",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert_eq!(plain.volume(&["v"]).unwrap(), "v");
        assert!(plain.volume(&["v", "w"]).is_err());
        assert!(read("s=x").unwrap().volume(&["v"]).is_err());
    }
}
