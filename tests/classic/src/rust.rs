//! Rust functions, instrumented with the rest of the program.

use std::hint::black_box;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use fgraph::{Callback, Context, Entry, Exit};

use crate::graph::{print, short, trace};
use crate::host::{self, FGRAPH};

/// What the expected panics carry.
pub struct Expected;

#[inline(never)]
fn leaf(n: usize) -> usize {
    black_box(n) * 3 + 1
}

#[inline(never)]
fn middle(n: usize) -> usize {
    black_box(leaf(black_box(n)) + leaf(n + 1)) + 1
}

#[inline(never)]
fn top(n: usize) -> usize {
    black_box(middle(black_box(n))) ^ black_box(leaf(7))
}

#[inline(never)]
fn fall(n: usize) -> usize {
    if n == 0 {
        panic_any(Expected);
    }
    black_box(fall(black_box(n - 1))) + 1
}

#[inline(never)]
fn catcher(n: usize) -> bool {
    black_box(catch_unwind(AssertUnwindSafe(|| fall(n))).is_err())
}

const TOP: usize = (((5 * 3 + 1) + (6 * 3 + 1)) + 1) ^ (7 * 3 + 1);

fn names() -> [(usize, &'static str); 5] {
    [
        (leaf as fn(usize) -> usize as usize, "leaf"),
        (middle as fn(usize) -> usize as usize, "middle"),
        (top as fn(usize) -> usize as usize, "top"),
        (fall as fn(usize) -> usize as usize, "fall"),
        (catcher as fn(usize) -> bool as usize, "catcher"),
    ]
}

/// Nothing is registered, or no stack is there.
pub fn untraced() {
    assert_eq!(top(5), TOP);
}

#[cfg_attr(
    feature = "fentry",
    expect(dead_code, reason = "this program's Rust is not traced")
)]
pub fn calls() {
    let (result, events) = trace(&names(), || top(black_box(5)));
    assert_eq!(result, TOP);
    print(&events);
    let expected = "+top +middle +leaf -leaf +leaf -leaf -middle +leaf -leaf -top";
    assert_eq!(short(&events), expected);
    let (top, middle) = (events[0], events[1]);
    // The caller is in the function that called, and the value is its.
    assert!(middle.caller.wrapping_sub(top.func) < 4096);
    assert_eq!(events.last().and_then(|event| event.value), Some(TOP));
    assert_eq!(FGRAPH.scope(1, 2).func_of(), 1);
}

/// What a scope is for here: to be entered and left in an instrumented program.
trait FuncOf {
    fn func_of(self) -> usize;
}

impl<T> FuncOf for T {
    fn func_of(self) -> usize {
        1
    }
}

#[cfg_attr(
    feature = "fentry",
    expect(dead_code, reason = "this program's Rust is not traced")
)]
pub fn panics() {
    for depth in [1, 10, 1000] {
        let (caught, events) = trace(&names(), || {
            let caught = catcher(black_box(depth - 1));
            (caught, leaf(black_box(1)))
        });
        assert_eq!(caught, (true, 4));
        let falls = vec!["+fall"; depth].join(" ");
        let ends = vec!["!fall"; depth].join(" ");
        let expected = format!("+catcher {falls} {ends} !catcher +leaf -leaf");
        assert_eq!(short(&events), expected);
        let stack = host::attach(0);
        assert!(!stack.is_inside());
    }
}

/// Inside its entry and its exit an interrupt calls traced functions.
struct Interrupted {
    calls: AtomicUsize,
}

static INTERRUPTED: Interrupted = Interrupted {
    calls: AtomicUsize::new(0),
};
static RAISE: AtomicBool = AtomicBool::new(false);

impl Interrupted {
    fn interrupt(&self) {
        if RAISE.swap(false, Relaxed) {
            self.calls.fetch_add(1, Relaxed);
            // SAFETY: the handler is set below.
            unsafe { libc::raise(libc::SIGUSR1) };
            RAISE.store(true, Relaxed);
        }
    }
}

impl Callback for Interrupted {
    type Frame = ();

    fn entry(&self, call: Entry<'_, ()>) -> Option<()> {
        (call.context() == Context::Task).then(|| self.interrupt())
    }

    fn exit(&self, call: Exit<'_, ()>, (): ()) {
        assert!(call.context() == Context::Task, "entered in a task");
        self.interrupt();
    }
}

/// A handler that does with the flag what the processor does for an interrupt:
/// clears it, and puts it back.
#[unsafe(naked)]
extern "C" fn interrupt(_: libc::c_int) {
    std::arch::naked_asm!(
        "pushfq",
        "push [rsp]",
        "and dword ptr [rsp], {not_nt}",
        "popfq",
        "call {handler}",
        "popfq",
        "ret",
        not_nt = const !0x4000_i32,
        handler = sym handler,
    )
}

extern "C" fn handler() {
    host::in_context(Context::Interrupt, || assert_eq!(black_box(top(5)), TOP));
}

#[cfg_attr(
    feature = "fentry",
    expect(dead_code, reason = "this program's Rust is not traced")
)]
pub fn interrupts() {
    // SAFETY: the handler is sound for signals that the thread raises itself.
    unsafe {
        let handler = interrupt as extern "C" fn(libc::c_int) as usize;
        libc::signal(libc::SIGUSR1, handler);
    }
    let interrupted = FGRAPH.register(&INTERRUPTED).expect("a slot is free");
    let (result, events) = trace(&names(), || {
        RAISE.store(true, Relaxed);
        let result = leaf(black_box(5));
        RAISE.store(false, Relaxed);
        result
    });
    FGRAPH.unregister(interrupted).expect("registered");
    assert_eq!(result, 16);
    let inner = "+top +middle +leaf -leaf +leaf -leaf -middle +leaf -leaf -top";
    let events = short(&events);
    let (calls, raised) = (
        events.matches(inner).count(),
        INTERRUPTED.calls.load(Relaxed),
    );
    assert!(raised >= 2, "{raised}");
    // Each interrupt is traced whole: also those in the entry and the exit of
    // the call itself.
    assert_eq!(calls, raised, "{events}");
    assert!(
        events.contains("+leaf") && events.contains("-leaf"),
        "{events}"
    );
}

#[cfg_attr(
    feature = "fentry",
    expect(dead_code, reason = "this program's Rust is not traced")
)]
pub fn threads() {
    // Threads with and without a shadow stack come and go, and the first
    // functions of each are hooked or not by what their slots are.
    let (sum, _) = trace(&[], || {
        let threads = (0..8).map(|i| {
            std::thread::spawn(move || {
                if i % 2 == 0 {
                    host::attach(512);
                }
                let sum: usize = (0..200).map(|_| top(black_box(5))).sum();
                host::exit();
                sum
            })
        });
        let threads: Vec<_> = threads.collect();
        threads
            .into_iter()
            .map(|t| t.join().expect("no panic"))
            .sum::<usize>()
    });
    assert_eq!(sum, 8 * 200 * TOP);
}
