//! Classic hooks: the calls that compilers put into every function, and return
//! addresses that are replaced.
//!
//! For code that [`patch`](super::patch) can not catch. Three names, each
//! bound to a tracer by a macro in the kernel's crate:
//!
//! | macro | symbol | compiled with |
//! | --- | --- | --- |
//! | [`bind_fentry!`](crate::bind_fentry) | `__fentry__` | C: `-pg -mfentry` |
//! | [`bind_mcount!`](crate::bind_mcount) | `mcount`, `_mcount` | C: `-pg`; Rust: `-Zinstrument-mcount` |
//! | [`bind_sancov!`](crate::bind_sancov) | `__sanitizer_cov_trace_pc` | C: `-fsanitize-coverage=trace-pc`, once a block; Rust: see there |
//!
//! All registered callbacks see every call: there is no set for each function,
//! so a callback that wants some chooses in its entry. While no callback is
//! registered a call costs a test of one word.
//!
//! `__fentry__` is called before the function has done anything: its address is
//! known and its arguments are in [`Registers`]. The others are called after
//! the prologue: [`func`](crate::Entry::func) is then an address *in* the
//! function, which a symbol table resolves, the same at each call, and there
//! are no registers at the entry; the function needs a frame pointer, which
//! those compilers' flags force or the documentation of the macro names.
//!
//! # What is never hooked
//!
//! - The tracer itself, the platform's functions and callbacks, however they
//!   are compiled, and whatever they call: the stubs know by a bit of the
//!   flags register that they run inside a hook. An interrupt that arrives
//!   there is traced.
//! - A function whose return slot is null, below the first page, or not
//!   aligned: the first one of a task, whose frame pointer is 0; and one to
//!   whose slot no code can return, because it holds an address in the first
//!   page.
//! - A function made for an interrupt gate: its "return slot" is the
//!   interrupted instruction or an error code.
//!
//! # What a kernel takes care of
//!
//! - `NT` of the flags is set while a callback runs. `iretq` faults then, so a
//!   callback must not execute one of its own (returns of the interrupts that
//!   come in between are right, the processor keeps the bit for them). A
//!   kernel that takes system calls by `syscall` has the bit in its flag mask
//!   anyway. A host's signal handlers inherit it: one that is to be traced
//!   clears it.
//! - A callback is not left by a jump. If it is, the bit is cleared by the next
//!   return of a hooked call, and calls until then are not traced.
//! - An unwinder that is not told of the hook stops at the replaced return
//!   address: use [`Fgraph::real_return`](crate::Fgraph::real_return) or
//!   [`Fgraph::restore`](crate::Fgraph::restore).

use super::{Global, Registers};
use crate::arch;
use crate::fgraph::{ALL_CALLBACKS, Call};
use crate::sync::{AtomicPtr, AtomicUsize, Ordering};

#[doc(hidden)]
pub use crate::arch::classic::{after_prologue, at_entry};

/// What a bound symbol looks at first: made by the macros.
#[doc(hidden)]
#[repr(transparent)]
#[derive(Debug)]
pub struct Binding {
    /// The tracer's word of active callbacks; null until the first call.
    /// Relaxed: always set to the same.
    active: AtomicPtr<AtomicUsize>,
}

impl Binding {
    /// Not known yet.
    #[doc(hidden)]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            active: AtomicPtr::new(core::ptr::null_mut()),
        }
    }
}

/// Return addresses and slots below are nobody's.
const FIRST_PAGE: usize = 4096;

/// A function was caught behind its prologue; its frame is at `frame`.
///
/// # Safety
///
/// Called by the stub: `binding` is the symbol's, `at` lies in the function,
/// `frame` is its frame pointer or null, and `returned` is where hooked calls
/// return to.
pub(crate) unsafe extern "C" fn catch_after_prologue<B: Global<N>, const N: usize>(
    binding: &Binding,
    at: usize,
    frame: *mut usize,
    returned: usize,
) {
    if frame.addr() < FIRST_PAGE {
        return;
    }
    // SAFETY: the stub's contract; the return slot is above the saved frame
    // pointer.
    unsafe { catch::<B, N>(binding, at, frame.wrapping_add(1), returned, None) };
}

