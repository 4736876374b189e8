//! Cases of registers and instructions: what a caller may rely on.

use std::arch::asm;
use std::hint::black_box;

use crate::fixture::{Rec, patched};
use crate::state::State;

/// A function with a patchable entry whose body changes nothing: what differs
/// around a call of it, the hook has changed.
#[inline(never)]
extern "C" fn nothing() {}

#[test]
fn caller_relied_on_a_register_that_the_trampoline_changed() {
    let given = State::all_different();
    // SAFETY: `nothing` is called as any function is.
    let behind = || unsafe { given.behind(nothing) };
    assert_eq!(behind(), given, "untraced");
    let patched = patched(64);
    for accept in [true, false] {
        let rec = if accept {
            Rec::<2>::new()
        } else {
            Rec::<2>::which(|_| false)
        };
        let _follow = patched.follow(rec, &[nothing as extern "C" fn() as usize]);
        assert_eq!(behind(), given, "wants the return: {accept}");
        assert_eq!(rec.events().len(), if accept { 2 } else { 0 });
    }
}

#[inline(never)]
fn many(a: [u64; 9], b: f64, c: u8, d: &[u8], e: i128) -> [u64; 3] {
    let sum = a.iter().sum::<u64>() + b as u64 + u64::from(c);
    [sum, d.iter().map(|&x| u64::from(x)).sum(), (e >> 3) as u64]
}

#[test]
fn stack_arguments_and_memory_results_are_lost() {
    let call = || {
        let a = core::array::from_fn(|i| i as u64 * 3);
        black_box(many(black_box(a), 2.5, 9, &[1, 2, 3], -80))
    };
    let untraced = call();
    let patched = patched(64);
    let at = many as fn([u64; 9], f64, u8, &'static [u8], i128) -> [u64; 3] as usize;
    let rec = Rec::<1>::new();
    let _follow = patched.follow(rec, &[at]);
    assert_eq!(call(), untraced);
    assert_eq!(rec.events().len(), 2);
}

#[test]
fn trampoline_disables_interrupts_in_user_mode() {
    let selector: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, cs", out(reg) selector) };
    assert_eq!(selector & 3, 3, "this is user mode: `cli` faults");
    let patched = patched(64);
    let rec = Rec::<1>::new();
    let _follow = patched.follow(rec, &[nothing as extern "C" fn() as usize]);
    black_box(nothing as extern "C" fn())();
    assert_eq!(rec.events().len(), 2);
}
