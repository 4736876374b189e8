//! What a kernel that traces itself must show.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use fgraph::{Callback, Entry, Exit};

use super::nest;
use crate::options::Options;
use crate::task::{Cause, Program};
use crate::trace::balance::{Balance, Counts};
use crate::trace::platform::{FGRAPH, PATCH};
use crate::trace::{self, select::selects, stacks};
use crate::{println, sched, symbols, work};

/// Traces everything, while a task looks that its shadow stack is empty
/// between its calls.
pub(super) fn everything(options: &Options) -> bool {
    static COUNTED: [Balance; 4] = [const { Balance::new() }; 4];
    static BETWEEN: Program = Program {
        name: "between",
        run: |_| between(),
    };
    END.store(false, Ordering::Relaxed);
    let task = sched::spawn(&BETWEEN, 0).expect("a place");
    // It is in its loop before tracing begins, so nothing around it is traced.
    while LOOKS.load(Ordering::Relaxed) == 0 {
        sched::yield_now();
    }
    trace::begin(options);
    let ids = COUNTED.each_ref().map(|one| trace::follow(one, "*"));
    let mut fine = work::run(options);
    END.store(true, Ordering::Relaxed);
    fine &= sched::join(task) == Cause::Finished;
    ids.into_iter().for_each(trace::unfollow);

    let balanced = trace::is_balanced(&COUNTED.each_ref());
    for (one, id) in COUNTED.iter().zip(ids) {
        println!("counted: {}; missed {}", one.counts(), FGRAPH.missed(id));
    }
    let totals = stacks::totals();
    println!("stacks: {totals:?}");
    let (looks, wrong) = (
        LOOKS.load(Ordering::Relaxed),
        NOT_EMPTY.load(Ordering::Relaxed),
    );
    println!("between calls: {looks} looks, {wrong} not empty");
    println!("balanced: {balanced}");
    fine && balanced && wrong == 0 && looks > 10 && totals.strays == 0 && totals.wrong == 0
}

static END: AtomicBool = AtomicBool::new(false);
static LOOKS: AtomicUsize = AtomicUsize::new(0);
static NOT_EMPTY: AtomicUsize = AtomicUsize::new(0);

#[inline(never)]
fn between() {
    while !END.load(Ordering::Relaxed) {
        nest(5, &|| ());
        if stacks::depth() != 0 {
            NOT_EMPTY.fetch_add(1, Ordering::Relaxed);
        }
        LOOKS.fetch_add(1, Ordering::Relaxed);
        sched::sleep(1_000_000);
    }
}

/// One of sixteen functions to follow.
#[inline(never)]
fn mark<const N: usize>() {
    core::hint::black_box(N);
}

/// A callback that notes which functions it saw.
struct Watch {
    balance: Balance,
    seen: [AtomicU64; Watch::WORDS],
}

impl Watch {
    /// For functions, of which two are 16 bytes apart at least, in 1 MiB.
    const WORDS: usize = (1 << 20) / 16 / 64;

    const fn new() -> Self {
        Self {
            balance: Balance::new(),
            seen: [const { AtomicU64::new(0) }; Self::WORDS],
        }
    }

    fn bit(&self, func: usize) -> (&AtomicU64, u64) {
        let place = (func - symbols::text().start) / 16;
        (&self.seen[place / 64 % Self::WORDS], 1 << (place % 64))
    }

    fn has_seen(&self, func: usize) -> bool {
        let (word, bit) = self.bit(func);
        word.load(Ordering::Relaxed) & bit != 0
    }
}

impl Callback for Watch {
    type Frame = usize;

    fn entry(&self, call: Entry<'_, usize>) -> Option<usize> {
        let (word, bit) = self.bit(call.func());
        word.fetch_or(bit, Ordering::Relaxed);
        self.balance.entry(call)
    }

    fn exit(&self, call: Exit<'_, usize>, data: usize) {
        self.balance.exit(call, data);
    }
}

