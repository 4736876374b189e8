//! Slots that are none, registers that a caller relied on: by hand.

use std::arch::naked_asm;

use crate::graph::trace;
use crate::state::State;

#[cfg(feature = "fentry")]
unsafe extern "C" {
    #[link_name = "__fentry__"]
    fn hook();
}
#[cfg(feature = "mcount")]
unsafe extern "C" {
    #[link_name = "mcount"]
    fn hook();
}
#[cfg(feature = "sancov")]
unsafe extern "C" {
    #[link_name = "__sanitizer_cov_trace_pc"]
    fn hook();
}

/// Calls the hook with `frame` as the frame pointer, as the first function of
/// a task does.
#[cfg(not(feature = "fentry"))]
#[unsafe(naked)]
unsafe extern "C" fn hook_with(frame: usize) {
    naked_asm!(
        "push rbp",
        "mov rbp, rdi",
        "call {hook}",
        "mov rax, rbp",
        "pop rbp",
        "ret",
        hook = sym hook,
    )
}

/// A function that is hooked and does nothing, as a compiler makes it.
#[unsafe(naked)]
unsafe extern "C" fn nothing() {
    #[cfg(feature = "fentry")]
    naked_asm!("call {hook}", "ret", hook = sym hook);
    #[cfg(not(feature = "fentry"))]
    naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "call {hook}",
        "pop rbp",
        "ret",
        hook = sym hook,
    );
}

/// What the processor pushes, and a handler as a compiler makes it.
#[unsafe(naked)]
unsafe extern "C" fn interrupt() {
    naked_asm!(
        "mov r11, rsp",
        "mov eax, ss",
        "push rax",
        "push r11",
        "pushfq",
        "mov eax, cs",
        "push rax",
        "lea rax, [rip + 2f]",
        "push rax",
        // The handler.
        #[cfg(feature = "fentry")]
        "call {hook}",
        "push rbp",
        "mov rbp, rsp",
        #[cfg(not(feature = "fentry"))]
        "call {hook}",
        "pop rbp",
        "iretq",
        "2:",
        "ret",
        hook = sym hook,
    )
}

pub fn slots() {
    let given = State::all_different();
    let at = nothing as unsafe extern "C" fn() as usize;
    let (got, events) = trace(&[(at, "nothing")], || {
        // SAFETY: `nothing` is called as any function is.
        unsafe { given.behind(nothing) }
    });
    assert_eq!(got, given);
    assert_eq!(crate::graph::short(&events), "+nothing -nothing");

    let at = interrupt as unsafe extern "C" fn() as usize;
    let ((), events) = trace(&[(at, "interrupt")], || {
        // SAFETY: it returns to itself, and then to here.
        (0..3).for_each(|_| unsafe { interrupt() });
    });
    assert_eq!(events, []);

    #[cfg(not(feature = "fentry"))]
    {
        let at = hook_with as unsafe extern "C" fn(usize) as usize;
        // Null, and what would be at the end of the null page; not aligned,
        // with real memory below; a slot that holds no address of code.
        let small = [0_usize, 3, 0, 0];
        let aligned = &raw const small as usize;
        let ((), events) = trace(&[(at, "root")], || {
            for frame in [0, 8, 4088, aligned + 1, aligned + 4, aligned] {
                // SAFETY: the hook reads a slot only where there is one.
                unsafe { hook_with(frame) };
            }
        });
        assert_eq!(events, []);
        assert_eq!(small, [0, 3, 0, 0]);
    }
}