/// A function was caught at its entry.
///
/// # Safety
///
/// Called by the stub: as for [`catch_after_prologue`], but `slot` is the
/// return slot, `at` follows the hook's call, `registers` are the saved ones,
/// and `copy` is the return address of the frame that the stub has made for
/// the function.
pub(crate) unsafe extern "C" fn catch_at_entry<B: Global<N>, const N: usize>(
    binding: &Binding,
    at: usize,
    slot: *mut usize,
    returned: usize,
    registers: &Registers,
    copy: *mut usize,
) {
    // SAFETY: the stub's contract.
    unsafe {
        let tracer = B::fgraph();
        let seen = copy.read();
        if seen == returned || tracer.is_hooked_return(seen) {
            // A walker can not know the copy for the slot.
            let real = |stack: &_| tracer.real_return(stack, slot.addr(), seen);
            copy.write(B::current(real).unwrap_or(seen));
        }
        let func = arch::classic::entry_of(at);
        catch::<B, N>(binding, func, slot, returned, Some(registers));
    }
}

/// # Safety
///
/// As for [`catch_after_prologue`]; `slot` is readable if it is aligned.
#[inline]
unsafe fn catch<B: Global<N>, const N: usize>(
    binding: &Binding,
    func: usize,
    slot: *mut usize,
    returned: usize,
    registers: Option<&Registers>,
) {
    let tracer = B::fgraph();
    let active = core::ptr::from_ref(tracer.active_word()).cast_mut();
    binding.active.store(active, Ordering::Relaxed);
    tracer.set_classic_return(returned);
    if slot.addr() < FIRST_PAGE || !slot.is_aligned() {
        return;
    }
    // SAFETY: the stub's contract. The slot is written only when its call has
    // a frame, from which its address comes back.
    unsafe {
        let ret = slot.read();
        if ret < FIRST_PAGE || arch::classic::is_interrupted(slot) {
            return;
        }
        let call = Call {
            func,
            ret,
            slot: slot.addr(),
            tail: false,
            registers,
        };
        if tracer.enter(&call, ALL_CALLBACKS) {
            slot.write_volatile(returned);
        }
    }
}

/// A hooked call returned: where to go.
///
/// # Safety
///
/// Called by the stub, when the call on `slot` has returned to it.
pub(crate) unsafe extern "C" fn end<B: Global<N>, const N: usize>(
    registers: &Registers,
    slot: *mut usize,
) -> usize {
    // SAFETY: the stub's address was in the slot, so an entry was accepted.
    unsafe { B::fgraph().leave_or(slot.addr(), Some(registers), arch::lost) }
}

/// Defines a symbol that compiled code calls.
#[doc(hidden)]
#[macro_export]
macro_rules! __classic_symbol {
    ($symbol:ident, $stub:ident, $kernel:ty, $slots:expr) => {
        const _: () = {
            static BINDING: $crate::hook::classic::Binding = $crate::hook::classic::Binding::new();

            // `r11` alone is free here. While no callback is registered the
            // call ends at once.
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $symbol() {
                ::core::arch::naked_asm!(
                    "mov r11, [rip + {binding}]",
                    "test r11, r11",
                    "jz 2f",
                    "cmp qword ptr [r11], 0",
                    "jne 2f",
                    "ret",
                    "2:",
                    "lea r11, [rip + {binding}]",
                    "jmp {stub}",
                    binding = sym BINDING,
                    stub = sym $crate::hook::classic::$stub::<$kernel, { $slots }>,
                )
            }
        };
    };
}

/// Defines `__fentry__`, which functions of C objects that are compiled with
/// `-pg -mfentry` call first of all, for the tracer of a
/// [`Global`](crate::hook::Global) platform. Once in a program.
///
/// With an `Fgraph` of other than 16 slots: `bind_fentry!(Kernel, 4)`.
///
/// # Example
///
/// ```
#[doc = example_kernel!()]
/// # impl fgraph::hook::Global for Kernel {
/// #     fn fgraph() -> &'static fgraph::Fgraph<Self> { &FGRAPH }
/// # }
/// # static COUNTS: fgraph::tracer::trigger::Counts =
/// #     fgraph::tracer::trigger::Counts::new(&[]);
/// # FGRAPH.register(&COUNTS)?;
/// # /// What a compiler makes of an empty function with that flag.
/// # #[unsafe(naked)]
/// # extern "C" fn compiled_so() {
/// #     core::arch::naked_asm!(
/// #         "call __fentry__",
/// #         "push rbp",
/// #         "mov rbp, rsp",
/// #         "pop rbp",
/// #         "ret",
/// #     )
/// # }
/// fgraph::bind_fentry!(Kernel);
///
/// compiled_so();
/// assert_eq!(COUNTS.others(), 1);
/// # Ok::<(), fgraph::fgraph::RegisterError>(())
/// ```
#[macro_export]
macro_rules! bind_fentry {
    ($kernel:ty) => {
        $crate::bind_fentry!($kernel, 16);
    };
    ($kernel:ty, $slots:expr) => {
        $crate::__classic_symbol!(__fentry__, at_entry, $kernel, $slots);
    };
}

