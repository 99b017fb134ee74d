//! What a program finds on its stack when it begins: its arguments, its environment, and the vector
//! of auxiliary values (System V ABI, AMD64 supplement, 3.4).

use alloc::vec::Vec;

/// Kinds of auxiliary values, as Linux numbers them.
pub mod kind {
    /// The address of the program headers.
    pub const HEADERS: u64 = 3;
    /// Bytes of one.
    pub const HEADER_SIZE: u64 = 4;
    /// How many there are.
    pub const HEADER_COUNT: u64 = 5;
    /// Bytes in a page.
    pub const PAGE_SIZE: u64 = 6;
    /// Where the interpreter was loaded.
    pub const INTERPRETER: u64 = 7;
    /// Where the program begins.
    pub const ENTRY: u64 = 9;
    /// The user.
    pub const USER: u64 = 11;
    /// The effective user.
    pub const EFFECTIVE_USER: u64 = 12;
    /// The group.
    pub const GROUP: u64 = 13;
    /// The effective group.
    pub const EFFECTIVE_GROUP: u64 = 14;
    /// What the processor can do.
    pub const PROCESSOR: u64 = 16;
    /// Ticks of times(2) in a second.
    pub const TICKS: u64 = 17;
    /// Whether the program has more rights than its user.
    pub const SECURE: u64 = 23;
    /// Sixteen random bytes.
    pub const RANDOM: u64 = 25;
    /// The path of the program.
    pub const PROGRAM: u64 = 31;
}

/// The bytes at the top of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stack {
    /// Them.
    pub bytes: Vec<u8>,
    /// The address of the first: the stack pointer to begin with.
    pub pointer: u64,
}

/// Makes a stack that ends at `top`, a multiple of 16. To the `values` those come that lie on the
/// stack, the random bytes and the path of the program. `None`: it would take more than `most`
/// bytes.
pub fn build(
    top: u64,
    most: usize,
    arguments: &[Vec<u8>],
    environment: &[Vec<u8>],
    values: &[(u64, u64)],
    random: [u8; 16],
) -> Option<Stack> {
    let strings = || arguments.iter().chain(environment);
    let strings_len: usize = strings().map(|string| string.len() + 1).sum();
    // The count, two lists with their ends, the values with two more and their end.
    let words = 1 + arguments.len() + 1 + environment.len() + 1 + 2 * (values.len() + 3);
    let len = (words * 8 + random.len() + strings_len).next_multiple_of(16);
    if len > most {
        return None;
    }
    let pointer = top - len as u64;
    let mut bytes = Vec::with_capacity(len);
    let mut word = |value: u64| bytes.extend(value.to_le_bytes());
    let random_at = pointer + words as u64 * 8;
    let mut at = random_at + random.len() as u64;
    word(arguments.len() as u64);
    let path = at;
    for list in [arguments, environment] {
        for string in list {
            word(at);
            at += string.len() as u64 + 1;
        }
        word(0);
    }
    let own = [(kind::RANDOM, random_at), (kind::PROGRAM, path), (0, 0)];
    for &(kind, value) in values.iter().chain(&own) {
        word(kind);
        word(value);
    }
    bytes.extend(random);
    for string in strings() {
        bytes.extend(string);
        bytes.push(0);
    }
    bytes.resize(len, 0);
    Some(Stack { bytes, pointer })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn a_stack() {
        let arguments = vec![b"prog".to_vec(), b"".to_vec()];
        let environment = vec![b"A=b".to_vec()];
        let stack =
            build(0x1_0000, 4096, &arguments, &environment, &[(kind::ENTRY, 7)], [9; 16]).unwrap();
        assert_eq!(stack.pointer % 16, 0);
        assert_eq!(stack.pointer + stack.bytes.len() as u64, 0x1_0000);
        let word = |index: usize| {
            u64::from_le_bytes(stack.bytes[index * 8..index * 8 + 8].try_into().unwrap())
        };
        let string = |address: u64| {
            let rest = &stack.bytes[(address - stack.pointer) as usize..];
            &rest[..rest.iter().position(|&b| b == 0).unwrap()]
        };
        assert_eq!(word(0), 2);
        assert_eq!((string(word(1)), string(word(2)), word(3)), (&b"prog"[..], &b""[..], 0));
        assert_eq!((string(word(4)), word(5)), (&b"A=b"[..], 0));
        assert_eq!((word(6), word(7)), (kind::ENTRY, 7));
        assert_eq!(word(8), kind::RANDOM);
        assert_eq!(&stack.bytes[(word(9) - stack.pointer) as usize..][..16], &[9; 16]);
        assert_eq!((word(10), word(11)), (kind::PROGRAM, word(1)));
        assert_eq!((word(12), word(13)), (0, 0));
        assert!(build(0x1_0000, 100, &arguments, &environment, &[], [0; 16]).is_none());
    }
}
