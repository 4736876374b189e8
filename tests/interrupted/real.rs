//! Patched functions in assembly, so that every instruction and every return
//! address is known, and an unwinder that starts at any instruction of them and
//! of the stubs.

use std::arch::{global_asm, naked_asm};
use std::cell::{Cell, RefCell};
use std::ops::Range;

use iced_x86::{Decoder, FlowControl};

use crate::host::{FGRAPH, PATCH};
use crate::step::Stop;
use crate::watch::{Case, hold};

// What a compiler makes of a function with patchable entries: sixteen bytes of
// padding, listed by its address, then the NOP of eight bytes.
macro_rules! patchable {
    ($name:literal, $($body:literal),* $(,)?) => {
        global_asm!(
            ".pushsection .text.fgraph_stepped,\"ax\",@progbits",
            ".balign 16",
            concat!("padding_", $name, ":"),
            ".fill 16, 1, 0x90",
            concat!(".globl ", $name),
            concat!(".type ", $name, ",@function"),
            concat!($name, ":"),
            ".byte 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x02, 0x00, 0x00",
            $($body,)*
            concat!(".size ", $name, ", . - ", $name),
            concat!(".pushsection __patchable_function_entries,\"awo\",@progbits,", $name),
            ".balign 8",
            concat!(".quad padding_", $name),
            ".popsection",
            ".popsection",
        );
    };
}

global_asm!(
    ".pushsection .text.fgraph_stepped,\"ax\",@progbits",
    ".globl stepped_begin",
    "stepped_begin:",
    ".popsection",
);
patchable!("stepped_leaf", "lea rax, [rdi + rdi]", "ret");
patchable!(
    "stepped_outer",
    "push rbp",
    "mov rbp, rsp",
    "call stepped_leaf",
    ".globl stepped_outer_back",
    "stepped_outer_back:",
    "add rax, 1",
    "pop rbp",
    "ret",
);
patchable!("stepped_tail", "add rdi, 1", "jmp stepped_leaf");
// Tells what its return slot holds while it runs.
patchable!("stepped_tell", "mov rax, [rsp]", "ret");
global_asm!(
    ".pushsection .text.fgraph_stepped,\"ax\",@progbits",
    ".globl stepped_end",
    "stepped_end:",
    ".popsection",
);

unsafe extern "C" {
    static stepped_begin: u8;
    static stepped_end: u8;
    static stepped_leaf: u8;
    static stepped_outer: u8;
    static stepped_outer_back: u8;
    static stepped_tail: u8;
    static stepped_tell: u8;
}

macro_rules! addresses {
    ($($(#[$doc:meta])* $name:ident $symbol:ident;)*) => {$(
        $(#[$doc])*
        pub fn $name() -> usize {
            &raw const $symbol as usize
        }
    )*};
}

addresses! {
    /// Doubles.
    leaf stepped_leaf;
    /// Calls `leaf`, adds 1.
    outer stepped_outer;
    /// Where `outer` calls `leaf`.
    outer_back stepped_outer_back;
    /// Adds 1, tail-calls `leaf`.
    tail stepped_tail;
    /// Its return slot.
    tell stepped_tell;
}

/// A call and where it came from.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Called {
    pub result: usize,
    /// The caller's frame pointer and its return address.
    rbp: usize,
    back: usize,
}

impl Called {
    pub const fn new() -> Self {
        Self {
            result: 0,
            rbp: 0,
            back: 0,
        }
    }
}

/// Calls one of the functions above.
pub fn call(function: usize, argument: usize) -> Called {
    let mut called = Called::new();
    // SAFETY: the functions above take a number and return one.
    called.result = unsafe { from(function, argument, &raw mut called) };
    called
}

/// As [`call`]; `called` can be read at a stop.
pub fn call_noting(function: usize, argument: usize, called: *mut Called) -> usize {
    // SAFETY: as in `call`; the caller's object is there to be written.
    unsafe { from(function, argument, called) }
}

/// Notes its frame, and calls.
#[unsafe(naked)]
unsafe extern "C" fn from(function: usize, argument: usize, called: *mut Called) -> usize {
    naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "mov [rdx + {rbp}], rbp",
        "lea rax, [rip + 2f]",
        "mov [rdx + {back}], rax",
        "mov rax, rdi",
        "mov rdi, rsi",
        "call rax",
        "2:",
        "pop rbp",
        "ret",
        rbp = const std::mem::offset_of!(Called, rbp),
        back = const std::mem::offset_of!(Called, back),
    )
}

/// Where [`call`] makes its calls.
pub fn back() -> usize {
    thread_local! {
        static BACK: Cell<usize> = const { Cell::new(0) };
    }
    if BACK.get() == 0 {
        // Before anything is patched in this thread, or through the stub.
        BACK.set(call(leaf(), 0).back);
    }
    BACK.get()
}

