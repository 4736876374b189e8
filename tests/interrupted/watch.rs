//! What must hold at every instruction: the frames that a walk sees, the
//! return addresses that an unwinder gets, and that an interrupt which itself
//! makes traced calls changes nothing.

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use fgraph::fgraph::Call;
use fgraph::ret_stack::Frame;
use fgraph::{Context, RetStack};

use crate::host::{self, FGRAPH};
use crate::keeper::Keepers;
use crate::real;
use crate::step::{Stop, stepped};

static FAILURE: Mutex<Option<String>> = Mutex::new(None);
static FAILED: AtomicBool = AtomicBool::new(false);

/// Notes the first thing that did not hold. Not a panic: it would unwind
/// through a signal's frame.
pub fn fail(what: impl FnOnce() -> String) {
    if !FAILED.swap(true, Relaxed) {
        *FAILURE.lock().expect("not poisoned") = Some(what());
    }
}

/// Whether something did not hold.
pub fn has_failed() -> bool {
    FAILED.load(Relaxed)
}

/// Takes what did not hold.
pub fn failure() -> Option<String> {
    FAILED.store(false, Relaxed);
    FAILURE.lock().expect("not poisoned").take()
}

/// Holds `$holds`; the rest is a message.
macro_rules! hold {
    ($holds:expr, $($message:tt)*) => {
        if !$holds {
            $crate::watch::fail(|| format!($($message)*));
        }
    };
}
pub(crate) use hold;

/// Made-up code lies around it.
static ANCHOR: AtomicUsize = AtomicUsize::new(0);

/// Function `n`.
pub fn near(n: usize) -> usize {
    (&raw const ANCHOR as usize & !15) + 16 * n
}

/// Function `n` of a library that is far away: its frames are wide.
pub fn far(n: usize) -> usize {
    near(n) + (1 << 40)
}

/// Where function `n` was called.
pub fn ret(n: usize) -> usize {
    near(4096 + n)
}

/// A slot that is not known before it is seen.
pub const UNKNOWN: usize = 1;

/// A call as the stack must tell it.
#[derive(Clone, Debug)]
pub struct Known {
    pub func: usize,
    pub ret: usize,
    /// The slot, or [`UNKNOWN`] until it is seen; 0 for a scope.
    pub slot: Cell<usize>,
    /// Whether nothing will return through the slot any more.
    pub dead: bool,
}

impl Known {
    pub fn new(func: usize, ret: usize, slot: usize) -> Self {
        Self {
            func,
            ret,
            slot: Cell::new(slot),
            dead: false,
        }
    }

    fn is(&self, frame: &Frame) -> bool {
        let slot = match self.slot.get() {
            UNKNOWN if frame.slot.is_multiple_of(8) => frame.slot,
            slot => slot,
        };
        let same = (frame.func, frame.ret, frame.slot) == (self.func, self.ret, slot);
        if same && frame.callbacks != 0 {
            self.slot.set(slot);
        }
        same && frame.callbacks != 0
    }
}

/// The frames that a walk may see, newest first.
pub type View<'a> = Vec<&'a Known>;

/// What one context of the task is about.
pub struct Watch<'a> {
    /// What it interrupted.
    pub below: Option<&'a Watch<'a>>,
    /// The views of its own frames, in the order in which they must come.
    pub views: &'a [View<'a>],
    /// Slots of its own with their true return addresses, at any time.
    pub returns: &'a [(usize, usize)],
    /// The view that was seen last.
    pub at: Cell<usize>,
    /// Whether the tracer may be quiet.
    pub quiet: bool,
}

/// How deep a walk is followed.
const DEEPEST: usize = 16;

impl<'a> Watch<'a> {
    pub fn new(
        below: Option<&'a Watch<'a>>,
        views: &'a [View<'a>],
        returns: &'a [(usize, usize)],
    ) -> Self {
        Self {
            below,
            views,
            returns,
            at: Cell::new(0),
            quiet: below.is_some_and(|below| below.quiet),
        }
    }

    fn chain(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |watch| watch.below)
    }

    fn matches(&self, view: usize, frames: &[Frame]) -> bool {
        let below = self
            .chain()
            .skip(1)
            .map(|watch| &watch.views[watch.at.get()]);
        let mut known = self.views[view].iter().chain(below.flatten());
        let mut frames = frames.iter();
        loop {
            match (known.next(), frames.next()) {
                (None, None) => return true,
                (Some(known), Some(frame)) if known.is(frame) => {}
                _ => return false,
            }
        }
    }

    /// Walks the stack, and asks for every live call's return address.
    pub fn look(&self, stack: &RetStack) {
        let none = Frame {
            func: 0,
            ret: 0,
            slot: 0,
            callbacks: 0,
        };
        let mut frames = [none; DEEPEST];
        let mut count = 0;
        for (place, frame) in frames.iter_mut().zip(stack.frames()) {
            *place = frame;
            count += 1;
        }
        let frames = &frames[..count];
        let at = self.at.get();
        match (at..self.views.len()).find(|&view| self.matches(view, frames)) {
            Some(view) => self.at.set(view),
            None => fail(|| {
                let allowed = &self.views[at..];
                format!("after view {at} the walk saw {frames:x?}, not one of {allowed:x?}")
            }),
        }
        for watch in self.chain() {
            for &(slot, ret) in watch.returns {
                real_return(stack, slot, ret);
            }
            let view = &watch.views[watch.at.get()];
            for (i, known) in view.iter().enumerate() {
                let slot = known.slot.get();
                if slot <= UNKNOWN || known.dead {
                    continue;
                }
                // A tail call's caller is that of the oldest on the slot.
                let same = view[i..]
                    .iter()
                    .take_while(|older| older.slot.get() == slot);
                real_return(stack, slot, same.last().expect("itself").ret);
            }
        }
    }
}

