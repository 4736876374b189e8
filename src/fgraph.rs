//! The tracer: callbacks come and go, calls enter and leave.
//!
//! Entering and leaving are told here from top to bottom. This module knows
//! neither bits nor registers: words are [`ret_stack`](crate::ret_stack)'s,
//! ways of catching a call [`hook`](crate::hook)'s.

use core::marker::PhantomData;

use crate::hook::Registers;
use crate::platform::{Context, Platform};
use crate::ret_stack::word::{Record, State};
use crate::ret_stack::{Claim, Found, RetStack, View};
use crate::sync::{AtomicUsize, Mutex, Ordering};

mod callback;
mod dispatch;
mod rehearse;
mod table;
mod task;

pub use callback::{Callback, Cause, Entry, Exit, FrameData, Joined, Parent, WordArray};
use dispatch::Dispatch;
pub(crate) use rehearse::RehearseError;
pub(crate) use table::SLOTS;
use table::{Table, TakeError};
use task::{Guards, Returns};

/// A function graph tracer over a platform, with `N` callback slots (1 to 16).
/// Kernels make one a `static`; several do not disturb each other as long as
/// each has shadow stacks of its own.
///
/// # Example
///
/// ```
/// use fgraph::{Callback, Entry, Exit, Fgraph, Platform, RetStack};
///
/// struct Kernel;
/// static STACK: RetStack = RetStack::new();
///
/// // SAFETY: one CPU, one task.
/// unsafe impl Platform for Kernel {
///     fn current<R>(f: impl FnOnce(&RetStack) -> R) -> Option<R> {
///         Some(f(&STACK))
///     }
///     fn clock() -> u64 {
///         0
///     }
/// }
///
/// struct Quiet;
/// impl Callback for Quiet {
///     type Frame = ();
///     fn entry(&self, _: Entry<'_, ()>) -> Option<()> {
///         Some(())
///     }
///     fn exit(&self, _: Exit<'_, ()>, (): ()) {}
/// }
///
/// static FGRAPH: Fgraph<Kernel> = Fgraph::new();
/// static QUIET: Quiet = Quiet;
///
/// let id = FGRAPH.register(&QUIET)?;
/// FGRAPH.unregister(id)?;
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
///
/// With no slot, or with 17, it does not compile:
///
/// ```compile_fail,E0080
/// # use fgraph::{Fgraph, Platform, RetStack};
/// # struct Kernel;
/// # // SAFETY: it has no task.
/// # unsafe impl Platform for Kernel {
/// #     fn current<R>(_: impl FnOnce(&RetStack) -> R) -> Option<R> { None }
/// #     fn clock() -> u64 { 0 }
/// # }
/// static FGRAPH: Fgraph<Kernel, 17> = Fgraph::new();
/// ```
///
/// ```compile_fail,E0080
/// # use fgraph::{Fgraph, Platform, RetStack};
/// # struct Kernel;
/// # // SAFETY: it has no task.
/// # unsafe impl Platform for Kernel {
/// #     fn current<R>(_: impl FnOnce(&RetStack) -> R) -> Option<R> { None }
/// #     fn clock() -> u64 { 0 }
/// # }
/// static FGRAPH: Fgraph<Kernel, 0> = Fgraph::new();
/// ```
///
/// Nor does a callback that may go before its tracer does:
///
/// ```compile_fail,E0597
/// # use fgraph::{Callback, Entry, Exit, Fgraph, Platform, RetStack};
/// # struct Kernel;
/// # // SAFETY: it has no task.
/// # unsafe impl Platform for Kernel {
/// #     fn current<R>(_: impl FnOnce(&RetStack) -> R) -> Option<R> { None }
/// #     fn clock() -> u64 { 0 }
/// # }
/// # struct Named(String);
/// # impl Callback for Named {
/// #     type Frame = ();
/// #     fn entry(&self, _: Entry<'_, ()>) -> Option<()> { None }
/// #     fn exit(&self, _: Exit<'_, ()>, (): ()) {}
/// # }
/// # static FGRAPH: Fgraph<Kernel> = Fgraph::new();
/// let named = Named(String::from("short-lived"));
/// let _ = FGRAPH.register(&named);
/// ```
pub struct Fgraph<P, const N: usize = SLOTS> {
    table: Table,
    /// Serialises registrations; what it protects is the table's writing side.
    lock: Mutex<()>,
    /// Slots that a hook's functions still name; they are not given out.
    /// Relaxed: it changes and is used under the lock.
    hooked: AtomicUsize,
    returns: Returns,
    platform: PhantomData<fn() -> P>,
}

