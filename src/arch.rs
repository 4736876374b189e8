//! The architecture's part, one file an architecture: the contract between the
//! crate and these files, and the choice among them.
//!
//! # What a file supplies
//!
//! All of it is for [`hook::patch`](crate::hook::patch), except `Registers` and
//! `chain`. An architecture without such a file has the rest of the crate:
//! shadow stacks, dispatch, scopes, tracers.
//!
//! | item | what |
//! | --- | --- |
//! | `Registers` | what the stub saves: `argument(n)`, `return_value()`, and `Debug` |
//! | `patched::<B, N>` | a [header](stub), and behind it the common stub, below |
//! | `learn` | the stub that only marks: it stores something other than zero into the set of its function, and goes on with the body; it changes nothing else |
//! | `trap` | an instruction that traps |
//! | `PLACES`, `IN_THUNK`, `Place` | where the return address is of what was interrupted in the stub, in the parts that the header tells, or in a thunk to it; `None` where the frame pointer leads to it; `hook::patch` makes the architecture's `Patch::interrupted` of it |
//! | `entry` | one patchable entry, read and written; below |
//! | `chain` | where return addresses are while bodies run; below |
//!
//! ## The stub
//!
//! The thunk in a function's padding jumps to it, with the function's address
//! in a register that the calling convention gives to code between a call and
//! its callee. It
//!
//! 1. makes a frame record of the caller's frame pointer and return address, as
//!    a function's prologue does, so that a frame-pointer unwinder goes from a
//!    callback to the function's caller; the word with the return address is
//!    the *slot*, and lies at the place that the caller's stack pointer tells;
//! 2. saves every register that a callback may change: all but those between a
//!    call and its callee;
//! 3. calls `hook::patch::enter(registers, slot, func)`;
//! 4. restores everything. If `enter` said false, jumps to the body. If it said
//!    true, *calls* it, with the stack pointer and what lies above it as the
//!    caller left them, so that the body finds its stack arguments, and returns
//!    to the stub;
//! 5. makes the frame record again, with `stub_return` in the slot, saves again,
//!    and calls `hook::patch::leave(registers, slot)`, which writes the caller's
//!    address into the slot and returns it;
//! 6. restores everything, and *returns* to that address.
//!
//! Steps 4 and 6 keep calls and returns paired, for return predictors and
//! hardware shadow stacks. All of it may be interrupted anywhere, so nothing
//! lies below the stack pointer.
//!
//! ## `entry`
//!
//! All addresses are those of the function's symbol. Its padding begins with the
//! function's set, 16 bits: [`padding`] reads and writes that.
//!
//! | item | what |
//! | --- | --- |
//! | `PADDING` | bytes before a function that are its padding; a multiple of 16 |
//! | `REACH` | bytes from the function's address that `padding` reads |
//! | `padding(func)` | `Fresh`, `Ready`, `Excluded`, or `Foreign`: not of the expected shape |
//! | `make_ready(func, stub)` | writes the thunk; false if the stub is out of its reach |
//! | `make_fresh(func)` | undoes that |
//! | `exclude(func)` | marks for good |
//! | `turn_on(func)`, `turn_off(func)` | the entry jumps to the thunk, or is the NOP that it was: one aligned store where the alignment allows |
//! | `returns_from_interrupt(func, len)` | whether an instruction among these bytes does |
//!
//! What writes code makes it visible to instruction fetch on all CPUs, up to
//! the synchronisation of each CPU's own pipeline, which
//! [`PatchText`](crate::hook::patch::PatchText) promises. Landing pads for
//! indirect branches are respected: the stub reaches the body by a branch that
//! the first instruction there accepts.
//!
//! ## `chain`
//!
//! | item | what |
//! | --- | --- |
//! | `RETURN_ON_STACK` | whether a call itself stores its return address: then the slot is that word while the body runs |
//! | `CALLER`, `RETURN` | bytes from a frame pointer to the two words of its record, wrapping |
//! | `frame_pointer()` | the frame pointer; inlined |
//! | `strip(address)` | a return address without its signature |
//! | `replaced(seen, ret, sp)` | `ret`, signed as `seen` is for a call that entered with `sp` |
//!
//! Where `RETURN_ON_STACK` is true, `on_stack` is all of it. Where it is false,
//! the body stores the address in a frame record of its own, below the slot,
//! and [`Fgraph::restore`](crate::Fgraph::restore) follows the chain of records;
//! the slot must be such that slot plus a word is the stack pointer at the
//! call.
//!
//! For RISC-V, as an example: the padding's thunk is `auipc t0` and `jr`, with
//! `t0` and `t1` between call and callee; the slot is at `sp-8`; a frame
//! pointer's record lies below it, so `CALLER` is `-16` and `RETURN` is `-8`,
//! both wrapped; `fence.i` on every CPU is the platform's.

#[cfg(all(target_arch = "x86_64", target_pointer_width = "64"))]
mod x86_64;
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64"))]
use x86_64 as chosen;

#[cfg(all(target_arch = "aarch64", target_pointer_width = "64"))]
mod aarch64;
#[cfg(all(target_arch = "aarch64", target_pointer_width = "64"))]
use aarch64 as chosen;

#[cfg(not(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_pointer_width = "64"
)))]
mod none;
#[cfg(not(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_pointer_width = "64"
)))]
use none as chosen;

#[cfg(not(all(target_arch = "aarch64", target_pointer_width = "64")))]
pub(crate) mod on_stack;

#[cfg(all(target_arch = "x86_64", target_pointer_width = "64"))]
pub(crate) use chosen::classic::{self, inside_if};
#[cfg(not(all(target_arch = "x86_64", target_pointer_width = "64")))]
pub(crate) use no_classic::inside_if;

/// Where there are no classic hooks, nothing has to know what is inside.
#[cfg(not(all(target_arch = "x86_64", target_pointer_width = "64")))]
pub(crate) mod no_classic {
    pub(crate) struct Inside;

    macro_rules! inside_if {
        ($used:expr) => {{
            let _ = $used;
            $crate::arch::no_classic::Inside
        }};
    }
    pub(crate) use inside_if;
}

pub use chosen::Registers;
pub(crate) use chosen::chain;

#[cfg(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_pointer_width = "64"
))]
mod padding;
#[cfg(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_pointer_width = "64"
))]
mod stub;
#[cfg(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_pointer_width = "64"
))]
pub(crate) use self::{
    chosen::{Place, entry},
    stub::{interrupted, learn_stub, lost, stub, stub_return},
};

// Every other target, 32-bit x86 and the 32-bit ABIs of the two architectures
// above among them, is without a hook for patched entries: there
// `fgraph::hook::patch` does not exist, and naming it is the compile error that
// says so. Nothing else is missing.

/// An address in this crate's data, and so within 2 GiB of all code in a small
/// or kernel code model. It is hidden from the compiler: what lies 2 GiB from a
/// symbol would be folded into a relocation that can not reach it.
#[inline(always)]
pub(crate) fn middle() -> usize {
    static MIDDLE: u8 = 0;
    let middle = &raw const MIDDLE as usize;
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "x86"))]
    {
        let mut hidden = middle;
        // SAFETY: no instruction at all; the value goes through unchanged.
        unsafe {
            core::arch::asm!(
                "/* {0} */",
                inout(reg) hidden,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        hidden
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "x86")))]
    core::hint::black_box(middle)
}
