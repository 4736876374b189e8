//! The deepest use of each task's real stack.
//!
//! This file reads return slots and the shadow stack. It keeps no frame data.

use core::fmt;
use core::marker::PhantomData;

use crate::sync::{AtomicU32, AtomicUsize, Ordering, count, fence};
use crate::tracer::Symbols;
use crate::tracer::names::Name;
use crate::tracer::table::{self, Keyed};
use crate::{Callback, Entry, Exit, Platform};

/// One task's place in the memory of a [`StackWatch`], with a chain of up to
/// `CHAIN` functions.
///
/// # Example
///
/// ```
/// use fgraph::tracer::trigger::Deepest;
///
/// /// With chains of up to eight functions.
/// static PLACES: [Deepest<8>; 64] = [const { Deepest::new() }; 64];
/// # #[cfg(target_pointer_width = "64")]
/// assert_eq!(size_of_val(&PLACES), 64 * (6 + 8) * 8);
/// ```
#[derive(Debug)]
pub struct Deepest<const CHAIN: usize = 32> {
    /// One more than the task's number.
    task: AtomicUsize,
    /// The most bytes that were in use: exact, whatever interrupts. Relaxed:
    /// nothing is published by it.
    used: AtomicUsize,
    /// Bytes of the task's stack. Relaxed, as all below: `version` and its
    /// fences tell whether they belong together.
    size: AtomicUsize,
    /// Odd while `size` and what is below are being written.
    version: AtomicUsize,
    /// The bytes in use where the chain was taken.
    at: AtomicUsize,
    /// How many functions the whole chain had.
    len: AtomicUsize,
    chain: [AtomicUsize; CHAIN],
}

impl<const CHAIN: usize> Keyed for Deepest<CHAIN> {
    fn key(&self) -> &AtomicUsize {
        &self.task
    }
}

impl<const CHAIN: usize> Default for Deepest<CHAIN> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const CHAIN: usize> Deepest<CHAIN> {
    /// An empty one.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::trigger::Deepest;
    ///
    /// static PLACES: [Deepest; 64] = [const { Deepest::new() }; 64];
    /// # assert_eq!(PLACES.len(), 64);
    /// ```
    #[must_use]
    pub const fn new() -> Self {
        Self {
            task: AtomicUsize::new(0),
            used: AtomicUsize::new(0),
            size: AtomicUsize::new(0),
            version: AtomicUsize::new(0),
            at: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            chain: [const { AtomicUsize::new(0) }; CHAIN],
        }
    }

    /// Writes the chain that uses `used` bytes, unless an interrupt has written
    /// a deeper one meanwhile; false if it came while one was being written.
    #[cold]
    fn write(&self, used: usize, size: usize, chain: impl Iterator<Item = usize>) -> bool {
        let version = self.version.load(Ordering::Relaxed);
        let odd = version | 1;
        // Acquire keeps the writes below it; pairs with the release of a
        // writer before, who may have run on another CPU.
        let begun = version != odd
            && self
                .version
                .compare_exchange(version, odd, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        if !begun {
            return false;
        }
        // A reader that sees a word from below sees the odd version too; pairs
        // with the acquire fence in `read`.
        fence(Ordering::Release);
        if used > self.at.load(Ordering::Relaxed) {
            self.size.store(size, Ordering::Relaxed);
            self.at.store(used, Ordering::Relaxed);
            let mut len = 0;
            for func in chain {
                if let Some(place) = self.chain.get(len) {
                    place.store(func, Ordering::Relaxed);
                }
                len += 1;
            }
            self.len.store(len, Ordering::Relaxed);
        }
        // Release: a reader that sees this version sees all of the above.
        self.version.store(odd.wrapping_add(1), Ordering::Release);
        true
    }

    fn clear(&self) {
        self.used.store(0, Ordering::Relaxed);
        self.at.store(0, Ordering::Relaxed);
    }

    fn read(&self) -> Option<StackUse<CHAIN>> {
        let task = self.task.load(Ordering::Relaxed).checked_sub(1)?;
        // A writer is done in no time, or is interrupted here for ever: by an
        // NMI that reads.
        for _ in 0..64 {
            let version = self.version.load(Ordering::Acquire);
            let found = StackUse {
                task,
                used: self.used.load(Ordering::Relaxed),
                size: self.size.load(Ordering::Relaxed),
                chain_used: self.at.load(Ordering::Relaxed),
                chain_len: self.len.load(Ordering::Relaxed),
                chain: core::array::from_fn(|i| {
                    let func = self.chain.get(i);
                    func.map_or(0, |func| func.load(Ordering::Relaxed))
                }),
            };
            // The reads stay above; pairs with the release fence in `write`.
            fence(Ordering::Acquire);
            if version & 1 == 0 && self.version.load(Ordering::Relaxed) == version {
                return (found.used > 0).then_some(found);
            }
            core::hint::spin_loop();
        }
        None
    }
}

/// The deepest use of one task's real stack.
///
/// # Example
///
/// ```
#[doc = example_watch!()]
/// let found = WATCH.get(7).unwrap();
/// assert_eq!((found.task, found.used), (7, 24 * size_of::<usize>()));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StackUse<const CHAIN: usize = 32> {
    /// The task, by [`Platform::task`].
    pub task: usize,
    /// Bytes from the stack's end to the deepest return slot.
    pub used: usize,
    /// Bytes of the stack.
    pub size: usize,
    /// Bytes in use where the chain was taken: `used`, unless an interrupt's
    /// call was deeper while a chain was being written.
    pub chain_used: usize,
    chain_len: usize,
    chain: [usize; CHAIN],
}

