//! The memory of a connection as a hostile client leaves it: a server attaches to it, polls and
//! answers, while the script goes on changing it.

use atoll_transport::channel::layout::answer;
use atoll_transport::channel::{ClientChannel, Config, Layout, Limits, Request, ServerChannel};
use atoll_transport::{Memory, Shared};

use crate::Script;

const LANES: u32 = 2;
const SLOTS: u32 = 4;
const BYTES: usize = 32 << 10;

/// Whole pages.
#[repr(C, align(4096))]
struct Pages([u8; BYTES]);

/// Runs the target.
///
/// # Panics
/// When the server answers a request that it did not take, takes one that it must not, or writes
/// outside.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let sizes = Config { lanes: LANES, slots: SLOTS, area: 1024, window: 4096 };
    let Some(layout) = Layout::new(&sizes) else { return };
    // A page beyond the memory, which must stay as it is.
    let mut pages = Box::new(Pages([0x5a; BYTES]));
    let total = layout.total();
    let (inside, outside) = pages.0.split_at_mut(total);
    inside.fill(0);
    let memory = Shared::from_slice(inside);
    let _ = ClientChannel::create(memory, &sizes);
    for _ in 0..script.byte() % 4 {
        change(&mut script, &memory, &layout);
    }
    let Ok(mut server) = ServerChannel::attach(memory, &Limits::default()) else { return };
    let config = *server.layout().config();
    assert!(server.layout().total() == total, "a layout of another length");
    let mut held: Vec<Request> = Vec::new();
    let mut message = vec![0; server.layout().message_max()];
    while !script.is_over() {
        match script.byte() % 8 {
            0 if !held.is_empty() => {
                let request = held.swap_remove(script.byte() as usize % held.len());
                let (data, room) = (request.data(), request.room());
                let len = data.len.min(room.len).min(64);
                let mut bytes = [0; 64];
                memory.read(data.offset, &mut bytes[..len]);
                memory.write(room.offset, &bytes[..len]);
                let answer = &message[..request.message_len()];
                server.complete(request, answer, len, |_, at| assert!(at + 4 <= total));
            }
            1 => {
                server.fall_asleep();
            }
            2..5 => {
                let lane = u32::from(script.byte()) % config.lanes;
                let Ok(Some(request)) = server.poll(lane, &mut message) else { continue };
                for place in [request.data(), request.room()] {
                    assert!(place.offset + place.len <= total, "a place outside");
                }
                assert!(request.message_len() <= message.len());
                held.push(request);
            }
            _ => change(&mut script, &memory, &layout),
        }
        assert!(held.len() <= (config.lanes * config.slots) as usize);
    }
    assert!(outside.iter().all(|&byte| byte == 0x5a), "written outside");
}

/// Changes a word: anywhere, or where it means most.
fn change(script: &mut Script<'_>, memory: &Shared<'_>, layout: &Layout) {
    let lane = u32::from(script.byte()) % LANES;
    let (ring, answers) = (layout.ring(lane), layout.answer(lane, 0));
    let at = match script.byte() % 4 {
        0 => script.below(memory.len() as u64) as usize,
        1 => script.below(64) as usize,
        2 => ring + script.below((answers - ring) as u64) as usize,
        // The answers, and the sleepers behind them.
        _ => answers + script.below(u64::from(SLOTS) * (answer::LEN as u64 + 4)) as usize,
    };
    let small = u64::from(script.byte());
    let old = |at| memory.load64(at, core::sync::atomic::Ordering::Relaxed);
    match script.byte() % 4 {
        0 => memory.write(at & !7, &script.number().to_le_bytes()),
        1 => memory.write(at & !3, &(small as u32).to_le_bytes()),
        2 => memory.write(at & !7, &(old(at & !7).wrapping_add(small)).to_le_bytes()),
        // The first word of an entry of the ring, whose message is a byte.
        _ => memory.write(at & !127, &((small >> 3) << 48 | (small & 7) << 32 | 1).to_le_bytes()),
    }
}
