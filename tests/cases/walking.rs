//! Cases of unwinders and walkers. What needs frame pointers everywhere is
//! shown by the programs of the classic hooks.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use fgraph::{Callback, Entry, Exit};

use crate::fixture::{Fake, Rec, leak};

/// Where a call stores its return address itself, and its slot is where.
/// Other architectures' unwinders are tests of their own.
#[cfg(target_arch = "x86_64")]
mod slots {
    use std::collections::HashSet;

    use super::*;
    use crate::fixture::patched;
    use crate::host::{self, FGRAPH};

    /// Notes, at each entry of the innermost function, what the slots of all
    /// frames hold and what they held.
    struct Slots {
        seen: std::sync::Mutex<Vec<(usize, usize, usize)>>,
    }

    impl Slots {
        fn note(&self, stack: &fgraph::RetStack) {
            let mut seen = self.seen.lock().expect("not poisoned");
            for frame in stack.frames() {
                // SAFETY: a live slot of this thread's.
                let holds = unsafe { (frame.slot as *const usize).read_volatile() };
                let real = FGRAPH.real_return(stack, frame.slot, holds);
                seen.push((frame.slot, holds, real));
            }
        }
    }

    impl Callback for Slots {
        type Frame = usize;
        fn entry(&self, call: Entry<'_, usize>) -> Option<usize> {
            if call.depth() == 4 {
                self.note(call.stack());
            }
            Some(call.func())
        }
        fn exit(&self, call: Exit<'_, usize>, _: usize) {
            if call.depth() == 4 {
                self.note(call.stack());
            }
        }
    }

    #[inline(never)]
    fn down(n: usize, slots: &mut Vec<usize>) -> usize {
        slots.push(n);
        if black_box(n) == 0 {
            return 0;
        }
        let below = down(n - 1, slots);
        slots.push(n);
        below + 1
    }

    #[test]
    fn backtrace_is_full_of_the_trampolines_address() {
        let patched = patched(256);
        let rec = Rec::<1>::new();
        let slots = leak(Slots {
            seen: Default::default(),
        });
        let at = down as fn(usize, &mut Vec<usize>) -> usize as usize;
        let _rec = patched.follow(rec, &[at]);
        let _follow = patched.follow(slots, &[at]);
        let mut order = Vec::new();
        assert_eq!(down(5, &mut order), 5);
        let callers: Vec<(usize, usize)> = rec
            .events()
            .iter()
            .map(|event| (event.slot, event.caller))
            .collect();
        let seen = slots.seen.lock().unwrap();
        // At the fifth's entry, four calls are in flight and in the stack; at its
        // return too. Their slots hold one address, the hook's.
        assert_eq!(seen.len(), 8);
        let stubs: HashSet<usize> = seen.iter().map(|&(_, holds, _)| holds).collect();
        assert_eq!(stubs.len(), 1);
        for &(slot, holds, real) in seen.iter() {
            assert_ne!(holds, real);
            assert!(callers.contains(&(slot, real)), "{slot:#x} {real:#x}");
        }
    }

    #[test]
    fn unwinder_walks_current_instead_of_the_task_asked_for() {
        let patched = patched(256);
        let rec = Rec::<1>::new();
        let at = down as fn(usize, &mut Vec<usize>) -> usize as usize;
        let _rec = patched.follow(rec, &[at]);
        // A task that sleeps inside traced calls.
        static ASLEEP: AtomicUsize = AtomicUsize::new(0);
        static WAKE: AtomicBool = AtomicBool::new(false);
        struct Sleeps;
        impl Callback for Sleeps {
            type Frame = ();
            fn entry(&self, call: Entry<'_, ()>) -> Option<()> {
                if call.depth() == 3 {
                    ASLEEP.store(std::ptr::from_ref(call.stack()) as usize, Relaxed);
                    while !WAKE.load(Relaxed) {
                        std::thread::yield_now();
                    }
                }
                Some(())
            }
            fn exit(&self, _: Exit<'_, ()>, (): ()) {}
        }
        static SLEEPS: Sleeps = Sleeps;
        let follow = patched.follow(&SLEEPS, &[at]);
        let sleeper = std::thread::spawn(|| {
            host::attach(256);
            down(3, &mut Vec::new());
            host::exit();
        });
        while ASLEEP.load(Relaxed) == 0 {
            std::thread::yield_now();
        }
        // SAFETY: attached stacks are leaked.
        let other = unsafe { &*(ASLEEP.load(Relaxed) as *const fgraph::RetStack) };
        let frames: Vec<_> = other.frames().collect();
        assert_eq!(frames.len(), 3);
        let callers = rec.events();
        for frame in frames {
            // SAFETY: the sleeper's stack is this process's memory.
            let holds = unsafe { (frame.slot as *const usize).read_volatile() };
            let real = FGRAPH.real_return(other, frame.slot, holds);
            let event = callers.iter().find(|event| event.slot == frame.slot);
            assert_eq!(event.map(|event| event.caller), Some(real));
            // This task has no call on that slot: the address stays as seen.
            assert_eq!(FGRAPH.real_return(patched.stack, frame.slot, holds), holds);
        }
        assert!(patched.stack.frames().next().is_none());
        WAKE.store(true, Relaxed);
        sleeper.join().unwrap();
        drop(follow);
    }
}

#[test]
fn walk_of_a_running_task_reads_past_its_end() {
    let walks = AtomicUsize::new(0);
    let done = AtomicBool::new(false);
    let fgraph = leak(fgraph::Fgraph::new());
    fgraph.register(Rec::<1>::which(|_| false)).unwrap();
    struct Data;
    impl Callback for Data {
        type Frame = [usize; 2];
        fn entry(&self, call: Entry<'_, [usize; 2]>) -> Option<[usize; 2]> {
            Some([call.func(), call.return_slot()])
        }
        fn exit(&self, _: Exit<'_, [usize; 2]>, _: [usize; 2]) {}
    }
    fgraph.register(leak(Data)).unwrap();
    let (send, stack) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            let task = Fake::on(fgraph, 60);
            send.send(task.stack).unwrap();
            let mut n = 0;
            while !done.load(Relaxed) {
                n += 1;
                task.nest(0, n % 14);
            }
        });
        let stack: &'static fgraph::RetStack = stack.recv().unwrap();
        while walks.load(Relaxed) < 200_000 {
            let mut frames = stack.frames();
            let all: Vec<_> = frames.by_ref().collect();
            assert!(all.len() <= 60 / 2);
            let stale = frames.is_stale();
            for frame in &all {
                // Stale or not, a frame that is shown is made of words of the
                // stack; real_return never fails.
                black_box(fgraph.real_return(stack, frame.slot, frame.ret));
            }
            black_box((stale, stack.depth(), stack.high_water(), stack.is_inside()));
            walks.fetch_add(1, Relaxed);
        }
        done.store(true, Relaxed);
        running.join().unwrap();
    });
}
