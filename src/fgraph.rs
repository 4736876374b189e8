//! The tracer: calls enter and leave. Callbacks come and go in `register`.
//!
//! Entering and leaving are told here from top to bottom. This module knows
//! neither bits nor registers: words are [`ret_stack`](crate::ret_stack)'s,
//! ways of catching a call [`hook`](crate::hook)'s.

use core::marker::PhantomData;

use crate::hook::Registers;
use crate::platform::{Context, Platform};
use crate::ret_stack::word::{Progress, Record, State};
use crate::ret_stack::{Found, NEAR_WORDS, RetStack, View};
use crate::sync::{AtomicUsize, Mutex};

mod callback;
mod dispatch;
mod register;
mod rehearse;
mod table;
mod task;

pub use callback::{Callback, Cause, Entry, Exit, FrameData, Joined, Parent, WordArray};
use dispatch::Dispatch;
pub(crate) use register::NotRegistered;
pub use register::{CallbackId, RegisterError, UnregisterError};
pub(crate) use rehearse::RehearseError;
pub(crate) use table::ALL_CALLBACKS;
use table::{SLOTS, Table};
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
#[repr(C)]
pub struct Fgraph<P, const N: usize = SLOTS> {
    /// First, so that both have one address: calls go through one register.
    table: Table,
    /// Serialises registrations; what it protects is the table's writing side.
    lock: Mutex<()>,
    /// Slots that a hook's functions still name; they are not given out.
    /// Relaxed: it changes and is used under the lock.
    hooked: AtomicUsize,
    returns: Returns,
    platform: PhantomData<fn() -> P>,
}

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

    /// The word that is zero while no callback is registered.
    #[cfg(all(target_arch = "x86_64", target_pointer_width = "64"))]
    pub(crate) fn active_word(&self) -> &AtomicUsize {
        self.table.active_word()
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
        // Before any slot is read: an owner that comes later takes no part.
        let epoch = self.table.epoch();
        let call = *call;
        let enter = |stack: &RetStack| self.enter_on(stack, call, set, epoch, &mut 0);
        P::current(enter).unwrap_or(false)
    }

    /// Returns whether there is a frame, and its position in `place`.
    ///
    /// Written out here is the short way: on a stack at rest, with room for all,
    /// for a near frame that puts no other in doubt. Behind the callbacks it
    /// uses nothing but what the dispatch holds, so that no register has to be
    /// kept for it.
    #[inline(always)]
    fn enter_on(
        &self,
        stack: &RetStack,
        call: Call<'_>,
        set: usize,
        epoch: usize,
        place: &mut usize,
    ) -> bool {
        let context = P::context();
        let before = stack.state();
        // From here on nothing that runs is traced.
        let claimed = stack.claim_at_rest(before, context as usize, self.table.need());
        let Some(claim) = claimed else {
            return self.enter_slowly(stack, call, set, place);
        };
        let mut dispatch = Dispatch {
            stack,
            index: claim.index,
            registers: call.registers,
            during: claim.claimed,
            without: before,
            context,
            cause: Cause::Returned,
            not_sync: PhantomData,
        };
        // SAFETY: it is claimed.
        if !unsafe { stack.put_near(before.resting_top(), &call.record(epoch), set) } {
            let index = self.enter_in_doubt(
                stack,
                call.func,
                call.ret,
                call.slot,
                call.tail,
                call.registers,
                set,
                before,
            );
            *place = index.unwrap_or(0);
            return index.is_some();
        }
        // SAFETY: the set is not empty, and part of the active one; the claim
        // has room for what all owners keep.
        let progress = unsafe { self.table.enter(&mut dispatch, set, epoch, claim.index + 1) };
        *place = dispatch.index;
        if let Some(end) = progress.of_all()
            && dispatch
                .stack
                .replace_state(dispatch.during, State::resting(end))
        {
            return true;
        }
        self.settle(&dispatch, progress)
    }

    /// The other ways, where there may be no room, or others are inside the
    /// tracer, or the frame is wide, or older frames may be dead.
    #[inline(always)]
    fn enter_slowly(
        &self,
        stack: &RetStack,
        call: Call<'_>,
        set: usize,
        place: &mut usize,
    ) -> bool {
        // In parts, so that the short way needs no memory for the call.
        let index = self.enter_in_parts(
            stack,
            call.func,
            call.ret,
            call.slot,
            call.tail,
            call.registers,
            set,
        );
        *place = index.unwrap_or(0);
        index.is_some()
    }

    /// Gives the claim of the short way up first: the state was `before`.
    #[cold]
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "a call in parts")]
    fn enter_in_doubt(
        &self,
        stack: &RetStack,
        func: usize,
        ret: usize,
        slot: usize,
        tail: bool,
        registers: Option<&Registers>,
        set: usize,
        before: State,
    ) -> Option<usize> {
        self.back_out(stack, before, P::context());
        self.enter_in_parts(stack, func, ret, slot, tail, registers, set)
    }

    /// Returns the position of the frame, if there is one.
    #[cold]
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "a call in parts")]
    fn enter_in_parts(
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
        // What is not aligned can not be given its address back.
        if !slot.is_multiple_of(size_of::<usize>()) {
            return None;
        }
        let context = P::context();
        let mut state;
        loop {
            state = stack.state();
            if state.is_guarded(context as usize) {
                stack.count_recursion();
                return None;
            }
            if stack.replace_state(state, state.guarded(context as usize)) {
                break;
            }
        }
        let epoch = self.table.epoch();
        let record = Record {
            func,
            ret,
            slot,
            epoch,
        };
        let data = self.table.data_words();
        let claim = loop {
            if slot != 0 && !state.has_claim() && view.is_suspect(state, slot, P::interrupt_stack) {
                let tail = tail || self.is_hooked_return(ret);
                state = self.end_dead(view, slot, tail, state, context);
            }
            let now = state.guarded(context as usize);
            let Ok(claim) = view.claim(now, state, context as usize, &record, set, data) else {
                self.overrun(stack, set, epoch);
                stack.set_guards_of(state);
                return None;
            };
            if let Some(claim) = claim {
                break claim;
            }
            // An interrupt came between.
            state = stack.state().with_guards_of(state);
        };
        let mut dispatch = Dispatch {
            stack,
            index: claim.index,
            registers,
            during: claim.claimed,
            without: state,
            context,
            cause: Cause::Returned,
            not_sync: PhantomData,
        };
        // SAFETY: as in `enter_on`.
        let progress = unsafe { self.table.enter(&mut dispatch, set, epoch, claim.index + 1) };
        self.settle(&dispatch, progress).then_some(claim.index)
    }

    /// The callbacks have been called for an entry: keeps the frame if one wants
    /// the return.
    #[cold]
    #[inline(never)]
    fn settle(&self, dispatch: &Dispatch<'_>, progress: Progress) -> bool {
        let &Dispatch { index, without, .. } = dispatch;
        if dispatch.view().refuse(index, progress.refused()) == 0 {
            self.give_up(dispatch, without);
            return false;
        }
        self.give_up(dispatch, without.at(progress.position()));
        true
    }

    /// Gives the claim of an entry or an exit up: the state is `to` from here on.
    /// What interrupts have left above the claim ends first.
    #[inline(always)]
    fn give_up(&self, dispatch: &Dispatch<'_>, to: State) {
        let &Dispatch {
            stack,
            during,
            without,
            context,
            ..
        } = dispatch;
        if !stack.replace_state(during, to) {
            self.clear_up(stack, without, context, to);
        }
    }

    /// Leaves the stack as it was before a guard or a claim: `state`. For the
    /// other ways: false.
    #[cold]
    #[inline(never)]
    fn back_out(&self, stack: &RetStack, state: State, context: Context) -> bool {
        self.clear_up(stack, state, context, state);
        false
    }

    /// Ends what interrupts have left above `below`; then the state is `to`.
    #[cold]
    #[inline(never)]
    fn clear_up(&self, stack: &RetStack, below: State, context: Context, to: State) {
        let view = stack.view_in_use();
        loop {
            self.end_left_behind(view, below, context);
            let now = stack.state();
            let is_clear = view
                .frame_below(now.top())
                .is_none_or(|found| found.index < below.top());
            if is_clear && stack.replace_state(now, to) {
                return;
            }
        }
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
        let mut ret = 0;
        // SAFETY: the caller's.
        let leave = |stack: &RetStack| unsafe { self.leave_on(stack, slot, registers, &mut ret) };
        if P::current(leave) == Some(true) {
            return Some(ret);
        }
        // SAFETY: the caller's.
        unsafe { self.leave_otherwise(slot, registers) }
    }

    /// As [`leave`](Self::leave), with an address to go to if there is none.
    /// What it returns is in the slot, too.
    ///
    /// # Safety
    ///
    /// As for [`leave`](Self::leave).
    #[inline(always)]
    pub(crate) unsafe fn leave_or(
        &self,
        slot: usize,
        registers: Option<&Registers>,
        lost: fn() -> usize,
    ) -> usize {
        let mut ret = 0;
        // SAFETY: the caller's.
        let leave = |stack: &RetStack| unsafe { self.leave_on(stack, slot, registers, &mut ret) };
        if P::current(leave) == Some(true) {
            return ret;
        }
        // SAFETY: the caller's.
        unsafe { self.leave_otherwise_or(slot, registers, lost) }
    }

    /// # Safety
    ///
    /// As for [`leave`](Self::leave).
    #[cold]
    #[inline(never)]
    unsafe fn leave_otherwise_or(
        &self,
        slot: usize,
        registers: Option<&Registers>,
        lost: fn() -> usize,
    ) -> usize {
        // SAFETY: the caller's: the slot may be written.
        unsafe {
            let ret = self.leave_otherwise(slot, registers).unwrap_or_else(lost);
            put_back(slot, ret);
            ret
        }
    }

    /// The short way: on a stack at rest, whose newest frame is a near one on
    /// `slot`. Returns whether it is, and where to go in `ret`; if it is not,
    /// nothing has changed.
    ///
    /// # Safety
    ///
    /// As for [`leave`](Self::leave), but for a slot without a frame.
    #[inline(always)]
    unsafe fn leave_on(
        &self,
        stack: &RetStack,
        slot: usize,
        registers: Option<&Registers>,
        ret: &mut usize,
    ) -> bool {
        let context = P::context();
        let state = stack.state();
        let Some(view) = stack.filled_at_rest(state) else {
            return false;
        };
        // From here on nothing that runs is traced.
        let guarded = state.claiming(0, context as usize);
        if !stack.replace_state(state, guarded) {
            return false;
        }
        // SAFETY: nothing has changed but the guard.
        let Some((index, back)) = (unsafe { view.near_on_slot(state, slot) }) else {
            return self.back_out(stack, state, context);
        };
        // SAFETY: the caller's: the slot may be written.
        unsafe { put_back(slot, back) };
        let (start, end) = (index + 1 - NEAR_WORDS, state.resting_top());
        let without = State::resting(start);
        let during = without.claiming(end - start, context as usize);
        if !stack.replace_state(guarded, during) {
            return self.back_out(stack, state, context);
        }
        let mut leaving = Leaving {
            dispatch: Dispatch {
                stack,
                index,
                registers,
                during,
                without,
                context,
                cause: Cause::Returned,
                not_sync: PhantomData,
            },
            ret: back,
        };
        // SAFETY: as it was found.
        let (set, epoch) = unsafe { view.near_wanted(index) };
        self.run_exits(&mut leaving.dispatch, set, epoch, end);
        *ret = leaving.ret;
        true
    }

    /// The other ways: asks for the stack anew, so that the short way need not
    /// keep what they need.
    ///
    /// # Safety
    ///
    /// As for [`leave`](Self::leave).
    #[cold]
    #[inline(never)]
    unsafe fn leave_otherwise(&self, slot: usize, registers: Option<&Registers>) -> Option<usize> {
        // SAFETY: the caller's.
        let leave = |stack: &RetStack| unsafe { self.leave_slowly(stack, slot, registers) };
        match P::current(leave) {
            Some(Some(ret)) => Some(ret),
            // SAFETY: the caller's.
            _ => unsafe { self.leave_elsewhere(slot, registers) },
        }
    }

    /// Leaves where others are inside the tracer, or the frame is wide, or
    /// not the newest.
    ///
    /// # Safety
    ///
    /// As for [`leave_on`](Self::leave_on).
    unsafe fn leave_slowly(
        &self,
        stack: &RetStack,
        slot: usize,
        registers: Option<&Registers>,
    ) -> Option<usize> {
        let view = stack.view()?;
        let context = P::context();
        let mut state;
        loop {
            let seen = stack.state();
            state = seen;
            if seen.is_guarded(context as usize) {
                // No call enters while this context is inside a callback, so
                // this one is older: the callback was left by a jump.
                view.find_slot(seen, slot)?;
                state = seen.abandoned(context as usize);
            }
            if stack.replace_state(seen, state.guarded(context as usize)) {
                if seen.is_guarded(context as usize) {
                    stack.count_stray();
                }
                break;
            }
        }
        let is = |found: &Found| found.record.slot == slot && self.is_genuine(found);
        loop {
            let (now, found) = self.end_above(view, state, context, is);
            let Some(found) = found else {
                stack.set_guards_of(state);
                return None;
            };
            // SAFETY: the caller's: the slot may be written.
            unsafe { put_back(slot, found.record.ret) };
            let after = view.state_below(&found, now.with_guards_of(state));
            let cause = Cause::Returned;
            if self.end_any(view, now, after, &found, context, cause, registers) {
                return Some(found.record.ret);
            }
        }
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
            unsafe { self.leave_slowly(stack, slot, registers) }
        };
        if let Some(ret) = P::owner(slot, leave).flatten() {
            return Some(ret);
        }
        let _ = P::current(RetStack::count_stray);
        P::lost_return(slot)
    }

    /// Ends the newest frame, whatever it is; the state is `now`, and `after`
    /// once it is gone. False, and nothing has changed: an interrupt came
    /// between, and the state is another.
    #[expect(clippy::too_many_arguments, reason = "a dispatch in parts")]
    fn end_any(
        &self,
        view: View<'_>,
        now: State,
        after: State,
        found: &Found,
        context: Context,
        cause: Cause,
        registers: Option<&Registers>,
    ) -> bool {
        let ending = after.claimed(found.end).guarded(context as usize);
        if !view.stack().replace_state(now, ending) {
            return false;
        }
        // Those of a scope that has ended were told of it.
        if cause == Cause::Unwound && found.set != 0 {
            view.stack().count_unwound();
        }
        self.end(view, ending, after, found, context, cause, registers);
        true
    }

    /// Ends a frame. The state is `during`: the frame is off the stack, and its
    /// words stay claimed until the last exit, so it can not be ended twice,
    /// whatever interrupts.
    #[expect(clippy::too_many_arguments, reason = "a dispatch in parts")]
    fn end(
        &self,
        view: View<'_>,
        during: State,
        without: State,
        found: &Found,
        context: Context,
        cause: Cause,
        registers: Option<&Registers>,
    ) {
        let mut dispatch = Dispatch {
            stack: view.stack(),
            index: found.index,
            registers,
            during,
            without,
            context,
            cause,
            not_sync: PhantomData,
        };
        self.run_exits(&mut dispatch, found.set, found.record.epoch, found.end);
    }

    /// Calls the exits of a frame that the state says is off the stack. As in
    /// [`enter_on`](Self::enter_on), nothing is kept over the callbacks but what
    /// the dispatch holds.
    #[inline(always)]
    fn run_exits(&self, dispatch: &mut Dispatch<'_>, set: usize, epoch: usize, end: usize) {
        self.table.leave(dispatch, set, epoch, end);
        self.give_up(dispatch, dispatch.without);
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
    /// it as unwound, newest first. Returns it, now the newest, and the state;
    /// `None`, and ends none, if there is no such frame. If a callback unwinds,
    /// the guards are `before`'s.
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
        let now = stack.state();
        if !view.founds(now.top()).any(|found| is(&found)) {
            return (now, None);
        }
        self.end_newest(view, before, context, Cause::Unwound, |found| !is(found));
        let now = stack.state();
        (now, view.frame_below(now.top()).filter(is))
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
        loop {
            let now = stack.state();
            let Some(frame) = view.frame_below(now.top()).filter(&dead) else {
                break;
            };
            let after = view.state_below(&frame, now.guarded(context as usize));
            // If it does not end, an interrupt came between: the stack is looked
            // at anew.
            if self.is_genuine(&frame) {
                self.end_any(view, now, after, &frame, context, cause, None);
            } else if stack.replace_state(now, after) {
                stack.count_stray();
            }
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
/// It is a frame's, and a live return slot on the running stack, or one whose
/// call has just ended.
#[inline(always)]
unsafe fn put_back(slot: usize, ret: usize) {
    // SAFETY: the caller's; hooks refuse slots that are null or not aligned.
    unsafe { (slot as *mut usize).write_volatile(ret) };
}

/// An exit, and where the call goes back to: in one piece of memory, as that
/// is not needed until all callbacks have been called.
struct Leaving<'a> {
    dispatch: Dispatch<'a>,
    ret: usize,
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
