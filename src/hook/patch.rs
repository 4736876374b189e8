//! Patched entries with call-through: the hook for code that is compiled with
//! `-Zpatchable-function-entry`, on x86-64 and AArch64.
//!
//! | target | the flag | a call's return slot is |
//! | --- | --- | --- |
//! | x86-64 | `-Zpatchable-function-entry=24,16` | the word that holds its return address |
//! | AArch64 | `-Zpatchable-function-entry=10,8` | the word below the stack pointer at the call |
//!
//! On AArch64 the return address comes in `x30`. The slot then tells the call
//! from others; where its address is while the function runs, the chain of
//! frame records tells, so kernels that unwind or
//! [restore](crate::Fgraph::restore) have frame pointers on (Rust's AArch64
//! targets do). A function more than 128 MiB from the stub can not be enabled.
//!
//! Every function carries its own set of callbacks in the padding before it,
//! so what one callback follows is no business of another's, and a function
//! that nobody follows costs its NOP alone. How an entry looks is
//! `arch`'s; this file decides which are written, and keeps
//! those out that must never be hooked.
//!
//! # What is never hooked
//!
//! - Functions that return from an interrupt: the word at their "return slot"
//!   is the interrupted instruction or an error code.
//! - The tracer's own path from the entry to its recursion guard, and from the
//!   guard to the return. It is not known by name, since generic code lands in
//!   the kernel's crate and a debug build calls dozens of helpers of `core`:
//!   it is *learnt*. [`Patch::init`] hooks every function with a stub that
//!   only marks it, walks the tracer through its paths, and whatever ran is
//!   excluded, the platform's functions with it. What runs behind the guard is
//!   harmless.
//! - What the kernel [excludes](Patch::exclude).

use core::marker::PhantomData;
use core::ptr;

use super::Global;
use crate::arch::{self, Registers, entry};
use crate::fgraph::{Call, CallbackId};
use crate::sync::{AtomicPtr, AtomicUsize, Ordering};
use crate::{Platform, RetStack};

mod error;
mod learn;

pub use error::PatchError;
use learn::{find, learn};

/// How a kernel lets its text be written.
///
/// # Safety
///
/// While [`patch_text`](PatchText::patch_text) runs its argument, text is
/// writable at its own addresses, no other CPU executes patchable code, and no
/// interrupt on this CPU does. When it returns, all CPUs execute what was
/// written.
pub unsafe trait PatchText: Platform {
    /// Runs `f` with text writable and everybody else kept out of it. Task
    /// context. The tracer is quiet on this CPU meanwhile.
    fn patch_text<R>(f: impl FnOnce() -> R) -> R;
}

/// What [`Patch::init`] found.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Functions {
    /// Functions that can be hooked.
    pub patchable: usize,
    /// Functions of the tracer's own path, the platform's among them.
    pub own: usize,
    /// Functions that return from an interrupt.
    pub interrupt: usize,
    /// Listed addresses that are no entry of the expected shape.
    pub foreign: usize,
}

/// The table of patchable functions of the running image, and who follows
/// which. A `static`, beside the [`Fgraph`](crate::Fgraph).
///
/// # Example
///
/// ```no_run
/// # use fgraph::{Fgraph, Platform, RetStack, Callback, Entry, Exit};
/// # use fgraph::hook::{Global, patch::{Patch, PatchText}};
/// # static STACK: RetStack = RetStack::new();
/// # struct Kernel;
/// # // SAFETY: one CPU, one task.
/// # unsafe impl Platform for Kernel {
/// #     fn current<R>(f: impl FnOnce(&RetStack) -> R) -> Option<R> { Some(f(&STACK)) }
/// #     fn clock() -> u64 { 0 }
/// # }
/// # static FGRAPH: Fgraph<Kernel> = Fgraph::new();
/// # impl Global for Kernel { fn fgraph() -> &'static Fgraph<Self> { &FGRAPH } }
/// # // SAFETY: nothing runs beside it.
/// # unsafe impl PatchText for Kernel { fn patch_text<R>(f: impl FnOnce() -> R) -> R { f() } }
/// # struct Quiet;
/// # impl Callback for Quiet {
/// #     type Frame = ();
/// #     fn entry(&self, _: Entry<'_, ()>) -> Option<()> { Some(()) }
/// #     fn exit(&self, _: Exit<'_, ()>, (): ()) {}
/// # }
/// # static QUIET: Quiet = Quiet;
/// static PATCH: Patch<Kernel> = Patch::new();
///
/// // SAFETY: this image's own table.
/// unsafe { PATCH.init(fgraph::patchable_functions!())? };
/// let id = FGRAPH.register(&QUIET)?;
/// PATCH.enable(id, |func| (0xffff_8000_0010_0000..0xffff_8000_0020_0000).contains(&func))?;
/// // …
/// PATCH.disable(id, |_| true)?;
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Patch<B, const N: usize = 16> {
    /// The listed addresses. Null before `init`; release and acquire carry
    /// what `init` wrote into the paddings.
    listed: AtomicPtr<usize>,
    len: AtomicUsize,
    binding: PhantomData<fn() -> B>,
}

