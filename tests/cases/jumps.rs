//! Cases of calls that do not return: `longjmp`, from the task's stack and
//! from an interrupt's; and of the words that they leave behind.

use std::arch::naked_asm;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use fgraph::Context;
use fgraph::ret_stack::words_for;

use crate::fixture::{Fake, Rec, names, patched};
use crate::host;

/// Where to jump back to.
#[repr(C)]
#[derive(Default)]
struct Point {
    registers: [usize; if cfg!(target_arch = "x86_64") { 7 } else { 21 }],
}

/// `setjmp` around a call: calls `f(point, n)`, and returns what it returns
/// or what is thrown at the point. Not compiled code, so never traced.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn catching(
    point: *mut Point,
    n: usize,
    f: extern "C" fn(*mut Point, usize) -> usize,
) -> usize {
    naked_asm!(
        "mov [rdi], rbx",
        "mov [rdi + 8], rbp",
        "mov [rdi + 16], r12",
        "mov [rdi + 24], r13",
        "mov [rdi + 32], r14",
        "mov [rdi + 40], r15",
        "mov [rdi + 48], rsp",
        "sub rsp, 8",
        "call rdx",
        "add rsp, 8",
        "ret",
    )
}

/// `setjmp` around a call, as above.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn catching(
    point: *mut Point,
    n: usize,
    f: extern "C" fn(*mut Point, usize) -> usize,
) -> usize {
    naked_asm!(
        "stp x19, x20, [x0]",
        "stp x21, x22, [x0, #16]",
        "stp x23, x24, [x0, #32]",
        "stp x25, x26, [x0, #48]",
        "stp x27, x28, [x0, #64]",
        "stp x29, x30, [x0, #80]",
        "mov x9, sp",
        "str x9, [x0, #96]",
        "stp d8, d9, [x0, #104]",
        "stp d10, d11, [x0, #120]",
        "stp d12, d13, [x0, #136]",
        "stp d14, d15, [x0, #152]",
        "stp x29, x30, [sp, #-16]!",
        "mov x29, sp",
        "blr x2",
        "ldp x29, x30, [sp], #16",
        "ret",
    )
}

/// `longjmp`.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn throw(point: *mut Point, value: usize) -> ! {
    naked_asm!(
        "ldp x19, x20, [x0]",
        "ldp x21, x22, [x0, #16]",
        "ldp x23, x24, [x0, #32]",
        "ldp x25, x26, [x0, #48]",
        "ldp x27, x28, [x0, #64]",
        "ldp x29, x30, [x0, #80]",
        "ldr x9, [x0, #96]",
        "mov sp, x9",
        "ldp d8, d9, [x0, #104]",
        "ldp d10, d11, [x0, #120]",
        "ldp d12, d13, [x0, #136]",
        "ldp d14, d15, [x0, #152]",
        "mov x0, x1",
        "ret",
    )
}

/// `longjmp`.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn throw(point: *mut Point, value: usize) -> ! {
    naked_asm!(
        "mov rbx, [rdi]",
        "mov rbp, [rdi + 8]",
        "mov r12, [rdi + 16]",
        "mov r13, [rdi + 24]",
        "mov r14, [rdi + 32]",
        "mov r15, [rdi + 40]",
        "mov rsp, [rdi + 48]",
        "mov rax, rsi",
        "ret",
    )
}

#[inline(never)]
extern "C" fn dive(point: *mut Point, n: usize) -> usize {
    if n == 0 {
        // SAFETY: the point's call is in flight, and the frames between hold
        // nothing to drop.
        unsafe { throw(point, 77) };
    }
    black_box(dive(point, black_box(n - 1))) + 1
}

#[inline(never)]
fn jumper(n: usize) -> usize {
    let mut point = Point::default();
    // SAFETY: `dive` throws at this point, if at any.
    black_box(unsafe { catching(&mut point, n, dive) })
}

#[inline(never)]
fn later(n: usize) -> usize {
    if black_box(n) == 0 {
        return 0;
    }
    later(n - 1) + 1
}

