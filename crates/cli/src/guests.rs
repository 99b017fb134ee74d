//! Virtual machines that `atoll serve` serves: `--vhost-user`.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use atoll_host::server::bind::bind_stream;
use atoll_host::server::guests::{Guest, Ids};
use atoll_host::server::rules::Rules;
use atoll_host::virtio::device::{DeviceOptions, REQUEST_QUEUES, TAG};
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
}

/// The knowledge that the guest's kernel may rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cache {
    /// Nothing.
    None,
    /// All that it learns, for so many seconds.
    Seconds(u64),
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
        };
        for part in parts {
            match part.split_once('=') {
                Some(("tag", tag)) => device.tag = Some(tag.to_owned()),
                Some(("cache", "none")) => device.cache = Cache::None,
                Some(("cache", "alone")) => device.cache = Cache::Alone,
                Some(("cache", seconds)) => {
                    device.cache = Cache::Seconds(seconds.parse().map_err(|_| {
                        format!("cache={seconds}: none, alone, or a number of seconds")
                    })?);
                }
                Some(("ids", "guest")) => device.ids = Ids::Guest,
                Some(("ids", ids)) => {
                    let numbers = ids.split_once(':');
                    let numbers = numbers.and_then(|(uid, gid)| {
                        Some(Ids::Fixed(uid.parse().ok()?, gid.parse().ok()?))
                    });
                    device.ids = numbers.ok_or_else(|| format!("ids={ids}: guest, or UID:GID"))?;
                }
                Some(("queues", queues)) => {
                    let number = queues.parse().ok();
                    device.queues =
                        number.filter(|n| (1..=REQUEST_QUEUES).contains(n)).ok_or_else(|| {
                            format!("queues={queues}: a number from 1 to {REQUEST_QUEUES}")
                        })?;
                }
                _ => {
                    return Err(format!(
                        "`{part}` is none of tag=NAME, cache=WHAT, ids=WHOSE and queues=NUMBER"
                    ));
                }
            }
        }
        Ok(device)
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
            Cache::None => KernelOptions { untold: Some(0), ..KernelOptions::default() },
            Cache::Seconds(untold) => {
                KernelOptions { untold: Some(untold), ..KernelOptions::default() }
            }
            Cache::Alone => {
                KernelOptions { others: Others::None, untold: Some(0), ..KernelOptions::default() }
            }
        };
        let listener = bind_stream(&self.socket, rules.admit_others()).map_err(Failure::new)?;
        Ok(Guest {
            listener,
            rules: rules.clone(),
            volume: volume.to_owned(),
            read_only: self.read_only,
            ids: self.ids,
            device: DeviceOptions { tag: tag.to_owned(), queues: self.queues, kernel, spin },
        })
    }
}

/// How QEMU attaches the device number `number` at `socket`, and how its guest mounts it.
pub fn how_to(number: usize, socket: &Path, tag: &str) -> String {
    format!(
        "virtual machines: qemu-system-x86_64 -m 1G -object memory-backend-memfd,id=mem,size=1G,share=on \
         -numa node,memdev=mem -chardev socket,id=fs{number},path={} \
         -device vhost-user-fs-pci,chardev=fs{number},tag={tag},queue-size=1024; in the guest: \
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
        };
        assert_eq!(read("/run/g"), Ok(plain.clone()));
        let all = "/run/g=v:ro,tag=data,cache=5,ids=1000:100,queues=4";
        let expected = VhostUser {
            volume: Some("v".to_owned()),
            read_only: true,
            tag: Some("data".to_owned()),
            cache: Cache::Seconds(5),
            ids: Ids::Fixed(1000, 100),
            queues: 4,
            ..plain.clone()
        };
        assert_eq!(read(all), Ok(expected));
        assert_eq!(read("/run/g,cache=alone").unwrap().cache, Cache::Alone);
        assert_eq!(read("/run/g,cache=none,ids=guest").unwrap().ids, Ids::Guest);
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
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert_eq!(plain.volume(&["v"]).unwrap(), "v");
        assert!(plain.volume(&["v", "w"]).is_err());
        assert!(read("s=x").unwrap().volume(&["v"]).is_err());
    }
}