/// The stub behind a function that is ready for it.
pub fn stub(function: usize, returns_to: usize) -> Range<usize> {
    // SAFETY: the function's padding, and code.
    let distance = unsafe { ((function - 4) as *const i32).read_unaligned() };
    let begin = function.wrapping_add_signed(distance as isize);
    // SAFETY: the stub is code, and more than this follows.
    let bytes = unsafe { std::slice::from_raw_parts(returns_to as *const u8, 2048) };
    let mut decoder = Decoder::with_ip(64, bytes, returns_to as u64, 0);
    // It ends with a jump to the body of a call whose return nobody wants.
    let is_last = |flow| flow == FlowControl::IndirectBranch;
    let last = decoder
        .iter()
        .find(|instruction| is_last(instruction.flow_control()));
    begin..last.expect("the stub ends").next_ip() as usize
}

/// An unwinder that starts at interrupted instructions, and what it must find.
pub struct Walker {
    /// The stub, where frame pointers are kept.
    stub: Range<usize>,
    /// The caller's object, see [`call_noting`].
    called: *const Called,
    /// The slots of the calls in flight and their true return addresses, oldest
    /// first.
    live: RefCell<Vec<(usize, usize)>>,
    /// The most calls in flight.
    pub deepest: Cell<usize>,
    /// How many walks there were.
    pub walks: Cell<usize>,
}

impl Walker {
    pub fn new(stub: Range<usize>, called: *const Called) -> Self {
        Self {
            stub,
            called,
            live: RefCell::default(),
            deepest: Cell::new(0),
            walks: Cell::new(0),
        }
    }

    /// Follows the calls by the addresses that are only passed once in each.
    fn follow(&self, stop: &Stop) {
        let mut live = self.live.borrow_mut();
        let is_tail = live.last().is_some_and(|&(slot, _)| slot == stop.rsp);
        if stop.rip == outer() || stop.rip == tail() {
            live.push((stop.rsp, back()));
        } else if stop.rip == leaf() && !is_tail {
            live.push((stop.rsp, outer_back()));
        } else if stop.rip == outer_back() || stop.rip == back() {
            live.pop();
        }
        self.deepest.set(self.deepest.get().max(live.len()));
    }

    /// Looks at the slots of all calls in flight, and walks from the registers
    /// at a stop, if that is in the stub or in one of the functions above.
    pub fn walk(&self, case: &Case, stop: &Stop) {
        self.follow(stop);
        let live = self.live.borrow();
        for &(slot, ret) in &*live {
            // SAFETY: a return slot of this thread. At times it lies below the
            // stack pointer, where a signal leaves 128 bytes alone.
            let seen = unsafe { (slot as *const usize).read_volatile() };
            let real = FGRAPH.real_return(case.stack, slot, seen);
            hold!(real == ret, "a slot unwinds to {real:#x}, not {ret:#x}");
        }
        let functions = &raw const stepped_begin as usize..&raw const stepped_end as usize;
        let in_stub = self.stub.contains(&stop.rip);
        if !in_stub && !functions.contains(&stop.rip) {
            return;
        }
        // SAFETY: the registers are those of this stop.
        let told = unsafe { PATCH.interrupted(case.stack, stop.rip, stop.rsp) };
        let seen = self.unwind(case, stop.rbp, told, live.len());
        let expected: Vec<usize> = live.iter().rev().map(|&(_, ret)| ret).collect();
        // In a body that has no frame, what is told by frame pointers begins
        // one call further up.
        let least = expected
            .len()
            .saturating_sub(usize::from(!in_stub && told.is_none()));
        hold!(
            expected.ends_with(&seen) && seen.len() >= least,
            "at {:#x} a walk sees {seen:x?} of {expected:x?}, told {told:x?}",
            stop.rip
        );
        self.walks.set(self.walks.get() + 1);
    }

    /// The return addresses from `rbp` up, behind the one that is `told`.
    fn unwind(&self, case: &Case, mut rbp: usize, told: Option<usize>, most: usize) -> Vec<usize> {
        // SAFETY: written by `from` before the call that is under way.
        let base = unsafe { (*self.called).rbp };
        let mut seen = Vec::from_iter(told);
        while rbp != base && seen.len() <= most {
            // SAFETY: in this code `rbp` is a frame pointer, whose chain leads
            // up this thread's stack.
            let [above, ret] = unsafe { (rbp as *const [usize; 2]).read_volatile() };
            seen.push(FGRAPH.real_return(case.stack, rbp + size_of::<usize>(), ret));
            rbp = above;
        }
        seen
    }
}