/// The addresses that this image's section of patchable entries lists, for
/// [`Patch::init`]. Expands to the linker's symbols, so it belongs into the
/// crate that is linked; an image without one patchable function does not
/// have them and fails to link.
#[macro_export]
macro_rules! patchable_functions {
    () => {{
        unsafe extern "C" {
            static __start___patchable_function_entries: [usize; 0];
            static __stop___patchable_function_entries: [usize; 0];
        }
        let start = (&raw const __start___patchable_function_entries).cast::<usize>();
        let stop = (&raw const __stop___patchable_function_entries).cast::<usize>();
        let len = (stop as usize - start as usize) / ::core::mem::size_of::<usize>();
        // SAFETY: the linker puts the symbols around a section of addresses,
        // which nobody writes.
        unsafe { ::core::slice::from_raw_parts(start, len) }
    }};
}

impl<B: Global<N> + PatchText, const N: usize> Patch<B, N> {
    /// An empty table.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            listed: AtomicPtr::new(ptr::null_mut()),
            len: AtomicUsize::new(0),
            binding: PhantomData,
        }
    }

    /// Takes the table of patchable functions, and finds out which of them
    /// must never be hooked. Once, in a task, before anything is enabled.
    ///
    /// # Errors
    ///
    /// [`PatchError::Initialised`], [`PatchError::InCallback`],
    /// [`PatchError::NoSlot`], [`PatchError::NoStack`]; the text is as before,
    /// except that functions may be excluded already.
    ///
    /// # Safety
    ///
    /// `listed` is what [`patchable_functions!`](crate::patchable_functions)
    /// gives for the running image: each address is that of a padding, or of
    /// no patchable function and at least readable for 48 bytes. No other
    /// `Patch` has been given the same functions.
    pub unsafe fn init(&self, listed: &'static [usize]) -> Result<Functions, PatchError> {
        let tracer = B::fgraph();
        tracer
            .quietly(|| {
                if !self.listed.load(Ordering::Acquire).is_null() {
                    return Err(PatchError::Initialised);
                }
                let found = B::patch_text(|| {
                    let mut found = Functions::default();
                    // SAFETY: the listed functions are this image's, and text
                    // is writable.
                    unsafe {
                        find(listed, &mut found);
                        learn::<B, N>(listed, &mut found)
                    }
                    .map(|()| found)
                })?;
                tracer.set_patched_return(arch::stub_return::<B, N>());
                self.len.store(listed.len(), Ordering::Relaxed);
                self.listed
                    .store(listed.as_ptr().cast_mut(), Ordering::Release);
                Ok(found)
            })
            .unwrap_or(Err(PatchError::InCallback))
    }

    /// Excludes functions for good: they are turned off and never hooked.
    /// Returns how many.
    ///
    /// # Errors
    ///
    /// [`PatchError::NotInitialised`], [`PatchError::InCallback`].
    pub fn exclude(&self, mut which: impl FnMut(usize) -> bool) -> Result<usize, PatchError> {
        self.patch(|func| {
            // SAFETY: `patch` calls this for functions of the table with text
            // writable.
            unsafe {
                if entry::padding(func) == entry::Padding::Excluded || !which(func) {
                    return false;
                }
                if entry::padding(func) == entry::Padding::Ready {
                    entry::turn_off(func);
                    entry::store_set(func, 0);
                }
                entry::exclude(func);
            }
            true
        })
    }

    /// Lets a callback follow the functions whose address `which` accepts.
    /// Returns how many it now follows in addition; 0, and traces none, if
    /// `which` accepts none. Task context.
    ///
    /// `which` is asked once for each function that can be hooked, in the
    /// table's order, while other CPUs are held out: it should be quick.
    ///
    /// # Errors
    ///
    /// [`PatchError`].
    pub fn enable(
        &self,
        id: CallbackId,
        mut which: impl FnMut(usize) -> bool,
    ) -> Result<usize, PatchError> {
        let bit = 1 << id.slot();
        let stub = arch::stub::<B, N>();
        let tracer = B::fgraph();
        // The slot stays this callback's while functions name it.
        tracer.hook(id)?;
        let mut follows = false;
        let on = self.patch(|func| {
            // SAFETY: as in `exclude`; the padding is made ready before a set
            // is stored or the entry turned on.
            unsafe {
                let set = match entry::padding(func) {
                    entry::Padding::Ready => entry::set(func),
                    entry::Padding::Fresh => 0,
                    _ => return false,
                };
                if set & bit != 0 {
                    follows = true;
                    return false;
                }
                if !which(func) {
                    return false;
                }
                if entry::padding(func) == entry::Padding::Fresh && !entry::make_ready(func, stub) {
                    return false;
                }
                entry::store_set(func, set | bit);
                entry::turn_on(func);
            }
            follows = true;
            true
        });
        if !follows {
            tracer.unhook(id);
        }
        on
    }

    /// Lets a callback no longer follow the functions whose address `which`
    /// accepts. Returns how many it followed. Calls in flight still return to
    /// it. Task context.
    ///
    /// A callback that was unregistered while it followed functions keeps its
    /// slot from being given out until it is disabled for all of them.
    ///
    /// # Errors
    ///
    /// [`PatchError::NotInitialised`], [`PatchError::InCallback`].
    pub fn disable(
        &self,
        id: CallbackId,
        mut which: impl FnMut(usize) -> bool,
    ) -> Result<usize, PatchError> {
        let bit = 1 << id.slot();
        let mut left = 0;
        if !B::fgraph().is_hooked(id) {
            return Ok(0);
        }
        let off = self.patch(|func| {
            // SAFETY: as in `exclude`; sets are read of ready paddings only.
            unsafe {
                if entry::padding(func) != entry::Padding::Ready {
                    return false;
                }
                let set = entry::set(func);
                if set & bit == 0 {
                    return false;
                }
                if !which(func) {
                    left += 1;
                    return false;
                }
                entry::store_set(func, set & !bit);
                if set == bit {
                    entry::turn_off(func);
                }
            }
            true
        })?;
        if left == 0 {
            B::fgraph().unhook(id);
        }
        Ok(off)
    }

    /// The functions that can be hooked, by address.
    pub fn functions(&self) -> impl Iterator<Item = usize> + '_ {
        self.table()
            .iter()
            .map(|&listed| entry::func(listed))
            // SAFETY: the table is this image's.
            .filter(|&func| unsafe {
                matches!(
                    entry::padding(func),
                    entry::Padding::Fresh | entry::Padding::Ready
                )
            })
    }

    /// The functions that a callback follows, by address.
    pub fn enabled(&self, id: CallbackId) -> impl Iterator<Item = usize> + '_ {
        let bit = 1 << id.slot();
        self.table()
            .iter()
            .map(|&listed| entry::func(listed))
            // SAFETY: the table is this image's.
            .filter(move |&func| unsafe {
                entry::padding(func) == entry::Padding::Ready && entry::set(func) & bit != 0
            })
    }

    /// The true return address of a call that was interrupted in this hook's
    /// own code, for unwinders that start at an interrupted instruction: from
    /// the patched entry to the first instruction of the body, and from the
    /// body's return to the return to the caller.
    ///
    /// `None` where a frame pointer tells: there, and in code that is not this
    /// hook's, unwind as usual, and [`real_return`](crate::Fgraph::real_return)
    /// tells the true addresses. After `Some`, go on with the interrupted frame
    /// pointer: it is the caller's.
    ///
    /// `stack` is the shadow stack of the task that was interrupted, `pc` the
    /// interrupted instruction, and `sp` the stack pointer. Any context.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use fgraph::{Fgraph, Platform, RetStack};
    /// # use fgraph::hook::{Global, patch::{Patch, PatchText}};
    /// # static STACK: RetStack = RetStack::new();
    /// # struct Kernel;
    /// # // SAFETY: one CPU, one task.
    /// # unsafe impl Platform for Kernel {
    /// #     fn current<R>(f: impl FnOnce(&RetStack) -> R) -> Option<R> { Some(f(&STACK)) }
    /// #     fn clock() -> u64 { 0 }
    /// # }
    /// # static FGRAPH: Fgraph<Kernel> = Fgraph::new();
    /// # impl Global for Kernel { fn fgraph() -> &'static Fgraph<Self> { &FGRAPH } }
    /// # // SAFETY: nothing runs beside it.
    /// # unsafe impl PatchText for Kernel { fn patch_text<R>(f: impl FnOnce() -> R) -> R { f() } }
    /// # static PATCH: Patch<Kernel> = Patch::new();
    /// # struct TrapFrame { rip: usize, rsp: usize, rbp: usize }
    /// fn backtrace(frame: &TrapFrame) {
    ///     // SAFETY: the frame is that of an interrupt of this task.
    ///     let caller = unsafe { PATCH.interrupted(&STACK, frame.rip, frame.rsp) };
    ///     // … print `caller`, then follow the chain from `frame.rbp`.
    /// }
    /// ```
    ///
    /// # Safety
    ///
    /// `pc` and `sp` are those of code that was interrupted and has not gone
    /// on. Its stack is readable, and so are the 32 bytes around `pc`.
    #[cfg(target_arch = "x86_64")]
    #[must_use]
    pub unsafe fn interrupted(&self, stack: &RetStack, pc: usize, sp: usize) -> Option<usize> {
        // SAFETY: the caller's.
        let place = unsafe { arch::interrupted(pc, arch::stub::<B, N>()) }?;
        let (slot, seen) = match place {
            arch::Place::Slot(offset) => {
                let slot = sp.wrapping_add(offset);
                // SAFETY: the caller's: the slot is on the interrupted stack.
                (slot, unsafe { (slot as *const usize).read_volatile() })
            }
            // What lies below the stack pointer may be gone.
            arch::Place::Below => {
                let slot = sp.wrapping_sub(size_of::<usize>());
                (slot, arch::stub_return::<B, N>())
            }
        };
        Some(B::fgraph().real_return(stack, slot, seen))
    }

    /// The true return address of a call that was interrupted in this hook's
    /// own code, for unwinders that start at an interrupted instruction: from
    /// the patched entry to the first instruction of the body, and from the
    /// body's return to the return to the caller.
    ///
    /// `None` where the frame pointer tells: there, and in code that is not
    /// this hook's, unwind as usual, and
    /// [`real_return`](crate::Fgraph::real_return) tells the true addresses.
    /// After `Some`, go on with the interrupted frame pointer: it is the
    /// caller's.
    ///
    /// `stack` is the shadow stack of the task that was interrupted, `pc` the
    /// interrupted instruction, `sp` the stack pointer, and `link` the link
    /// register, `x30`. Any context.
    ///
    /// # Safety
    ///
    /// `pc`, `sp` and `link` are those of code that was interrupted and has not
    /// gone on. Its stack is readable, and so are the 32 bytes around `pc`.
    #[cfg(target_arch = "aarch64")]
    #[must_use]
    pub unsafe fn interrupted(
        &self,
        stack: &RetStack,
        pc: usize,
        sp: usize,
        link: usize,
    ) -> Option<usize> {
        let word = size_of::<usize>();
        // SAFETY: the caller's.
        let (slot, seen) = match unsafe { arch::interrupted(pc, arch::stub::<B, N>()) }? {
            arch::Place::Link => (sp.wrapping_sub(word), link),
            arch::Place::Pushed => {
                let slot = sp.wrapping_add(word);
                // SAFETY: the caller's: in a record on the interrupted stack.
                (slot, unsafe { (slot as *const usize).read_volatile() })
            }
            arch::Place::Shadow => (sp.wrapping_sub(word), arch::stub_return::<B, N>()),
        };
        Some(B::fgraph().real_return(stack, slot, seen))
    }

    fn table(&self) -> &'static [usize] {
        let listed = self.listed.load(Ordering::Acquire);
        if listed.is_null() {
            return &[];
        }
        // SAFETY: `init` stored pointer and length of a `&'static [usize]`,
        // the length before the pointer.
        unsafe { core::slice::from_raw_parts(listed, self.len.load(Ordering::Relaxed)) }
    }

    /// Runs `each` for every function of the table, with text writable, and
    /// counts how often it says true.
    fn patch(&self, mut each: impl FnMut(usize) -> bool) -> Result<usize, PatchError> {
        let table = self.table();
        if table.is_empty() {
            return Err(PatchError::NotInitialised);
        }
        B::fgraph()
            .quietly(|| {
                B::patch_text(|| {
                    table
                        .iter()
                        .filter(|&&listed| each(entry::func(listed)))
                        .count()
                })
            })
            .ok_or(PatchError::InCallback)
    }
}

