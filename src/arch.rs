//! The architecture's part, one file an architecture: the contract between the
//! crate and these files, and the choice among them.
//!
//! # Adding an architecture
//!
//! Without any of this, an architecture has shadow stacks, dispatch, scopes and
//! tracers: `none` stands in for its file. The file is for
//! [`hook::patch`](crate::hook::patch), the hook of code that is compiled with
//! `-Zpatchable-function-entry`. In this order:
//!
//! 1. Choose the flag's two numbers, so that the padding before a function has
//!    room for a set of 16 bits, a marker and a thunk, and the NOPs at its entry
//!    can become a jump to the thunk. The compiler counts in its smallest NOP:
//!    bytes on x86, instructions on AArch64. Put the flag into
//!    `.cargo/config.toml`.
//! 2. Write `arch/NAME.rs`, with `entry`, `chain` and `interrupted` in a folder
//!    beside it. `x86_64` is the annotated master; `aarch64` shows what
//!    changes where the return address comes in a register.
//! 3. Name it below and in `hook.rs` and `lib.rs`, in the conditions that name
//!    the other two; give `hook::patch` its `Patch::interrupted`, which takes
//!    the registers that `interrupted` needs; add the flag to the table there.
//! 4. Name it in the conditions of `tests/hooks.rs` and `tests/cases.rs`, which
//!    run on every architecture that has the hook; under user emulation too, for
//!    which `.ci/cross` is the example. Write tests of its own like
//!    `tests/aarch64.rs`: each register, and unwinding from each instruction of
//!    the stub.
//!
//! `hook::classic` is x86-64's alone, so `classic` and `inside_if` have no place
//! in the table. What it would need elsewhere:
//!
//! - a bit of the running context by which a stub tells the tracer's own calls
//!   from the kernel's before anything else runs: one that an exception clears
//!   and its return puts back, as `NT`. AArch64 has none at every level. Guards
//!   of the shadow stack come too late: what finds the stack is compiled with
//!   the same flag;
//! - the slot from what is there at the return. Where a prologue stores the
//!   address, in a frame record at any distance from the stack pointer at the
//!   call, the function that has returned does not tell where that was;
//! - that stack pointer at the entry, too, to sign the address that is put in
//!   place of a signed one.
//!
//! # What a file supplies
//!
//! | item | what |
//! | --- | --- |
//! | `Registers` | what the stub saves, `repr(C)`, public: `argument(n)`, `return_value()`, and `Debug`; any bits are a valid value |
//! | `patched::<B, N>` | a [header](mod@stub), and behind it the common stub of one tracer, below: a naked function, so that its operands can be `sym enter::<B, N>` |
//! | `learn` | a stub that is entered as the common one is and only marks: it stores something other than zero into the set of its function, and goes on with the body; it changes no register but those between a call and its callee |
//! | `trap` | an instruction that traps: where a call goes whose caller is lost |
//! | `PLACES`, `IN_THUNK`, `Place` | where the return address is of what was interrupted in the stub, in the parts that the header tells, or in a thunk to it; `None` where the frame pointer leads to it |
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
//!    and calls `hook::patch::leave(registers, slot)`, which writes the address
//!    to go to into the slot, also when it is not the caller's, and returns it;
//! 6. restores everything, and *returns* to that address.
//!
//! Steps 4 and 6 keep calls and returns paired, for return predictors and
//! hardware shadow stacks. All of it may be interrupted anywhere, so nothing
//! lies below the stack pointer.
//!
//! ## `entry`
//!
//! All addresses are those of the function's symbol. What a padding can be is in
//! [`padding`].
//!
//! | item | what |
//! | --- | --- |
//! | `PADDING` | bytes before a function that are its padding; a multiple of 16 |
//! | `REACH` | bytes from the function's address that `padding` reads |
//! | `padding(func)` | `Fresh`, `Ready`, `Excluded`, or `Foreign`: not of the expected shape |
//! | `set(func)`, `store_set(func, set)` | the function's set, 16 bits at `func - PADDING`, stored by one instruction |
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
//! # RISC-V, as an example
//!
//! - `t0` and `t1` belong to code between a call and its callee.
//! - The thunk is `auipc t0, 0` for an address from which the stub computes the
//!   function's, `auipc t1` and `jr t1` for the stub, which any distance within
//!   2 GiB allows. With compressed instructions a NOP is two bytes, so an entry
//!   may be aligned to two: a jump of four bytes needs two of them, and is not
//!   always one aligned store; the platform's
//!   [`PatchText`](crate::hook::patch::PatchText) holds other CPUs out meanwhile.
//! - The return address comes in `ra`, as on AArch64 in `x30`: the stub keeps it
//!   on the shadow stack and calls the body by `jalr`. `RETURN_ON_STACK` is
//!   false, and the slot is at `sp-8`.
//! - A frame pointer is the stack pointer at the call, with the record below it:
//!   `CALLER` is `-16` and `RETURN` is `-8`, both wrapped. Rust needs
//!   `-Cforce-frame-pointers=yes`.
//! - Return addresses are not signed: `strip` returns what it gets, `replaced`
//!   returns `ret`.
//! - `fence.i` on this CPU belongs to `entry`; on every other CPU it is the
//!   platform's.

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
// `fgraph::hook::patch` does not exist, and `hook::absent` says so in its place.
// Nothing else is missing.

/// An address in this crate's data, and so within 2 GiB of all code in a small
/// or kernel code model. It is hidden from the compiler: what lies 2 GiB from a
/// symbol would be folded into a relocation that can not reach it.
#[inline(always)]
pub(crate) fn middle() -> usize {
    static MIDDLE: u8 = 0;
    let middle = &raw const MIDDLE as usize;
    #[cfg(any(
        all(
            any(target_arch = "x86_64", target_arch = "aarch64"),
            target_pointer_width = "64"
        ),
        target_arch = "x86"
    ))]
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
    #[cfg(not(any(
        all(
            any(target_arch = "x86_64", target_arch = "aarch64"),
            target_pointer_width = "64"
        ),
        target_arch = "x86"
    )))]
    core::hint::black_box(middle)
}
