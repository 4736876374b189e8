//! Words given to a task's shadow stack, and taken back.
//!
//! This file knows no frame: it asks whether there are any, and no more.

use core::ops::Range;
use core::ptr::{self, NonNull};

use super::RetStack;
use super::word::{MAX_WORDS, Slots, State};
use crate::sync::{self, AtomicUsize, Ordering, compiler_fence};

/// Why words were not attached. Nothing has changed.
///
/// # Example
///
/// ```
/// use fgraph::{RetStack, ret_stack::AttachError};
///
/// let stack = RetStack::new();
/// let words = || Box::leak(Box::new([0; 128]));
/// let reversed = core::ops::Range { start: 0x7001_0000, end: 0x7000_0000 };
/// assert_eq!(stack.attach(words(), reversed), Err(AttachError::StackRange));
/// stack.attach(words(), 0x7000_0000..0x7001_0000)?;
/// let again = stack.attach(words(), 0x7000_0000..0x7001_0000);
/// assert_eq!(again, Err(AttachError::Attached));
/// # Ok::<(), AttachError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AttachError {
    /// The shadow stack has words already: detach them first.
    Attached,
    /// More than [`MAX_WORDS`] words: attach fewer.
    TooLong,
    /// The real stack's range is reversed or spans 4 GiB or more: give the
    /// task's own stack, or an empty range at an address in it.
    StackRange,
}

/// Why words were not detached. Nothing has changed.
///
/// # Example
///
/// ```
/// use fgraph::{RetStack, ret_stack::DetachError};
///
/// let stack = RetStack::new();
/// // SAFETY: nobody else knows the stack.
/// let error = unsafe { stack.detach() }.unwrap_err();
/// assert_eq!(error, DetachError::Detached);
/// assert_eq!(error.to_string(), "the shadow stack has no words; there is nothing to detach");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DetachError {
    /// There are none.
    Detached,
    /// Traced calls are in flight: let them return, or end them with
    /// [`Fgraph::exit_task`](crate::Fgraph::exit_task).
    InUse,
}

impl core::fmt::Display for AttachError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Attached => "the shadow stack has words already; detach them first",
            Self::TooLong => "more words than a shadow stack can use; attach fewer",
            Self::StackRange => {
                "the real stack's range is reversed or spans 4 GiB or more; give the task's own, or an empty one"
            },
        })
    }
}

impl core::fmt::Display for DetachError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Detached => "the shadow stack has no words; there is nothing to detach",
            Self::InUse => "traced calls are in flight; let them return or end the task's frames",
        })
    }
}

impl core::error::Error for AttachError {}
impl core::error::Error for DetachError {}

impl RetStack {
    /// Gives the task its words; from then on its calls are traced. Any CPU,
    /// any context, also while the task runs: it sees the stack empty and
    /// whole, or not at all. The words are zeroed, and all counters with them.
    /// [`words_for`](super::words_for) tells how many a depth takes; 0 are
    /// accepted, and every call then counts as an overrun.
    ///
    /// `stack` is the range of the task's real stack, in bytes. Within it, order proves
    /// which frames a jump left behind; an empty range at an address in the
    /// stack is right where the bounds are not known. Near frames are those of
    /// calls in the 4 GiB below its end, or, without bounds, within 2 GiB of its
    /// start: of calls on a stack above the task's own, frames are wide.
    ///
    /// # Errors
    ///
    /// [`AttachError`]; nothing has changed, the words' contents neither. Their
    /// borrow is used up: a caller that wants to try again reborrows them.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::RetStack;
    ///
    /// let stack = RetStack::new();
    /// let words = Box::leak(vec![0; 128].into_boxed_slice());
    /// stack.attach(words, 0x7000_0000..0x7001_0000)?;
    /// assert!(stack.is_attached());
    /// # Ok::<(), fgraph::ret_stack::AttachError>(())
    /// ```
    pub fn attach(
        &self,
        words: &'static mut [usize],
        stack: Range<usize>,
    ) -> Result<(), AttachError> {
        // SAFETY: the words are borrowed for ever and uniquely, so they outlive
        // the stack and nobody uses them beside it.
        unsafe { self.attach_local(words, stack) }
    }

