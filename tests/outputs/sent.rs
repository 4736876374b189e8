//! What a kernel sent over its serial port: text by its headings, and bytes as
//! they were before they became lines.

use crate::machine::Run;

#[path = "../kernel/src/trace/lines.rs"]
#[allow(dead_code, reason = "shared with the kernel")]
mod lines;

/// The text of a format: from its heading to where it ends.
pub fn section<'a>(run: &'a Run, name: &str) -> &'a str {
    let begin = format!("\n{name}:\n");
    let (_, text) = run.text.split_once(&begin).expect("a heading");
    let (text, _) = text.split_once(&format!("\n{name} ends")).expect("an end");
    text
}

/// The bytes of a format that is no text, which must be those that were sent.
pub fn bytes(text: &str, name: &str) -> Vec<u8> {
    let start = format!("{name}: ");
    let lines = text.lines().filter_map(|line| line.strip_prefix(&start));
    let bytes: Vec<u8> = lines.flat_map(from_base64).collect();
    let mut ends = text
        .lines()
        .filter_map(|line| line.strip_prefix(&format!("{name} ends: ")));
    let sum = lines::crc32(0, &bytes);
    let expected = format!("{} bytes, CRC-32 {sum:08x}", bytes.len());
    assert_eq!((ends.next(), ends.next()), (Some(&*expected), None));
    bytes
}

fn from_base64(line: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => u32::from(byte - b'A'),
        b'a'..=b'z' => u32::from(byte - b'a') + 26,
        b'0'..=b'9' => u32::from(byte - b'0') + 52,
        b'+' => 62,
        b'/' => 63,
        _ => panic!("not base64: {line}"),
    };
    let mut bytes = Vec::new();
    for group in line.trim_end_matches('=').as_bytes().chunks(4) {
        let word = group.iter().fold(0, |word, &byte| word << 6 | digit(byte));
        let [_, whole @ ..] = (word << (6 * (4 - group.len()))).to_be_bytes();
        bytes.extend(&whole[..group.len() * 6 / 8]);
    }
    bytes
}

#[test]
fn bytes_come_back_from_lines() {
    use fgraph::tracer::ByteSink;

    // What the sum of these digits must be is well known.
    assert_eq!(lines::crc32(0, b"123456789"), 0xcbf4_3926);
    for len in (0..200).chain([1000]) {
        let sent: Vec<u8> = (0..len).map(|i| (i * 167 + len) as u8).collect();
        let mut text = String::new();
        let mut lines = lines::Lines::new(&mut text, "some");
        // In parts of all lengths.
        for part in sent.chunks(1 + len % 70) {
            lines.write(part).expect("a string takes all");
        }
        lines.end().expect("a string takes all");
        assert!(text.lines().all(|line| line.len() <= 82), "{text}");
        assert_eq!(bytes(&text, "some"), sent);
    }
}