fn functions() -> [(usize, &'static str); 3] {
    [
        (
            dive as extern "C" fn(*mut Point, usize) -> usize as usize,
            "d",
        ),
        (jumper as fn(usize) -> usize as usize, "j"),
        (later as fn(usize) -> usize as usize, "l"),
    ]
}

#[test]
fn longjmp_returns_to_the_wrong_frame() {
    let patched = patched(words_for(1100, &[1]));
    let funcs = functions();
    let rec = Rec::<1>::new();
    let _follow = patched.follow(rec, &funcs.map(|(func, _)| func));
    for depth in [0, 1, 9, 999] {
        assert_eq!(jumper(depth), 77);
        let dives = vec!["+d"; depth + 1].join(" ");
        let ends = vec!["!d"; depth + 1].join(" ");
        assert_eq!(rec.take(names(&funcs)), format!("+j {dives} {ends} -j"));
        assert_eq!(patched.stack.depth(), 0);
    }
}

#[test]
fn longjmp_leaves_frames_that_no_return_ends() {
    // Nothing traced encloses the jump, and later calls are on slots of their
    // own: the next entry proves what is dead.
    let patched = patched(words_for(64, &[1]));
    let funcs = functions();
    let rec = Rec::<1>::new();
    let _follow = patched.follow(rec, &[funcs[0].0, funcs[2].0]);
    for round in 0..500 {
        assert_eq!(jumper(round % 20), 77);
        assert_eq!(later(round % 3), round % 3);
    }
    let events = rec.events();
    let count = |what: char| events.iter().filter(|event| event.what == what).count();
    assert_eq!(count('+'), count('-') + count('!') + patched.stack.depth());
    assert_eq!(patched.stack.counters().overruns, 0);
    assert!(patched.stack.depth() <= 1, "{}", patched.stack.depth());
}

static POINT: AtomicUsize = AtomicUsize::new(0);
static DEPTH: AtomicUsize = AtomicUsize::new(0);

extern "C" fn interrupt(_: libc::c_int) {
    let point = POINT.load(Relaxed) as *mut Point;
    let depth = DEPTH.load(Relaxed);
    host::in_context(Context::Interrupt, || black_box(later(black_box(1))));
    // As an interrupt whose handler never comes back; the one who catches it
    // goes on as a task.
    host::in_context(Context::Interrupt, || black_box(dive(point, depth)));
}

#[inline(never)]
extern "C" fn interrupted(_: *mut Point, _: usize) -> usize {
    // SAFETY: no state.
    unsafe { libc::raise(libc::SIGUSR1) };
    unreachable!("the handler jumps");
}

#[inline(never)]
fn jumper_over_an_interrupt() -> usize {
    let mut point = Point::default();
    POINT.store(&raw mut point as usize, Relaxed);
    // The jump leaves the handler's context; who catches puts its own back.
    // SAFETY: the handler throws at this point.
    host::in_context(Context::Task, || unsafe {
        catching(&mut point, 0, interrupted)
    })
}

/// Signals are interrupts with a stack of their own, whose bounds the platform
/// tells if it is `known`.
fn on_an_interrupts_stack(known: bool) {
    let stack = Box::leak(vec![0_u8; 64 * 1024].into_boxed_slice());
    if known {
        let bounds = stack.as_ptr_range();
        host::set_interrupt_stack(bounds.start as usize..bounds.end as usize);
    }
    // SAFETY: the stack lives for ever; the handler is sound for a signal that
    // the thread raises itself.
    unsafe {
        let alternate = libc::stack_t {
            ss_sp: stack.as_mut_ptr().cast(),
            ss_flags: 0,
            ss_size: stack.len(),
        };
        assert_eq!(libc::sigaltstack(&alternate, std::ptr::null_mut()), 0);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = interrupt as extern "C" fn(libc::c_int) as usize;
        action.sa_flags = libc::SA_ONSTACK | libc::SA_NODEFER;
        assert_eq!(
            libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()),
            0
        );
    }
}

#[test]
fn longjmp_from_an_interrupts_own_stack() {
    let patched = patched(words_for(64, &[1, 1]));
    on_an_interrupts_stack(false);
    let mut funcs = functions().to_vec();
    funcs.push((jumper_over_an_interrupt as fn() -> usize as usize, "J"));
    let at: Vec<usize> = funcs.iter().map(|(func, _)| *func).collect();
    let rec = Rec::<1>::new();
    let _follow = patched.follow(rec, &at);
    for depth in [0, 3, 1] {
        DEPTH.store(depth, Relaxed);
        assert_eq!(jumper_over_an_interrupt(), 77);
        assert_eq!(later(1), 1);
        let dives = vec!["+d"; depth + 1].join(" ");
        let ends = vec!["!d"; depth + 1].join(" ");
        let expected = format!("+J +l +l -l -l {dives} {ends} -J +l +l -l -l");
        assert_eq!(rec.take(names(&funcs)), expected);
        assert_eq!(patched.stack.depth(), 0);
    }
}