/// A registered callback: its slot, and when it got it. Of the
/// [`Fgraph`] that gave it: what another makes of it has no meaning.
///
/// # Example
///
/// ```
#[doc = example_kernel!()]
/// # static PROFILE: fgraph::tracer::Profile<Kernel> = fgraph::tracer::Profile::new(&[]);
/// let first = FGRAPH.register(&PROFILE)?;
/// FGRAPH.unregister(first)?;
/// let second = FGRAPH.register(&PROFILE)?;
/// // The slot is the same, and yet it is another registration.
/// assert_eq!(first.slot(), second.slot());
/// assert_ne!(first, second);
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
    #[doc = example_kernel!()]
    /// # static PROFILE: fgraph::tracer::Profile<Kernel> = fgraph::tracer::Profile::new(&[]);
    /// # FGRAPH.register(&PROFILE)?;
    /// # static COUNTS: fgraph::tracer::trigger::Counts =
    /// #     fgraph::tracer::trigger::Counts::new(&[]);
    /// // The second that is registered.
    /// let id = FGRAPH.register(&COUNTS)?;
    /// assert_eq!(id.slot(), 1);
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
#[doc = example_kernel!()]
/// # static PROFILE: fgraph::tracer::Profile<Kernel> = fgraph::tracer::Profile::new(&[]);
/// FGRAPH.register(&PROFILE)?;
/// assert_eq!(FGRAPH.register(&PROFILE), Err(RegisterError::AlreadyRegistered));
/// # Ok::<(), RegisterError>(())
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
#[doc = example_kernel!()]
/// # static PROFILE: fgraph::tracer::Profile<Kernel> = fgraph::tracer::Profile::new(&[]);
/// let id = FGRAPH.register(&PROFILE)?;
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

/// A call, as a hook caught it: what a hook of one's own hands to
/// [`Fgraph::enter`], which has an example too.
///
/// # Example
///
/// ```
/// use fgraph::fgraph::Call;
///
/// // A slot in which the return address is, as on x86-64.
/// let slot = [0x40_2000_usize];
/// let call = Call {
///     func: 0x40_1000,
///     ret: slot[0],
///     slot: &raw const slot as usize,
///     tail: false,
///     registers: None,
/// };
/// assert_eq!(call.ret, 0x40_2000);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The address of the function.
    pub func: usize,
    /// What the return slot holds.
    pub ret: usize,
    /// The address of the return slot; 0 for a scope, which has none.
    pub slot: usize,
    /// Whether `ret` is the address of a hook's own stub: a traced function
    /// tail-called this one. The hooks of this crate leave it false: their
    /// addresses are known, and looked at where it matters.
    pub tail: bool,
    /// The registers, where the hook saved them.
    pub registers: Option<&'a Registers>,
}

impl Call<'_> {
    #[inline(always)]
    fn record(&self, epoch: usize) -> Record {
        Record {
            func: self.func,
            ret: self.ret,
            slot: self.slot,
            epoch,
        }
    }
}

