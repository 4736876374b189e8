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
//! LLVM's linker makes a NOP of some functions' first own instruction, and
//! those are not hooked either: `-Clink-arg=--no-relax` keeps it from that.
//!
//! Every function carries its own set of callbacks in the padding before it,
//! so what one callback follows is no business of another's, and a function
//! that nobody follows costs its NOP alone. How an entry looks is
//! `arch`'s; this file owns the table of entries, and hands calls on. Who
//! follows which is `follow`'s, which must never be hooked `learn`'s.
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
use crate::Platform;
use crate::arch::{self, Registers, entry};
use crate::fgraph::Call;
use crate::sync::{AtomicPtr, AtomicUsize, Ordering};

mod error;
mod follow;
mod interrupted;
mod learn;

pub use error::PatchError;
use learn::{find, learn};

/// How a kernel lets its text be written.
///
/// # Example
///
/// A kernel with one CPU, which turns interrupts off and write protection too:
///
/// ```
/// use fgraph::hook::patch::PatchText;
///
#[doc = example_kernel!()]
/// # static DEPTH: core::sync::atomic::AtomicUsize = core::sync::atomic::AtomicUsize::new(0);
/// # use core::sync::atomic::Ordering::Relaxed;
/// # fn without_interrupts<R>(f: impl FnOnce() -> R) -> R { f() }
/// # fn make_text_writable() { DEPTH.fetch_add(1, Relaxed); }
/// # fn make_text_read_only() { DEPTH.fetch_sub(1, Relaxed); }
/// // SAFETY: no other CPU, and no interrupt, runs code meanwhile.
/// unsafe impl PatchText for Kernel {
///     fn patch_text<R>(f: impl FnOnce() -> R) -> R {
///         without_interrupts(|| {
///             make_text_writable();
///             let result = f();
///             make_text_read_only();
///             result
///         })
///     }
/// }
/// assert_eq!(Kernel::patch_text(|| DEPTH.load(Relaxed)), 1);
/// ```
///
/// # Safety
///
/// While [`patch_text`](PatchText::patch_text) runs its argument, text is
/// writable at its own addresses, no other CPU executes patchable code, and no
/// interrupt on this CPU does. When it returns, all CPUs execute what was
/// written.
pub unsafe trait PatchText: Platform {
    /// Runs `f` with text writable and everybody else kept out of it, once. Task
    /// context. The tracer is quiet on this CPU meanwhile: what this calls is
    /// not traced. [`PatchText`] has an example.
    fn patch_text<R>(f: impl FnOnce() -> R) -> R;
}

/// What [`Patch::init`] found: numbers of functions, which add up to that of
/// the listed ones.
///
/// # Example
///
/// ```
#[doc = example_patch!()]
/// // SAFETY: two patchable functions, which nobody else patches.
/// let found = unsafe { PATCH.init(listed)? };
/// assert_eq!(found, Functions { patchable: 2, own: 0, interrupt: 0, foreign: 0 });
/// # Ok::<(), PatchError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Functions {
    /// Functions that can be hooked.
    pub patchable: usize,
    /// Functions of the tracer's own path, the platform's among them.
    pub own: usize,
    /// Functions that return from an interrupt, or hold bytes that read so.
    pub interrupt: usize,
    /// Listed addresses that are no entry of the expected shape: compiled with
    /// other numbers, say, or changed by the linker (see [the module](self)).
    pub foreign: usize,
}

/// The table of patchable functions of the running image, and who follows
/// which. A `static`, beside the [`Fgraph`](crate::Fgraph) that the platform
/// `B` names as its [`Global`], which has as many slots, `N`.
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
    /// How many. Relaxed: published by `listed`.
    len: AtomicUsize,
    binding: PhantomData<fn() -> B>,
}

/// The addresses that this image's section of patchable entries lists, for
/// [`Patch::init`]. Expands to the linker's symbols
/// `__start___patchable_function_entries` and `__stop_…`, so it belongs into
/// the crate that is linked. An image does not have them, and fails to link,
/// if it was compiled without the flag, or if its linker script puts that
/// section into another one: it needs no mention there.
///
/// # Example
///
/// ```ignore-aarch64,standalone_crate
/// # #[used]
/// # #[unsafe(link_section = "__patchable_function_entries")]
/// # static ENTRY: [usize; 1] = [0x40_1000];
/// // One of this image's patchable functions is at 0x401000.
/// let listed: &'static [usize] = fgraph::patchable_functions!();
/// assert!(listed.contains(&0x40_1000));
/// ```
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
    /// An empty table, for a `static`: [`init`](Self::init) fills it.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_patch!()]
    /// # let id = FGRAPH.register(&COUNTS)?;
    /// static TABLE: Patch<Kernel> = Patch::new();
    /// assert_eq!(TABLE.functions().count(), 0);
    /// assert_eq!(TABLE.enable(id, |_| true), Err(PatchError::NotInitialised));
    /// # Ok::<(), fgraph::fgraph::RegisterError>(())
    /// ```
    #[must_use]
    pub const fn new() -> Self {
        Self {
            listed: AtomicPtr::new(ptr::null_mut()),
            len: AtomicUsize::new(0),
            binding: PhantomData,
        }
    }

    /// Takes the table of patchable functions, and finds out which of them
    /// must never be hooked. Once, in a task with a shadow stack, before
    /// anything is enabled. It runs the platform's functions, and needs a free
    /// callback slot meanwhile, and 2.5 KiB of the real stack: 12 KiB where
    /// the kernel is compiled without optimisation.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_patch!()]
    /// # // SAFETY: two patchable functions, which nobody else patches.
    /// let found = unsafe { PATCH.init(listed)? };
    /// assert_eq!(found.patchable, 2);
    /// # // SAFETY: refused.
    /// assert_eq!(unsafe { PATCH.init(listed) }, Err(PatchError::Initialised));
    /// # Ok::<(), PatchError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PatchError::Initialised`], [`PatchError::InCallback`],
    /// [`PatchError::NoSlot`], [`PatchError::NoStack`],
    /// [`PatchError::NoFunction`]; the text is as before, except that functions
    /// may be excluded already.
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
                        if found.foreign == listed.len() {
                            return Err(PatchError::NoFunction);
                        }
                        learn::<B, N>(listed, &mut found)?;
                    }
                    Ok(found)
                })?;
                tracer.set_patched_return(arch::stub_return::<B, N>());
                self.len.store(listed.len(), Ordering::Relaxed);
                self.listed
                    .store(listed.as_ptr().cast_mut(), Ordering::Release);
                Ok(found)
            })
            .unwrap_or(Err(PatchError::InCallback))
    }

    /// The listed addresses; none before `init`.
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
    // SAFETY: the stub's contract. One that is not aligned is refused later.
    unsafe {
        let call = Call {
            func,
            ret: slot.read_unaligned(),
            slot: slot as usize,
            tail: false,
            registers: registers.as_ref(),
        };
        B::fgraph().enter_if(&call, || entry::set(func))
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
    unsafe { B::fgraph().leave_or(slot as usize, registers.as_ref(), arch::lost) }
}
