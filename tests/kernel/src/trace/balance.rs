//! A callback that keeps accounts: each entry that it accepts must come back,
//! once, with its data.

use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use fgraph::{Callback, Cause, Entry, Exit};

/// The accounts of one callback. Relaxed, all but their reading: each count is
/// right by itself.
#[derive(Debug)]
pub(crate) struct Balance {
    entries: AtomicUsize,
    returned: AtomicUsize,
    unwound: AtomicUsize,
    task_exits: AtomicUsize,
    /// Exits with data that are not those of an entry of that function.
    strange: AtomicUsize,
    /// Calls to this callback after its end.
    late: AtomicUsize,
    ended: AtomicBool,
}

/// What was counted.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Counts {
    pub(crate) entries: usize,
    pub(crate) returned: usize,
    pub(crate) unwound: usize,
    pub(crate) task_exits: usize,
    pub(crate) strange: usize,
    pub(crate) late: usize,
}

impl Balance {
    pub(crate) const fn new() -> Self {
        Self {
            entries: AtomicUsize::new(0),
            returned: AtomicUsize::new(0),
            unwound: AtomicUsize::new(0),
            task_exits: AtomicUsize::new(0),
            strange: AtomicUsize::new(0),
            late: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
        }
    }

    /// From now on, until `begin`, nobody may call it.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

    /// It may be called again.
    pub(crate) fn begin(&self) {
        self.ended.store(false, Ordering::SeqCst);
    }

    pub(crate) fn counts(&self) -> Counts {
        // Acquire: the entries are read last, so if they are no more than the
        // exits, no call was in flight.
        let load = |count: &AtomicUsize| count.load(Ordering::Acquire);
        let mut counts = Counts {
            returned: load(&self.returned),
            unwound: load(&self.unwound),
            task_exits: load(&self.task_exits),
            ..Counts::default()
        };
        counts.entries = load(&self.entries);
        counts.strange = load(&self.strange);
        counts.late = load(&self.late);
        counts
    }

    /// What is kept in the frame of a call.
    fn key(&self, func: usize, slot: usize) -> usize {
        func.rotate_left(24) ^ slot ^ core::ptr::from_ref(self) as usize
    }

    fn count_late(&self) {
        if self.ended.load(Ordering::Relaxed) {
            self.late.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Callback for Balance {
    type Frame = usize;

    fn entry(&self, call: Entry<'_, usize>) -> Option<usize> {
        self.count_late();
        self.entries.fetch_add(1, Ordering::Relaxed);
        Some(self.key(call.func(), call.return_slot()))
    }

    fn exit(&self, call: Exit<'_, usize>, data: usize) {
        self.count_late();
        if data != self.key(call.func(), call.return_slot()) {
            self.strange.fetch_add(1, Ordering::Relaxed);
        }
        let count = match call.cause() {
            Cause::Returned => &self.returned,
            Cause::Unwound => &self.unwound,
            Cause::TaskExit => &self.task_exits,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

impl Counts {
    /// Every entry has its exit, and the right one.
    pub(crate) fn is_balanced(&self) -> bool {
        self.entries == self.exits() && self.strange == 0 && self.late == 0
    }

    /// All kinds of exits.
    pub(crate) fn exits(&self) -> usize {
        self.returned + self.unwound + self.task_exits
    }

    /// More calls are in flight than were `before`.
    pub(crate) fn is_behind(&self, before: &Self) -> bool {
        self.entries - self.exits() > before.entries - before.exits()
    }

    /// What was counted since `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            entries: self.entries - before.entries,
            returned: self.returned - before.returned,
            unwound: self.unwound - before.unwound,
            task_exits: self.task_exits - before.task_exits,
            strange: self.strange - before.strange,
            late: self.late - before.late,
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            entries,
            returned,
            unwound,
            task_exits,
            strange,
            late,
        } = self;
        write!(
            f,
            "{entries} entries, {returned} returned, {unwound} unwound, \
             {task_exits} with their task, {strange} strange, {late} late"
        )
    }
}
