//! A trace as folded stacks, for flame graphs: `root;a;b 123`, one stack a
//! line, with the nanoseconds spent in the innermost function itself.
//!
//! This file knows the format. Equal stacks may take several lines; the tools
//! add them up.

use core::fmt::{self, Write};

use super::names::{Name, Symbols};
use super::trace::{Event, Trace};

/// What [`folded`] wrote.
///
/// # Example
///
/// ```
/// use fgraph::tracer::folded;
#[doc = example_trace!()]
///
/// let wrote = folded(&mut String::new(), &mut trace, &())?;
/// assert_eq!((wrote.calls, wrote.nanoseconds), (2, 3000));
/// assert_eq!((wrote.skipped, wrote.lost), (0, 0));
/// # Ok::<(), core::fmt::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Folded {
    /// Calls: one line each.
    pub calls: usize,
    /// Nanoseconds over all lines.
    pub nanoseconds: u64,
    /// Calls whose begin, or whose place among others, is not known; they are
    /// on no line.
    pub skipped: usize,
    /// Records that were lost.
    pub lost: usize,
}

/// Writes the rest of `trace` as folded stacks: a line for each call when it
/// ends, rooted at its task, with the nanoseconds that it took without the
/// recorded calls inside. Equal stacks take several lines; flame graphs add
/// them up.
///
/// In names, semicolons become colons and control characters spaces; a name
/// that ends in a space and a figure, which would be taken for a count, gets
/// an underscore.
///
/// # Errors
///
/// Those of `out`.
///
/// # Example
///
/// ```
/// use fgraph::tracer::folded;
#[doc = example_trace!()]
/// let mut text = String::new();
/// folded(&mut text, &mut trace, &Names)?;
/// assert_eq!(text, "task 7;read;check 1000\ntask 7;read 2000\n");
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
pub fn folded<S: Symbols + ?Sized>(
    out: &mut impl Write,
    trace: &mut Trace<'_>,
    symbols: &S,
) -> Result<Folded, fmt::Error> {
    let mut wrote = Folded::default();
    while let Some(event) = trace.next() {
        let (call, end) = match event {
            Event::Begin(_) => continue,
            Event::Lost { records, .. } => {
                wrote.lost = wrote.lost.saturating_add(records);
                continue;
            }
            Event::End(call, end) | Event::Leaf(call, end) => (call, end),
        };
        let (Some(func), Some(_)) = (call.func, call.begin) else {
            wrote.skipped += 1;
            continue;
        };
        match symbols.task(call.task) {
            Some(name) => write!(Frame::new(out), "{name}")?,
            None => write!(Frame::new(out), "task {}", call.task)?,
        }
        // Outermost first.
        for level in (0..trace.enclosing(call.task)).rev() {
            if let Some(func) = trace.enclosing_func(call.task, level) {
                out.write_char(';')?;
                write!(Frame::new(out), "{}", Name(symbols, func))?;
            }
        }
        out.write_char(';')?;
        let mut innermost = Frame::new(out);
        write!(innermost, "{}", Name(symbols, func))?;
        innermost.end()?;
        writeln!(out, " {}", end.own)?;
        wrote.calls += 1;
        wrote.nanoseconds = wrote.nanoseconds.saturating_add(end.own);
    }
    wrote.skipped += trace.untracked();
    Ok(wrote)
}

/// A frame's name: what separates frames, or lines, is replaced.
struct Frame<'a, W> {
    out: &'a mut W,
    /// It ends in a space, and nothing but a figure behind that.
    is_figure: bool,
}

impl<'a, W: Write> Frame<'a, W> {
    fn new(out: &'a mut W) -> Self {
        Self {
            out,
            is_figure: false,
        }
    }
}

impl<W: Write> Frame<'_, W> {
    /// Ends the last name of a stack: readers take two figures at the end of a
    /// line for two counts.
    fn end(self) -> fmt::Result {
        match self.is_figure {
            true => self.out.write_char('_'),
            false => Ok(()),
        }
    }
}

impl<W: Write> Write for Frame<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let special = |c: char| c == ';' || c.is_control();
        let after = text.rsplit(|c: char| c == ' ' || c.is_control()).next();
        let after = after.unwrap_or("");
        let figure = after.chars().all(|c| c.is_ascii_digit() || c == '.');
        self.is_figure = figure && (self.is_figure || after.len() < text.len());
        for piece in text.split_inclusive(special) {
            let plain = piece.trim_end_matches(special);
            self.out.write_str(plain)?;
            if let Some(c) = piece.chars().next_back().filter(|&c| special(c)) {
                self.out.write_char(if c == ';' { ':' } else { ' ' })?;
            }
        }
        Ok(())
    }
}
