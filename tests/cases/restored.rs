//! Cases of return addresses that are given back while frames lie there whose
//! calls were jumped over.
//!
//! The calls are made up, but the tracer's words in their slots are real.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use fgraph::Context;
use fgraph::fgraph::Call;

use crate::fixture::{Rec, leak, patched};
use crate::host::{self, FGRAPH};

/// Where patched calls return to.
fn hooked_return() -> usize {
    #[inline(never)]
    fn look(at: &AtomicUsize) {
        let slot = host::attach(0)
            .frames()
            .next()
            .map_or(0, |frame| frame.slot);
        // SAFETY: this very call's slot.
        at.store(unsafe { (slot as *const usize).read_volatile() }, Relaxed);
    }
    let seen = AtomicUsize::new(0);
    let rec = Rec::<0>::new();
    let patched = patched(256);
    let follow = patched.follow(rec, &[look as fn(&AtomicUsize) as usize]);
    look(&seen);
    drop(follow);
    seen.into_inner()
}

const FUNC: fn() -> usize = hooked_return;

/// A word of an interrupt's stack, with a call in flight on it, which goes back
/// to `caller`.
fn call_on(slot: &AtomicUsize, hooked: usize, caller: usize) -> usize {
    let at = std::ptr::from_ref(slot) as usize;
    let call = Call {
        func: FUNC as usize,
        ret: caller,
        slot: at,
        tail: false,
        registers: None,
    };
    host::in_context(Context::Interrupt, || {
        // SAFETY: a word that is nobody else's.
        assert!(unsafe { FGRAPH.enter(&call, usize::MAX) });
    });
    slot.store(hooked, Relaxed);
    at
}

/// An interrupt is jumped out of, and the task goes on elsewhere. Meanwhile the
/// first CPU has another interrupt, with a call on the same slot, whose return
/// address is the tracer's.
#[test]
fn restore_writes_into_another_interrupts_call() {
    let hooked = hooked_return();
    let patched = patched(64);
    let words: &[AtomicUsize; 64] = leak([const { AtomicUsize::new(0) }; 64]);
    let caller = FUNC as usize + 1;
    // The platform tells which stack is an interrupt's, or does not.
    for known in [true, false] {
        let rec = Rec::<1>::new();
        let id = FGRAPH.register(rec).unwrap();
        let bounds = words.as_ptr_range();
        host::set_interrupt_stack(match known {
            true => bounds.start as usize..bounds.end as usize,
            false => 0..0,
        });
        let slot = call_on(&words[30], hooked, caller);
        // SAFETY: the slot is there.
        let ended = unsafe { FGRAPH.restore() };
        assert_eq!(words[30].load(Relaxed), hooked, "not this task's any more");
        let what = || -> String { rec.events().iter().map(|event| event.what).collect() };
        if known {
            // Its stack was empty before the task went on.
            assert_eq!((ended, what()), (1, "+!".into()));
        } else {
            // It may be a call that goes on: then it finds its frame.
            assert_eq!((ended, what()), (0, "+".into()));
            // SAFETY: it was entered.
            assert_eq!(unsafe { FGRAPH.leave(slot, None) }, Some(caller));
            assert_eq!(what(), "-");
        }
        assert_eq!(patched.stack.depth(), 0);
        FGRAPH.unregister(id).unwrap();
    }
    host::set_interrupt_stack(0..0);
}

/// The interrupt that runs gives back its own calls' addresses, and those of
/// the task that it has interrupted.
#[test]
fn restore_on_an_interrupts_stack_leaves_its_calls_out() {
    static HOOKED: AtomicUsize = AtomicUsize::new(0);
    static KEPT: AtomicUsize = AtomicUsize::new(0);

    #[inline(never)]
    extern "C" fn task() -> usize {
        // SAFETY: no state.
        unsafe { libc::raise(libc::SIGUSR1) };
        std::hint::black_box(3)
    }
    #[inline(never)]
    extern "C" fn inner() -> usize {
        // SAFETY: the stacks are there.
        assert_eq!(unsafe { FGRAPH.restore() }, 0, "they go on");
        let frames = host::attach(0).frames();
        let kept = |slot: usize| {
            // SAFETY: a slot of a call in flight.
            unsafe { (slot as *const usize).read_volatile() == HOOKED.load(Relaxed) }
        };
        let kept = frames.map(|frame| 1 + 100 * usize::from(kept(frame.slot)));
        KEPT.store(kept.sum(), Relaxed);
        std::hint::black_box(4)
    }
    extern "C" fn handler(_: libc::c_int) {
        host::in_context(Context::Interrupt, || assert_eq!(inner(), 4));
    }

    HOOKED.store(hooked_return(), Relaxed);
    let patched = patched(64);
    let rec = Rec::<1>::new();
    let stack = leak([0_u8; 64 * 1024]);
    let bounds = stack.as_ptr_range();
    // SAFETY: the stack lives for ever; the handler is sound for a signal that
    // the thread raises itself.
    unsafe {
        let alternate = libc::stack_t {
            ss_sp: bounds.start.cast_mut().cast(),
            ss_flags: 0,
            ss_size: stack.len(),
        };
        assert_eq!(libc::sigaltstack(&alternate, std::ptr::null_mut()), 0);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as extern "C" fn(libc::c_int) as usize;
        action.sa_flags = libc::SA_ONSTACK;
        assert_eq!(
            libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()),
            0
        );
    }
    type Plain = extern "C" fn() -> usize;
    for known in [true, false] {
        host::set_interrupt_stack(match known {
            true => bounds.start as usize..bounds.end as usize,
            false => 0..0,
        });
        let follow = patched.follow(rec, &[task as Plain as usize, inner as Plain as usize]);
        assert_eq!(task(), 3);
        assert_eq!(KEPT.load(Relaxed), 2, "two frames, and both restored");
        drop(follow);
        // Their frames end when somebody shows that they are gone.
        // SAFETY: no stack was freed.
        assert_eq!(unsafe { FGRAPH.restore() }, 2);
    }
    host::set_interrupt_stack(0..0);
}
