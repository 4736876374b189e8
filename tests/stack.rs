//! Shadow stacks of every size, through the public API: what has no room goes
//! untraced, is counted, and harms nothing.

mod common;

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use common::own::{Own, fgraph, set_clock, slots, with_stack};
use fgraph::fgraph::Call;
use fgraph::ret_stack::{
    AttachError, DetachError, Frames, MAX_WORDS, NEAR_WORDS, WIDE_WORDS, words_for,
};
use fgraph::{Callback, Entry, Exit, FrameData, RetStack};

/// Counts its entries and exits, and checks that it gets back what it kept.
#[derive(Default)]
struct Keep<const WORDS: usize> {
    entries: AtomicUsize,
    exits: AtomicUsize,
}

impl<const WORDS: usize> Callback for Keep<WORDS>
where
    [usize; WORDS]: FrameData,
{
    type Frame = [usize; WORDS];

    fn entry(&self, call: Entry<'_, Self::Frame>) -> Option<Self::Frame> {
        self.entries.fetch_add(1, Relaxed);
        Some([call.func(); WORDS])
    }

    fn exit(&self, call: Exit<'_, Self::Frame>, data: Self::Frame) {
        assert_eq!(data, [call.func(); WORDS]);
        self.exits.fetch_add(1, Relaxed);
    }
}

impl<const WORDS: usize> Keep<WORDS> {
    fn seen(&self) -> (usize, usize) {
        (self.entries.load(Relaxed), self.exits.load(Relaxed))
    }
}

fn keep<const WORDS: usize>() -> &'static Keep<WORDS> {
    Box::leak(Box::default())
}

/// An address in this program, and one that its window does not reach.
fn near() -> usize {
    near as fn() -> usize as usize
}
fn far() -> usize {
    near() ^ 1 << (usize::BITS - 1)
}
/// The words of a frame with such an address: a 32-bit window is everything.
const FAR_WORDS: usize = if usize::BITS == 32 {
    NEAR_WORDS
} else {
    WIDE_WORDS
};

/// Enters `depth` calls one inside the other, and leaves those that were
/// entered; returns how many that were, and checks every return address.
fn nest(fgraph: &fgraph::Fgraph<Own>, depth: usize, func: usize) -> usize {
    let slots = slots(depth);
    let call = |i: usize| Call {
        func: func.wrapping_sub(i),
        ret: near() + i,
        slot: &raw const slots[depth - 1 - i] as usize,
        tail: false,
        registers: None,
    };
    // SAFETY: the slots are words of this function's own, and left in turn.
    let entered: Vec<usize> = (0..depth)
        .filter(|&i| unsafe { fgraph.enter(&call(i), usize::MAX) })
        .collect();
    for &i in entered.iter().rev() {
        // SAFETY: entered above.
        let ret = unsafe { fgraph.leave(call(i).slot, None) };
        assert_eq!(ret, Some(near() + i));
    }
    entered.len()
}

#[test]
fn a_stack_of_any_size_holds_as_many_frames_as_fit() {
    for words in (0..40).chain([255, 256, 257]) {
        for (func, frame) in [(near(), NEAR_WORDS), (far(), FAR_WORDS)] {
            let fits = words / frame;
            for depth in [fits.saturating_sub(1), fits, fits + 1, fits + 5] {
                let (fgraph, callback) = (fgraph(), keep::<0>());
                let id = fgraph.register(callback).unwrap();
                let stack = with_stack(words);
                let entered = nest(fgraph, depth, func);
                assert_eq!(entered, depth.min(fits), "{words} words, {depth} calls");
                assert_eq!(callback.seen(), (entered, entered));
                let missed = (depth - entered) as u32;
                assert_eq!(stack.counters().overruns, missed);
                assert_eq!(fgraph.missed(id), missed);
                assert_eq!(stack.high_water(), entered * frame);
                assert_eq!(stack.depth(), 0);
                // There is room again.
                assert_eq!(nest(fgraph, fits, func), fits);
            }
        }
    }
}

