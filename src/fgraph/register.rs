//! Callbacks come and go, and hooks hold on to their slots: all that takes the
//! registration lock.
//!
//! This file knows no call. What other CPUs see of a change, and when, is
//! `table`'s.

use super::table::TakeError;
use super::task::Guards;
use super::{Callback, Fgraph, SLOTS};
use crate::Platform;
use crate::ret_stack::RetStack;
use crate::sync::Ordering;

/// A registered callback: its slot, and when it got it. Of the
/// [`Fgraph`] that gave it: what another makes of it has no meaning.
///
/// # Example
///
/// ```
#[doc = example_traced!()]
/// FGRAPH.unregister(id)?;
/// let again = FGRAPH.register(&FOLLOW)?;
/// // The slot is the same, and yet it is another registration.
/// assert_eq!(id.slot(), again.slot());
/// assert_ne!(id, again);
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CallbackId {
    slot: usize,
    epoch: usize,
}

impl CallbackId {
    /// The slot, from 0: the number of this callback's bit in a set of
    /// callbacks. Lower ones are entered first and left last.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_traced!()]
    /// # static COUNTS: fgraph::tracer::trigger::Counts =
    /// #     fgraph::tracer::trigger::Counts::new(&[]);
    /// let second = FGRAPH.register(&COUNTS)?;
    /// assert_eq!((id.slot(), second.slot()), (0, 1));
    /// # Ok::<(), fgraph::fgraph::RegisterError>(())
    /// ```
    #[must_use]
    pub const fn slot(self) -> usize {
        self.slot
    }
}

/// Why a callback was not registered. Nothing has changed; trying again may
/// work.
///
/// # Example
///
/// ```
/// use fgraph::fgraph::RegisterError;
///
#[doc = example_traced!()]
/// assert_eq!(FGRAPH.register(&FOLLOW), Err(RegisterError::AlreadyRegistered));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegisterError {
    /// All slots are taken, or still named by functions that a departed
    /// callback was enabled for: unregister one, or disable it in the hook.
    Full,
    /// The object is registered already.
    AlreadyRegistered,
    /// All epochs are used up (2⁴⁶ registrations, or 2³² on a 32-bit target).
    Exhausted,
}

/// Why a callback was not unregistered, or not to the end.
///
/// # Example
///
/// ```
/// use fgraph::fgraph::UnregisterError;
///
#[doc = example_traced!()]
/// FGRAPH.unregister(id)?;
/// assert_eq!(FGRAPH.unregister(id), Err(UnregisterError::NotRegistered));
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnregisterError {
    /// It is not registered, or not any more.
    NotRegistered,
    /// It is unregistered, and no new call reaches it; but the platform gave
    /// up waiting for a dispatch that does not end: what the callback uses may
    /// still be in use.
    StillRunning,
}

/// The callback is not registered, or not any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NotRegistered;

impl core::fmt::Display for RegisterError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Full => "all callback slots are taken; unregister one, or disable it in the hook",
            Self::AlreadyRegistered => {
                "the callback is registered already; unregister it first, or register another object"
            }
            Self::Exhausted => "all registration epochs are used up; make another Fgraph",
        })
    }
}

impl core::fmt::Display for UnregisterError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::NotRegistered => "the callback is not registered, or not any more; use the id of its last registration",
            Self::StillRunning => {
                "unregistered, but a dispatch that may use it does not end; keep alive what it uses"
            }
        })
    }
}

impl core::error::Error for RegisterError {}
impl core::error::Error for UnregisterError {}

impl<P: Platform, const N: usize> Fgraph<P, N> {
    /// Registers a callback in the lowest free slot. It takes part in calls
    /// that begin from then on: scopes and classic hooks at once, on other
    /// CPUs possibly before this function has returned its id here; patched
    /// entries when it is enabled for functions. Task context; takes the
    /// registration lock.
    ///
    /// # Errors
    ///
    /// [`RegisterError`]; nothing has changed.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_kernel!()]
    /// # use fgraph::tracer::trigger::Counts;
    /// static COUNTS: Counts = Counts::new(&[]);
    /// drop(FGRAPH.scope(0x1000, 0));
    /// FGRAPH.register(&COUNTS)?;
    /// drop(FGRAPH.scope(0x1000, 0));
    /// assert_eq!(COUNTS.others(), 1, "the call after it was registered");
    /// # Ok::<(), fgraph::fgraph::RegisterError>(())
    /// ```
    pub fn register<C: Callback>(&self, callback: &'static C) -> Result<CallbackId, RegisterError> {
        let take = || {
            let avoid = self.hooked.load(Ordering::Relaxed);
            self.table.take(callback, N, avoid)
        };
        match self.locked(take) {
            Ok((slot, epoch)) => Ok(CallbackId { slot, epoch }),
            Err(TakeError::Full) => Err(RegisterError::Full),
            Err(TakeError::Present) => Err(RegisterError::AlreadyRegistered),
            Err(TakeError::Exhausted) => Err(RegisterError::Exhausted),
        }
    }

