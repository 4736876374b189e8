//! One bit of a live stack's words is wrong.
//!
//! Every bit of every word is flipped, one at a time, and the calls return.
//! No return goes to an address that was not recorded, but for one kind of
//! flip, which no packing without redundancy could tell: that of a recorded
//! return address's own bit.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use fgraph::fgraph::Call;
use fgraph::ret_stack::Counters;
use fgraph::{Callback, Context, Entry, Exit, Fgraph, RetStack};

use crate::common::own::{self, Own};

thread_local! {
    /// Exits: slot of the callback, function, data intact.
    static EXITS: RefCell<Vec<(usize, usize, bool)>> = const { RefCell::new(Vec::new()) };
    static INSIDE: Cell<Option<Box<dyn FnOnce()>>> = const { Cell::new(None) };
}

struct Keep<const W: usize>(usize);

impl<const W: usize> Callback for Keep<W> {
    type Frame = [usize; W];

    fn entry(&self, call: Entry<'_, Self::Frame>) -> Option<Self::Frame> {
        if self.0 == 3
            && let Some(inside) = INSIDE.take()
        {
            inside();
        }
        let words = kept(call.return_slot(), call.func(), self.0);
        Some(std::array::from_fn(|i| words[i % words.len()]))
    }

    fn exit(&self, call: Exit<'_, Self::Frame>, data: Self::Frame) {
        let words = kept(call.return_slot(), call.func(), self.0);
        let intact = data == std::array::from_fn(|i| words[i % words.len()]);
        let _ = (call.caller(), call.depth(), call.parent().map(|p| p.get()));
        EXITS.with_borrow_mut(|exits| exits.push((self.0, call.func(), intact)));
    }
}

/// What a callback keeps may look like anything: here like a frame on its own
/// slot. Not on 32-bit targets, where a frame has its slot as a whole word: with
/// that word among the data, one bit more makes a frame of them, which no
/// packing without redundancy could tell.
fn kept(slot: usize, func: usize, own: usize) -> [usize; 4] {
    let slot = if cfg!(target_pointer_width = "64") {
        slot
    } else {
        func
    };
    [slot, func, own, slot]
}

/// A tracer with as many callbacks as wanted, half of them with data.
fn tracer(callbacks: usize) -> &'static Fgraph<Own> {
    static PLAIN: [Keep<0>; 16] = plain();
    static ONE: [Keep<1>; 16] = one();
    static FOUR: [Keep<4>; 16] = four();
    macro_rules! all {
        ($name:ident $words:literal) => {
            const fn $name() -> [Keep<$words>; 16] {
                let mut all = [const { Keep(0) }; 16];
                let mut i = 0;
                while i < 16 {
                    all[i] = Keep(i);
                    i += 1;
                }
                all
            }
        };
    }
    all!(plain 0);
    all!(one 1);
    all!(four 4);
    let fgraph = own::fgraph();
    for i in 0..callbacks {
        match i % 4 {
            0 | 2 => fgraph.register(&PLAIN[i]),
            1 => fgraph.register(&ONE[i]),
            _ => fgraph.register(&FOUR[i]),
        }
        .expect("there is a slot");
    }
    fgraph
}

/// What lies where: all that is the same in each try.
struct Scene {
    fgraph: &'static Fgraph<Own>,
    words: &'static [AtomicUsize],
    real: &'static [AtomicUsize],
}

/// Calls in flight: functions, return addresses, slots, tail calls.
const CALLS: [(usize, bool, usize, bool); 5] = [
    // Near, wide, near with a tail call on its slot, near.
    (1, false, 9, false),
    (2, true, 8, false),
    (3, false, 7, false),
    (4, false, 7, true),
    (5, false, 5, false),
];

const STUB: usize = 0x5757_5750;

fn near(number: usize) -> usize {
    static CODE: [u8; 4096] = [0; 4096];
    &raw const CODE as usize + number
}

impl Scene {
    fn new(callbacks: usize) -> Self {
        Self {
            fgraph: tracer(callbacks),
            words: (0..200)
                .map(|_| AtomicUsize::new(0))
                .collect::<Vec<_>>()
                .leak(),
            real: (0..16)
                .map(|_| AtomicUsize::new(0))
                .collect::<Vec<_>>()
                .leak(),
        }
    }

    fn slot(&self, at: usize) -> usize {
        std::ptr::from_ref(&self.real[at]) as usize
    }

    fn ret(&self, n: usize) -> usize {
        match CALLS[n] {
            (_, _, _, true) => STUB,
            (func, true, ..) => usize::MAX / 3 + func * 16,
            (func, ..) => near(func * 16),
        }
    }

    /// The calls in flight on a new stack.
    fn enter(&self) -> &'static RetStack {
        let stack: &'static RetStack = Box::leak(Box::default());
        let range = self.slot(0)..self.slot(15);
        // SAFETY: leaked, used by one stack after the other, and written
        // through atomics alone, as the crate does.
        let words = unsafe {
            let words = self.words.as_ptr().cast::<usize>().cast_mut();
            std::slice::from_raw_parts_mut(words, self.words.len())
        };
        stack
            .attach(words, range)
            .expect("a new stack takes its words");
        own::set_current(Some(stack));
        for (n, &(func, _, slot, tail)) in CALLS.iter().enumerate() {
            let call = Call {
                func: near(func),
                ret: self.ret(n),
                slot: self.slot(slot),
                tail,
                registers: None,
            };
            // SAFETY: the slots are words.
            assert!(unsafe { self.fgraph.enter(&call, usize::MAX) });
        }
        stack
    }

    /// They return, the newest first.
    fn leave(&self) -> Vec<Option<usize>> {
        let leave = |&(_, _, slot, _): &(usize, bool, usize, bool)| {
            // SAFETY: entered there.
            unsafe { self.fgraph.leave(self.slot(slot), None) }
        };
        CALLS.iter().rev().map(leave).collect()
    }

    fn free(&self, stack: &'static RetStack) {
        // What damage has left on it.
        // SAFETY: nothing returns any more.
        let _ = unsafe { self.fgraph.exit_task(stack) };
        assert!(!stack.is_attached());
        own::set_current(None);
        // SAFETY: leaked by `enter`, and no longer current.
        drop(unsafe { Box::from_raw(std::ptr::from_ref(stack).cast_mut()) });
    }
}

