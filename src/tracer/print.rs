//! A trace as a function graph, for people.
//!
//! This file knows columns. What happened is [`trace`](super::trace)'s.
//!
//! ```text
//!  0)               |  read() {
//!  0)   1.382 us    |    check();
//!  0) + 15.463 us   |  }
//! ```

use core::fmt::{self, Write};

use super::names::{Name, Symbols};
use super::scale::digits;
use super::trace::{Call, End, Ending, Event, Trace};

mod shown;
#[cfg(test)]
mod tests;

pub use shown::Shown;

/// Writes a trace as a function graph: durations in microseconds, times in
/// seconds.
///
/// A call whose begin is not known is shown by its closing brace alone, with
/// its name beside it; one whose end is not known by a closing brace without a
/// duration, that says so.
///
/// # Example
///
/// ```
/// use fgraph::tracer::{Cursor, Open, Print, Scale, Trace};
#[doc = example_calls!()]
///
/// let mut cursors = [const { Cursor::new() }; 1];
/// let mut open = [const { Open::new() }; 256];
/// let mut trace = Trace::whole(&BUFFERS, Scale::NANOSECONDS, &mut cursors, &mut open)?;
///
/// let mut text = String::new();
/// Print::new(&Names).trace(&mut text, &mut trace)?;
/// let (_heading, calls) = text.split_once('\n').unwrap();
/// assert_eq!(
///     calls,
/// " 0)               |  read() {
///  0)   1.000 us    |    check();
///  0)   3.000 us    |  }
/// ");
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Print<'a, S: ?Sized> {
    symbols: &'a S,
    shown: Shown,
    /// Digits of a CPU's number.
    cpu_width: usize,
}

/// CPUs whose last task is remembered: of those that share a place, the last.
const CPUS: usize = 64;

/// In each place, a CPU and the task that it ran last.
type LastTasks = [Option<(usize, usize)>; CPUS];

const RULE: &str = " ------------------------------------------";

/// Columns of a task's name and number: the longest number fits.
const TASK_WIDTH: usize = 22;

impl<'a, S: Symbols + ?Sized> Print<'a, S> {
    /// With the names of `symbols`.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::Print;
    #[doc = example_trace!()]
    ///
    /// let mut text = String::new();
    /// // `()` knows no names.
    /// Print::new(&()).trace(&mut text, &mut trace)?;
    /// assert!(text.contains(&format!("{:#x}();", check as fn() as usize)));
    /// # Ok::<(), core::fmt::Error>(())
    /// ```
    #[must_use]
    pub fn new(symbols: &'a S) -> Self {
        Self {
            symbols,
            shown: Shown::default(),
            cpu_width: 1,
        }
    }

    /// Shows `shown`.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::{Print, Shown};
    #[doc = example_trace!()]
    ///
    /// let mut text = String::new();
    /// let print = Print::new(&Names).shown(Shown::TASK | Shown::DURATION | Shown::TAIL);
    /// print.trace(&mut text, &mut trace)?;
    /// let last = " task-7                |   3.000 us    |  } /* read */";
    /// assert_eq!(text.lines().last(), Some(last));
    /// # Ok::<(), core::fmt::Error>(())
    /// ```
    #[must_use]
    pub fn shown(mut self, shown: Shown) -> Self {
        self.shown = shown;
        self
    }

    /// Writes the rest of `trace`, with a heading.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::Print;
    #[doc = example_trace!()]
    ///
    /// let mut text = String::new();
    /// Print::new(&Names).trace(&mut text, &mut trace)?;
    /// assert_eq!(text.lines().count(), 4);
    /// # Ok::<(), core::fmt::Error>(())
    /// ```
    pub fn trace(mut self, out: &mut impl Write, trace: &mut Trace<'_>) -> fmt::Result {
        self.cpu_width = digits(trace.buffers().len().saturating_sub(1) as u64);
        self.heading(out)?;
        let mut ran = [None; CPUS];
        for event in trace.by_ref() {
            self.event(out, &event, &mut ran)?;
        }
        match trace.untracked() {
            0 => Ok(()),
            untracked => writeln!(
                out,
                " {untracked} calls not shown: too little memory to read"
            ),
        }
    }

