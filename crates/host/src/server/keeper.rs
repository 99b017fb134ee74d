//! The thread that looks after the deadlines of a volume's mounts, and of its virtual machines.

use std::io;
use std::sync::Arc;

use atoll_server::leases::gate::Gate;

use super::tasks::ThreadBell;

/// Has a thread look after the deadlines of a volume's mounts, if none does.
pub(crate) fn keep(gate: &Arc<Gate>) -> io::Result<()> {
    let bell = Arc::new(ThreadBell::default());
    if !gate.keep(Arc::<ThreadBell>::clone(&bell)) {
        return Ok(());
    }
    let gate = Arc::clone(gate);
    let keeper = move || {
        while let Some(longest) = gate.tend() {
            bell.wait(longest);
        }
    };
    std::thread::Builder::new().name("gate".to_owned()).spawn(keeper).map(drop)
}