#[test]
fn longjmp_from_an_interrupts_own_stack_leaves_frames_for_ever() {
    // Nothing traced encloses it.
    let patched = patched(words_for(96, &[1, 1]));
    on_an_interrupts_stack(true);
    let funcs = functions();
    let rec = Rec::<1>::new();
    let _follow = patched.follow(rec, &[funcs[0].0, funcs[2].0]);
    for round in 0..1000 {
        DEPTH.store(round % 5, Relaxed);
        assert_eq!(jumper_over_an_interrupt(), 77);
        assert_eq!(later(2), 2);
    }
    let events = rec.events();
    let count = |what: char| events.iter().filter(|event| event.what == what).count();
    assert_eq!(count('+'), count('-') + count('!') + patched.stack.depth());
    assert_eq!(patched.stack.counters().overruns, 0);
}

#[test]
fn slot_reused_after_an_unnoticed_jump() {
    let task = Fake::new(64);
    let rec = Rec::<1>::new();
    task.fgraph.register(rec).unwrap();
    (0..4).for_each(|n| assert!(task.enter(n)));
    // Jumped from 3 back to 1, which calls another function where 2 was.
    assert!(task.enter_at(12, 2, usize::MAX));
    assert_eq!(rec.fake(), "+0 +1 +2 +3 !3 !2 +12");
    assert_eq!(task.leave_at(2), Some(Fake::ret(12)));
    task.leave(1);
    task.leave(0);
    assert_eq!(rec.fake(), "-12 -1 -0");
    assert_eq!(task.stack.counters().unwound, 2);
}

/// Dead frames below a live one: the live one must not die with them.
#[test]
fn live_call_dies_with_the_dead_one_below_it() {
    for unbounded in [false, true] {
        let task = if unbounded {
            Fake::unbounded(64)
        } else {
            Fake::new(64)
        };
        let rec = Rec::<1>::new();
        task.fgraph.register(rec).unwrap();
        // Jumped out of 9, which nothing shows.
        assert!(task.enter(9));
        // A call higher up, and in it one on 9's slot.
        assert!(task.enter(4));
        assert!(task.enter_at(19, 9, usize::MAX));
        assert_eq!(task.leave_at(9), Some(Fake::ret(19)));
        task.leave(4);
        task.nest(0, 2);
        let events = rec.fake();
        assert!(events.contains("-19 -4"), "{events}");
        assert!(events.matches('+').count() <= 1 + events.matches(['-', '!']).count());
    }
}

#[test]
fn live_call_dies_with_a_dead_interrupts() {
    let task = Fake::new(256);
    // Interrupts on stacks below and above the task's, in memory.
    let others: Vec<Fake> = (0..8).map(|_| task.other_stack()).collect();
    for irq in &others {
        let rec = Rec::<1>::new();
        let id = task.fgraph.register(rec).unwrap();
        // An interrupt that was jumped out of.
        assert!(irq.enter(30));
        assert!(irq.enter(31));
        // The task goes on, and another interrupt comes inside its call.
        assert!(task.enter(4));
        assert!(irq.enter(30));
        irq.leave(30);
        task.leave(4);
        assert!(task.enter(0));
        task.leave(0);
        let events = rec.fake();
        let below = irq.is_below(&task);
        assert!(events.contains("-4"), "{events}, {below}");
        assert!(!events.contains("!4"), "{events}, {below}");
        task.fgraph.unregister(id).unwrap();
    }
}

#[test]
fn killed_task_leaves_its_exits_out() {
    let task = Fake::new(64);
    let (one, two) = (Rec::<3>::new(), Rec::<0>::new());
    task.fgraph.register(one).unwrap();
    task.fgraph.register(two).unwrap();
    (0..3).for_each(|n| assert!(task.enter(n)));
    // Killed by another, whose own calls are in flight.
    let killer = Fake::on(task.fgraph, 64);
    assert!(killer.enter(7));
    // SAFETY: the made-up calls do not return.
    assert!(unsafe { task.fgraph.exit_task(task.stack) }.is_ok());
    killer.leave(7);
    assert_eq!(one.fake(), "+0 +1 +2 +7 x2 x1 x0 -7");
    assert_eq!(two.fake(), "+0 +1 +2 +7 x2 x1 x0 -7");
    drop(killer);
    drop(task);
}
