//! Back ends that are none, or that do not keep to the protocol.

use std::io::{Read, Write};
use std::time::Duration;

use super::*;

/// The answer of a back end that says `said`, and then hangs up or not.
fn answered(said: &[u8], hangs_up: bool) -> Result<Option<u32>, OpenError> {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    // Only who says nothing more is not waited for long.
    let is_silent = !hangs_up && said.len() < ANSWER_LEN;
    let patience = Duration::from_millis(if is_silent { 50 } else { 60_000 });
    ours.set_read_timeout(Some(patience)).unwrap();
    let said = said.to_vec();
    let back_end = std::thread::spawn(move || {
        let mut asked = [0; ASKS.len()];
        theirs.read_exact(&mut asked).unwrap();
        assert_eq!(asked, ASKS);
        // A byte alone, so that it comes in pieces.
        let (first, rest) = said.split_at(said.len().min(1));
        theirs.write_all(first).unwrap();
        theirs.write_all(rest).unwrap();
        if hangs_up { None } else { Some(theirs) }
    });
    let answered = first_answer(&ours);
    drop(back_end.join().unwrap());
    answered
}

#[test]
fn who_answers_is_known() {
    let whole = [&ANSWERS[..], &[7; 8]].concat();
    assert_eq!(answered(&whole, false), Ok(Some(std::process::id())));
    // What comes behind is not taken.
    let more = [&whole[..], &[1; 100]].concat();
    assert_eq!(answered(&more, false), Ok(Some(std::process::id())));
}

#[test]
fn what_is_no_back_end_is_refused() {
    let broken = Err(OpenError::BackEnd(DeviceError::Broken));
    let mut other = [&ANSWERS[..], &[7; 8]].concat();
    for at in 0..ANSWERS.len() {
        other[at] ^= 0x40;
        assert_eq!(answered(&other, false), broken, "{at}");
        other[at] ^= 0x40;
    }
    assert_eq!(answered(b"HTTP/1.1 400 Bad Request\r\n\r\n", true), broken);
    let lost = Err(OpenError::BackEnd(DeviceError::Lost));
    assert_eq!(answered(&ANSWERS, true), lost);
    assert_eq!(answered(b"", true), lost);
    // One that has another front end does not say anything.
    let silent = Err(OpenError::InUse { pid: None });
    assert_eq!(answered(b"", false), silent);
    assert_eq!(answered(&ANSWERS, false), silent);
}