impl<P: Platform, const N: usize> Fgraph<P, N> {
    /// No callbacks. `N` is checked at compile time: 1 to 16.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::Fgraph;
    ///
    #[doc = example_kernel!()]
    /// // Four slots.
    /// static SMALL: Fgraph<Kernel, 4> = Fgraph::new();
    /// # static COUNTS: [fgraph::tracer::trigger::Counts; 5] =
    /// #     [const { fgraph::tracer::trigger::Counts::new(&[]) }; 5];
    /// let registered = COUNTS.iter().filter(|counts| SMALL.register(*counts).is_ok());
    /// assert_eq!(registered.count(), 4);
    /// ```
    #[must_use]
    pub const fn new() -> Self {
        const {
            assert!(1 <= N && N <= SLOTS, "an Fgraph has 1 to 16 callback slots");
        }
        Self {
            table: Table::new(),
            lock: Mutex::new(()),
            hooked: AtomicUsize::new(0),
            returns: Returns::new(),
            platform: PhantomData,
        }
    }

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
    #[doc = example_kernel!()]
    /// # static PROFILE: fgraph::tracer::Profile<Kernel> = fgraph::tracer::Profile::new(&[]);
    /// let first = FGRAPH.register(&PROFILE)?;
    /// FGRAPH.unregister(first)?;
    /// let second = FGRAPH.register(&PROFILE)?;
    /// assert!(FGRAPH.is_registered(second) && !FGRAPH.is_registered(first));
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
    #[doc = example_kernel!()]
    /// # static PROFILE: fgraph::tracer::Profile<Kernel> = fgraph::tracer::Profile::new(&[]);
    /// let id = FGRAPH.register(&PROFILE)?;
    /// let words = STACK.capacity();
    /// let mut calls: Vec<_> = (0..words).map(|_| FGRAPH.scope(0x1000, 0)).collect();
    /// // Each call is either on the stack or counted here.
    /// assert_eq!(STACK.depth() + FGRAPH.missed(id) as usize, words);
    /// # while calls.pop().is_some() {}
    /// # Ok::<(), fgraph::fgraph::RegisterError>(())
    /// ```
    #[must_use]
    pub fn missed(&self, id: CallbackId) -> u32 {
        self.table.missed(id.slot)
    }