/// Sixteen callbacks, each with a filter of its own.
pub(super) fn filters(options: &Options) -> bool {
    const MARKS: [fn(); 16] = [
        mark::<0>, mark::<1>, mark::<2>, mark::<3>, mark::<4>, mark::<5>, mark::<6>, mark::<7>,
        mark::<8>, mark::<9>, mark::<10>, mark::<11>, mark::<12>, mark::<13>, mark::<14>,
        mark::<15>,
    ];
    /// Beside some of the marks, each follows what has such a name.
    const PATTERNS: [&str; 16] = [
        "kernel::fs::*,*FileSystem*",
        "kernel::sched::*",
        "*Pipe*",
        "*Mutex*",
        "*Spin*",
        "kernel::work::*",
        "kernel::time::*,kernel::trap::*",
        "*::lock",
        "*Task*",
        "kernel::arch::*",
        "*",
        "*walk*,*lookup*",
        "*on_*",
        "kernel::sched::sleep,kernel::sched::wait",
        "core::*,<core::*",
        "no such name",
    ];
    static WATCHES: [Watch; 16] = [const { Watch::new() }; 16];

    trace::begin(options);
    let mark_of = |func: usize| MARKS.iter().position(|&mark| mark as usize == func);
    // The callback number n follows every (n + 1)th mark.
    let follows = |n: usize, func: usize| match mark_of(func) {
        Some(mark) => mark % (n + 1) == 0,
        None => selects(PATTERNS[n], func),
    };
    let ids = core::array::from_fn::<_, 16, _>(|n| {
        let id = FGRAPH.register(&WATCHES[n]).expect("a slot");
        PATCH
            .enable(id, |func| follows(n, func))
            .expect("after init");
        id
    });
    let before = WATCHES
        .each_ref()
        .map(|watch| watch.balance.counts().entries);
    // Each mark so many times, with nothing else that a callback without a
    // pattern sees.
    for (n, mark) in MARKS.iter().enumerate() {
        (0..=n).for_each(|_| mark());
    }
    let last = WATCHES[15].balance.counts().entries - before[15];
    let mut fine = work::run(options);
    ids.into_iter().for_each(trace::unfollow);
    fine &= trace::is_balanced(&WATCHES.each_ref().map(|watch| &watch.balance));

    // The last follows the first mark alone.
    fine &= last == 1 && WATCHES[15].balance.counts().entries == 1;
    for (n, watch) in WATCHES.iter().enumerate() {
        let mut seen = 0;
        let mut wrong = 0;
        for func in PATCH.functions() {
            // The one that follows all knows what ran at all. Functions that
            // ran before it was enabled may be known to others alone.
            let ran = WATCHES[10].has_seen(func) || mark_of(func).is_some();
            let sees = watch.has_seen(func);
            seen += usize::from(sees);
            let late = n < 10 && sees && follows(n, func);
            wrong += usize::from(sees != (ran && follows(n, func)) && !late);
        }
        println!(
            "watch {n}: {seen} functions, {wrong} wrong, {}",
            watch.balance.counts()
        );
        fine &= wrong == 0 && seen != 0;
    }
    fine
}

/// Callbacks come and go while tasks run what they follow.
pub(super) fn churn(options: &Options) -> bool {
    const ROUNDS: usize = 1000;
    static STEADY: Balance = Balance::new();
    static CHURNER: Program = Program {
        name: "churner",
        run: |rounds| {
            for round in 0..rounds {
                come_and_go(round);
            }
        },
    };
    trace::begin(options);
    let steady = trace::follow(&STEADY, "*");
    find_quick();
    let task = sched::spawn(&CHURNER, ROUNDS).expect("a place");
    static RUNNER: Program = Program {
        name: "runner",
        run: |_| {
            let first = work::round();
            while !CHURNED.load(Ordering::Relaxed) {
                let same = work::round() == first;
                RUNS.fetch_add(1, Ordering::Relaxed);
                WRONG_RUNS.fetch_add(usize::from(!same), Ordering::Relaxed);
            }
        },
    };
    work::fill();
    let runners = [(); 2].map(|()| sched::spawn(&RUNNER, 0).expect("a place"));
    let mut fine = sched::join(task) == Cause::Finished;
    CHURNED.store(true, Ordering::Relaxed);
    for runner in runners {
        fine &= sched::join(runner) == Cause::Finished;
    }
    let runs = RUNS.load(Ordering::Relaxed);
    fine &= runs > 10 && WRONG_RUNS.load(Ordering::Relaxed) == 0;
    trace::unfollow(steady);
    fine &= trace::is_balanced(&[&STEADY]);
    println!("steady: {}", STEADY.counts());
    let (mut entries, mut lost) = (0, 0);
    for one in &CHURNED_ONES {
        let counts = one.counts();
        println!("churned: {counts}");
        fine &= counts.late == 0 && counts.strange == 0;
        entries += counts.entries;
        lost += counts.entries - counts.exits();
    }
    let abrupt = LOST.load(Ordering::Relaxed);
    println!(
        "churn: {ROUNDS} rounds in {runs} runs, {entries} entries, {lost} left in flight, {abrupt} of them seen"
    );
    let totals = stacks::totals();
    println!("stacks: {totals:?}");
    fine && lost == abrupt && entries > 0 && totals.strays == 0
}

