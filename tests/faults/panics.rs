//! A callback panics, on a host: the others stay balanced, the guard is free
//! again, and no call is lost.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};

use fgraph::fgraph::Call;
use fgraph::{Callback, Cause, Context, Entry, Exit, Fgraph};

use crate::common::own::{self, Own};

/// Which callback panics, where, at which of its events of that kind.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Entry,
    Exit,
}

thread_local! {
    static BOMB: Cell<Option<(usize, At)>> = const { Cell::new(None) };
    /// Callback, function, and whether it is an exit.
    static EVENTS: RefCell<Vec<(usize, usize, Option<Cause>)>> = const { RefCell::new(Vec::new()) };
}

struct Fragile<const W: usize>(usize);

impl<const W: usize> Fragile<W> {
    fn event(&self, func: usize, cause: Option<Cause>, at: At) {
        EVENTS.with_borrow_mut(|events| events.push((self.0, func, cause)));
        if BOMB.get() == Some((self.0, at)) {
            BOMB.set(None);
            // Without the hook's message.
            std::panic::resume_unwind(Box::new("bomb"));
        }
    }
}

impl<const W: usize> Callback for Fragile<W> {
    type Frame = [usize; W];

    fn entry(&self, call: Entry<'_, Self::Frame>) -> Option<Self::Frame> {
        self.event(call.func(), None, At::Entry);
        Some([call.func() ^ self.0; W])
    }

    fn exit(&self, call: Exit<'_, Self::Frame>, data: Self::Frame) {
        assert_eq!(data, [call.func() ^ self.0; W]);
        self.event(call.func(), Some(call.cause()), At::Exit);
    }
}

fn tracer(callbacks: usize) -> &'static Fgraph<Own> {
    let fgraph = own::fgraph();
    for n in 0..callbacks {
        match n % 3 {
            0 => fgraph.register(Box::leak(Box::new(Fragile::<1>(n)))),
            1 => fgraph.register(Box::leak(Box::new(Fragile::<0>(n)))),
            _ => fgraph.register(Box::leak(Box::new(Fragile::<5>(n)))),
        }
        .expect("there is a slot");
    }
    fgraph
}

/// Exits with no entry before them, or entries with no exit, per callback.
fn unbalanced(events: &[(usize, usize, Option<Cause>)]) -> Vec<(usize, usize)> {
    let mut open: Vec<(usize, usize)> = Vec::new();
    for &(callback, func, cause) in events {
        match cause {
            None => open.push((callback, func)),
            Some(_) => {
                let at = open.iter().rposition(|&other| other == (callback, func));
                open.remove(at.expect("an exit with no entry"));
            }
        }
    }
    open
}

#[test]
fn callbacks_that_panic() {
    let mut tried = 0;
    for callbacks in 1..=16 {
        let fgraph = tracer(callbacks);
        for bomb in 0..callbacks {
            for at in [At::Entry, At::Exit] {
                // Inside of another call, on a stack that fits, and on a full
                // one.
                for words in [400, 2 * callbacks + 20] {
                    try_one(fgraph, bomb, at, words);
                    tried += 1;
                }
            }
        }
    }
    println!("panics: {tried} callbacks panicked");
}