    /// The word that is zero while no callback is registered.
    #[cfg(all(target_arch = "x86_64", target_pointer_width = "64"))]
    pub(crate) fn active_word(&self) -> &AtomicUsize {
        self.table.active_word()
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

    /// A call begins. Returns whether a callback wants its return: then the
    /// hook must call [`leave`](Self::leave) for the same slot when the call
    /// ends, and go where that says. Any context, any CPU.
    ///
    /// `wanted` is the set of callbacks that follow this function, one bit a
    /// slot; those that are not registered take no part.
    ///
    /// # Example
    ///
    /// A hook that catches a call and its return:
    ///
    /// ```
    /// use fgraph::fgraph::Call;
    ///
    #[doc = example_callback!()]
    /// # impl Callback for Mine {
    /// #     type Frame = ();
    /// #     fn entry(&self, call: Entry<'_, ()>) -> Option<()> { Some(see(call.caller())) }
    /// #     fn exit(&self, call: Exit<'_, ()>, (): ()) { see(call.func()) }
    /// # }
    /// # FGRAPH.register(&MINE)?;
    /// let slot = &raw const SLOTS[40] as usize; // On the task's real stack.
    /// let call = Call { func: 0x1000, ret: 0x2000, slot, tail: false, registers: None };
    /// // SAFETY: the slot is this call's, and nobody tail-called.
    /// if unsafe { FGRAPH.enter(&call, usize::MAX) } {
    ///     // … the function runs, and:
    ///     // SAFETY: it was entered, and has ended.
    ///     let ret = unsafe { FGRAPH.leave(slot, None) };
    ///     assert_eq!(ret, Some(0x2000));
    /// }
    /// assert_eq!(seen(), [0x2000, 0x1000]);
    /// # Ok::<(), fgraph::fgraph::RegisterError>(())
    /// ```
    ///
    /// # Safety
    ///
    /// `call.slot` is the call's return slot on the running stack, and
    /// `call.tail` is true exactly when `call.ret` is the address to which the
    /// calls of the caller's own hook return.
    #[inline(always)]
    #[must_use]
    pub unsafe fn enter(&self, call: &Call<'_>, wanted: usize) -> bool {
        let set = wanted & self.table.active();
        if set == 0 {
            return false;
        }
        let call = *call;
        P::current(|stack| self.enter_on(stack, call, set).is_some()).unwrap_or(false)
    }

    /// Returns the position of the frame, if there is one.
    #[inline(always)]
    fn enter_on(&self, stack: &RetStack, call: Call<'_>, set: usize) -> Option<usize> {
        match self.enter_quickly(stack, call, set) {
            Some(entered) => entered,
            // In parts, so that the quick way needs no memory for the call.
            None => self.enter_slowly(
                stack,
                call.func,
                call.ret,
                call.slot,
                call.tail,
                call.registers,
                set,
            ),
        }
    }

    /// Enters on a stack at rest with room for all, for a near frame that puts
    /// no other in doubt. `None`, and nothing has changed, in other cases.
    #[inline(always)]
    fn enter_quickly(&self, stack: &RetStack, call: Call<'_>, set: usize) -> Option<Option<usize>> {
        let view = stack.view()?;
        let context = P::context();
        let state = stack.state();
        let data = self.table.data_words();
        // From here on nothing that runs is traced.
        let claim = view.claim_at_rest(state, context as usize, data)?;
        // Before any slot is read: an owner that comes later takes no part.
        let epoch = self.table.epoch();
        let sure = call.slot == 0 || view.is_above(state, call.slot);
        if !sure || !claim.put_near(&call.record(epoch)) {
            claim.cancel();
            return None;
        }
        Some(self.enter_claimed(claim, view, call.registers, set, epoch, context))
    }

    /// Enters where there may be no room, or others are inside the tracer, or
    /// the frame is wide, or older frames may be dead.
    #[cold]
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "a call in parts")]
    fn enter_slowly(
        &self,
        stack: &RetStack,
        func: usize,
        ret: usize,
        slot: usize,
        tail: bool,
        registers: Option<&Registers>,
        set: usize,
    ) -> Option<usize> {
        let view = stack.view()?;
        let context = P::context();
        let mut state = stack.state();
        if state.is_guarded(context as usize) {
            stack.count_recursion();
            return None;
        }
        stack.set_state(state.guarded(context as usize));
        let epoch = self.table.epoch();
        if slot != 0 && !state.has_claim() && view.is_suspect(state, slot, P::interrupt_stack) {
            let tail = tail || self.is_hooked_return(ret);
            state = self.end_dead(view, slot, tail, state, context);
        }
        let record = Record {
            func,
            ret,
            slot,
            epoch,
        };
        let data = self.table.data_words();
        let Some(claim) = view.claim(state, context as usize, &record, data) else {
            self.overrun(stack, set, epoch);
            stack.set_state(state);
            return None;
        };
        self.enter_claimed(claim, view, registers, set, epoch, context)
    }

    /// Calls the callbacks for a frame that is written, and keeps it if one
    /// wants the return.
    #[inline(always)]
    fn enter_claimed<'a>(
        &'a self,
        claim: Claim<'a>,
        view: View<'a>,
        registers: Option<&'a Registers>,
        set: usize,
        epoch: usize,
        context: Context,
    ) -> Option<usize> {
        let Claim { index, limit, .. } = claim;
        let mut entering = Entering {
            dispatch: Dispatch {
                view,
                table: &self.table,
                index,
                data: index + 1,
                limit,
                registers,
                context,
                cause: Cause::Returned,
                pending: 0,
            },
            before: claim.before(),
            set,
        };
        let refused = self.table.enter(&mut entering.dispatch, set, epoch);
        let end = entering.dispatch.data;
        core::mem::forget(entering);
        if claim.has_frames_above() {
            self.end_left_behind(view, claim.before(), context);
        }
        let accepted = set & !refused;
        if accepted == 0 {
            claim.cancel();
            return None;
        }
        claim.commit(accepted, end);
        Some(index)
    }

    #[cold]
    fn overrun(&self, stack: &RetStack, set: usize, epoch: usize) {
        stack.count_overrun();
        // The exits of dead frames may have changed who is in the slots.
        let there = |slot: &usize| set & (1 << slot) != 0 && self.table.since(*slot) <= epoch;
        for slot in (0..SLOTS).filter(there) {
            self.table.count_missed(slot);
        }
    }

    /// A call ends: it runs the exits of the callbacks that wanted its return
    /// and returns the address to go to. Frames that lie above its own were
    /// jumped over: they end first, as unwound.
    ///
    /// The return slot gets the address before the frame is gone, so that an
    /// interrupt's unwinder finds it in the one or in the other.
    ///
    /// If no frame is found, here or on the stack that the platform names as
    /// the slot's [owner](Platform::owner), the loss is counted and
    /// [`Platform::lost_return`] decides; `None` if it has no answer.
    ///
    /// Any context, on the CPU that runs the call's task. `registers` are the
    /// saved ones, for [`Exit::return_value`].
    ///
    /// # Example
    ///
    /// A return that was never entered is counted, and leads nowhere:
    ///
    /// ```
    #[doc = example_kernel!()]
    /// let slot = &raw const SLOTS[40] as usize;
    /// // SAFETY: not entered, as a broken hook would do it: nothing is written.
    /// assert_eq!(unsafe { FGRAPH.leave(slot, None) }, None);
    /// assert!(STACK.counters().strays > 0);
    /// ```
    ///
    /// # Safety
    ///
    /// [`enter`](Self::enter) returned true for this slot, and the call has
    /// ended: nothing of its stack frame is in use, and the slot may be
    /// written.
    #[inline(always)]
    #[must_use]
    pub unsafe fn leave(&self, slot: usize, registers: Option<&Registers>) -> Option<usize> {
        // SAFETY: the caller's.
        let leave = |stack: &RetStack| unsafe { self.leave_on(stack, slot, registers) };
        match P::current(leave) {
            Some(Some(ret)) => Some(ret),
            // SAFETY: the caller's.
            _ => unsafe { self.leave_elsewhere(slot, registers) },
        }
    }

    /// # Safety
    ///
    /// As for [`leave`](Self::leave), but for a slot without a frame.
    #[inline(always)]
    unsafe fn leave_on(
        &self,
        stack: &RetStack,
        slot: usize,
        registers: Option<&Registers>,
    ) -> Option<usize> {
        let view = stack.view()?;
        let context = P::context();
        let state = stack.state();
        if state.is_at_rest() {
            // From here on nothing that runs is traced.
            stack.set_state(state.guarded(context as usize));
            if let Some(found) = view.near_on_slot(state, slot) {
                // SAFETY: the caller's: the slot may be written.
                unsafe { put_back(&found) };
                let after = State::resting(found.start);
                let ending = after.claiming(found.end - found.start, context as usize);
                self.end(
                    view,
                    ending,
                    after,
                    &found,
                    context,
                    Cause::Returned,
                    registers,
                );
                return Some(found.record.ret);
            }
        }
        // SAFETY: the caller's.
        unsafe { self.leave_slowly(view, state, slot, context, registers) }
    }

    /// Leaves where others are inside the tracer, or the frame is wide, or
    /// not the newest.
    ///
    /// # Safety
    ///
    /// As for [`leave_on`](Self::leave_on).
    #[cold]
    #[inline(never)]
    unsafe fn leave_slowly(
        &self,
        view: View<'_>,
        mut state: State,
        slot: usize,
        context: Context,
        registers: Option<&Registers>,
    ) -> Option<usize> {
        let stack = view.stack();
        if state.is_guarded(context as usize) {
            // No call enters while this context is inside a callback, so this
            // one is older: the callback was left by a jump.
            view.find_slot(state, slot)?;
            stack.count_stray();
            state = state.abandoned(context as usize);
        }
        stack.set_state(state.guarded(context as usize));
        let is = |found: &Found| found.record.slot == slot && self.is_genuine(found);
        let (state, found) = self.end_above(view, state, context, is);
        let Some(found) = found else {
            stack.set_state(state);
            return None;
        };
        // SAFETY: the caller's: the slot may be written.
        unsafe { put_back(&found) };
        let after = view.state_below(&found, state);
        self.end_any(view, after, &found, context, Cause::Returned, registers);
        Some(found.record.ret)
    }

    /// # Safety
    ///
    /// As for [`leave`](Self::leave).
    #[cold]
    #[inline(never)]
    unsafe fn leave_elsewhere(&self, slot: usize, registers: Option<&Registers>) -> Option<usize> {
        let leave = |stack: &RetStack| {
            stack.count_stray();
            // SAFETY: the caller's.
            unsafe { self.leave_on(stack, slot, registers) }
        };
        if let Some(ret) = P::owner(slot, leave).flatten() {
            return Some(ret);
        }
        let _ = P::current(RetStack::count_stray);
        P::lost_return(slot)
    }

    /// Ends the newest frame, whatever it is; `after` is the state once it is
    /// gone.
    fn end_any(
        &self,
        view: View<'_>,
        after: State,
        found: &Found,
        context: Context,
        cause: Cause,
        registers: Option<&Registers>,
    ) {
        let ending = after.claimed(found.end).guarded(context as usize);
        self.end(view, ending, after, found, context, cause, registers);
    }

    /// Ends a frame: runs its exits. Meanwhile the state is `ending`: the frame
    /// is off the stack, and its words stay claimed until the last exit, so it
    /// can not be ended twice, whatever interrupts.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "inlined: they stay in registers")]
    fn end(
        &self,
        view: View<'_>,
        ending: State,
        after: State,
        found: &Found,
        context: Context,
        cause: Cause,
        registers: Option<&Registers>,
    ) {
        view.stack().set_state(ending);
        let mut leaving = Leaving {
            dispatch: Dispatch {
                view,
                table: &self.table,
                index: found.index,
                data: found.end,
                limit: found.end,
                registers,
                context,
                cause,
                pending: 0,
            },
            after,
        };
        self.table
            .leave(&mut leaving.dispatch, found.set, found.record.epoch);
        core::mem::forget(leaving);
        if view.stack().state() != ending {
            self.end_left_behind(view, after, context);
        }
        view.stack().set_state(after);
    }

    /// Interrupts that came inside of an entry or an exit have ended, and calls
    /// of theirs were jumped over: the frames above the top of `below` end,
    /// before others are put over their words.
    #[cold]
    #[inline(never)]
    fn end_left_behind(&self, view: View<'_>, below: State, context: Context) {
        let above = |found: &Found| found.index >= below.top();
        self.end_newest(view, below, context, Cause::Unwound, above);
    }

    /// Looks for the newest frame that `is` the wanted one, and ends those above
    /// it as unwound, newest first. Returns it, now the newest, and the state
    /// with `before`'s guards; `None`, and ends none, if there is no such frame.
    #[cold]
    #[inline(never)]
    fn end_above(
        &self,
        view: View<'_>,
        before: State,
        context: Context,
        is: impl Fn(&Found) -> bool,
    ) -> (State, Option<Found>) {
        let stack = view.stack();
        if !view.founds(before.top()).any(|found| is(&found)) {
            return (before, None);
        }
        self.end_newest(view, before, context, Cause::Unwound, |found| !is(found));
        let state = stack.state().with_guards_of(before);
        (state, view.frame_below(state.top()))
    }

    /// A call enters on a slot that says that frames on the stack may be
    /// dead. Ends those that are; returns the state with `before`'s guards.
    #[cold]
    #[inline(never)]
    fn end_dead(
        &self,
        view: View<'_>,
        slot: usize,
        tail: bool,
        before: State,
        context: Context,
    ) -> State {
        if let Some(oldest) = view.oldest_dead(before, slot, tail, P::interrupt_stack) {
            let dead = |found: &Found| found.index >= oldest;
            self.end_newest(view, before, context, Cause::Unwound, dead);
        }
        view.stack().state().with_guards_of(before)
    }

    /// Ends the newest frames with `cause`, as long as they are `dead`, with the
    /// context's guard held; if a callback unwinds, the guards are `before`'s.
    fn end_newest(
        &self,
        view: View<'_>,
        before: State,
        context: Context,
        cause: Cause,
        dead: impl Fn(&Found) -> bool,
    ) {
        let stack = view.stack();
        let guards = Guards { stack, before };
        while let Some(frame) = view.frame_below(stack.state().top())
            && dead(&frame)
        {
            let state = stack.state().guarded(context as usize);
            let after = view.state_below(&frame, state);
            if !self.is_genuine(&frame) {
                stack.count_stray();
                stack.set_state(after);
                continue;
            }
            // Those of a scope that has ended were told of it.
            if cause == Cause::Unwound && frame.set != 0 {
                stack.count_unwound();
            }
            self.end_any(view, after, &frame, context, cause, None);
        }
        core::mem::forget(guards);
    }

    /// Whether the frame can have been made by a call. Damaged words, or a
    /// callback's data that are taken for a frame, mostly have an epoch in
    /// which nobody can have wanted a return.
    pub(super) fn is_genuine(&self, found: &Found) -> bool {
        let epoch = found.record.epoch;
        epoch <= self.table.epoch() && (epoch != 0 || found.set == 0)
    }
}

