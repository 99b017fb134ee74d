//! The contract of the file seam through the example of a carrier, which is all that a new one
//! takes.

use std::os::unix::net::UnixStream;

use atoll_server::revocable::Revocable;
use atoll_server::route::router::{Router, serve_next};
use atoll_server::{Access, Identity};
use atoll_tests::filesystem_conformance;
use atoll_tests::fixtures::{root, volume};
use atoll_tests::unix_socket::{Socket, SocketTransport};
use atoll_vfs::wire::Extensions;
use atoll_vfs::{Client, ClientOptions, FileSystem, ServerOptions};

fn served() -> impl FileSystem {
    let (near, far) = UnixStream::pair().unwrap();
    std::thread::spawn(move || {
        let volume = atoll_host::server::volume(volume(16 << 10), "v");
        let access = Access { identity: Identity::Checked, ..Access::default() };
        let place = Revocable::default();
        place.begin(volume.session(root(), access).unwrap());
        // The clients of these tests say what time it is.
        let options = ServerOptions { extensions: Extensions::all(), ..ServerOptions::default() };
        let (mut socket, mut router) = (Socket::new(far).unwrap(), Router::new(options));
        while serve_next(&mut socket, &mut router, &place).is_ok() {}
    });
    Client::connect(SocketTransport::new(near), ClientOptions::default()).unwrap()
}

filesystem_conformance!(by_a_socket, served);
