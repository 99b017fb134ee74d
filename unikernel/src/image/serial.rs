//! The lines to the outside: two serial ports (16550). The first is standard input and output, the
//! second standard error and what the image itself has to say. A third device, of one port, takes
//! the line that says how it ended.

use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use atoll_unikernel::framing::Decoder;

use crate::{ports, told};

/// The ports of the first and the second line.
const LINES: [u16; 2] = [0x3f8, 0x2f8];
/// The port of the device that takes every byte (QEMU's isa-debugcon).
const STATUS: u16 = 0xe9;
/// Registers, from the first port of a line on.
const DATA: u16 = 0;
const INTERRUPTS: u16 = 1;
const FIFO: u16 = 2;
const CONTROL: u16 = 3;
const MODEM: u16 = 4;
const STATE: u16 = 5;
/// In STATE: a byte has come.
const CAME: u8 = 1;
/// In STATE: all bytes have gone.
const GONE: u8 = 0x20;
/// In FIFO: it is used from now on, and empty.
const CLEARED: u8 = 7;
/// Bytes that a line with a FIFO takes at once.
const FIFO_BYTES: usize = 16;

/// Exits for the standard streams.
static STREAM_EXITS: AtomicU64 = AtomicU64::new(0);

/// How often the machine was left for the standard streams.
pub fn stream_exits() -> u64 {
    STREAM_EXITS.load(Ordering::Relaxed)
}

/// Counts what `act` costs as the streams'.
fn streaming<T>(act: impl FnOnce() -> T) -> T {
    let before = ports::exits();
    let result = act();
    let more = ports::exits() - before;
    STREAM_EXITS.store(stream_exits() + more, Ordering::Relaxed);
    result
}

static FRAMED: AtomicBool = AtomicBool::new(false);
/// How many bytes the first line takes at once.
static AT_ONCE: AtomicUsize = AtomicUsize::new(1);

/// Sets both lines up: 115,200 baud, 8 bits, no parity, no interrupts. The first stays without a
/// FIFO: to turn that on clears what has come, and input may come at any time.
pub fn begin() {
    for line in LINES {
        ports::write8(line + INTERRUPTS, 0);
        ports::write8(line + CONTROL, 0x80);
        ports::write8(line + DATA, 1);
        ports::write8(line + INTERRUPTS, 0);
        ports::write8(line + CONTROL, 3);
        ports::write8(line + MODEM, 3);
    }
    ports::write8(LINES[1] + FIFO, CLEARED);
}

/// Says whether standard input is framed. If so none comes before [`tell_ready`].
pub fn set_framed(framed: bool) {
    FRAMED.store(framed, Ordering::Relaxed);
    if framed {
        ports::write8(LINES[0] + FIFO, CLEARED);
        AT_ONCE.store(FIFO_BYTES, Ordering::Relaxed);
    }
}

/// Writes `data` to the first line or, with `error`, to the second.
pub fn write(data: &[u8], error: bool) {
    streaming(|| send(data, error));
}

fn send(data: &[u8], error: bool) {
    let line = LINES[usize::from(error)];
    let at_once = if error { FIFO_BYTES } else { AT_ONCE.load(Ordering::Relaxed) };
    for piece in data.chunks(at_once) {
        while ports::read8(line + STATE) & GONE == 0 {
            told::take_all();
            ports::pause();
        }
        for &byte in piece {
            ports::write8(line + DATA, byte);
        }
    }
}

/// Standard input.
#[derive(Debug, Default)]
pub struct Input {
    decoder: Decoder,
}

impl Input {
    /// Waits for input and takes what has come. 0: it has ended.
    pub fn read(&mut self, buf: &mut [u8]) -> usize {
        streaming(|| self.take(buf))
    }

    fn take(&mut self, buf: &mut [u8]) -> usize {
        let framed = FRAMED.load(Ordering::Relaxed);
        let mut count = 0;
        while count < buf.len() && !self.decoder.ended {
            if ports::read8(LINES[0] + STATE) & CAME == 0 {
                // A line is given out as soon as it is there.
                if count > 0 {
                    break;
                }
                // Input may come after hours.
                told::take_all();
                ports::pause();
                continue;
            }
            let sent = ports::read8(LINES[0] + DATA);
            let byte = if framed { self.decoder.take(sent) } else { Some(sent) };
            if let (Some(byte), Some(to)) = (byte, buf.get_mut(count)) {
                *to = byte;
                count += 1;
            }
        }
        count
    }
}

/// The second line, for messages.
pub struct Messages;

impl fmt::Write for Messages {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        write(text.as_bytes(), true);
        Ok(())
    }
}

/// Says something about the image itself.
pub fn say(message: fmt::Arguments<'_>) {
    // Writing to a line cannot fail.
    let _ = fmt::write(&mut Messages, format_args!("unikernel: {message}\n"));
}

/// Tells the outside that input is taken from now on.
pub fn tell_ready() {
    ports::write8(STATUS, b'r');
}

/// Tells the outside the status that the image ends with.
pub fn tell_status(status: u8) {
    for byte in [b's', b'0' + status / 100, b'0' + status / 10 % 10, b'0' + status % 10, b'\n'] {
        ports::write8(STATUS, byte);
    }
}