/// Defines `mcount` and `_mcount`, which functions call after their prologue
/// that are compiled with `-Zinstrument-mcount` (Rust, with frame pointers) or
/// `-pg` (C), for the tracer of a [`Global`](crate::hook::Global) platform.
/// Once in a program; arguments as for [`bind_fentry!`](crate::bind_fentry).
///
/// # Example
///
/// ```
#[doc = example_kernel!()]
/// # impl fgraph::hook::Global for Kernel {
/// #     fn fgraph() -> &'static fgraph::Fgraph<Self> { &FGRAPH }
/// # }
/// # static COUNTS: fgraph::tracer::trigger::Counts =
/// #     fgraph::tracer::trigger::Counts::new(&[]);
/// # FGRAPH.register(&COUNTS)?;
/// # /// What a compiler makes of an empty function with that flag.
/// # #[unsafe(naked)]
/// # extern "C" fn compiled_so() {
/// #     core::arch::naked_asm!(
/// #         "push rbp",
/// #         "mov rbp, rsp",
/// #         "call mcount",
/// #         "pop rbp",
/// #         "ret",
/// #     )
/// # }
/// fgraph::bind_mcount!(Kernel);
///
/// compiled_so();
/// assert_eq!(COUNTS.others(), 1);
/// # Ok::<(), fgraph::fgraph::RegisterError>(())
/// ```
#[macro_export]
macro_rules! bind_mcount {
    ($kernel:ty) => {
        $crate::bind_mcount!($kernel, 16);
    };
    ($kernel:ty, $slots:expr) => {
        $crate::__classic_symbol!(mcount, after_prologue, $kernel, $slots);
        $crate::__classic_symbol!(_mcount, after_prologue, $kernel, $slots);
    };
}

/// Defines `__sanitizer_cov_trace_pc`, which every Rust function calls after
/// its prologue with these flags of stable `rustc`, for the tracer of a
/// [`Global`](crate::hook::Global) platform:
///
/// ```text
/// -Cforce-frame-pointers=yes -Cpasses=sancov-module
/// -Cllvm-args=-sanitizer-coverage-level=1 -Cllvm-args=-sanitizer-coverage-trace-pc
/// ```
///
/// Once in a program; arguments as for [`bind_fentry!`](crate::bind_fentry).
/// Frame pointers are needed: without them the hook takes what the caller left
/// in `rbp` for a frame. Level 1 is once a function; the others call it once a
/// block, each of which would count as a call. Link-time optimisation, among a
/// crate's own units too, inlines functions that have their calls already: they
/// are seen as tail calls of the function that they are part of, unless it is
/// turned off (`lto = "off"`).
///
/// # Example
///
/// ```
#[doc = example_kernel!()]
/// # impl fgraph::hook::Global for Kernel {
/// #     fn fgraph() -> &'static fgraph::Fgraph<Self> { &FGRAPH }
/// # }
/// # static COUNTS: fgraph::tracer::trigger::Counts =
/// #     fgraph::tracer::trigger::Counts::new(&[]);
/// # FGRAPH.register(&COUNTS)?;
/// # /// What a compiler makes of an empty function with that flag.
/// # #[unsafe(naked)]
/// # extern "C" fn compiled_so() {
/// #     core::arch::naked_asm!(
/// #         "push rbp",
/// #         "mov rbp, rsp",
/// #         "call __sanitizer_cov_trace_pc",
/// #         "pop rbp",
/// #         "ret",
/// #     )
/// # }
/// fgraph::bind_sancov!(Kernel);
///
/// compiled_so();
/// assert_eq!(COUNTS.others(), 1);
/// # Ok::<(), fgraph::fgraph::RegisterError>(())
/// ```
#[macro_export]
macro_rules! bind_sancov {
    ($kernel:ty) => {
        $crate::bind_sancov!($kernel, 16);
    };
    ($kernel:ty, $slots:expr) => {
        $crate::__classic_symbol!(__sanitizer_cov_trace_pc, after_prologue, $kernel, $slots);
    };
}