/// Gives a return slot its address back.
///
/// # Safety
///
/// The frame's slot is a live return slot on the running stack, or one whose
/// call has just ended.
#[inline(always)]
unsafe fn put_back(found: &Found) {
    // SAFETY: the caller's; hooks refuse slots that are null or not aligned.
    unsafe { (found.record.slot as *mut usize).write_volatile(found.record.ret) };
}

/// An entry under way. Dropped only if a callback unwinds: the callbacks that
/// had accepted get their exit, and the call goes on untraced.
struct Entering<'a> {
    dispatch: Dispatch<'a>,
    before: State,
    set: usize,
}

impl Drop for Entering<'_> {
    fn drop(&mut self) {
        let Self {
            dispatch,
            before,
            set,
        } = self;
        let accepted = *set & !dispatch.pending;
        let epoch = dispatch.record().epoch;
        dispatch.cause = Cause::Unwound;
        dispatch.table.leave(dispatch, accepted, epoch);
        dispatch.view.stack().set_state(*before);
    }
}

/// An exit under way. Dropped only if a callback unwinds: the others get
/// their exit, and the frame is gone.
struct Leaving<'a> {
    dispatch: Dispatch<'a>,
    after: State,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let Self { dispatch, after } = self;
        let pending = core::mem::take(&mut dispatch.pending) >> 1;
        let epoch = dispatch.record().epoch;
        dispatch.table.leave(dispatch, pending, epoch);
        dispatch.view.stack().set_state(*after);
    }
}

impl<P: Platform, const N: usize> Default for Fgraph<P, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P, const N: usize> core::fmt::Debug for Fgraph<P, N> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Fgraph")
            .field("active", &format_args!("{:#06x}", self.table.active()))
            .field("epoch", &self.table.epoch())
            .finish_non_exhaustive()
    }
}