    fn heading(&self, out: &mut impl Write) -> fmt::Result {
        out.write_char('#')?;
        // Columns of the next label that are taken already.
        let mut taken = 1;
        if self.shown.contains(Shown::TIME) {
            write!(out, "{:^1$}|", "TIME", 21 - taken)?;
            taken = 0;
        }
        if self.shown.contains(Shown::CPU) {
            let width = self.cpu_width + 2 - taken;
            write!(out, "{:<width$}", "CPU")?;
            taken = "CPU".len().saturating_sub(width);
        }
        if self.shown.contains(Shown::TASK) {
            write!(out, "{:^1$}|", "TASK", TASK_WIDTH + 1 - taken)?;
            taken = 0;
        }
        if self.shown.contains(Shown::DURATION) {
            write!(out, "{:^1$}|", "DURATION", 15 - taken)?;
        }
        out.write_str("  FUNCTION CALLS\n")
    }

    fn event(&self, out: &mut impl Write, event: &Event, ran: &mut LastTasks) -> fmt::Result {
        let (call, end) = match event {
            &Event::Lost { cpu, records } => {
                self.cpu(out, cpu)?;
                return writeln!(out, " LOST {records} EVENTS");
            }
            Event::Begin(call) => (call, None),
            Event::Leaf(call, end) | Event::End(call, end) => (call, Some(end)),
        };
        self.switch(out, call, ran)?;
        let time = match event {
            Event::End(_, end) => end.time,
            _ => call.begin.unwrap_or(0),
        };
        self.columns(out, call, time, end)?;
        let mut margin = call.depth.saturating_add(1).saturating_mul(2);
        while margin > 0 {
            // A width of more than sixteen bits would panic.
            let part = margin.min(u16::MAX.into());
            write!(out, "{:part$}", "")?;
            margin -= part;
        }
        match event {
            Event::Begin(call) => {
                self.name(out, call)?;
                out.write_str(" {")?;
            }
            Event::Leaf(call, end) => {
                self.name(out, call)?;
                out.write_char(';')?;
                self.remarks(out, call, end, false)?;
            }
            Event::End(call, end) => {
                out.write_char('}')?;
                self.remarks(out, call, end, true)?;
            }
            Event::Lost { .. } => {}
        }
        out.write_char('\n')
    }

    fn cpu(&self, out: &mut impl Write, cpu: usize) -> fmt::Result {
        match self.shown.contains(Shown::CPU) {
            true => write!(out, " {cpu:>0$})", self.cpu_width),
            false => Ok(()),
        }
    }

    /// A separator, if the CPU ran another task before.
    fn switch(&self, out: &mut impl Write, call: &Call, ran: &mut LastTasks) -> fmt::Result {
        let Some(ran) = ran.get_mut(call.cpu % CPUS) else {
            return Ok(());
        };
        let before = ran.replace((call.cpu, call.task));
        match before {
            Some((cpu, before))
                if (cpu == call.cpu && before != call.task)
                    && self.shown.contains(Shown::SWITCHES) =>
            {
                writeln!(out, "{RULE}")?;
                self.cpu(out, call.cpu)?;
                let (before, now) = (self.task_name(before), self.task_name(call.task));
                writeln!(out, "  {before}  =>  {now}\n{RULE}\n")
            }
            _ => Ok(()),
        }
    }

