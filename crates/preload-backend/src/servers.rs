//! Which server has which mount: what `atoll run` tells the programs by a variable.
//!
//! A line for each mount: the device number of its file system in hexadecimal, what it is for
//! (`rw`, `ro`; `own` is `rw` and the volume's one mount, `fixed` is `ro` of what nobody changes),
//! the user and group that are shown as the owners of everything (`UID:GID`, or `-`), and the
//! server's socket with the volume's name, separated by blanks.

/// A server, and the mount that it is the server of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServedMount<'t> {
    /// `st_dev` of the files.
    pub device: u64,
    /// Whether it is mounted for looking only.
    pub read_only: bool,
    /// The user and group that the mount shows as the owner of everything.
    pub owner: Option<(u32, u32)>,
    /// SOCKET or SOCKET/VOLUME.
    pub place: &'t str,
}

impl<'t> ServedMount<'t> {
    fn parse(line: &'t str) -> Option<ServedMount<'t>> {
        let mut parts = line.splitn(4, ' ');
        let device = u64::from_str_radix(parts.next()?, 16).ok()?;
        let read_only = match parts.next()? {
            "ro" | "fixed" => true,
            "rw" | "own" => false,
            _ => return None,
        };
        let owner = match parts.next()? {
            "-" => None,
            owner => {
                let (uid, gid) = owner.split_once(':')?;
                Some((uid.parse().ok()?, gid.parse().ok()?))
            }
        };
        let place = parts.next().filter(|place| place.starts_with('/'))?;
        Some(ServedMount { device, read_only, owner, place })
    }

    /// The server of `device` in `text`.
    pub fn find(text: &'t str, device: u64) -> Option<ServedMount<'t>> {
        text.lines().filter_map(ServedMount::parse).find(|server| server.device == device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let text = "2c own - /run/a b/v\n1f ro 7:8 /s\nnonsense\n3 fixed - /t\n";
        let first =
            ServedMount { device: 0x2c, read_only: false, owner: None, place: "/run/a b/v" };
        assert_eq!(ServedMount::find(text, 0x2c), Some(first));
        let second =
            ServedMount { device: 0x1f, read_only: true, owner: Some((7, 8)), place: "/s" };
        assert_eq!(ServedMount::find(text, 0x1f), Some(second));
        let third = ServedMount { device: 3, read_only: true, owner: None, place: "/t" };
        assert_eq!(ServedMount::find(text, 3), Some(third));
        assert_eq!(ServedMount::find(text, 1), None);
        assert!(ServedMount::find("1 rw - /s", 1).is_some());
        for wrong in ["1 rw - s", "1 rw -", "1 rw", "x rw - /s", "1 w - /s", "1 rw 1 /s", ""] {
            assert_eq!(ServedMount::find(wrong, 1), None, "{wrong}");
        }
    }
}
