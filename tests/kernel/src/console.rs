//! Text on the serial port. A line is written under one lock, so the CPUs'
//! lines do not mix.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, Ordering};

use crate::arch;
use crate::sync::SpinLock;

struct Console;

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            arch::put_byte(byte);
        }
        Ok(())
    }
}

static CONSOLE: SpinLock<Console> = SpinLock::new(Console);
static PANICKING: AtomicBool = AtomicBool::new(false);

/// From now on lines are written though the lock be held by somebody who will
/// not give it back.
pub(crate) fn break_lock() {
    PANICKING.store(true, Ordering::Relaxed);
}

/// Writes a line, or a part of one. Not from an NMI, which may have
/// interrupted a line.
pub(crate) fn write(text: fmt::Arguments<'_>) {
    let mut console = if PANICKING.load(Ordering::Relaxed) {
        CONSOLE.lock_or_break()
    } else {
        CONSOLE.lock()
    };
    // The port can not fail; a `Display` that does is cut short.
    let _ = console.write_fmt(text);
}

/// Prints a line.
#[macro_export]
macro_rules! println {
    ($($format:tt)*) => {
        $crate::console::write(format_args!("{}\n", format_args!($($format)*)))
    };
}