fn try_one(fgraph: &Fgraph<Own>, bomb: usize, at: At, words: usize) {
    let stack = own::with_stack(words);
    let real = own::slots(8);
    let slot = |at: usize| &raw const real[at] as usize;
    let call = |func: usize, at: usize| Call {
        func,
        ret: func + 1,
        slot: slot(at),
        tail: false,
        registers: None,
    };
    EVENTS.take();
    // SAFETY: the slots are words, here and below.
    let outer = unsafe { fgraph.enter(&call(100, 6), usize::MAX) };
    assert!(outer);
    BOMB.set(Some((bomb, at)));
    let inner = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: as above.
        unsafe { fgraph.enter(&call(200, 4), usize::MAX) }
    }));
    let went_off = BOMB.get().is_none();
    match (at, &inner) {
        (At::Entry, inner) if went_off => {
            // The call goes on untraced.
            assert!(inner.is_err());
            assert_eq!(stack.depth(), 1);
        }
        (_, Ok(true)) => {
            // SAFETY: as above.
            let leave = || unsafe { fgraph.leave(slot(4), None) };
            if catch_unwind(AssertUnwindSafe(leave)).is_err() {
                // The slot had its address back before.
                assert_eq!(real[4], 201);
            }
        }
        _ => {}
    }
    BOMB.set(None);
    assert!(!stack.is_inside(), "the guard is held");
    assert_eq!(stack.depth(), 1);
    // SAFETY: as above.
    unsafe {
        // The next call is traced, if it has room.
        if fgraph.enter(&call(300, 4), usize::MAX) {
            assert_eq!(fgraph.leave(slot(4), None), Some(301));
        }
        assert_eq!(fgraph.leave(slot(6), None), Some(101));
    }
    assert_eq!(stack.depth(), 0);
    let events = EVENTS.take();
    let mut open = unbalanced(&events);
    // Only the one that panicked in its entry did not accept.
    if at == At::Entry && went_off {
        assert_eq!(open.pop(), Some((bomb, 200)), "{events:?}");
    }
    assert!(open.is_empty(), "no exit for {open:?}: {events:?}");
    own::set_current(None);
}

/// An interrupt inside of an entry has left calls behind, and a callback panics
/// when the newest of them ends: the others end too, and so does the call that was
/// entering, which leaves nothing claimed.
#[test]
fn a_callback_that_panics_for_what_an_interrupt_left() {
    thread_local! {
        static LEFT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
        static EXITS: Cell<usize> = const { Cell::new(0) };
        static TRACER: Cell<Option<&'static Fgraph<Own>>> = const { Cell::new(None) };
    }

    fn call(func: usize, slot: usize) -> Call<'static> {
        Call {
            func,
            ret: func + 1,
            slot,
            tail: false,
            registers: None,
        }
    }

    /// Its entries leave calls of an interrupt behind; the first that ends panics.
    struct Leaver;

    impl Callback for Leaver {
        type Frame = [usize; 1];

        fn entry(&self, entered: Entry<'_, Self::Frame>) -> Option<Self::Frame> {
            let fgraph = TRACER.get().expect("a tracer that calls back");
            own::in_context(Context::Interrupt, || {
                for slot in LEFT.take() {
                    // SAFETY: the slots are words.
                    assert!(unsafe { fgraph.enter(&call(500, slot), 1) });
                }
            });
            Some([entered.func()])
        }

        fn exit(&self, left: Exit<'_, Self::Frame>, [func]: Self::Frame) {
            assert_eq!(left.func(), func);
            EXITS.set(EXITS.get() + 1);
            if func == 500 && EXITS.get() == 1 {
                std::panic::resume_unwind(Box::new("bomb"));
            }
        }
    }

    for outer in [false, true] {
        for left in 1..=3 {
            let fgraph = own::fgraph();
            fgraph.register(&Leaver).unwrap();
            TRACER.set(Some(fgraph));
            EXITS.set(0);
            let stack = own::with_stack(64);
            let real = own::slots(8);
            let slot = |at: usize| &raw const real[at] as usize;
            if outer {
                // SAFETY: the slots are words, here and below.
                assert!(unsafe { fgraph.enter(&call(100, slot(6)), 1) });
            }
            LEFT.set((0..left).map(|n| slot(3 - n)).collect());
            let entered = catch_unwind(AssertUnwindSafe(|| {
                // SAFETY: as above.
                unsafe { fgraph.enter(&call(200, slot(4)), 1) }
            }));
            assert!(entered.is_err());
            assert_eq!(EXITS.get(), left + 1, "each has ended, and the call");
            assert_eq!((stack.depth(), stack.is_inside()), (outer.into(), false));
            if outer {
                // SAFETY: as above.
                assert_eq!(unsafe { fgraph.leave(slot(6), None) }, Some(101));
            }
            // SAFETY: nobody else knows the stack.
            assert!(unsafe { stack.detach() }.is_ok(), "no word is in use");
            own::set_current(None);
        }
    }
}
