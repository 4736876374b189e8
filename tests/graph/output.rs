//! A trace in each of the formats, written to a file or to the screen.

use std::fmt;
use std::io::{self, Write};

use fgraph::tracer::{
    Buffer, ByteSink, Cursor, Open, Print, Scale, Shown, Symbols, Trace, TraceError, folded, fxt,
    json,
};

/// Calls that may be under way at once, over all tasks.
const OPEN: usize = 4096;

/// Reads all of `buffers`.
pub fn with_trace<R>(
    buffers: &[Buffer],
    scale: Scale,
    read: impl FnOnce(&mut Trace<'_>) -> R,
) -> Result<R, TraceError> {
    let mut cursors: Vec<Cursor> = buffers.iter().map(|_| Cursor::new()).collect();
    let mut open = vec![Open::new(); OPEN];
    Ok(read(&mut Trace::whole(
        buffers,
        scale,
        &mut cursors,
        &mut open,
    )?))
}

pub fn write_graph(
    out: &mut dyn Write,
    trace: &mut Trace<'_>,
    symbols: &dyn Symbols,
) -> io::Result<()> {
    text(out, |out| {
        Print::new(symbols)
            .shown(Shown::default())
            .trace(out, trace)
    })
}

pub fn write_folded(
    out: &mut dyn Write,
    trace: &mut Trace<'_>,
    symbols: &dyn Symbols,
) -> io::Result<()> {
    text(out, |out| folded(out, trace, symbols).map(|_| ()))
}

pub fn write_json(
    out: &mut dyn Write,
    trace: &mut Trace<'_>,
    symbols: &dyn Symbols,
) -> io::Result<()> {
    text(out, |out| json(out, trace, symbols))
}

pub fn write_fxt(
    out: &mut dyn Write,
    trace: &mut Trace<'_>,
    symbols: &dyn Symbols,
) -> io::Result<()> {
    fxt(&mut Bytes(out), trace, symbols)
}

struct Bytes<'a>(&'a mut dyn Write);

impl ByteSink for Bytes<'_> {
    type Error = io::Error;

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }
}

/// Text for a writer of bytes, keeping its error.
pub struct Text<'a> {
    out: &'a mut dyn Write,
    error: Option<io::Error>,
}

impl fmt::Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.out.write_all(text.as_bytes()).map_err(|error| {
            self.error = Some(error);
            fmt::Error
        })
    }
}

/// Lets `write` write text to `out`.
pub fn text(
    out: &mut dyn Write,
    write: impl FnOnce(&mut Text<'_>) -> fmt::Result,
) -> io::Result<()> {
    let mut text = Text { out, error: None };
    match write(&mut text) {
        Ok(()) => Ok(()),
        Err(error) => Err(text.error.unwrap_or_else(|| io::Error::other(error))),
    }
}
