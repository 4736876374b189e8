//! Cases of callbacks that go back into the tracer, or panic.

use std::hint::black_box;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use fgraph::fgraph::RegisterError;
use fgraph::{Callback, CallbackId, Entry, Exit, Fgraph, Platform};

use crate::callbacks::{functions, outer};
use crate::fixture::{Fake, Rec, catch, leak, names, patched, patched_alone};
use crate::host::{self, FGRAPH, Host};

/// Registers and unregisters, itself too, from inside.
struct Restless {
    own: OnceLock<CallbackId>,
    other: &'static Rec<1>,
    last: OnceLock<CallbackId>,
    results: std::sync::Mutex<Vec<bool>>,
}

impl Restless {
    fn act(&self, fgraph: &'static Fgraph<Host>) {
        let mut results = Vec::new();
        if let Ok(id) = fgraph.register(self.other) {
            results.push(fgraph.unregister(id).is_ok());
            let again = fgraph.register(self.other);
            results.push(again.is_ok_and(|id| self.last.set(id).is_ok()));
        }
        if let Some(&own) = self.own.get() {
            results.push(fgraph.unregister(own).is_ok());
        }
        self.results.lock().unwrap().extend(results);
    }
}

impl Callback for Restless {
    type Frame = usize;
    fn entry(&self, _: Entry<'_, usize>) -> Option<usize> {
        self.act(&FGRAPH);
        Some(7)
    }
    fn exit(&self, _: Exit<'_, usize>, _: usize) {
        // It has gone: this would be a former owner's return.
        self.results.lock().unwrap().push(false);
    }
}

#[test]
fn callback_that_registers_and_unregisters_deadlocks() {
    let patched = patched(256);
    let funcs = functions();
    let (stays, other) = (Rec::<2>::new(), Rec::<1>::new());
    let restless = leak(Restless {
        own: OnceLock::new(),
        other,
        last: OnceLock::new(),
        results: Default::default(),
    });
    let _stays = patched.follow(stays, &[funcs[0].0, funcs[1].0]);
    let id = FGRAPH.register(restless).unwrap();
    restless.own.set(id).unwrap();
    patched.patch.enable(id, |func| func == funcs[0].0).unwrap();
    assert_eq!(outer(1), 8);
    assert_eq!(outer(1), 8);
    assert_eq!(*restless.results.lock().unwrap(), [true, true, true]);
    let twice = "+outer +inner -inner -outer +outer +inner -inner -outer";
    assert_eq!(stays.take(names(&funcs)), twice);
    assert!(!FGRAPH.is_registered(id));
    assert_eq!(patched.patch.disable(id, |_| true), Ok(1));
    // The other was registered by it and follows no patched function.
    assert_eq!(other.events(), []);
    let still = FGRAPH.register(other);
    assert_eq!(still, Err(RegisterError::AlreadyRegistered));
    FGRAPH.unregister(*restless.last.get().unwrap()).unwrap();
}

/// Registers and unregisters another at each entry while it is `on`, whatever
/// was entered.
struct Meddler {
    other: &'static Rec<0>,
    on: AtomicBool,
    meddled: AtomicUsize,
}

impl Callback for Meddler {
    type Frame = usize;
    fn entry(&self, _: Entry<'_, usize>) -> Option<usize> {
        if self.on.load(Relaxed)
            && let Ok(id) = FGRAPH.register(self.other)
        {
            let gone = FGRAPH.unregister(id);
            self.meddled.fetch_add(usize::from(gone.is_ok()), Relaxed);
        }
        Some(1)
    }
    fn exit(&self, _: Exit<'_, usize>, _: usize) {}
}

#[test]
fn callback_waits_for_the_lock_that_its_own_cpu_holds() {
    // Registration itself is traced, as far as it is not the hook's own path.
    let patched = patched_alone(4096);
    let meddler = leak(Meddler {
        other: Rec::<0>::new(),
        on: AtomicBool::new(false),
        meddled: AtomicUsize::new(0),
    });
    let third = Rec::<0>::which(|_| false);
    let follow = patched.follow_where(meddler, |_| true, 100);
    for _ in 0..10 {
        // Not around `unregister`: this platform's grace period takes a lock.
        meddler.on.store(true, Relaxed);
        let id = FGRAPH.register(third).unwrap();
        black_box(outer(1));
        meddler.on.store(false, Relaxed);
        FGRAPH.unregister(id).unwrap();
    }
    patched.patch.disable(follow.id, |_| true).unwrap();
    assert!(meddler.meddled.load(Relaxed) >= 20);
}

/// Panics at the entry or the exit of one function.
struct Panics {
    at_entry: bool,
}

impl Callback for Panics {
    type Frame = usize;
    fn entry(&self, call: Entry<'_, usize>) -> Option<usize> {
        assert!(!self.at_entry || call.func() != Fake::func(1), "entry");
        Some(1)
    }
    fn exit(&self, call: Exit<'_, usize>, _: usize) {
        assert!(self.at_entry || call.func() != Fake::func(1), "exit");
    }
}

#[test]
#[cfg_attr(panic = "abort", ignore = "a panic does not unwind")]
fn callback_that_panics_leaves_the_guard_set() {
    for at_entry in [true, false] {
        let task = Fake::new(256);
        let (before, after) = (Rec::<1>::new(), Rec::<1>::new());
        task.fgraph.register(before).unwrap();
        task.fgraph.register(leak(Panics { at_entry })).unwrap();
        task.fgraph.register(after).unwrap();
        assert!(task.enter(0));
        if at_entry {
            assert!(catch(|| task.enter(1)).is_err());
        } else {
            assert!(task.enter(1));
            assert!(catch(|| task.leave(1)).is_err());
        }
        assert!(!task.stack.is_inside());
        assert_eq!(task.stack.depth(), 1);
        task.nest(2, 3);
        task.leave(0);
        let (first, last) = if at_entry {
            ("+0 +1 !1 +2 -2 -0", "+0 +2 -2 -0")
        } else {
            ("+0 +1 -1 +2 -2 -0", "+0 +1 -1 +2 -2 -0")
        };
        assert_eq!(before.fake(), first);
        assert_eq!(after.fake(), last);
    }
}

#[test]
fn traced_clock_recurses() {
    struct Clocked(AtomicUsize, AtomicUsize);
    impl Callback for Clocked {
        type Frame = u64;
        fn entry(&self, _: Entry<'_, u64>) -> Option<u64> {
            self.0.fetch_add(1, Relaxed);
            black_box((Host::cpu(), Host::task(), Host::context()));
            Some(Host::clock())
        }
        fn exit(&self, _: Exit<'_, u64>, start: u64) {
            self.1.fetch_add(1, Relaxed);
            black_box(Host::clock().wrapping_sub(start));
        }
    }
    let patched = patched_alone(4096);
    let clocked = leak(Clocked(AtomicUsize::new(0), AtomicUsize::new(0)));
    {
        // Everything, the platform's functions and this test's too.
        let follow = patched.follow_where(clocked, |_| true, 100);
        for n in 0..100 {
            assert_eq!(outer(n), (n + 1) * 3 + 2);
            black_box((Host::clock(), Host::cpu(), host::nanoseconds()));
        }
        black_box(format!("{:?}", std::thread::current().name()));
        // The calls in flight at this moment return before it is unregistered.
        assert!(patched.patch.disable(follow.id, |_| true).unwrap() > 100);
    }
    let (entries, exits) = (clocked.0.load(Relaxed), clocked.1.load(Relaxed));
    assert!(entries >= 200, "{entries}");
    assert_eq!(entries, exits);
}
