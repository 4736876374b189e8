//! Bytes as lines of text: what a serial port carries between other lines.
//!
//! Each line is `NAME: ` and up to 57 bytes in base64; behind the last stands
//! `NAME ends: LENGTH bytes, CRC-32 SUM`. So the port stays one that people and
//! terminals can read, another CPU's line may come between two of these without
//! harm, and no second port is needed, which not every machine has. A shell
//! has the bytes back by `sed -n 's/^NAME: //p' LOG | base64 -d`.

use core::fmt::{self, Display, Formatter, Write};

use fgraph::tracer::ByteSink;

/// Bytes of a line: 76 characters.
const LINE: usize = 57;

/// Takes bytes, writes lines. Each line is one `write_fmt` of `out`.
pub(crate) struct Lines<'a, W> {
    out: W,
    name: &'a str,
    line: [u8; LINE],
    used: usize,
    len: usize,
    sum: u32,
}

impl<'a, W: Write> Lines<'a, W> {
    /// Lines that begin with `name`.
    pub(crate) fn new(out: W, name: &'a str) -> Self {
        Self {
            out,
            name,
            line: [0; LINE],
            used: 0,
            len: 0,
            sum: 0,
        }
    }

    /// Writes the last line of bytes, and what there were.
    pub(crate) fn end(mut self) -> fmt::Result {
        self.flush()?;
        let Self { name, len, sum, .. } = self;
        writeln!(self.out, "{name} ends: {len} bytes, CRC-32 {sum:08x}")
    }

    fn flush(&mut self) -> fmt::Result {
        if self.used == 0 {
            return Ok(());
        }
        let line = Base64(&self.line[..self.used]);
        self.used = 0;
        writeln!(self.out, "{}: {line}", self.name)
    }
}

impl<W: Write> ByteSink for Lines<'_, W> {
    type Error = fmt::Error;

    fn write(&mut self, bytes: &[u8]) -> fmt::Result {
        self.len += bytes.len();
        self.sum = crc32(self.sum, bytes);
        for &byte in bytes {
            self.line[self.used] = byte;
            self.used += 1;
            if self.used == LINE {
                self.flush()?;
            }
        }
        Ok(())
    }
}

/// As most tools write it, with `=` at the end.
struct Base64<'a>(&'a [u8]);

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

impl Display for Base64<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for group in self.0.chunks(3) {
            let [a, b, c] = [0, 1, 2].map(|i| group.get(i).copied().unwrap_or(0));
            let word = u32::from_be_bytes([0, a, b, c]);
            for i in 0..4 {
                let digit = DIGITS[(word >> (18 - 6 * i)) as usize % DIGITS.len()];
                f.write_char(if i <= group.len() { digit.into() } else { '=' })?;
            }
        }
        Ok(())
    }
}

/// The sum of gzip and Ethernet over what had `sum` before, and `bytes`.
pub(crate) fn crc32(sum: u32, bytes: &[u8]) -> u32 {
    let with_byte = |sum: u32, &byte: &u8| {
        let with_bit = |sum: u32, _| (sum >> 1) ^ (0xedb8_8320 & (sum & 1).wrapping_neg());
        (0..8).fold(sum ^ u32::from(byte), with_bit)
    };
    !bytes.iter().fold(!sum, with_byte)
}