/// Functions whose calls do not last.
static QUICK: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

fn find_quick() {
    let names = "*FileSystem*,*logistic*,*Pipe*,*Spin*,*mix*,*Mutex*,kernel::arch::*,kernel::trap::*,kernel::time::now";
    let quick = PATCH.functions().filter(|&func| selects(names, func));
    for (place, func) in QUICK.iter().zip(quick) {
        place.store(func, Ordering::Relaxed);
    }
}

static CHURNED: AtomicBool = AtomicBool::new(false);
static RUNS: AtomicUsize = AtomicUsize::new(0);
static WRONG_RUNS: AtomicUsize = AtomicUsize::new(0);
static CHURNED_ONES: [Balance; 4] = [const { Balance::new() }; 4];
/// Entries of callbacks that were unregistered before the exit.
static LOST: AtomicUsize = AtomicUsize::new(0);

/// One round: by turns the callback is disabled and its calls come back before
/// it goes, or it goes at once.
fn come_and_go(round: usize) {
    let one = &CHURNED_ONES[round % CHURNED_ONES.len()];
    let before = one.counts();
    one.begin();
    let id = FGRAPH.register(one).expect("a slot");
    let mix = crate::fs::mix(7, round as u64);
    let some = |func: usize| {
        let place = QUICK
            .iter()
            .position(|quick| quick.load(Ordering::Relaxed) == func);
        place.is_some_and(|place| mix >> (place % 32) & 1 != 0)
    };
    PATCH.enable(id, some).expect("after init");
    if round.is_multiple_of(8) {
        // Long enough for the others to run into it.
        crate::time::spin(1_000_000);
    }
    let gently = round.is_multiple_of(2);
    let mut settled = before;
    if gently {
        PATCH.disable(id, |_| true).expect("after init");
        // Calls in flight come back.
        loop {
            settled = one.counts();
            if !settled.is_behind(&before) {
                break;
            }
            sched::yield_now();
        }
    }
    FGRAPH.unregister(id).expect("it was registered");
    one.end();
    if !gently {
        PATCH.disable(id, |_| true).expect("after init");
    }
    let after = one.counts();
    let lost = (after.entries - after.exits()) - (before.entries - before.exits());
    LOST.fetch_add(lost, Ordering::Relaxed);
    // Who was in the stub when the function was disabled may enter later.
    let late = after.entries - settled.entries;
    assert!(!gently || lost <= late, "a call did not come back");
}