/// What a try came to.
#[derive(PartialEq, Eq)]
struct Outcome {
    returns: Vec<Option<usize>>,
    exits: Vec<(usize, usize, bool)>,
    counters: Counters,
}

fn outcome(scene: &Scene, damage: impl FnOnce()) -> Outcome {
    let stack = scene.enter();
    EXITS.take();
    damage();
    assert!(stack.frames().count() <= scene.words.len());
    for (_, _, slot, _) in CALLS {
        let _ = scene.fgraph.real_return(stack, scene.slot(slot), STUB);
    }
    let outcome = Outcome {
        returns: scene.leave(),
        counters: stack.counters(),
        exits: EXITS.take(),
    };
    scene.free(stack);
    outcome
}

#[test]
fn every_bit_of_every_word() {
    let (mut flips, mut told, mut silent, mut harmless) = (0, 0, 0, 0);
    for callbacks in [1, 2, 4, 16] {
        let scene = Scene::new(callbacks);
        let right = outcome(&scene, || ());
        let rets: Vec<_> = (0..CALLS.len()).rev().map(|n| Some(scene.ret(n))).collect();
        assert_eq!(right.returns, rets);
        assert!(right.exits.iter().all(|exit| exit.2));
        let known: BTreeSet<usize> = (0..CALLS.len()).map(|n| scene.ret(n)).collect();
        let stack = scene.enter();
        let used = stack.high_water();
        scene.leave();
        scene.free(stack);

        let mut wrong = 0;
        for word in &scene.words[..used] {
            for bit in 0..usize::BITS {
                let flip = || word.store(word.load(Relaxed) ^ 1 << bit, Relaxed);
                let got = outcome(&scene, flip);
                flips += 1;
                // Only addresses of which one bit is wrong, and that one
                // return alone.
                let strange: Vec<_> = got
                    .returns
                    .iter()
                    .flatten()
                    .filter(|r| !known.contains(r))
                    .collect();
                if let [strange] = strange[..] {
                    wrong += 1;
                    let differs = |ret: &usize| {
                        is_one_flip(ret ^ strange) || is_one_flip(ret.wrapping_sub(*strange))
                    };
                    assert!(known.iter().any(differs), "a jump to {strange:#x}");
                } else {
                    assert!(strange.is_empty(), "jumps to {strange:x?}");
                }
                let counted = got.counters != right.counters;
                let lost = got.returns.contains(&None);
                assert!(!lost || counted, "a return was lost and not counted");
                match got == right {
                    _ if counted => told += 1,
                    true => harmless += 1,
                    false => silent += 1,
                }
            }
        }
        // A near frame's address has 32 bits, a wide one's 64.
        let bits = |n: usize| {
            if CALLS[n].1 || CALLS[n].3 {
                usize::BITS
            } else {
                32
            }
        };
        let bits: u32 = (0..CALLS.len()).map(bits).sum();
        assert!(
            wrong <= bits,
            "{wrong} wrong returns, {bits} bits of return addresses"
        );
    }
    println!(
        "bit flips: {flips} flipped, {told} counted, {silent} changed what a frame holds, \
         {harmless} changed nothing"
    );
    assert!(told > 0 && silent > 0);
}

fn is_one_flip(difference: usize) -> bool {
    difference.is_power_of_two() || difference.wrapping_neg().is_power_of_two()
}

/// The words under an interrupt's frames, too: the interrupted owner's own,
/// half written.
#[test]
fn every_bit_under_an_interrupt() {
    let scene = Scene::new(16);
    let mut flips = 0;
    let used = 200;
    for at in 0..used {
        for bit in [0, 1, 2, 5, 6, 9, 10, 11, 12, 17, 18, 34, 35, 40, 62, 63] {
            let word = &scene.words[at];
            let (fgraph, slots) = (scene.fgraph, [scene.slot(2), scene.slot(1)]);
            INSIDE.set(Some(Box::new(move || {
                own::in_context(Context::Interrupt, || {
                    let call = |slot| Call {
                        func: near(100),
                        ret: near(200),
                        slot,
                        tail: false,
                        registers: None,
                    };
                    // SAFETY: the slots are words.
                    unsafe {
                        let entered = slots.map(|slot| fgraph.enter(&call(slot), usize::MAX));
                        if bit < usize::BITS {
                            word.store(word.load(Relaxed) ^ 1 << bit, Relaxed);
                        }
                        for (slot, entered) in slots.into_iter().zip(entered).rev() {
                            if entered {
                                let _ = fgraph.leave(slot, None);
                            }
                        }
                    }
                });
            })));
            let stack = scene.enter();
            INSIDE.take();
            EXITS.take();
            scene.leave();
            EXITS.take();
            assert!(stack.frames().count() <= scene.words.len());
            scene.free(stack);
            flips += 1;
        }
    }
    println!("bit flips under an interrupt: {flips}");
}
