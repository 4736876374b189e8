//! The callbacks: each keeps words in its frames, checks them at the return,
//! and counts by context.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use fgraph::{Callback, CallbackId, Cause, Context, Entry, Exit};

use crate::host::FGRAPH;

/// A sum over all events of tasks, in their order.
static TASK_EVENTS: AtomicU64 = AtomicU64::new(0);
/// Whether callbacks also ask for what takes a walk.
static WALKS: AtomicBool = AtomicBool::new(false);

/// Whether callbacks ask for what takes a walk: the caller, the depth, and the
/// enclosing frame.
pub fn ask_for_walks(ask: bool) {
    WALKS.store(ask, Relaxed);
}

fn note(what: u64, words: [usize; 4]) {
    let sum = words.iter().fold(what, |sum, &word| {
        (sum.rotate_left(9) ^ word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    });
    let all = TASK_EVENTS.load(Relaxed);
    TASK_EVENTS.store(all.rotate_left(7) ^ sum, Relaxed);
}

/// Keeps `W` words.
pub struct Keeper<const W: usize> {
    number: usize,
    accept: bool,
    /// Entries, by context.
    called: [AtomicUsize; 4],
    accepted: [AtomicUsize; 4],
    ended: [AtomicUsize; 4],
    damaged: AtomicUsize,
}

/// What a keeper says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tally {
    /// Entries seen in each context.
    pub called: [usize; 4],
    pub accepted: [usize; 4],
    pub ended: [usize; 4],
    /// Returns with other words than the entry's.
    pub damaged: usize,
}

impl<const W: usize> Keeper<W> {
    fn data(&self, func: usize, slot: usize) -> [usize; W] {
        let mut word = func.rotate_left(21) ^ slot ^ self.number;
        let mut data = [0; W];
        for place in &mut data {
            word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(13);
            *place = word;
        }
        data
    }
}

impl<const W: usize> Callback for Keeper<W> {
    type Frame = [usize; W];

    fn entry(&self, call: Entry<'_, [usize; W]>) -> Option<[usize; W]> {
        let context = call.context() as usize;
        self.called[context].fetch_add(1, Relaxed);
        if context == Context::Task as usize {
            let (caller, depth) = if WALKS.load(Relaxed) {
                (call.caller(), call.depth())
            } else {
                (0, 0)
            };
            note(1, [self.number, call.func(), caller, depth]);
        }
        if !self.accept {
            return None;
        }
        self.accepted[context].fetch_add(1, Relaxed);
        Some(self.data(call.func(), call.return_slot()))
    }

    fn exit(&self, call: Exit<'_, [usize; W]>, data: [usize; W]) {
        let context = call.context() as usize;
        self.ended[context].fetch_add(1, Relaxed);
        if data != self.data(call.func(), call.return_slot()) {
            self.damaged.fetch_add(1, Relaxed);
        }
        if context == Context::Task as usize {
            let cause = match call.cause() {
                Cause::Returned => 2,
                Cause::Unwound => 3,
                Cause::TaskExit => 4,
            };
            let parent = if WALKS.load(Relaxed) {
                let is_own = |parent: fgraph::fgraph::Parent<'_, [usize; W]>| parent.func() ^ W;
                call.parent().map_or(0, is_own)
            } else {
                0
            };
            note(
                cause,
                [self.number, call.func(), call.return_slot(), parent],
            );
        }
    }
}

trait Kept: Sync {
    fn register(&'static self) -> CallbackId;
    fn tally(&self) -> Tally;
    fn reset(&self);
}

impl<const W: usize> Kept for Keeper<W> {
    fn register(&'static self) -> CallbackId {
        FGRAPH.register(self).expect("a slot is free")
    }

    fn tally(&self) -> Tally {
        let load = |counts: &[AtomicUsize; 4]| [0, 1, 2, 3].map(|i: usize| counts[i].load(Relaxed));
        Tally {
            called: load(&self.called),
            accepted: load(&self.accepted),
            ended: load(&self.ended),
            damaged: self.damaged.load(Relaxed),
        }
    }