/// Tasks that end inside ten nested calls, by themselves, killed, in a panic
/// and in a fault; then another task on the same stack.
pub(super) fn ends(options: &Options) -> bool {
    static COUNTED: Balance = Balance::new();
    static EXITER: Program = Program {
        name: "exiter",
        run: |_| _ = nest(DEEP, &|| sched::exit(Cause::Finished)),
    };
    static SLEEPER: Program = Program {
        name: "sleeper",
        run: |_| _ = nest(DEEP, &|| sched::sleep(u64::MAX / 2)),
    };
    static SPINNER: Program = Program {
        name: "spinner",
        run: |_| {
            nest(DEEP, &|| loop {
                core::hint::spin_loop();
            });
        },
    };
    static PANICKER: Program = Program {
        name: "panicker",
        run: |_| _ = nest(DEEP, &|| panic!("as asked for")),
    };
    trace::begin(options);
    let nested = nest as *const () as usize;
    let id = FGRAPH.register(&COUNTED).expect("a slot");
    PATCH.enable(id, |func| func == nested).expect("after init");
    let mut fine = true;
    for (program, cause) in [
        (&EXITER, Cause::Finished),
        (&SLEEPER, Cause::Killed),
        (&SPINNER, Cause::Killed),
        (&PANICKER, Cause::Panicked),
    ] {
        let before = COUNTED.counts();
        let task = sched::spawn(program, 0).expect("a place");
        while COUNTED.counts().entries - before.entries < DEEP + 1 {
            sched::yield_now();
        }
        if cause == Cause::Killed {
            sched::kill(task);
        }
        fine &= sched::join(task) == cause;
        let ended = COUNTED.counts().since(&before);
        let calls = DEEP + 1;
        fine &= ended
            == match cause {
                Cause::Panicked => Counts {
                    entries: calls,
                    unwound: calls,
                    ..Counts::default()
                },
                _ => Counts {
                    entries: calls,
                    task_exits: calls,
                    ..Counts::default()
                },
            };
        let clean = super::reused(task.place());
        let next = COUNTED.counts().since(&before).since(&ended);
        let same = Counts {
            entries: calls,
            returned: calls,
            ..Counts::default()
        };
        println!("{}: {ended}; reused {clean}: {next}", program.name);
        fine &= clean && next == same;
    }
    trace::unfollow(id);
    let totals = stacks::totals();
    println!("stacks: {totals:?}");
    fine && trace::is_balanced(&[&COUNTED]) && totals.wrong == 0 && totals.strays == 0
}

const DEEP: usize = 10;

/// Tracing goes on while tasks sit deep in calls, and off while traced calls
/// are in flight.
pub(super) fn deep(options: &Options) -> bool {
    const TASKS: usize = 6;
    static COUNTED: Balance = Balance::new();
    static SITTER: Program = Program {
        name: "sitter",
        run: |number| {
            for round in 1..=4 {
                let depth = 20 + number;
                let back = nest(depth, &|| {
                    SITTING.fetch_add(1, Ordering::Relaxed);
                    // Until it is this round's turn.
                    while TURN.load(Ordering::Relaxed) < round {
                        sched::sleep(1_000_000);
                    }
                });
                let fine = back == depth && (round < 2 || stacks::depth() <= 3);
                WRONG.fetch_add(usize::from(!fine), Ordering::Relaxed);
            }
        },
    };
    static SITTING: AtomicUsize = AtomicUsize::new(0);
    static TURN: AtomicUsize = AtomicUsize::new(0);
    static WRONG: AtomicUsize = AtomicUsize::new(0);

    let tasks = core::array::from_fn::<_, TASKS, _>(|n| sched::spawn(&SITTER, n).expect("a place"));
    let sit = |round: usize| {
        while SITTING.load(Ordering::Relaxed) < TASKS * round {
            sched::yield_now();
        }
    };
    sit(1);
    // On while they sit: they come back through calls that were not traced.
    trace::begin(options);
    let id = trace::follow(&COUNTED, "*");
    TURN.store(1, Ordering::Relaxed);
    sit(2);
    // Off while they sit, and its callback stays.
    trace::unfollow(id);
    let in_flight = stacks::totals().frames;
    TURN.store(2, Ordering::Relaxed);
    sit(3);
    let mut fine = trace::is_balanced(&[&COUNTED]);
    println!(
        "off: {in_flight} calls in flight, then {}",
        COUNTED.counts()
    );
    // On again, and the callback goes while they sit.
    PATCH.enable(id, |_| true).expect("after init");
    TURN.store(3, Ordering::Relaxed);
    sit(4);
    FGRAPH.unregister(id).expect("it was registered");
    COUNTED.end();
    TURN.store(4, Ordering::Relaxed);
    for task in tasks {
        fine &= sched::join(task) == Cause::Finished;
    }
    PATCH.disable(id, |_| true).expect("after init");
    fine &= stacks::wait_for_returns();
    let wrong = WRONG.load(Ordering::Relaxed);
    let totals = stacks::totals();
    println!("gone: {}; {wrong} came back wrong", COUNTED.counts());
    println!("stacks: {totals:?}");
    fine && in_flight > TASKS * 20 && wrong == 0 && COUNTED.counts().late == 0 && totals.strays == 0
}
