//! Patched functions in assembly, so that every instruction and every return
//! address is known, and walks by frame pointers through them and the stubs.

use std::arch::{global_asm, naked_asm};
use std::cell::Cell;
use std::ops::Range;

use iced_x86::{Decoder, FlowControl};

use crate::host::FGRAPH;
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
        static BACK: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
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

/// A walker by frame pointers.
pub struct Walker {
    /// The stub, where frame pointers are kept.
    pub stub: Range<usize>,
    /// The return addresses of the calls in flight at the most, newest first.
    pub full: Vec<usize>,
    /// The outermost call.
    pub called: *const Called,
    /// The longest walk.
    pub longest: Cell<usize>,
    pub walks: Cell<usize>,
}

impl Walker {
    /// Walks from the registers at a stop, if that is in the stub or in one of
    /// the functions above.
    pub fn walk(&self, case: &Case, stop: &Stop) {
        let functions = &raw const stepped_begin as usize..&raw const stepped_end as usize;
        if !self.stub.contains(&stop.rip) && !functions.contains(&stop.rip) {
            return;
        }
        // SAFETY: written by `from` before the call that is under way.
        let base = unsafe { (*self.called).rbp };
        let mut seen = Vec::new();
        let mut rbp = stop.rbp;
        while rbp != base && seen.len() <= self.full.len() {
            // SAFETY: in this code `rbp` is a frame pointer, whose chain leads
            // up this thread's stack.
            let [above, ret] = unsafe { (rbp as *const [usize; 2]).read_volatile() };
            seen.push(FGRAPH.real_return(case.stack, rbp + size_of::<usize>(), ret));
            rbp = above;
        }
        // The newest calls may not have their frames yet, or no more.
        hold!(
            self.full.ends_with(&seen),
            "at {:#x} a walk sees {seen:x?} of {:x?}",
            stop.rip,
            self.full
        );
        self.longest.set(self.longest.get().max(seen.len()));
        self.walks.set(self.walks.get() + 1);
    }
}