    fn task_name(&self, task: usize) -> TaskName<'_> {
        TaskName {
            name: self.symbols.task(task),
            task,
        }
    }

    fn columns(
        &self,
        out: &mut impl Write,
        call: &Call,
        time: u64,
        end: Option<&End>,
    ) -> fmt::Result {
        if self.shown.contains(Shown::TIME) {
            let seconds = time / 1_000_000_000;
            let micros = time / 1000 % 1_000_000;
            write!(out, " {seconds:>12}.{micros:06} |")?;
        }
        self.cpu(out, call.cpu)?;
        if self.shown.contains(Shown::TASK) {
            let mut width = Padded::new(out, TASK_WIDTH);
            write!(width, " {}", self.task_name(call.task))?;
            width.pad()?;
            out.write_str(" |")?;
        }
        if self.shown.contains(Shown::DURATION) {
            let known = end.filter(|end| !matches!(end.how, Ending::Lost | Ending::Unfinished));
            match known {
                Some(end) => self.duration(out, end.duration)?,
                None => write!(out, "{:15}", "")?,
            }
            out.write_char('|')?;
        }
        Ok(())
    }

    /// Fifteen columns: a mark, then seven digits at most, fewer of them
    /// decimals as the whole part grows. From 10⁸ µs on, seconds; from 10⁸ s
    /// on, hours.
    fn duration(&self, out: &mut impl Write, nanoseconds: u64) -> fmt::Result {
        let mark = match self.shown.contains(Shown::MARKS) {
            true => mark(nanoseconds),
            false => ' ',
        };
        write!(out, " {mark} ")?;
        let (unit, thousandths) = match nanoseconds {
            0..100_000_000_000 => ("us", nanoseconds),
            100_000_000_000..100_000_000_000_000_000 => ("s ", nanoseconds / 1_000_000),
            _ => ("h ", nanoseconds / 3_600_000_000),
        };
        let (whole, part) = (thousandths / 1000, thousandths % 1000);
        let mut width = Padded::new(out, 12);
        match digits(whole) {
            ..=4 => write!(width, "{whole}.{part:03}")?,
            5 => write!(width, "{whole}.{:02}", part / 10)?,
            6 => write!(width, "{whole}.{}", part / 100)?,
            _ => write!(width, "{whole}")?,
        }
        write!(width, " {unit}")?;
        width.pad()
    }

    fn name(&self, out: &mut impl Write, call: &Call) -> fmt::Result {
        use crate::platform::Context;
        if self.shown.contains(Shown::INTERRUPTS) {
            out.write_str(match call.context {
                Context::Task => "",
                Context::SoftInterrupt => "--> ",
                Context::Interrupt => "==> ",
                Context::Nmi => "##> ",
            })?;
        }
        self.function(out, call)?;
        out.write_char('(')?;
        if self.shown.contains(Shown::ARGUMENTS) {
            for (i, argument) in call.arguments.iter().enumerate() {
                let comma = if i == 0 { "" } else { ", " };
                write!(out, "{comma}{argument:#x}")?;
            }
        }
        out.write_char(')')
    }

    fn function(&self, out: &mut impl Write, call: &Call) -> fmt::Result {
        match call.func {
            Some(func) => write!(out, "{}", Name(self.symbols, func)),
            None => out.write_char('?'),
        }
    }

    /// What is said behind a call.
    fn remarks(&self, out: &mut impl Write, call: &Call, end: &End, closing: bool) -> fmt::Result {
        let headless = call.begin.is_none();
        let tail = closing && (headless || self.shown.contains(Shown::TAIL));
        let value = end
            .value
            .filter(|_| self.shown.contains(Shown::RETURN_VALUE));
        let how = end.how.remark();
        let headless = headless.then_some("begin lost");
        if !tail && value.is_none() && how.is_none() && headless.is_none() {
            return Ok(());
        }
        out.write_str(" /*")?;
        if tail {
            out.write_char(' ')?;
            self.function(&mut NoComment(&mut *out), call)?;
        }
        if let Some(value) = value {
            write!(out, " = {value:#x}")?;
        }
        for remark in [headless, how].into_iter().flatten() {
            write!(out, " ({remark})")?;
        }
        out.write_str(" */")
    }
}

const fn mark(nanoseconds: u64) -> char {
    match nanoseconds {
        1_000_000_001.. => '$',
        100_000_001.. => '@',
        10_000_001.. => '*',
        1_000_001.. => '#',
        100_001.. => '!',
        10_001.. => '+',
        _ => ' ',
    }
}

/// `name-number`.
struct TaskName<'a> {
    name: Option<&'a str>,
    task: usize,
}

impl fmt::Display for TaskName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, task } = self;
        let number = digits(*task as u64);
        // Room for a name beside the number, in the column.
        let room = TASK_WIDTH.saturating_sub(number + 2);
        for character in name.unwrap_or("task").chars().take(room) {
            // A line's end would make two lines of it.
            f.write_char(if character.is_control() {
                ' '
            } else {
                character
            })?;
        }
        write!(f, "-{task}")
    }
}

/// Counts columns, and fills up what is left.
struct Padded<'a, W> {
    out: &'a mut W,
    left: usize,
}

impl<'a, W: Write> Padded<'a, W> {
    fn new(out: &'a mut W, left: usize) -> Self {
        Self { out, left }
    }

    fn pad(self) -> fmt::Result {
        write!(self.out, "{:1$}", "", self.left)
    }
}

impl<W: Write> Write for Padded<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.left = self.left.saturating_sub(text.chars().count());
        self.out.write_str(text)
    }
}

/// Keeps a name from ending the comment that it stands in.
struct NoComment<'a, W>(&'a mut W);

impl<W: Write> Write for NoComment<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for (i, part) in text.split("*/").enumerate() {
            if i > 0 {
                self.0.write_str("* /")?;
            }
            self.0.write_str(part)?;
        }
        Ok(())
    }
}
