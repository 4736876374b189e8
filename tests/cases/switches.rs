//! Cases of switched stacks: coroutines, and tasks.

use std::cell::Cell;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use fgraph::fgraph::Call;
use fgraph::{Fgraph, Platform, RetStack};

use crate::fixture::{Fake, Rec, leak, names, patched};
use crate::host::{self, FGRAPH};

/// A coroutine: a stack of its own, entered and left by a switch.
mod coroutine {
    use super::*;
    use std::arch::naked_asm;

    /// Words that [`switch`] leaves on a stack, and which is the address to go
    /// to. On x86-64 a return address that nobody uses comes after it: aligned
    /// as after a call.
    const SAVED: (usize, usize) = if cfg!(target_arch = "x86_64") {
        (8, 6)
    } else {
        (20, 1)
    };

    /// Saves the stack pointer in `*from` and goes on where `to` was saved.
    #[cfg(target_arch = "aarch64")]
    #[unsafe(naked)]
    pub unsafe extern "C" fn switch(from: *mut usize, to: usize) {
        naked_asm!(
            "stp x29, x30, [sp, #-160]!",
            "stp x19, x20, [sp, #16]",
            "stp x21, x22, [sp, #32]",
            "stp x23, x24, [sp, #48]",
            "stp x25, x26, [sp, #64]",
            "stp x27, x28, [sp, #80]",
            "stp d8, d9, [sp, #96]",
            "stp d10, d11, [sp, #112]",
            "stp d12, d13, [sp, #128]",
            "stp d14, d15, [sp, #144]",
            "mov x9, sp",
            "str x9, [x0]",
            "mov sp, x1",
            "ldp d14, d15, [sp, #144]",
            "ldp d12, d13, [sp, #128]",
            "ldp d10, d11, [sp, #112]",
            "ldp d8, d9, [sp, #96]",
            "ldp x27, x28, [sp, #80]",
            "ldp x25, x26, [sp, #64]",
            "ldp x23, x24, [sp, #48]",
            "ldp x21, x22, [sp, #32]",
            "ldp x19, x20, [sp, #16]",
            "ldp x29, x30, [sp], #160",
            "ret",
        )
    }

    /// Saves the stack pointer in `*from` and goes on where `to` was saved.
    #[cfg(target_arch = "x86_64")]
    #[unsafe(naked)]
    pub unsafe extern "C" fn switch(from: *mut usize, to: usize) {
        naked_asm!(
            "push rbp",
            "push rbx",
            "push r12",
            "push r13",
            "push r14",
            "push r15",
            "mov [rdi], rsp",
            "mov rsp, rsi",
            "pop r15",
            "pop r14",
            "pop r13",
            "pop r12",
            "pop rbx",
            "pop rbp",
            "ret",
        )
    }

    pub struct Coroutine {
        pub own: Cell<usize>,
        pub resumer: Cell<usize>,
        pub shadow: &'static RetStack,
        pub other: Cell<Option<&'static RetStack>>,
    }

    thread_local! {
        pub static RUNNING: Cell<Option<&'static Coroutine>> = const { Cell::new(None) };
    }

    impl Coroutine {
        pub fn new(body: extern "C" fn() -> !) -> &'static Self {
            let stack: &'static mut [u128] = Box::leak(vec![0; 4096].into_boxed_slice());
            let range = stack.as_ptr_range();
            let shadow = leak(RetStack::new());
            let words = Box::leak(vec![0; 256].into_boxed_slice());
            let bounds = range.start as usize..range.end as usize;
            shadow.attach(words, bounds.clone()).unwrap();
            let (words, entry) = SAVED;
            let top = (bounds.end - words * size_of::<usize>()) as *mut usize;
            // SAFETY: words at the end of the leaked stack.
            unsafe {
                top.write_bytes(0, words);
                top.add(entry).write(body as usize);
            }
            leak(Self {
                own: Cell::new(top as usize),
                resumer: Cell::new(0),
                shadow,
                other: Cell::new(None),
            })
        }

        /// Runs it until it suspends. The shadow stack goes with the stack.
        #[inline(never)]
        pub fn resume(&'static self) {
            RUNNING.set(Some(self));
            self.other.set(host::replace_current(Some(self.shadow)));
            // SAFETY: saved by `new` or `suspend`.
            unsafe { switch(self.resumer.as_ptr(), self.own.get()) };
        }

