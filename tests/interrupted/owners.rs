//! A slot changes hands at one instruction of a real call: the new owner does
//! not follow the function, and sees nothing of the call, whether that was
//! looked up before or after.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use fgraph::hook::patch::PatchError;
use fgraph::{Callback, CallbackId, Entry, Exit};

use crate::bench::THOROUGH;
use crate::host::{FGRAPH, PATCH};
use crate::{real, step};

#[derive(Default)]
struct Seen {
    entries: AtomicUsize,
    exits: AtomicUsize,
}

impl Callback for Seen {
    type Frame = ();

    fn entry(&self, _: Entry<'_, ()>) -> Option<()> {
        self.entries.fetch_add(1, Relaxed);
        Some(())
    }

    fn exit(&self, _: Exit<'_, ()>, (): ()) {
        self.exits.fetch_add(1, Relaxed);
    }
}

impl Seen {
    fn register() -> (&'static Self, CallbackId) {
        let seen: &'static Self = Box::leak(Box::default());
        (seen, FGRAPH.register(seen).expect("there is a slot"))
    }

    fn counts(&self) -> (usize, usize) {
        (self.entries.load(Relaxed), self.exits.load(Relaxed))
    }
}

/// The owner that follows the function leaves, and another comes; `None` where
/// the interrupted call is inside the tracer, which is told so.
fn change(id: CallbackId, function: usize) -> Option<(&'static Seen, CallbackId)> {
    match PATCH.disable(id, |func| func == function) {
        Err(PatchError::InCallback) => return None,
        disabled => assert_eq!(disabled, Ok(1)),
    }
    FGRAPH.unregister(id).expect("registered until now");
    Some(Seen::register())
}

/// In how many calls it changed hands, and how many of them the first owner saw.
pub fn changed_at_each() -> (usize, usize) {
    let function = real::leaf();
    let (mut at, mut changes, mut seen) = (0, 0, 0);
    loop {
        let (first, id) = Seen::register();
        assert_eq!(PATCH.enable(id, |func| func == function), Ok(1));
        let (mut stop, mut second, mut result) = (0, None, 0);
        let call = || result = real::call(function, 21).result;
        step::stepped(call, &mut |_| {
            if stop == at {
                second = change(id, function);
            }
            stop += 1;
        });
        assert_eq!(result, 42, "at instruction {at}");
        let entries = first.entries.load(Relaxed);
        if let Some((second, id)) = second {
            (changes, seen) = (changes + 1, seen + entries);
            assert_eq!(second.counts(), (0, 0), "at instruction {at}");
            FGRAPH.unregister(id).expect("registered until now");
        } else {
            assert_eq!(first.counts(), (1, 1), "at instruction {at}");
            let (_, id) = change(id, function).expect("nobody is inside");
            FGRAPH.unregister(id).expect("registered until now");
        }
        if stop <= at {
            return (changes, seen);
        }
        at += if THOROUGH { 1 } else { 7 };
    }
}