/// Expects that an unwinder that comes to `slot` gets `ret`.
fn real_return(stack: &RetStack, slot: usize, ret: usize) {
    // SAFETY: live slots of this thread, or a test's own words.
    let seen = unsafe { (slot as *const usize).read_volatile() };
    let real = FGRAPH.real_return(stack, slot, seen);
    hold!(
        real == ret,
        "the slot {slot:#x} holds {seen:#x}: unwinds to {real:#x}, not {ret:#x}"
    );
}

/// The machinery of one case.
pub struct Case {
    pub keepers: Keepers,
    pub stack: &'static RetStack,
    /// Where hooked calls return to.
    pub stub: usize,
    /// Whether the stack has room for all that interrupts do.
    pub roomy: bool,
}

impl Case {
    /// The stack's word that holds its positions and guards: the first.
    pub fn state(&self) -> usize {
        // SAFETY: a control block is larger than a word, and its first one is
        // an atomic that only this thread writes.
        unsafe {
            let state = std::ptr::from_ref(self.stack).cast::<AtomicUsize>();
            (*state).load(Relaxed)
        }
    }

    /// A made-up hook: `known` is called on its slot.
    pub fn enter(&self, known: &Known, tail: bool) -> bool {
        let slot = known.slot.get();
        let call = Call {
            func: known.func,
            ret: known.ret,
            slot,
            tail,
            registers: None,
        };
        // SAFETY: the slot is a test's own word, and the stub's address in it
        // means a tail call.
        unsafe {
            let wanted = FGRAPH.enter(&call, usize::MAX);
            if wanted {
                (slot as *mut usize).write_volatile(self.stub);
            }
            wanted
        }
    }

    /// A made-up hook: the calls on the slot return.
    pub fn leave(&self, slot: usize) -> Option<usize> {
        loop {
            // SAFETY: the slot is a test's own word.
            let ret = unsafe { FGRAPH.leave(slot, None) };
            if ret != Some(self.stub) {
                return ret;
            }
        }
    }
}

/// What interrupts have counted, which is not the interrupted one's.
#[derive(Clone, Copy, Default, Debug)]
pub struct OfInterrupts {
    pub overruns: usize,
    pub recursions: usize,
    pub missed: usize,
}

thread_local! {
    static OF_INTERRUPTS: Cell<OfInterrupts> = Cell::default();
}

/// Calls that interrupts have tried to trace, while the stack had words. An
/// atomic, for an NMI comes between a load and a store.
static ATTEMPTS: AtomicUsize = AtomicUsize::new(0);
static INTERRUPTS: AtomicUsize = AtomicUsize::new(0);

/// Takes what this thread's interrupts have counted.
pub fn of_interrupts() -> OfInterrupts {
    OF_INTERRUPTS.take()
}

/// How many interrupts there were.
pub fn interrupts() -> usize {
    INTERRUPTS.load(Relaxed)
}

/// What an interrupt does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// A call of a near function.
    Short,
    /// A call of a near function that calls a far one, in which is a scope.
    Long,
    /// A real call of a patched function.
    Real,
    /// As `Short`, with an NMI that does the same at each of its instructions.
    ShortStepped,
    /// As `Real`, with an NMI that does the same at each of its instructions.
    RealStepped,
}