    fn reset(&self) {
        for counts in [&self.called, &self.accepted, &self.ended] {
            counts.iter().for_each(|count| count.store(0, Relaxed));
        }
        self.damaged.store(0, Relaxed);
    }
}

fn keeper(words: usize, number: usize, accept: bool) -> &'static dyn Kept {
    fn make<const W: usize>(number: usize, accept: bool) -> &'static dyn Kept {
        Box::leak(Box::new(Keeper::<W> {
            number,
            accept,
            called: Default::default(),
            accepted: Default::default(),
            ended: Default::default(),
            damaged: AtomicUsize::new(0),
        }))
    }
    match words {
        0 => make::<0>(number, accept),
        1 => make::<1>(number, accept),
        2 => make::<2>(number, accept),
        3 => make::<3>(number, accept),
        15 => make::<15>(number, accept),
        _ => panic!("{words} words"),
    }
}

/// Registered callbacks, until dropped.
pub struct Keepers {
    list: Vec<(&'static dyn Kept, CallbackId)>,
    pub words: Vec<usize>,
    pub accept: bool,
}

impl Keepers {
    /// One callback for each number of words.
    pub fn new(words: &[usize], accept: bool) -> Self {
        let register = |(number, &words): (usize, &usize)| {
            let keeper = keeper(words, number, accept);
            (keeper, keeper.register())
        };
        ask_for_walks(words.len() <= 2);
        Self {
            list: words.iter().enumerate().map(register).collect(),
            words: words.to_vec(),
            accept,
        }
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn ids(&self) -> impl Iterator<Item = CallbackId> + '_ {
        self.list.iter().map(|&(_, id)| id)
    }

    /// All tallies, added up.
    pub fn tally(&self) -> Tally {
        let mut all = Tally::default();
        for (keeper, _) in &self.list {
            let one = keeper.tally();
            for context in 0..4 {
                all.called[context] += one.called[context];
                all.accepted[context] += one.accepted[context];
                all.ended[context] += one.ended[context];
            }
            all.damaged += one.damaged;
        }
        all
    }

    /// Entries that found no room, of all.
    pub fn missed(&self) -> usize {
        self.ids().map(|id| FGRAPH.missed(id) as usize).sum()
    }

    /// The sum over the tasks' events.
    pub fn task_events(&self) -> u64 {
        TASK_EVENTS.load(Relaxed)
    }

    pub fn reset(&self) {
        self.list.iter().for_each(|(keeper, _)| keeper.reset());
        TASK_EVENTS.store(0, Relaxed);
    }

    /// Whether a call with this many words of room for its frame is entered,
    /// and how many callbacks miss it.
    pub fn fits(&self, room: usize, head: usize) -> (bool, usize) {
        let Some(mut room) = room.checked_sub(head) else {
            return (false, self.len());
        };
        let mut missed = 0;
        for &words in &self.words {
            let needed = if words == 0 { 0 } else { words + 1 };
            if room < needed {
                missed += 1;
            } else if self.accept {
                room -= needed;
            }
        }
        (self.accept && missed < self.len(), missed)
    }

    /// The most words that a frame takes.
    pub fn frame(&self, head: usize) -> usize {
        let data = |&words: &usize| if words == 0 { 0 } else { words + 1 };
        head + self.words.iter().map(data).sum::<usize>()
    }
}

impl Drop for Keepers {
    fn drop(&mut self) {
        for (_, id) in &self.list {
            let gone = FGRAPH.unregister(*id);
            if !std::thread::panicking() {
                gone.expect("registered until now");
            }
        }
    }
}

/// A callback beside the others that comes and goes.
pub struct Other {
    keeper: &'static dyn Kept,
    id: Cell<Option<CallbackId>>,
}

impl Other {
    pub fn new() -> Self {
        Self {
            keeper: keeper(2, 99, true),
            id: Cell::new(None),
        }
    }

    pub fn register(&self) -> bool {
        self.id.set(Some(self.keeper.register()));
        true
    }

    /// Whether it was registered.
    pub fn unregister(&self) -> bool {
        let id = self.id.take();
        id.is_some_and(|id| FGRAPH.unregister(id).is_ok())
    }

    /// The calls that it has seen.
    pub fn calls(&self) -> usize {
        self.keeper.tally().called.iter().sum()
    }

    /// Every call that it saw has returned to it.
    pub fn check(&self) {
        let tally = self.keeper.tally();
        assert_eq!(tally.accepted, tally.ended);
        assert_eq!(tally.damaged, 0);
    }
}