#[test]
fn two_hundred_and_fifty_six_frames_in_a_page() {
    const PAGE: usize = 4096 / size_of::<usize>();
    let count = |callback: &'static dyn Fn(&fgraph::Fgraph<Own>)| {
        let fgraph = fgraph();
        callback(fgraph);
        with_stack(PAGE);
        nest(fgraph, 1000, near())
    };
    assert_eq!(
        count(&|f: &fgraph::Fgraph<Own>| {
            f.register(keep::<0>()).unwrap();
        }),
        256
    );
    #[cfg(target_pointer_width = "64")]
    assert_eq!(
        count(&|f: &fgraph::Fgraph<Own>| {
            f.register(keep::<1>()).unwrap();
        }),
        128
    );
    assert_eq!(words_for(50, &[]), 50 * NEAR_WORDS);
    assert_eq!(words_for(50, &[1, 0, 3]), 50 * (NEAR_WORDS + 2 + 4));
    assert_eq!(words_for(usize::MAX, &[1]), usize::MAX);
}

#[test]
fn room_that_ends_among_sixteen_callbacks_data() {
    let all = NEAR_WORDS + 16 * 3;
    for words in 0..=all {
        let fgraph = fgraph();
        let callbacks: Vec<_> = (0..16).map(|_| keep::<2>()).collect();
        let ids: Vec<_> = callbacks
            .iter()
            .map(|&c| fgraph.register(c).unwrap())
            .collect();
        let stack = with_stack(words);
        let entered = nest(fgraph, 1, near());
        let takers = words.saturating_sub(NEAR_WORDS) / 3;
        assert_eq!(entered, usize::from(takers > 0), "{words} words");
        for (slot, (callback, &id)) in callbacks.iter().zip(&ids).enumerate() {
            let took_part = usize::from(slot < takers);
            assert_eq!(
                callback.seen(),
                (took_part, took_part),
                "{words} words, slot {slot}"
            );
            assert_eq!(fgraph.missed(id), 1 - took_part as u32);
        }
        // One call, whoever did not get it.
        let overrun = u32::from(takers < callbacks.len());
        assert_eq!(stack.counters().overruns, overrun);
    }
}

#[test]
fn attach_and_detach() {
    let words = |n: usize| Box::leak(vec![0x55; n].into_boxed_slice());
    let stack = RetStack::new();
    assert!(!stack.is_attached());
    // SAFETY: nobody else has the stack.
    let detached = unsafe { stack.detach() };
    assert_eq!(detached.unwrap_err(), DetachError::Detached);
    let reversed = std::ops::Range { start: 8, end: 0 };
    assert_eq!(
        stack.attach(words(4), reversed),
        Err(AttachError::StackRange)
    );
    #[cfg(target_pointer_width = "64")]
    {
        assert_eq!(
            stack.attach(words(4), 0..1 << 32),
            Err(AttachError::StackRange)
        );
        assert_eq!(stack.attach(words(4), 0..(1 << 32) - 1), Ok(()));
        // SAFETY: as above.
        assert_eq!(unsafe { stack.detach() }.unwrap().len(), 4);
    }
    assert_eq!(stack.attach(words(4), 8..8), Ok(()));
    assert_eq!(stack.attach(words(4), 8..8), Err(AttachError::Attached));
    assert_eq!(
        (stack.capacity(), stack.depth(), stack.high_water()),
        (4, 0, 0)
    );
    // SAFETY: as above.
    assert_eq!(unsafe { stack.detach() }.unwrap(), [0; 4]);
    assert!(!stack.is_attached() && stack.frames().next().is_none());
}

/// Words of which a slice has an address of its own, and none of it.
#[test]
fn no_words_are_attached_too() {
    let fgraph = fgraph();
    fgraph.register(keep::<0>()).unwrap();
    let stack = with_stack(8);
    // SAFETY: the stack is this thread's.
    let words = unsafe { stack.detach() }.unwrap();
    stack.attach(&mut words[4..4], 0..0).unwrap();
    assert!(stack.is_attached());
    assert_eq!(nest(fgraph, 2, near()), 0);
    assert_eq!(stack.counters().overruns, 2);
    // SAFETY: as above.
    assert_eq!(unsafe { stack.detach() }.unwrap().len(), 0);
    assert!(!stack.is_attached());
}

#[test]
#[cfg(target_os = "linux")]
fn more_words_than_positions_are_refused() {
    let stack = RetStack::new();
    let len = MAX_WORDS + 1;
    // SAFETY: memory of its own, for ever; no page of it is touched, so it
    // takes none.
    let words = unsafe {
        let at = libc::mmap(
            std::ptr::null_mut(),
            len * size_of::<usize>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        );
        assert_ne!(at, libc::MAP_FAILED);
        std::slice::from_raw_parts_mut(at.cast::<usize>(), len)
    };
    assert_eq!(stack.attach(words, 0..0), Err(AttachError::TooLong));
    assert!(!stack.is_attached());
    // Where they are few, all of them.
    if cfg!(target_pointer_width = "32") {
        let words = Box::leak(vec![0; MAX_WORDS].into_boxed_slice());
        assert_eq!(stack.attach(words, 0..0), Ok(()));
        assert_eq!(stack.capacity(), MAX_WORDS);
    }
}

