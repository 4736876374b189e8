//! Backtraces: the chain of frame pointers.
//!
//! Every function begins with `push rbp; mov rbp, rsp`, or with `stp x29, x30,
//! [sp, …]; mov x29, sp`, or their like, so from the frame pointer on, each
//! frame is two words: the caller's frame pointer, and the return address.
//! Interrupts' stubs make the same two words, so a chain goes on through them.

use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::arch::{self, TrapFrame};
use crate::symbols::{self, After, At};
use crate::task::Task;
use crate::trace;

const WORD: usize = size_of::<usize>();

/// Frames that a backtrace has room for.
const MAX: usize = 32;

/// A walk up a stack: return addresses, the innermost first. It reads only
/// stacks that it knows, and upwards only, and so ends.
pub(crate) struct Walk {
    fp: usize,
    /// The return address before those that `fp` leads to.
    first: Option<usize>,
    /// What is left of the stack that it is on.
    low: usize,
    high: usize,
    /// How often it may go to another stack: from a handler's to the one that
    /// was interrupted.
    changes: usize,
}

impl Walk {
    /// From the caller's own frame: the first address is the caller's return
    /// address.
    #[inline(always)]
    pub(crate) fn here() -> Self {
        Self::from(arch::frame_pointer())
    }

    /// From where `frame` was interrupted: the first address is that of the
    /// interrupted function's return.
    pub(crate) fn interrupted(frame: &TrapFrame) -> Self {
        let mut walk = Self::from(frame.fp());
        walk.first = trace::interrupted(frame).or_else(|| {
            let symbol = symbols::find(frame.pc())?;
            let (slot, register) = frame.return_slot(symbol.start)?;
            if let Some(seen) = register {
                return Some(trace::return_address(slot, seen));
            }
            stack_around(slot)
                .filter(|&(_, high)| slot + WORD <= high)
                .map(|_| address_in(slot))
        });
        walk
    }

    fn from(fp: usize) -> Self {
        Self {
            fp,
            first: None,
            low: 0,
            high: 0,
            changes: 3,
        }
    }

    /// Whether the two words at `address` may be read, and lie above the last.
    fn reaches(&mut self, address: usize) -> bool {
        if !address.is_multiple_of(WORD) {
            return false;
        }
        if !(self.low..self.high).contains(&address) {
            match stack_around(address) {
                Some((_, high)) if high != self.high && self.changes != 0 => {
                    self.changes -= 1;
                    (self.low, self.high) = (address, high);
                }
                _ => return false,
            }
        }
        self.high - address >= 2 * WORD
    }
}

impl Iterator for Walk {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let address = match self.first.take() {
            Some(address) => address,
            None => {
                let frame = self.fp;
                if !self.reaches(frame) {
                    return None;
                }
                self.low = frame + 2 * WORD;
                // SAFETY: aligned, and in the bounds of a stack.
                self.fp = unsafe { (frame as *const usize).read_volatile() };
                address_in(frame + WORD)
            }
        };
        Some(address).filter(|&address| address != 0)
    }
}

/// The return address of the call whose return slot is `slot`, in the bounds
/// of a stack.
fn address_in(slot: usize) -> usize {
    // SAFETY: aligned, and in the bounds of a stack.
    let seen = unsafe { (slot as *const usize).read_volatile() };
    trace::return_address(slot, seen)
}

/// The stack around `address`: a task's, or one of handlers.
fn stack_around(address: usize) -> Option<(usize, usize)> {
    Task::around(address)
        .map(Task::stack)
        .or_else(|| arch::handler_stack(address))
}

/// Addresses of a backtrace, to be printed.
#[derive(Clone, Copy)]
pub(crate) struct Backtrace {
    addresses: [usize; MAX],
    len: usize,
    /// The first is the interrupted instruction, and no return address.
    interrupted: bool,
}

impl Backtrace {
    /// The caller's callers.
    #[inline(always)]
    pub(crate) fn here() -> Self {
        Self::collect(None, Walk::here())
    }

    /// What was interrupted, and its callers.
    pub(crate) fn of(frame: &TrapFrame) -> Self {
        Self::collect(Some(frame.pc()), Walk::interrupted(frame))
    }

    fn collect(first: Option<usize>, walk: Walk) -> Self {
        let mut trace = Self {
            addresses: [0; MAX],
            len: 0,
            interrupted: first.is_some(),
        };
        for address in first.into_iter().chain(walk).take(MAX) {
            trace.addresses[trace.len] = address;
            trace.len += 1;
        }
        trace
    }

    /// The addresses, the innermost first.
    pub(crate) fn addresses(&self) -> &[usize] {
        &self.addresses[..self.len]
    }
}

impl fmt::Display for Backtrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, &address) in self.addresses().iter().enumerate() {
            if number != 0 {
                f.write_str("\n")?;
            }
            if number == 0 && self.interrupted {
                write!(f, "  {number:2} {}", At(address))?;
            } else {
                write!(f, "  {number:2} {}", After(address))?;
            }
        }
        Ok(())
    }
}

/// The latest backtrace of a kind of handler that can not print: kept for who
/// asks later. One writer at a time is assumed; a reader beside it may get a
/// mixture of two.
pub(crate) struct Latest {
    addresses: [AtomicUsize; MAX],
    len: AtomicUsize,
}

/// Of an NMI.
pub(crate) static NMI: Latest = Latest::new();
/// Of a timer interrupt that was waited for.
pub(crate) static TICK: Latest = Latest::new();
/// Of a page fault that was expected.
pub(crate) static PROBED: Latest = Latest::new();

impl Latest {
    const fn new() -> Self {
        Self {
            addresses: [const { AtomicUsize::new(0) }; MAX],
            len: AtomicUsize::new(0),
        }
    }

    /// Keeps the backtrace of what was interrupted.
    pub(crate) fn capture(&self, frame: &TrapFrame) {
        let trace = Backtrace::of(frame);
        for (to, &address) in self.addresses.iter().zip(trace.addresses()) {
            to.store(address, Ordering::Relaxed);
        }
        self.len.store(trace.len, Ordering::Release);
    }

    /// What was kept last.
    pub(crate) fn get(&self) -> Backtrace {
        let len = self.len.load(Ordering::Acquire);
        let addresses = core::array::from_fn(|n| self.addresses[n].load(Ordering::Relaxed));
        Backtrace {
            addresses,
            len,
            interrupted: true,
        }
    }
}