    /// # Safety
    ///
    /// `words` are `len` initialised words that stay valid until they are
    /// detached or this stack is dropped, and nobody else uses them meanwhile.
    pub(super) unsafe fn attach_raw(
        &self,
        words: *mut AtomicUsize,
        len: usize,
        stack: Range<usize>,
    ) -> Result<(), AttachError> {
        if len > MAX_WORDS {
            return Err(AttachError::TooLong);
        }
        let span = stack.end.checked_sub(stack.start);
        let span = span.and_then(|span| u32::try_from(span).ok());
        let span = span.ok_or(AttachError::StackRange)?;
        // Slots are told in units of eight bytes from the window's base.
        let low = stack.start.wrapping_add(7) & !7;
        let high = stack.end & !(size_of::<usize>() - 1);
        let span = span.min(high.saturating_sub(low) as u32);
        // The claim: of two that attach at once, one gets it. Acquire pairs
        // with the release of a `detach` on another CPU.
        if self
            .words
            .compare_exchange(
                ptr::null_mut(),
                Self::claimed(),
                Ordering::Acquire,
                Ordering::Relaxed,
            )
            .is_err()
        {
            return Err(AttachError::Attached);
        }
        let words = if len == 0 { Self::no_words() } else { words };
        for i in 0..len {
            // Zeroed words carry no frame of a former task.
            // SAFETY: `i < len`, and the caller promises so many valid words.
            unsafe { &*words.add(i) }.store(0, Ordering::Relaxed);
        }
        // Relaxed, all of these: the releases below publish them.
        self.state.store(State::EMPTY.word(), Ordering::Relaxed);
        self.span.store(span, Ordering::Relaxed);
        let slots = match span {
            0 => Slots::around(low),
            _ => Slots::up_to(high),
        };
        self.slots.store(slots.word(), Ordering::Relaxed);
        self.slept.set(0);
        for counter in [
            &self.overruns,
            &self.recursions,
            &self.unwound,
            &self.strays,
        ] {
            counter.store(0, Ordering::Relaxed);
        }
        // Publishes all of the above to `view` on any CPU.
        self.words.store(words, Ordering::Release);
        // Publishes the words too: pairs with the acquire in `room`.
        self.len.store(len as u32, Ordering::Release);
        Ok(())
    }

    /// Attaches words that need not live for ever, for the crate's own uses.
    ///
    /// # Safety
    ///
    /// The stack is not used after the words' end, unless what it had before is
    /// [put back](Self::put_back) by then, and they are not used beside it.
    pub(crate) unsafe fn attach_local(
        &self,
        words: &mut [usize],
        stack: Range<usize>,
    ) -> Result<(), AttachError> {
        let len = words.len();
        // SAFETY: `len` initialised words, of which the caller promises that
        // they outlive the stack's use and that nobody uses them beside it.
        unsafe { self.attach_raw(sync::words(words), len, stack) }
    }

    /// What `words` holds while somebody attaches: not null, and not the
    /// address of any words.
    #[inline(always)]
    pub(super) fn claimed() -> *mut AtomicUsize {
        ptr::without_provenance_mut(1)
    }

    /// What stands for the address of no words at all, which are attached too:
    /// that of none, and well aligned.
    #[inline(always)]
    pub(super) fn no_words() -> *mut AtomicUsize {
        ptr::dangling_mut()
    }