/// Takes its task's words away while it is called.
struct Takes;

impl Callback for Takes {
    type Frame = ();

    fn entry(&self, call: Entry<'_, ()>) -> Option<()> {
        // SAFETY: the stack is this thread's.
        let detached = unsafe { call.stack().detach() };
        assert_eq!(detached.map(|words| words.len()), Err(DetachError::InUse));
        None
    }

    fn exit(&self, _: Exit<'_, ()>, (): ()) {}
}

#[test]
fn words_are_not_given_back_inside_of_the_tracer() {
    let fgraph = fgraph();
    fgraph.register(&Takes).unwrap();
    // With no frame below.
    let stack = with_stack(64);
    assert_eq!(nest(fgraph, 1, near()), 0);
    assert!(stack.is_attached());
}

#[test]
fn a_stack_that_is_attached_again_has_not_slept() {
    let fgraph = fgraph();
    let stack = with_stack(8);
    set_clock(3);
    fgraph.switch(Some(stack), None);
    set_clock(10);
    fgraph.switch(None, Some(stack));
    assert_eq!(stack.slept(), 7);
    // SAFETY: the stack is this thread's.
    let words = unsafe { stack.detach() }.unwrap();
    stack.attach(words, 0..0).unwrap();
    assert_eq!(stack.slept(), 0);
}

#[test]
fn words_are_not_given_back_while_frames_are_live() {
    let fgraph = fgraph();
    fgraph.register(keep::<0>()).unwrap();
    let stack = with_stack(64);
    let scope = fgraph.scope(near(), 0);
    // SAFETY: the stack is this thread's.
    assert_eq!(unsafe { stack.detach() }.unwrap_err(), DetachError::InUse);
    assert_eq!(stack.depth(), 1);
    drop(scope);
    // SAFETY: as above.
    assert_eq!(unsafe { stack.detach() }.unwrap().len(), 64);
    // A task without a stack is not traced.
    assert_eq!(nest(fgraph, 3, near()), 0);
}

#[test]
fn frames_are_walked_newest_first() {
    let fgraph = fgraph();
    fgraph.register(keep::<3>()).unwrap();
    let stack = with_stack(256);
    let scopes: Vec<_> = [near(), far(), near() + 8]
        .map(|func| fgraph.scope(func, func + 1))
        .into();
    let walk = stack.frames();
    let seen: Vec<_> = walk
        .clone()
        .map(|f| (f.func, f.ret, f.slot, f.callbacks))
        .collect();
    let expected = [near() + 8, far(), near()].map(|func| (func, func + 1, 0, 1));
    assert_eq!(seen, expected);
    assert!(!walk.is_stale());
    for scope in scopes.into_iter().rev() {
        drop(scope);
    }
    assert!(walk.is_stale());
}

thread_local! {
    static WALK: std::cell::RefCell<Option<Frames<'static>>> =
        const { std::cell::RefCell::new(None) };
    static STACK: std::cell::Cell<Option<&'static RetStack>> = const { std::cell::Cell::new(None) };
}

/// Begins a walk at each entry; accepts what is not called from nowhere.
struct Walks;

impl Callback for Walks {
    type Frame = ();

    fn entry(&self, call: Entry<'_, ()>) -> Option<()> {
        WALK.set(STACK.get().map(RetStack::frames));
        (call.caller() != 0).then_some(())
    }

    fn exit(&self, _: Exit<'_, ()>, (): ()) {}
}

/// What is claimed counts too: the claim of a call that leaves no frame, and
/// that of one which fills it.
#[test]
fn a_walk_that_began_in_an_entry_is_stale_behind_it() {
    let fgraph = fgraph();
    fgraph.register(&Walks).unwrap();
    STACK.set(Some(with_stack(64)));
    for caller in [0, near()] {
        let scope = fgraph.scope(near(), caller);
        let stale = WALK.take().map(|walk| walk.is_stale());
        assert_eq!(stale, Some(true), "called from {caller:#x}");
        drop(scope);
    }
}