    /// Unregisters a callback. Calls in flight go on without it: their returns
    /// skip it, and no later owner of its slot gets them.
    ///
    /// When this returns, the platform's [grace period](Platform::synchronize)
    /// has passed: if the platform has one, the callback is not running
    /// anywhere and is not called again, except where this is called from the
    /// callback itself. Task context, or a callback; takes the registration
    /// lock.
    ///
    /// # Errors
    ///
    /// [`UnregisterError`].
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_callback!()]
    /// # impl Callback for Mine {
    /// #     type Frame = ();
    /// #     fn entry(&self, _: Entry<'_, ()>) -> Option<()> { Some(see(0)) }
    /// #     fn exit(&self, _: Exit<'_, ()>, (): ()) { see(1) }
    /// # }
    /// let id = FGRAPH.register(&MINE)?;
    /// let scope = FGRAPH.scope(0x1000, 0);
    /// FGRAPH.unregister(id)?;
    /// drop(scope);
    /// assert_eq!(seen(), [0], "an entry, and no exit");
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn unregister(&self, id: CallbackId) -> Result<(), UnregisterError> {
        let vacate = || {
            let there = self.table.vacate(id.slot, id.epoch);
            if there {
                self.table.clear(id.slot);
            }
            there
        };
        if !self.locked(vacate) {
            return Err(UnregisterError::NotRegistered);
        }
        if P::synchronize() {
            Ok(())
        } else {
            Err(UnregisterError::StillRunning)
        }
    }

    /// Whether the callback is registered: this registration, and not a later
    /// one of the same slot. Any context, any CPU.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_traced!()]
    /// FGRAPH.unregister(id)?;
    /// let again = FGRAPH.register(&FOLLOW)?;
    /// assert!(FGRAPH.is_registered(again) && !FGRAPH.is_registered(id));
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_registered(&self, id: CallbackId) -> bool {
        id.slot < SLOTS && self.table.since(id.slot) == id.epoch
    }

    /// How many entries this callback missed because a shadow stack was full:
    /// for the frame, or for its data. Kept until the slot is taken again, and
    /// wraps at 2³². Any context, any CPU.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_traced!()]
    /// let words = STACK.capacity();
    /// let mut calls: Vec<_> = (0..words).map(|_| FGRAPH.scope(0x1000, 0)).collect();
    /// // Each call is either on the stack or counted here.
    /// assert_eq!(STACK.depth() + FGRAPH.missed(id) as usize, words);
    /// # while calls.pop().is_some() {}
    /// ```
    #[must_use]
    pub fn missed(&self, id: CallbackId) -> u32 {
        self.table.missed(id.slot)
    }

    /// A hook is about to name this callback's slot in its functions: the slot
    /// is not given out until [`unhook`](Self::unhook).
    pub(crate) fn hook(&self, id: CallbackId) -> Result<(), NotRegistered> {
        self.locked(|| {
            if !self.is_registered(id) {
                return Err(NotRegistered);
            }
            self.hooked.fetch_or(1 << id.slot, Ordering::Relaxed);
            Ok(())
        })
    }

    /// Whether functions that name the slot of `id` do so for this callback,
    /// registered or departed, and not for a later owner.
    pub(crate) fn is_hooked(&self, id: CallbackId) -> bool {
        self.locked(|| {
            let hooked = self.hooked.load(Ordering::Relaxed) & 1 << id.slot != 0;
            hooked && (self.is_registered(id) || self.table.is_vacant(id.slot))
        })
    }

    /// No function names the slot any more.
    pub(crate) fn unhook(&self, id: CallbackId) {
        self.locked(|| self.hooked.fetch_and(!(1 << id.slot), Ordering::Relaxed));
    }

    /// Runs `f` with the registration lock held, and with every context of the
    /// running task inside the tracer: a callback that is called for the code
    /// under the lock, or for an interrupt of it, could ask for the lock that
    /// its own CPU holds.
    fn locked<R>(&self, f: impl Fn() -> R) -> R {
        let _inside = crate::arch::inside_if!(self.is_classic());
        let locked = |stack: &RetStack| {
            let _guards = Guards::hold(stack);
            let _lock = self.lock.lock();
            f()
        };
        P::current(locked).unwrap_or_else(|| {
            // No stack, so nothing here is traced.
            let _lock = self.lock.lock();
            f()
        })
    }
}