        #[inline(never)]
        pub fn suspend(&'static self) {
            host::replace_current(self.other.get());
            // SAFETY: saved by `resume`.
            unsafe { switch(self.own.as_ptr(), self.resumer.get()) };
        }
    }

    #[inline(never)]
    pub fn step(n: usize) -> usize {
        let sum = black_box(n) + 1;
        RUNNING.get().expect("in a coroutine").suspend();
        sum
    }

    pub static SUM: AtomicUsize = AtomicUsize::new(0);

    pub extern "C" fn body() -> ! {
        let mut n = 0;
        loop {
            n = black_box(twice(n));
            SUM.fetch_add(n, Relaxed);
        }
    }

    #[inline(never)]
    pub fn twice(n: usize) -> usize {
        step(n) + step(n)
    }
}

#[test]
fn coroutine_pops_anothers_frame() {
    use coroutine::{Coroutine, SUM, body, step, twice};
    #[inline(never)]
    fn driver(all: &[&'static Coroutine], depth: usize) -> usize {
        if depth > 0 {
            return driver(all, black_box(depth - 1)) + 1;
        }
        for _ in 0..4 {
            all.iter().for_each(|one| one.resume());
        }
        black_box(0)
    }
    let patched = patched(256);
    let all = [(); 3].map(|()| Coroutine::new(body));
    let funcs = [
        (step as fn(usize) -> usize as usize, "s"),
        (twice as fn(usize) -> usize as usize, "t"),
        (
            driver as fn(&[&'static Coroutine], usize) -> usize as usize,
            "d",
        ),
    ];
    let rec = Rec::<1>::new();
    let follow = patched.follow(rec, &funcs.map(|(func, _)| func));
    assert_eq!(driver(&all, 2), 2);
    // twice(0) = 2, then twice(2) has come to its second step, 3 + …
    assert_eq!(SUM.load(Relaxed), 3 * 2);
    let text = rec.take(names(&funcs));
    let again = |what: &str| [what; 3].join(" ");
    let expected = [
        "+d +d +d".to_string(),
        again("+t +s"),
        again("-s +s"),
        again("-s -t +t +s"),
        again("-s +s"),
        "-d -d -d".to_string(),
    ];
    assert_eq!(text, expected.join(" "));
    // Coroutines that are dropped while suspended end their frames.
    for one in all {
        assert_eq!(one.shadow.depth(), 2);
        // SAFETY: it is not resumed again.
        assert!(unsafe { FGRAPH.exit_task(one.shadow) }.is_ok());
    }
    assert_eq!(rec.take(names(&funcs)), again("xs xt"));
    drop(follow);
}

/// A platform that changes `current` inside a traced function.
struct Switching;

thread_local! {
    static TASKS: Cell<[Option<&'static RetStack>; 2]> = const { Cell::new([None; 2]) };
    static NOW: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: one thread; a stack that was left is found by the slot.
unsafe impl Platform for Switching {
    fn current<R>(f: impl FnOnce(&RetStack) -> R) -> Option<R> {
        TASKS.get()[NOW.get()].map(f)
    }

    fn clock() -> u64 {
        0
    }

    fn owner<R>(slot: usize, f: impl FnOnce(&RetStack) -> R) -> Option<R> {
        let other = TASKS.get()[1 - NOW.get()]?;
        other
            .frames()
            .any(|frame| frame.slot == slot)
            .then(|| f(other))
    }
}

#[test]
fn current_changes_before_the_stack_pointer() {
    let fgraph: &'static Fgraph<Switching> = leak(Fgraph::new());
    let mut real = [0_usize; 8];
    let base = &raw mut real[0] as usize;
    let stacks = [leak(RetStack::new()), leak(RetStack::new())];
    for stack in stacks {
        let words = Box::leak(vec![0; 64].into_boxed_slice());
        stack.attach(words, base..base + 64).unwrap();
    }
    TASKS.set(stacks.map(|stack| Some(stack as &'static RetStack)));
    let rec = Rec::<1>::new();
    fgraph.register(rec).unwrap();
    let enter = |n: usize| {
        let call = Call {
            func: Fake::func(n),
            ret: Fake::ret(n),
            slot: base + 8 * (7 - n),
            tail: false,
            registers: None,
        };
        // SAFETY: the slots are words of this test's.
        unsafe { fgraph.enter(&call, 1) }
    };
    // SAFETY: as above.
    let leave = |n: usize| unsafe { fgraph.leave(base + 8 * (7 - n), None) };
    assert!(enter(0));
    assert!(enter(1));
    // In function 1, the scheduler's, the other task becomes current.
    NOW.set(1);
    assert_eq!(leave(1), Some(Fake::ret(1)));
    assert_eq!(
        stacks.map(|stack| stack.counters().strays),
        [1, 0],
        "noticed"
    );
    assert!(enter(2));
    assert_eq!(leave(2), Some(Fake::ret(2)));
    NOW.set(0);
    assert_eq!(leave(0), Some(Fake::ret(0)));
    assert_eq!(rec.fake(), "+0 +1 -1 +2 -2 -0");
}
