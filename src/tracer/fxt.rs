//! A trace in the Fuchsia trace format, for Perfetto and its kin: words of
//! eight bytes.
//!
//! This file knows the format. Begins and ends come properly nested from
//! [`trace`](super::trace).

use core::fmt::{self, Write};

use super::names::{Name, Named, Symbols};
use super::trace::{Call, End, Event, Trace};

/// Where bytes go.
///
/// # Example
///
/// ```
/// use fgraph::tracer::ByteSink;
///
/// struct Bytes(Vec<u8>);
///
/// impl ByteSink for Bytes {
///     type Error = core::convert::Infallible;
///     fn write(&mut self, bytes: &[u8]) -> Result<(), Self::Error> {
///         self.0.extend_from_slice(bytes);
///         Ok(())
///     }
/// }
///
/// let mut bytes = Bytes(Vec::new());
/// bytes.write(b"12345678")?;
/// assert_eq!(bytes.0.len(), 8);
/// # Ok::<(), core::convert::Infallible>(())
/// ```
pub trait ByteSink {
    /// Why bytes were not taken.
    type Error;

    /// Takes all of `bytes`.
    ///
    /// # Errors
    ///
    /// Some were not taken; nothing more will be written.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::ByteSink;
    ///
    /// /// Memory of a fixed size.
    /// struct Memory<'a>(&'a mut [u8]);
    ///
    /// #[derive(Debug, PartialEq)]
    /// struct Full;
    ///
    /// impl ByteSink for Memory<'_> {
    ///     type Error = Full;
    ///
    ///     fn write(&mut self, bytes: &[u8]) -> Result<(), Full> {
    ///         let (now, rest) = std::mem::take(&mut self.0)
    ///             .split_at_mut_checked(bytes.len())
    ///             .ok_or(Full)?;
    ///         now.copy_from_slice(bytes);
    ///         self.0 = rest;
    ///         Ok(())
    ///     }
    /// }
    ///
    /// let mut memory = [0; 12];
    /// let mut sink = Memory(&mut memory);
    /// assert_eq!(sink.write(b"12345678"), Ok(()));
    /// assert_eq!(sink.write(b"12345678"), Err(Full));
    /// ```
    fn write(&mut self, bytes: &[u8]) -> Result<(), Self::Error>;
}

impl<T: ByteSink + ?Sized> ByteSink for &mut T {
    type Error = T::Error;

    fn write(&mut self, bytes: &[u8]) -> Result<(), T::Error> {
        T::write(self, bytes)
    }
}

/// Writes the rest of `trace`: a begin and an end for each call, with its task
/// as the thread; the names of tasks; an instant event where records were
/// lost, and where a call ended whose begin is not known. Times are in
/// nanoseconds.
///
/// Names are cut to 2,000 bytes, between characters.
///
/// # Errors
///
/// Those of `out`.
///
/// # Example
///
/// ```
/// use fgraph::tracer::{ByteSink, fxt};
#[doc = example_trace!()]
/// # struct Bytes(Vec<u8>);
/// # impl ByteSink for Bytes {
/// #     type Error = core::convert::Infallible;
/// #     fn write(&mut self, bytes: &[u8]) -> Result<(), Self::Error> {
/// #         self.0.extend_from_slice(bytes);
/// #         Ok(())
/// #     }
/// # }
/// let mut bytes = Bytes(Vec::new());
/// fxt(&mut bytes, &mut trace, &Names)?;
/// assert_eq!(bytes.0[..8], 0x0016547846040010_u64.to_le_bytes());
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
pub fn fxt<B: ByteSink, S: Symbols + ?Sized>(
    out: &mut B,
    trace: &mut Trace<'_>,
    symbols: &S,
) -> Result<(), B::Error> {
    let mut fxt = Fxt {
        out,
        symbols,
        functions: [None; STRINGS],
        named: Named::NONE,
        time: 0,
    };
    fxt.heading()?;
    for event in trace.by_ref() {
        fxt.event(&event)?;
    }
    match trace.untracked() {
        0 => Ok(()),
        untracked => fxt.lost("untracked calls", untracked),
    }
}

