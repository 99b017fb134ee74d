//! Telling the service manager how the server is doing: the protocol of sd_notify(3), which is one
//! datagram. Its socket is connected once, before the server confines itself and may connect to
//! nothing, and never blocks; the libraries for this connect for every message.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

/// The way to the service manager, if there is one.
#[derive(Clone, Debug, Default)]
pub struct Notify {
    socket: Option<Arc<UnixDatagram>>,
}

impl Notify {
    /// Connects to the socket `address`, the content of NOTIFY_SOCKET: a path, or `@` and a name in
    /// the abstract namespace. Without one nobody is told anything.
    ///
    /// # Errors
    /// When nobody listens there.
    pub fn connect(address: Option<&OsStr>) -> io::Result<Notify> {
        let Some(address) = address.filter(|address| !address.is_empty()) else {
            return Ok(Notify::default());
        };
        let address = match address.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(address)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        // A manager that reads nothing must not hold the server up.
        socket.set_nonblocking(true)?;
        Ok(Notify { socket: Some(Arc::new(socket)) })
    }

    /// Clients are served from now on. `status` is for people.
    pub fn ready(&self, status: &str) {
        self.tell(&format!("READY=1\nSTATUS={status}"));
    }

    /// The server has begun to shut down.
    pub fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    /// The server lives. The manager wants to hear it again and again: [`watched`].
    pub fn alive(&self) {
        self.tell("WATCHDOG=1");
    }

    fn tell(&self, state: &str) {
        if let Some(socket) = &self.socket
            && let Err(error) = socket.send(state.as_bytes())
        {
            log::warn!("the service manager cannot be told `{state}`: {error}");
        }
    }
}

/// How often the manager is to be told that this process lives, if it wants to know: a third of the
/// time after which it takes the process for dead, which `usec`, the content of WATCHDOG_USEC, says
/// in microseconds. `pid`, of WATCHDOG_PID, is the process that is meant.
pub fn watched(usec: Option<&OsStr>, pid: Option<&OsStr>) -> Option<Duration> {
    let number = |text: &OsStr| text.to_str()?.parse::<u64>().ok();
    let meant = pid.is_none_or(|pid| number(pid) == Some(std::process::id().into()));
    let usec = usec.and_then(number).filter(|&usec| usec > 0 && meant)?;
    Some(Duration::from_micros(usec) / 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_watched_and_how_often() {
        let own = std::process::id().to_string();
        let watched =
            |usec, pid: Option<&str>| watched(Some(OsStr::new(usec)), pid.map(OsStr::new));
        assert_eq!(watched("3000000", None), Some(Duration::from_secs(1)));
        assert_eq!(watched("3000000", Some(&own)), Some(Duration::from_secs(1)));
        assert_eq!(watched("3000000", Some("1")), None, "another process is meant");
        assert_eq!(watched("0", None), None);
        assert_eq!(watched("soon", None), None);
        assert_eq!(super::watched(None, None), None);
    }

    #[test]
    fn paths_and_abstract_names() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let by_path = UnixDatagram::bind(&path).unwrap();
        let name = format!("atoll-test-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        let by_name = UnixDatagram::bind_addr(&abstract_name).unwrap();
        let mut buffer = [0; 64];
        for (listener, address) in
            [(by_path, path.into_os_string()), (by_name, format!("@{name}").into())]
        {
            let notify = Notify::connect(Some(&address)).unwrap();
            notify.ready("two volumes");
            notify.stopping();
            let length = listener.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"READY=1\nSTATUS=two volumes");
            let length = listener.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"STOPPING=1");
        }
        Notify::connect(None).unwrap().ready("nobody listens");
        assert!(Notify::connect(Some(dir.path().join("none").as_os_str())).is_err());
    }
}
