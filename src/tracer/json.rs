//! A trace as Chrome's JSON events, for Perfetto and its kin.
//!
//! This file knows the format. Begins and ends come properly nested from
//! [`trace`](super::trace).

use core::fmt::{self, Write};

use super::names::{Name, Named, Symbols};
use super::scale::Microseconds;
use super::trace::{Call, End, Event, Trace};

/// Writes the rest of `trace` as one array of events: `B` and `E` for each
/// call, with its task as the thread; the names of tasks; an instant event
/// where records were lost, and where a call ended whose begin is not known.
///
/// Times are in microseconds, with three decimals.
///
/// # Errors
///
/// Those of `out`.
///
/// # Example
///
/// ```
/// use fgraph::tracer::json;
#[doc = example_trace!()]
/// let mut text = String::new();
/// json(&mut text, &mut trace, &Names)?;
/// assert_eq!(
///     text.lines().nth(1),
///     Some(r#"{"ts":0.000,"ph":"B","pid":1,"tid":7,"name":"read","args":{"cpu":0}},"#)
/// );
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
pub fn json<S: Symbols + ?Sized>(
    out: &mut impl Write,
    trace: &mut Trace<'_>,
    symbols: &S,
) -> fmt::Result {
    let mut json = Json {
        out,
        symbols,
        separator: "\n",
        named: Named::NONE,
        time: 0,
    };
    json.out.write_char('[')?;
    for event in trace.by_ref() {
        json.event(&event)?;
    }
    if trace.untracked() > 0 {
        json.lost("untracked", None, trace.untracked())?;
    }
    json.out.write_str("\n]\n")
}

struct Json<'a, W, S: ?Sized> {
    out: &'a mut W,
    symbols: &'a S,
    separator: &'static str,
    named: Named,
    /// Of the last event.
    time: u64,
}

impl<W: Write, S: Symbols + ?Sized> Json<'_, W, S> {
    fn event(&mut self, event: &Event) -> fmt::Result {
        match event {
            &Event::Lost { cpu, records } => self.lost("lost", Some(cpu), records),
            Event::Begin(call) => self.begin(call),
            Event::Leaf(call, end) => {
                self.begin(call)?;
                self.end(call, end)
            }
            Event::End(call, end) if call.begin.is_some() => self.end(call, end),
            Event::End(call, end) => self.headless(call, end),
        }
    }

    /// The start of an event, up to what is its own.
    fn open(&mut self, phase: char, time: u64, task: Option<usize>) -> fmt::Result {
        self.time = time;
        self.out.write_str(self.separator)?;
        self.separator = ",\n";
        let time = Microseconds(time);
        write!(self.out, "{{\"ts\":{time},\"ph\":\"{phase}\",\"pid\":1")?;
        match task {
            Some(task) => write!(self.out, ",\"tid\":{task}"),
            None => Ok(()),
        }
    }

    fn begin(&mut self, call: &Call) -> fmt::Result {
        self.name_task(call.task)?;
        self.open('B', call.begin.unwrap_or(0), Some(call.task))?;
        self.name(call)?;
        write!(self.out, ",\"args\":{{\"cpu\":{}", call.cpu)?;
        for (n, argument) in call.arguments.iter().enumerate() {
            write!(self.out, ",\"{n}\":\"{argument:#x}\"")?;
        }
        self.out.write_str("}}")
    }

    fn end(&mut self, call: &Call, end: &End) -> fmt::Result {
        self.open('E', end.time, Some(call.task))?;
        self.name(call)?;
        match (end.how.remark(), end.value) {
            (None, None) => self.out.write_char('}'),
            (Some(how), _) => write!(self.out, ",\"args\":{{\"end\":\"{how}\"}}}}"),
            (None, Some(value)) => write!(self.out, ",\"args\":{{\"value\":\"{value:#x}\"}}}}"),
        }
    }

    fn headless(&mut self, call: &Call, end: &End) -> fmt::Result {
        self.name_task(call.task)?;
        self.open('i', end.time, Some(call.task))?;
        self.name(call)?;
        let duration = Microseconds(end.duration);
        write!(
            self.out,
            ",\"s\":\"t\",\"args\":{{\"end\":\"begin lost\",\"dur\":{duration}}}}}"
        )
    }

    fn lost(&mut self, name: &str, cpu: Option<usize>, records: usize) -> fmt::Result {
        self.open('i', self.time, None)?;
        write!(
            self.out,
            ",\"name\":\"{name}\",\"s\":\"p\",\"args\":{{\"records\":{records}"
        )?;
        if let Some(cpu) = cpu {
            write!(self.out, ",\"cpu\":{cpu}")?;
        }
        self.out.write_str("}}")
    }

    fn name(&mut self, call: &Call) -> fmt::Result {
        self.out.write_str(",\"name\":\"")?;
        match call.func {
            Some(func) => write!(Escaped(self.out), "{}", Name(self.symbols, func))?,
            None => self.out.write_char('?')?,
        }
        self.out.write_char('"')
    }

    /// Names a task before its first event.
    fn name_task(&mut self, task: usize) -> fmt::Result {
        if !self.named.is_new(task) {
            return Ok(());
        }
        let Some(name) = self.symbols.task(task) else {
            return Ok(());
        };
        self.out.write_str(self.separator)?;
        self.separator = ",\n";
        write!(
            self.out,
            "{{\"ph\":\"M\",\"pid\":1,\"tid\":{task},\"name\":\"thread_name\",\"args\":{{\"name\":\""
        )?;
        Escaped(self.out).write_str(name)?;
        self.out.write_str("\"}}")
    }
}

/// The inside of a JSON string.
struct Escaped<'a, W>(&'a mut W);

impl<W: Write> Write for Escaped<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let special = |c: char| c == '"' || c == '\\' || c < ' ';
        for piece in text.split_inclusive(special) {
            self.0.write_str(piece.trim_end_matches(special))?;
            match piece.chars().next_back().filter(|&c| special(c)) {
                Some(c @ ('"' | '\\')) => write!(self.0, "\\{c}")?,
                Some(c) => write!(self.0, "\\u{:04x}", u32::from(c))?,
                None => {}
            }
        }
        Ok(())
    }
}