impl<B: Global<N> + PatchText, const N: usize> Default for Patch<B, N> {
    fn default() -> Self {
        Self::new()
    }
}

/// The stub's entry: whether somebody wants the return of `func`.
///
/// # Safety
///
/// Called by the stub: `slot` is the return slot on the running stack,
/// `registers` are its saved registers, and the padding of `func` is ready.
pub(crate) unsafe extern "C" fn enter<B: Global<N>, const N: usize>(
    registers: *const Registers,
    slot: *const usize,
    func: usize,
) -> bool {
    if slot.is_null() || !slot.is_aligned() {
        return false;
    }
    // SAFETY: the stub's contract.
    unsafe {
        let call = Call {
            func,
            ret: slot.read(),
            slot: slot as usize,
            tail: false,
            registers: registers.as_ref(),
        };
        B::fgraph().enter(&call, entry::set(func))
    }
}

/// The stub's return: where to go.
///
/// # Safety
///
/// Called by the stub, after an [`enter`] for the same slot that said true.
pub(crate) unsafe extern "C" fn leave<B: Global<N>, const N: usize>(
    registers: *const Registers,
    slot: *const usize,
) -> usize {
    // SAFETY: the stub's contract.
    let ret = unsafe { B::fgraph().leave(slot as usize, registers.as_ref()) };
    ret.unwrap_or_else(arch::lost)
}