impl Work {
    /// What the NMI does.
    fn of_nmi(self) -> Option<Self> {
        match self {
            Self::ShortStepped => Some(Self::Short),
            Self::RealStepped => Some(Self::Real),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Sums {
    attempts: usize,
    called: usize,
    missed: usize,
    overruns: usize,
    recursions: usize,
    others: (u32, u32),
}

impl Sums {
    fn of(case: &Case) -> Self {
        let counters = case.stack.counters();
        Self {
            attempts: ATTEMPTS.load(Relaxed),
            called: case.keepers.tally().called[1..].iter().sum(),
            missed: case.keepers.missed(),
            overruns: counters.overruns as usize,
            recursions: counters.recursions as usize,
            others: (counters.unwound, counters.strays),
        }
    }

    fn check(&self, before: &Self, case: &Case, quiet: bool, attached: bool) {
        let attempts = self.attempts - before.attempts;
        let recursions = self.recursions - before.recursions;
        let callbacks = case.keepers.len();
        let told = self.called - before.called + self.missed - before.missed;
        let expected = if attached { attempts } else { 0 };
        // Each callback is called, or told that it missed the call.
        hold!(
            told + callbacks * recursions == callbacks * expected,
            "{attempts} calls, {callbacks} callbacks: {self:?} after {before:?}"
        );
        hold!(
            recursions == 0 || quiet,
            "{recursions} calls taken for recursions"
        );
        let overruns = self.overruns - before.overruns;
        hold!(
            overruns == 0 || !case.roomy,
            "{overruns} calls on a stack with room found none"
        );
        hold!(
            self.others == before.others,
            "unwound, strays: {self:?} after {before:?}"
        );
    }
}

/// An interrupt: looks, works, and looks whether all is as it was. Returns
/// how many instructions it stopped at.
pub fn interrupt(case: &Case, watch: &Watch<'_>, context: Context, work: Work) -> usize {
    if has_failed() {
        return 0;
    }
    INTERRUPTS.fetch_add(1, Relaxed);
    watch.look(case.stack);
    let (state, attached) = (case.state(), case.stack.is_attached());
    let (view, before) = (watch.at.get(), Sums::of(case));

    let stops = at_work(case, watch, context, work, attached);

    watch.look(case.stack);
    hold!(
        watch.at.get() == view,
        "an interrupt moved the view from {view} to {}",
        watch.at.get()
    );
    let after = case.state();
    hold!(after == state, "the state was {state:#x} and is {after:#x}");
    let sums = Sums::of(case);
    sums.check(&before, case, watch.quiet, attached);
    if watch.below.is_none() {
        let so_far = OF_INTERRUPTS.get();
        OF_INTERRUPTS.set(OfInterrupts {
            overruns: so_far.overruns + sums.overruns - before.overruns,
            recursions: so_far.recursions + sums.recursions - before.recursions,
            missed: so_far.missed + sums.missed - before.missed,
        });
    }
    let tally = case.keepers.tally();
    hold!(
        tally.accepted[context as usize] == tally.ended[context as usize],
        "not balanced: {tally:?}"
    );
    hold!(
        tally.damaged == 0,
        "{} returns with others' words",
        tally.damaged
    );
    stops
}

fn at_work(case: &Case, watch: &Watch<'_>, context: Context, work: Work, attached: bool) -> usize {
    let mut slots = [ret(40), 0, ret(41), 0, ret(40), 0];
    let slots = slots.as_mut_ptr();
    // SAFETY: in bounds.
    let slot = |i| unsafe { slots.add(i) } as usize;
    let outer = Known::new(near(40), ret(40), slot(4));
    let inner = Known::new(far(41), ret(41), slot(2));
    let scope = Known::new(near(42), ret(42), 0);
    let real = Known::new(real::leaf(), real::back(), UNKNOWN);
    let views = [
        vec![],
        vec![&outer],
        vec![&inner, &outer],
        vec![&scope, &inner, &outer],
        // Where the far one has found no room.
        vec![&scope, &outer],
        vec![&inner, &outer],
        vec![&outer],
        vec![],
        vec![&real],
        vec![],
    ];
    let returns = [(slot(4), ret(40)), (slot(2), ret(41))];
    let own = Watch::new(Some(watch), &views, &returns);
    let must = case.roomy && case.keepers.accept && case.keepers.len() > 0 && attached;
    let must = must && !watch.quiet;
    let attempt = || {
        ATTEMPTS.fetch_add(attached.into(), Relaxed);
    };
    let enter = |known: &Known| {
        attempt();
        let entered = case.enter(known, false);
        hold!(
            entered || !must,
            "a call on a stack with room is not traced"
        );
        entered
    };
    let leave = |known: &Known| {
        let got = case.leave(known.slot.get());
        hold!(
            got == Some(known.ret),
            "returns to {got:x?}, not {:#x}",
            known.ret
        );
    };
    let calls = || {
        host::in_context(context, || {
            if matches!(work, Work::Real | Work::RealStepped) {
                attempt();
                let got = real::call(real::leaf(), 21).result;
                hold!(got == 42, "a patched function returns {got}");
                return;
            }
            let entered = enter(&outer);
            if work == Work::Long {
                own.look(case.stack);
                let entered = enter(&inner);
                {
                    attempt();
                    let _scope = FGRAPH.scope(scope.func, scope.ret);
                    own.look(case.stack);
                    hold!(own.at.get() == 3 || !must, "view {}", own.at.get());
                }
                if entered {
                    leave(&inner);
                }
            }
            if entered {
                leave(&outer);
            }
        });
    };
    let Some(of_nmi) = work.of_nmi() else {
        calls();
        return 0;
    };
    let mut nested = |_: &Stop| {
        interrupt(case, &own, Context::Nmi, of_nmi);
    };
    let way = stepped(calls, &mut nested);
    hold!(way.leaps == 0, "{} instructions not seen", way.leaps);
    way.stops
}