impl<const CHAIN: usize> StackUse<CHAIN> {
    /// The functions that were running, the deepest first.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_watch!()]
    /// let found = WATCH.get(7).unwrap();
    /// assert_eq!(found.chain(), [0x1000]);
    /// ```
    #[must_use]
    pub fn chain(&self) -> &[usize] {
        self.chain.get(..self.chain_len).unwrap_or(&self.chain)
    }

    /// How many more functions the chain had than there was room for.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_watch!()]
    /// let found = WATCH.get(7).unwrap();
    /// assert_eq!(found.cut(), 0);
    /// ```
    #[must_use]
    pub fn cut(&self) -> usize {
        self.chain_len.saturating_sub(CHAIN)
    }

    /// To be displayed, with names: a line for the task, then one for each
    /// function of its chain.
    ///
    /// ```text
    /// task 7: 5120 of 16384 bytes
    ///   irq_work
    ///   read
    ///   main
    /// ```
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_watch!()]
    /// let found = WATCH.get(7).unwrap();
    /// # #[cfg(target_pointer_width = "64")]
    /// assert_eq!(found.display(()).to_string(), "task 7: 192 of 512 bytes\n  0x1000\n");
    /// ```
    pub fn display<S: Symbols>(&self, symbols: S) -> impl fmt::Display + use<'_, S, CHAIN> {
        Shown {
            found: self,
            symbols,
        }
    }
}

struct Shown<'a, S, const CHAIN: usize> {
    found: &'a StackUse<CHAIN>,
    symbols: S,
}

impl<S: Symbols, const CHAIN: usize> fmt::Display for Shown<'_, S, CHAIN> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StackUse {
            task,
            used,
            size,
            chain_used,
            ..
        } = *self.found;
        write!(f, "task {task}: {used} of {size} bytes")?;
        if chain_used != used {
            write!(f, " (chain at {chain_used})")?;
        }
        f.write_str("\n")?;
        for &func in self.found.chain() {
            writeln!(f, "  {}", Name(&self.symbols, func))?;
        }
        if self.found.cut() > 0 {
            writeln!(f, "  ({} more)", self.found.cut())?;
        }
        Ok(())
    }
}

/// Watches how deep each task's real stack gets, with the chain of calls that
/// led to the deepest place.
///
/// Depth is that of return slots, so of hooked functions; what a function
/// itself uses below its slot is not seen until it calls another. Slots
/// outside the task's own stack, an interrupt stack's for example, and tasks
/// whose stack's bounds were not given at
/// [`attach`](crate::RetStack::attach), are [counted](Self::foreign). A scope
/// has no slot: it is a member of chains only.
///
/// A task's place is its number's for good, or until [`reset`](Self::reset);
/// tasks that find none are [counted](Self::lost).
///
/// A call that is not deeper than all before costs the search of its task's
/// place. A frame costs no words beyond its head.
///
/// # Example
///
/// ```
#[doc = example_kernel!()]
/// use fgraph::tracer::trigger::{Deepest, StackWatch};
///
/// // For up to about 32 tasks.
/// static PLACES: [Deepest; 64] = [const { Deepest::new() }; 64];
/// static WATCH: StackWatch<Kernel> = StackWatch::new(&PLACES);
///
/// FGRAPH.register(&WATCH)?;
/// // …
/// for found in WATCH.iter() {
///     print!("{}", found.display(()));
/// }
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct StackWatch<P, const CHAIN: usize = 32> {
    places: &'static [Deepest<CHAIN>],
    foreign: AtomicU32,
    lost: AtomicU32,
    platform: PhantomData<fn() -> P>,
}

