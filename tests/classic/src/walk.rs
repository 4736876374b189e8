//! Frame-pointer walks: the same chain traced and untraced.

use std::cell::RefCell;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use fgraph::{Callback, Entry, Exit};

use crate::graph::trace;
use crate::host::{self, FGRAPH};

thread_local! {
    static CHAINS: RefCell<Vec<Vec<usize>>> = const { RefCell::new(Vec::new()) };
}

/// The frame at which walks end.
static BASE: AtomicUsize = AtomicUsize::new(0);

/// The return addresses from the caller's frame up to [`BASE`], newest first,
/// as a frame-pointer unwinder finds them with the tracer's help.
#[inline(never)]
fn walk() -> Vec<usize> {
    let stack = host::attach(0);
    let mut frame: usize;
    // SAFETY: reads a register.
    unsafe { std::arch::asm!("mov {}, rbp", out(reg) frame) };
    let mut chain = Vec::new();
    while frame != 0 && frame < BASE.load(Relaxed) && chain.len() < 100 {
        // SAFETY: every function up to the base has a frame pointer.
        let (next, ret) = unsafe {
            let frame = frame as *const usize;
            (frame.read_volatile(), frame.add(1).read_volatile())
        };
        chain.push(FGRAPH.real_return(stack, frame + 8, ret));
        assert!(next > frame, "{chain:x?}");
        frame = next;
    }
    chain
}

fn keep(chain: Vec<usize>) {
    CHAINS.with_borrow_mut(|chains| chains.push(chain));
}

extern "C" fn interrupt(_: libc::c_int) {
    keep(walk());
}

#[inline(never)]
fn leaf(n: usize) -> usize {
    keep(walk());
    // SAFETY: the handler is set below.
    unsafe { libc::raise(libc::SIGUSR2) };
    black_box(n) + 1
}

#[inline(never)]
fn down(n: usize) -> usize {
    if n == 0 {
        return black_box(leaf(black_box(1)));
    }
    black_box(down(black_box(n - 1))) + 1
}

#[inline(never)]
fn base() -> usize {
    let frame: usize;
    // SAFETY: reads a register.
    unsafe { std::arch::asm!("mov {}, rbp", out(reg) frame) };
    BASE.store(frame, Relaxed);
    black_box(down(black_box(5)))
}

/// Walks in the entry and the exit of `leaf`.
struct Walks(AtomicUsize);
static WALKS: Walks = Walks(AtomicUsize::new(0));

impl Callback for Walks {
    type Frame = ();

    fn entry(&self, call: Entry<'_, ()>) -> Option<()> {
        (call.func().wrapping_sub(self.0.load(Relaxed)) < 64).then(|| keep(walk()))
    }

    fn exit(&self, _: Exit<'_, ()>, (): ()) {
        keep(walk());
    }
}

#[cfg_attr(
    feature = "fentry",
    expect(dead_code, reason = "this program's Rust is not traced")
)]
pub fn chains() {
    // SAFETY: the handler is sound for signals that the thread raises itself.
    unsafe {
        let handler = interrupt as extern "C" fn(libc::c_int) as usize;
        libc::signal(libc::SIGUSR2, handler);
    }
    WALKS.0.store(leaf as fn(usize) -> usize as usize, Relaxed);
    let call = || (base(), CHAINS.take());
    // The same call, from one place.
    let mut both = Vec::new();
    for traced in [false, true] {
        let one = if traced {
            let walks = FGRAPH.register(&WALKS).expect("a slot is free");
            let (one, _) = trace(&[], black_box(&call));
            FGRAPH.unregister(walks).expect("registered");
            one
        } else {
            black_box(&call)()
        };
        assert_eq!(one.0, 7);
        both.push(one.1);
    }
    let [untraced, traced] = <[_; 2]>::try_from(both).expect("two");
    // In `leaf`: what `walk` returns to, and its callers'. `down` six times.
    let [in_leaf, in_signal] = <[_; 2]>::try_from(untraced).expect("two");
    let callers = &in_leaf[1..];
    assert!(callers.len() >= 7, "{callers:x?}");
    assert!(in_signal.ends_with(callers), "{in_signal:x?} {callers:x?}");
    // Entry, body, signal, exit.
    assert_eq!(traced.len(), 4);
    assert_eq!(traced[1], in_leaf);
    assert_eq!(traced[2].last(), in_signal.last());
    for chain in &traced {
        assert!(chain.ends_with(callers), "{chain:x?} {callers:x?}");
    }
}
