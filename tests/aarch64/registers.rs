//! What a hooked function and its caller find in registers and on the stack.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::functions::{
    AARCH64_GIVEN, AARCH64_SEEN, State, all_registers, call_with, guarded, plain, signed_a,
};
use super::{Task, Watch};

/// Overwrites whatever a callback may.
fn clobber() {
    // SAFETY: all that is written is told.
    unsafe {
        std::arch::asm!(
            ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18",
            "mov x\\n, #0xbad",
            ".endr",
            ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
            "movi v\\n\\().16b, #0xbb",
            ".endr",
            "msr nzcv, xzr",
            out("x18") _,
            clobber_abi("C"),
        );
    }
}

fn pattern(seed: usize) -> State {
    let mut state = State::ZERO;
    let mut next = seed;
    let mut random = || {
        next = next
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        next ^ next >> 29
    };
    for (n, x) in state.x.iter_mut().enumerate() {
        // x16 and x17 are nobody's, x29 and x30 the call's own.
        if n < 29 && n != 16 && n != 17 {
            *x = random();
        }
    }
    state
        .q
        .fill_with(|| (random() as u128) << 64 | random() as u128);
    state.stack.fill_with(&mut random);
    state
}

fn assert_same(what: &str, got: &State, expected: &State) {
    for n in 0..32 {
        assert_eq!(got.x[n], expected.x[n], "{what}: x{n}");
        assert_eq!(got.q[n], expected.q[n], "{what}: q{n}");
    }
    assert_eq!(got.stack, expected.stack, "{what}: stack");
}

#[test]
fn every_register_is_kept_both_ways() {
    let task = Task::new();
    let refused = Watch::new(|_, _| clobber());
    let func = all_registers as unsafe extern "C" fn() as usize;
    let run = |seed: usize| {
        let (with, given, mut after) = (pattern(seed), pattern(!seed), State::ZERO);
        // SAFETY: one test at a time, and nobody else, uses the two; the call
        // keeps what its caller wants kept.
        let seen = unsafe {
            AARCH64_GIVEN = given;
            AARCH64_SEEN = State::ZERO;
            call_with(&with, &mut after);
            AARCH64_SEEN
        };
        assert_same("in the body", &seen, &with);
        let mut expected = given;
        // Not the function's to give.
        expected.x[19..].copy_from_slice(&with.x[19..]);
        expected.q[8..16].copy_from_slice(&with.q[8..16]);
        expected.stack = with.stack;
        for n in 8..16 {
            // Only the lower halves are a call's to keep.
            let lower = |q: u128| q & u128::from(u64::MAX);
            (after.q[n], expected.q[n]) = (lower(after.q[n]), lower(expected.q[n]));
        }
        assert_same("after the return", &after, &expected);
    };
    run(1);
    task.traced(refused, &[func], || (2..10).for_each(run));
    assert_eq!(refused.seen(), (8, 8, 0));
}

#[derive(Clone, Copy, PartialEq, Debug)]
#[repr(C)]
struct Large {
    words: [usize; 5],
    float: f64,
}

#[inline(never)]
#[expect(clippy::too_many_arguments, reason = "some are passed on the stack")]
extern "C" fn many(
    a: usize,
    b: u8,
    c: u128,
    d: f64,
    e: usize,
    f: usize,
    g: Large,
    h: f32,
    i: usize,
    j: usize,
    k: usize,
    l: u16,
    m: f64,
    n: f64,
) -> Large {
    black_box(());
    let sum = a + usize::from(b) + (c >> 64) as usize + c as usize + e + f + i + j + k;
    Large {
        words: [sum, usize::from(l), g.words[4], i, k],
        float: d + g.float + f64::from(h) + m * n,
    }
}

fn call_many() -> Large {
    let large = Large {
        words: [1, 2, 3, 4, 5],
        float: 0.5,
    };
    many(
        1,
        2,
        3 << 64 | 4,
        8.0,
        16,
        32,
        large,
        0.25,
        64,
        128,
        256,
        512,
        3.0,
        7.0,
    )
}