impl<P: Platform, const CHAIN: usize> StackWatch<P, CHAIN> {
    /// Watches in these places, which nobody else uses.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::trigger::{Deepest, StackWatch};
    #[doc = example_kernel!()]
    ///
    /// static PLACES: [Deepest; 64] = [const { Deepest::new() }; 64];
    /// static WATCH: StackWatch<Kernel> = StackWatch::new(&PLACES);
    /// assert_eq!(WATCH.iter().count(), 0);
    /// ```
    #[must_use]
    pub const fn new(places: &'static [Deepest<CHAIN>]) -> Self {
        Self {
            places,
            foreign: AtomicU32::new(0),
            lost: AtomicU32::new(0),
            platform: PhantomData,
        }
    }

    /// What was found of each task. Any context, any CPU; a place that does
    /// not stand still is left out.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_watch!()]
    /// let deepest = WATCH.iter().max_by_key(|found| found.used);
    /// assert_eq!(deepest.unwrap().task, 7);
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = StackUse<CHAIN>> + '_ {
        self.places.iter().filter_map(Deepest::read)
    }

    /// What was found of a task.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_watch!()]
    /// assert_eq!(WATCH.get(7).unwrap().used, 24 * size_of::<usize>());
    /// assert_eq!(WATCH.get(8), None);
    /// ```
    #[must_use]
    pub fn get(&self, task: usize) -> Option<StackUse<CHAIN>> {
        table::find(self.places, task.checked_add(1)?)?.read()
    }

    /// Begins again for one task, which does not run: it has ended, and another
    /// will have its number. The place stays its number's.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_watch!()]
    /// WATCH.forget(7);
    /// assert_eq!(WATCH.get(7), None);
    /// ```
    pub fn forget(&self, task: usize) {
        let place = task
            .checked_add(1)
            .and_then(|key| table::find(self.places, key));
        if let Some(place) = place {
            place.clear();
        }
    }

    /// Begins again for all tasks, and all places are free. While the watch is
    /// not registered: a call under way might take a place twice.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_watch!()]
    /// FGRAPH.unregister(id)?;
    /// WATCH.reset();
    /// assert_eq!(WATCH.iter().count(), 0);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn reset(&self) {
        self.places.iter().for_each(Deepest::clear);
        table::free(self.places);
        self.foreign.store(0, Ordering::Relaxed);
        self.lost.store(0, Ordering::Relaxed);
    }

    /// How many calls were on no stack that is known to be their task's.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_watch!()]
    /// assert_eq!(WATCH.foreign(), 0);
    /// # let (slot, func, ret) = (0x4000, 0x1000, 0x2000);
    /// # let call = fgraph::fgraph::Call { func, ret, slot, tail: false, registers: None };
    /// // A call elsewhere.
    /// // SAFETY: nobody leaves.
    /// unsafe { FGRAPH.enter(&call, usize::MAX) };
    /// assert_eq!(WATCH.foreign(), 1);
    /// ```
    #[must_use]
    pub fn foreign(&self) -> u32 {
        self.foreign.load(Ordering::Relaxed)
    }

    /// How many calls were of tasks that found no place, or deepest ones whose
    /// chain was not written because an interrupt's was.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_watch!()]
    /// assert_eq!(WATCH.lost(), 0, "there is a place for the one task");
    /// ```
    #[must_use]
    pub fn lost(&self) -> u32 {
        self.lost.load(Ordering::Relaxed)
    }

    fn watch(&self, call: &Entry<'_, ()>) {
        let slot = call.return_slot();
        if slot == 0 {
            return;
        }
        let stack = call.stack().real_stack();
        if !stack.contains(&slot) {
            return count(&self.foreign, 1);
        }
        let key = P::task().wrapping_add(1);
        let Some(place) = table::claim(self.places, key) else {
            return count(&self.lost, 1);
        };
        let used = stack.end - slot;
        // One step: an interrupt between a load and a store may be deeper.
        if used > place.used.load(Ordering::Relaxed)
            && place.used.fetch_max(used, Ordering::Relaxed) < used
        {
            let enclosing = call.stack().frames().map(|frame| frame.func);
            let chain = core::iter::once(call.func()).chain(enclosing);
            if !place.write(used, stack.len(), chain) {
                count(&self.lost, 1);
            }
        }
    }
}

impl<P: Platform, const CHAIN: usize> Callback for StackWatch<P, CHAIN> {
    type Frame = ();

    #[inline]
    fn entry(&self, call: Entry<'_, ()>) -> Option<()> {
        self.watch(&call);
        // Its frame makes it a member of chains.
        Some(())
    }

    fn exit(&self, _: Exit<'_, ()>, (): ()) {}
}