    /// Takes the words back; the task is no longer traced. Any context.
    ///
    /// # Example
    ///
    /// ```
    /// # let stack = fgraph::RetStack::new();
    /// stack.attach(Box::leak(Box::new([0; 128])), 0x7000_0000..0x7001_0000)?;
    /// // SAFETY: no task runs on this stack, and nobody walks it.
    /// let words = unsafe { stack.detach()? };
    /// assert_eq!(words.len(), 128);
    /// assert!(!stack.is_attached());
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`DetachError`], and nothing is changed.
    ///
    /// # Safety
    ///
    /// The task of this stack does not run on another CPU meanwhile: either
    /// the caller is the task, or the task is held (not running, not yet or no
    /// longer scheduled). Nobody walks the stack, or the words stay valid
    /// memory until no walk is under way. The words were attached by
    /// [`attach`](Self::attach): those of an [`InlineStack`](super::InlineStack)
    /// are not `'static`, and its own `detach` is the one to use.
    pub unsafe fn detach(&self) -> Result<&'static mut [usize], DetachError> {
        let (words, len) = self.detach_raw()?;
        // SAFETY: `attach` got them as `&'static mut`, and they are
        // unreachable from here on: `words` is null, and the caller promises
        // that nobody runs who had read it before.
        Ok(unsafe { core::slice::from_raw_parts_mut(words.cast(), len) })
    }

    pub(super) fn detach_raw(&self) -> Result<(*mut AtomicUsize, usize), DetachError> {
        let view = self.view().ok_or(DetachError::Detached)?;
        view.drop_ended();
        let words = view.words;
        if self.state() != State::EMPTY {
            return Err(DetachError::InUse);
        }
        // The stack becomes unreachable before the words are given back: an
        // interrupt from here on is not traced. Of two that detach at once,
        // one finds its length.
        let len = self.close();
        if len == 0 && words != Self::no_words() {
            return Err(DetachError::Detached);
        }
        // Release pairs with the acquire in `attach_raw`.
        self.words
            .compare_exchange(words, ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed)
            .map_err(|_| DetachError::Detached)?;
        Ok((words, len))
    }

    /// From here on the task and its interrupts find no words. Returns how many
    /// there were. Relaxed: they run on this CPU, or not at all.
    pub(super) fn close(&self) -> usize {
        let len = self.len.swap(0, Ordering::Relaxed) as usize;
        compiler_fence(Ordering::SeqCst);
        len
    }

    /// Takes the words away from a stack that its owner has emptied, whatever
    /// its guards are.
    pub(crate) fn give_back(&self) -> Result<NonNull<[usize]>, DetachError> {
        let len = self.close();
        // As in `detach_raw`.
        let words = self.words.swap(ptr::null_mut(), Ordering::AcqRel);
        // Nobody waits for a task that has ended. Not before the swap: an
        // interrupt must not find words and nobody inside.
        self.set_state(State::EMPTY);
        NonNull::new(words.cast::<usize>())
            .map(|words| NonNull::slice_from_raw_parts(words, len))
            .ok_or(DetachError::Detached)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::{boxed::Box, vec};

    use crate::RetStack;

    const WORD: usize = size_of::<u64>();

    /// As [`RetStack::owns`] says of a stack with these bounds.
    fn owned(bounds: core::ops::Range<usize>, slots: [usize; 4]) -> [bool; 4] {
        let stack = RetStack::new();
        let words = Box::leak(vec![0; 8].into_boxed_slice());
        stack.attach(words, bounds).unwrap();
        slots.map(|slot| stack.owns(slot))
    }

    #[test]
    fn slots_that_lie_in_a_real_stack_as_a_whole_are_its() {
        let (low, high) = (0x1000, 0x2000);
        let slots = [low - WORD, low, high - WORD, high];
        assert_eq!(owned(low..high, slots), [false, true, true, false]);
        // Bounds that are not aligned: each end has a part of a slot.
        let inner = [low, low + WORD, high - WORD, high];
        for (below, above) in [(1, 1), (7, 3)] {
            assert_eq!(
                owned(low + below..high + above, inner),
                [false, true, true, false]
            );
        }
        // No whole slot at all; and where a slot more would be none.
        assert_eq!(owned(low + 1..low + 3, inner), [false; 4]);
        let last = usize::MAX & !(WORD - 1);
        let slots = [0, high, last - WORD, last];
        assert_eq!(owned(usize::MAX - 2..usize::MAX, slots), [false; 4]);
    }
}