#[test]
fn arguments_on_the_stack_and_a_result_in_memory() {
    let task = Task::new();
    let watch = Watch::new(|_, _| clobber());
    let func = many as extern "C" fn(_, _, _, _, _, _, _, _, _, _, _, _, _, _) -> _ as usize;
    let expected = Large {
        words: [1 + 2 + 3 + 4 + 16 + 32 + 64 + 128 + 256, 512, 5, 64, 256],
        float: 29.75,
    };
    assert_eq!(call_many(), expected);
    assert_eq!(task.traced(watch, &[func], call_many), expected);
    assert_eq!(watch.seen(), (1, 1, 0));
}

#[inline(never)]
extern "C" fn product(
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
    g: usize,
    h: usize,
) -> usize {
    black_box(a * b * c * d * e * f * g * h)
}

#[test]
fn a_callback_reads_arguments_and_the_result() {
    static SUM: AtomicUsize = AtomicUsize::new(0);
    static RESULT: AtomicUsize = AtomicUsize::new(0);
    let task = Task::new();
    let watch = Watch::new(|entry, registers| {
        let Some(registers) = registers else { return };
        if entry {
            let arguments = (0..9).map_while(|n| registers.argument(n));
            let sum = arguments
                .enumerate()
                .map(|(n, value)| value << (4 * n))
                .sum();
            SUM.store(sum, Relaxed);
        } else {
            RESULT.store(registers.return_value(), Relaxed);
        }
    });
    let func = product as extern "C" fn(_, _, _, _, _, _, _, _) -> _ as usize;
    task.traced(watch, &[func], || product(1, 2, 3, 4, 5, 6, 7, 8));
    assert_eq!(SUM.load(Relaxed), 0x8765_4321);
    assert_eq!(RESULT.load(Relaxed), 40_320);
}

/// A page that only lets branches in that land on a pad.
#[test]
fn a_guarded_page_is_entered_through_its_landing_pads() {
    const PROT_BTI: i32 = 0x10;
    const HWCAP2_BTI: u64 = 1 << 17;
    let task = Task::new();
    let watch = Watch::count();
    let func = guarded as extern "C" fn(usize) -> usize;
    // SAFETY: asks the kernel.
    let has = unsafe { libc::getauxval(libc::AT_HWCAP2) } & HWCAP2_BTI != 0;
    assert!(has, "run this on a processor with BTI, as qemu-user's is");
    let got = task.traced(watch, &[func as usize], || {
        let page = func as usize & !0xffff;
        let guard = libc::PROT_READ | libc::PROT_EXEC | PROT_BTI;
        // SAFETY: the pages hold that function alone, and stay executable. The
        // guard goes when text is next made writable.
        let failed = unsafe { libc::mprotect(page as *mut _, 0x10000, guard) } != 0;
        assert!(!failed, "{}", std::io::Error::last_os_error());
        black_box(func)(6)
    });
    assert_eq!((got, watch.seen()), (7, (1, 1, 0)));
}

/// Off again, each function is what the compiler and the author made it,
/// but for the landing pad.
#[test]
fn an_entry_is_put_back() {
    const NOP: u32 = 0xd503_201f;
    const BTI_C: u32 = 0xd503_245f;
    let task = Task::new();
    let read = |at: usize| {
        // SAFETY: the functions' first instructions.
        unsafe { (at as *const u32).read_volatile() }
    };
    let without = plain as super::functions::Calling as usize;
    let with = signed_a as super::functions::Calling as usize;
    task.traced(Watch::count(), &[without, with], || {
        assert_eq!(read(without), 0x17ff_fffd, "b .-12");
        assert_eq!([read(with), read(with + 4)], [BTI_C, 0x17ff_fffc]);
    });
    assert_eq!([read(without), read(without + 4)], [NOP, BTI_C]);
    assert_eq!(
        [read(with), read(with + 4), read(with + 8)],
        [BTI_C, NOP, BTI_C]
    );
}
