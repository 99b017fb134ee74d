//! x
#[unsafe(no_mangle)]
/// x
pub extern "C" fn atoll_probe() -> i32 {
    use atoll_host::client::*;
    let place = Place::find(std::path::Path::new("/tmp/s")).unwrap();
    let c = Connection::open(&place).unwrap();
    let mut r = c.ring(atoll_host::server::control::Mode::Write, &Default::default()).unwrap();
    let _ = r.client();
    0
}