/// Strings that the reader is told to remember: the names of so many functions.
/// A function whose place another took is told again.
const STRINGS: usize = 256;

/// The process that all tasks belong to.
const PROCESS: u64 = 1;

const MAGIC: u64 = 0x0016_5478_4604_0010;

/// Bytes of a name at most.
const NAME: usize = 2000;

struct Fxt<'a, B, S: ?Sized> {
    out: &'a mut B,
    symbols: &'a S,
    /// Those that are told; one that is not known has a place, too.
    functions: [Option<Option<usize>>; STRINGS],
    named: Named,
    /// Of the last event.
    time: u64,
}

/// A field of a record's header.
#[derive(Clone, Copy)]
struct Field(u32);

impl Field {
    const SIZE: Self = Self(4);
    const ID: Self = Self(16);

    const fn put(self, value: u64) -> u64 {
        value << self.0
    }
}

/// Kinds of events.
const INSTANT: u64 = 0;
const BEGIN: u64 = 2;
const END: u64 = 3;

impl<B: ByteSink, S: Symbols + ?Sized> Fxt<'_, B, S> {
    fn word(&mut self, word: u64) -> Result<(), B::Error> {
        self.out.write(&word.to_le_bytes())
    }

    fn heading(&mut self) -> Result<(), B::Error> {
        self.word(MAGIC)?;
        // Metadata: the provider's name, then its section.
        let name = Text::of("fgraph");
        let info = Field::SIZE.put(1 + name.words()) | Field::ID.put(1);
        self.word(info | Field(20).put(1) | Field(52).put(name.len()))?;
        self.text(&name)?;
        self.word(Field::SIZE.put(1) | Field::ID.put(2) | Field(20).put(1))?;
        // Ticks a second.
        self.word(1 | Field::SIZE.put(2))?;
        self.word(1_000_000_000)?;
        self.kernel_object(1, PROCESS, "fgraph")
    }

    fn event(&mut self, event: &Event) -> Result<(), B::Error> {
        match event {
            Event::Lost { records, .. } => self.lost("lost records", *records),
            Event::Begin(call) => self.begin(call),
            Event::Leaf(call, end) => {
                self.begin(call)?;
                self.end(call, end)
            }
            Event::End(call, end) if call.begin.is_some() => self.end(call, end),
            Event::End(call, end) => {
                self.name_task(call.task)?;
                let name = self.name(call)?;
                self.call(INSTANT, end.time, call.task, name)
            }
        }
    }

    fn begin(&mut self, call: &Call) -> Result<(), B::Error> {
        self.name_task(call.task)?;
        let name = self.name(call)?;
        self.call(BEGIN, call.begin.unwrap_or(0), call.task, name)
    }

    fn end(&mut self, call: &Call, end: &End) -> Result<(), B::Error> {
        let name = self.name(call)?;
        self.call(END, end.time, call.task, name)
    }

    /// An event without arguments, of a task as an inline thread.
    fn call(&mut self, kind: u64, time: u64, task: usize, name: u64) -> Result<(), B::Error> {
        self.time = time;
        self.word(4 | Field::SIZE.put(4) | Field::ID.put(kind) | Field(48).put(name))?;
        self.word(time)?;
        self.word(PROCESS)?;
        self.word(task as u64)
    }

    /// An instant event of the process, with a count.
    fn lost(&mut self, what: &str, count: usize) -> Result<(), B::Error> {
        let (what, unit) = (Text::of(what), Text::of("count"));
        let argument = 2 + unit.words();
        let size = 4 + what.words() + argument;
        let header = 4 | Field::SIZE.put(size) | Field::ID.put(INSTANT) | Field(20).put(1);
        self.word(header | Field(48).put(what.inline()))?;
        self.word(self.time)?;
        self.word(PROCESS)?;
        self.word(0)?;
        self.text(&what)?;
        // An unsigned word.
        self.word(4 | Field::SIZE.put(argument) | Field::ID.put(unit.inline()))?;
        self.text(&unit)?;
        self.word(count as u64)
    }

    /// The number of the string that names the call's function, told first if
    /// need be.
    fn name(&mut self, call: &Call) -> Result<u64, B::Error> {
        let func = call.func.unwrap_or(0);
        // Functions lie sixteen bytes apart, or more.
        let place = func.wrapping_mul(0x9e37_79b9) / 0x1000 % STRINGS;
        // Number 0 is the empty string.
        let number = place as u64 + 1;
        let Some(told) = self.functions.get_mut(place) else {
            return Ok(0);
        };
        if told.replace(call.func) != Some(call.func) {
            let mut name = Text::new();
            // Text takes what fits, and never fails.
            let _ = match call.func {
                Some(func) => write!(name, "{}", Name(self.symbols, func)),
                None => name.write_char('?'),
            };
            let header = 2 | Field::SIZE.put(1 + name.words()) | Field::ID.put(number);
            self.word(header | Field(32).put(name.len()))?;
            self.text(&name)?;
        }
        Ok(number)
    }

    /// Names a task before its first event.
    fn name_task(&mut self, task: usize) -> Result<(), B::Error> {
        if !self.named.is_new(task) {
            return Ok(());
        }
        match self.symbols.task(task) {
            Some(name) => self.kernel_object(2, task as u64, name),
            None => Ok(()),
        }
    }

    /// The name of a process (1) or a thread (2, which tells its process).
    fn kernel_object(&mut self, kind: u64, koid: u64, name: &str) -> Result<(), B::Error> {
        let (name, process) = (Text::of(name), Text::of("process"));
        let argument = match kind {
            2 => 2 + process.words(),
            _ => 0,
        };
        let size = 2 + name.words() + argument;
        let header = 7 | Field::SIZE.put(size) | Field::ID.put(kind);
        let arguments = u64::from(kind == 2);
        self.word(header | Field(24).put(name.inline()) | Field(40).put(arguments))?;
        self.word(koid)?;
        self.text(&name)?;
        if kind == 2 {
            // A kernel object's number.
            self.word(8 | Field::SIZE.put(argument) | Field::ID.put(process.inline()))?;
            self.text(&process)?;
            self.word(PROCESS)?;
        }
        Ok(())
    }

    /// The bytes of a string, filled up to whole words.
    fn text(&mut self, text: &Text) -> Result<(), B::Error> {
        let filled = text.len.next_multiple_of(8);
        self.out.write(text.bytes.get(..filled).unwrap_or(&[]))
    }
}

/// A name, cut where it is too long.
struct Text {
    bytes: [u8; NAME],
    len: usize,
    cut: bool,
}

impl Text {
    fn new() -> Self {
        Self {
            bytes: [0; NAME],
            len: 0,
            cut: false,
        }
    }

    fn of(text: &str) -> Self {
        let mut new = Self::new();
        // It never fails.
        let _ = new.write_str(text);
        new
    }

    fn len(&self) -> u64 {
        self.len as u64
    }

    fn words(&self) -> u64 {
        self.len().div_ceil(8)
    }

    /// As the reference to a string that follows its record's head; an empty
    /// one is number 0.
    fn inline(&self) -> u64 {
        match self.len() {
            0 => 0,
            len => 0x8000 | len,
        }
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            let mut bytes = [0; 4];
            let bytes = character.encode_utf8(&mut bytes).as_bytes();
            let end = self.len + bytes.len();
            match self.bytes.get_mut(self.len..end) {
                // What comes behind a cut is cut off too.
                Some(room) if !self.cut => {
                    room.copy_from_slice(bytes);
                    self.len = end;
                }
                _ => self.cut = true,
            }
        }
        Ok(())
    }
}
