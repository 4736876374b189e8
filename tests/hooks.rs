//! Patched entries, over this program's own functions.
#![cfg(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_os = "linux"
))]

#[path = "common/host.rs"]
#[allow(dead_code, reason = "shared with the other tests")]
mod host;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

use fgraph::hook::patch::{Patch, PatchError};
use fgraph::ret_stack::Counters;
use fgraph::{Callback, Cause, Entry, Exit, Platform};
use host::{FGRAPH, Host};

/// One test at a time changes what is traced.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The running thread is a task as long as it has this, and neither before nor
/// after: a thread that waits or ends with a shadow stack is traced by the
/// others' tests, and its calls are in flight when they count.
struct Alone(#[expect(dead_code, reason = "held")] MutexGuard<'static, ()>);

fn alone() -> Alone {
    let alone = ONE_AT_A_TIME
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    host::attach(4096);
    Alone(alone)
}

impl Drop for Alone {
    fn drop(&mut self) {
        host::resign();
    }
}

/// Counts, and remembers which functions it saw, in a table without locks.
struct Seen {
    entries: AtomicUsize,
    exits: AtomicUsize,
    functions: [AtomicUsize; 64],
    /// How many did not fit the table.
    others: AtomicUsize,
}

impl Seen {
    fn new() -> &'static Self {
        Box::leak(Box::new(Self {
            entries: AtomicUsize::new(0),
            exits: AtomicUsize::new(0),
            functions: [const { AtomicUsize::new(0) }; 64],
            others: AtomicUsize::new(0),
        }))
    }

    fn functions(&self) -> Vec<usize> {
        let all = self.functions.iter().map(|f| f.load(Relaxed));
        let mut all: Vec<usize> = all.filter(|&f| f != 0).collect();
        all.sort_unstable();
        all
    }

    fn balanced(&self) -> usize {
        let (entries, exits) = (self.entries.load(Relaxed), self.exits.load(Relaxed));
        assert_eq!(entries, exits);
        entries
    }
}

impl Callback for Seen {
    type Frame = usize;

    fn entry(&self, call: Entry<'_, usize>) -> Option<usize> {
        self.entries.fetch_add(1, Relaxed);
        let func = call.func();
        for seen in &self.functions {
            match seen.compare_exchange(0, func, Relaxed, Relaxed) {
                Ok(_) => return Some(func),
                Err(other) if other == func => return Some(func),
                Err(_) => {}
            }
        }
        self.others.fetch_add(1, Relaxed);
        Some(func)
    }

    fn exit(&self, call: Exit<'_, usize>, func: usize) {
        assert_eq!((call.func(), call.cause()), (func, Cause::Returned));
        self.exits.fetch_add(1, Relaxed);
    }
}

#[inline(never)]
fn one(n: u64) -> u64 {
    black_box(n) + 1
}

#[inline(never)]
fn two(n: u64) -> u64 {
    one(n) + black_box(1)
}

#[inline(never)]
fn three(n: u64) -> u64 {
    black_box(two(n)) + 1
}

fn address(f: fn(u64) -> u64) -> usize {
    f as usize
}

/// Work that runs through much generic code of `core` and `alloc`.
#[inline(never)]
fn work(seed: u64) -> String {
    let mut words = BTreeMap::new();
    for n in 0..200_u64 {
        let key = (n * seed) % 61;
        words.entry(key).or_insert_with(Vec::new).push(three(n));
    }
    let mut sums: Vec<(u64, u64)> = words.iter().map(|(&k, v)| (v.iter().sum(), k)).collect();
    sums.sort_unstable_by(|a, b| b.cmp(a));
    format!("{sums:?}")
}

#[test]
fn everything_at_once_changes_no_result() {
    let _alone = alone();
    let patch = host::init_patch();
    let expected = work(7);
    let seen = Seen::new();
    let id = FGRAPH.register(seen).unwrap();
    let all = patch.functions().count();
    assert_eq!(patch.enable(id, |_| true), Ok(all));
    assert_eq!(patch.enabled(id).count(), all);
    // A second time adds none.
    assert_eq!(patch.enable(id, |_| true), Ok(0));
    let traced = work(7);
    assert_eq!(patch.disable(id, |_| true), Ok(all));
    assert_eq!(traced, expected);
    assert!(seen.balanced() > 600);
    let counters = host::attach(0).counters();
    assert_eq!(
        (counters.overruns, counters.unwound, counters.strays),
        (0, 0, 0)
    );
    FGRAPH.unregister(id).unwrap();
}

#[test]
fn each_callback_sees_exactly_its_functions() {
    let _alone = alone();
    let patch = host::init_patch();
    let functions = [address(one), address(two), address(three)];
    // All subsets of three functions, by eight callbacks.
    let seen: Vec<_> = (0..8).map(|_| Seen::new()).collect();
    let ids: Vec<_> = seen.iter().map(|&s| FGRAPH.register(s).unwrap()).collect();
    let wants = |set: usize, func| {
        functions
            .iter()
            .enumerate()
            .any(|(i, &f)| f == func && set & (1 << i) != 0)
    };
    for (set, &id) in ids.iter().enumerate() {
        let count = patch.enable(id, |func| wants(set, func));
        assert_eq!(count, Ok(set.count_ones() as usize));
    }
    assert_eq!(three(1), 4);
    for (set, &id) in ids.iter().enumerate() {
        assert_eq!(seen[set].balanced(), set.count_ones() as usize);
        let mut expected: Vec<_> = functions.into_iter().filter(|&f| wants(set, f)).collect();
        expected.sort_unstable();
        assert_eq!(seen[set].functions(), expected);
        // One function less, for this callback alone.
        let off = patch.disable(id, |func| func == functions[0]);
        assert_eq!(off, Ok(set & 1));
    }
    assert_eq!(three(1), 4);
    for (set, &id) in ids.iter().enumerate() {
        let expected = set.count_ones() as usize + (set & 6).count_ones() as usize;
        assert_eq!(seen[set].balanced(), expected);
        patch.disable(id, |_| true).unwrap();
        FGRAPH.unregister(id).unwrap();
    }
}

#[test]
fn turning_off_puts_back_exactly_what_was_there() {
    let _alone = alone();
    let patch = host::init_patch();
    // SAFETY: a function of this program.
    let entry = || unsafe { (address(one) as *const [u8; 8]).read_volatile() };
    let before = entry();
    let id = FGRAPH.register(Seen::new()).unwrap();
    patch.enable(id, |func| func == address(one)).unwrap();
    let on = entry();
    // Two bytes change, or a whole instruction; on AArch64 the one behind it
    // becomes a landing pad, which is as good as a NOP, and stays.
    let (jump, rest) = if cfg!(target_arch = "x86_64") {
        (2, 8)
    } else {
        (4, 4)
    };
    assert_ne!(on[..jump], before[..jump]);
    assert_eq!(on[jump..rest], before[jump..rest]);
    patch.disable(id, |_| true).unwrap();
    assert_eq!(entry()[..rest], before[..rest]);
    FGRAPH.unregister(id).unwrap();
}

#[test]
fn a_departed_callbacks_functions_reach_no_later_owner() {
    let _alone = alone();
    let patch = host::init_patch();
    let (former, later) = (Seen::new(), Seen::new());
    let id = FGRAPH.register(former).unwrap();
    patch.enable(id, |func| func == address(one)).unwrap();
    FGRAPH.unregister(id).unwrap();
    assert_eq!(patch.enable(id, |_| true), Err(PatchError::NotRegistered));
    let next = FGRAPH.register(later).unwrap();
    assert_ne!(next.slot(), id.slot());
    one(1);
    assert_eq!((former.balanced(), later.balanced()), (0, 0));
    // Its slot is free once no function names it.
    assert_eq!(patch.disable(id, |_| true), Ok(1));
    let last = FGRAPH.register(Seen::new()).unwrap();
    assert_eq!(last.slot(), id.slot());
    // The former id says nothing about the new owner's functions.
    patch.enable(last, |func| func == address(two)).unwrap();
    assert_eq!(patch.disable(id, |_| true), Ok(0));
    assert_eq!(patch.enabled(last).count(), 1);
    for id in [next, last] {
        patch.disable(id, |_| true).unwrap();
        FGRAPH.unregister(id).unwrap();
    }
}

/// The slot of one that has left is free if no function names it, and not
/// while one does.
#[test]
fn a_slot_is_given_out_when_no_function_names_it() {
    let _alone = alone();
    let patch = host::init_patch();
    let register = || FGRAPH.register(Seen::new()).unwrap();
    let id = register();
    // None was enabled.
    assert_eq!(patch.enable(id, |_| false), Ok(0));
    FGRAPH.unregister(id).unwrap();
    let id = register();
    assert_eq!(id.slot(), 0);
    // Of two that were, one is left.
    let both = [address(one), address(two)];
    assert_eq!(patch.enable(id, |func| both.contains(&func)), Ok(2));
    assert_eq!(patch.disable(id, |func| func == both[0]), Ok(1));
    FGRAPH.unregister(id).unwrap();
    let other = register();
    assert_eq!(other.slot(), 1);
    assert_eq!(patch.disable(id, |_| true), Ok(1));
    let last = register();
    assert_eq!(last.slot(), 0);
    for id in [other, last] {
        FGRAPH.unregister(id).unwrap();
    }
}

/// Patching holds every context inside of the tracer, and changes no frame.
#[test]
fn a_walk_is_not_stale_while_entries_are_patched() {
    let _alone = alone();
    let patch = host::init_patch();
    let id = FGRAPH.register(Seen::new()).unwrap();
    let scope = FGRAPH.scope(address(one), 0);
    let (mut asked, mut stale) = (0, 0);
    let on = Host::current(|stack| {
        let walk = stack.frames();
        patch.enable(id, |_| {
            asked += 1;
            stale += usize::from(walk.is_stale() || !stack.is_inside());
            false
        })
    });
    drop(scope);
    assert_eq!((on, stale), (Some(Ok(0)), 0));
    assert!(asked > 0);
    FGRAPH.unregister(id).unwrap();
}

#[test]
fn what_is_excluded_is_never_hooked() {
    #[inline(never)]
    fn private(n: u64) -> u64 {
        black_box(n) ^ 5
    }
    let _alone = alone();
    let patch = host::init_patch();
    let (private_address, seen) = (address(private), Seen::new());
    let id = FGRAPH.register(seen).unwrap();
    // SAFETY: a function of this program.
    let entry = || unsafe { (private_address as *const [u8; 4]).read_volatile() };
    let before = entry();
    assert_eq!(patch.enable(id, |func| func == private_address), Ok(1));
    assert_ne!(entry(), before);
    // Also when it is on.
    assert_eq!(patch.exclude(|func| func == private_address), Ok(1));
    assert_eq!(entry(), before);
    assert_eq!(patch.exclude(|func| func == private_address), Ok(0));
    assert_eq!(patch.enable(id, |func| func == private_address), Ok(0));
    assert!(patch.functions().all(|func| func != private_address));
    private(1);
    assert_eq!(seen.balanced(), 0);
    patch.disable(id, |_| true).unwrap();
    FGRAPH.unregister(id).unwrap();
}

#[test]
fn the_table_is_taken_once() {
    let _alone = alone();
    let patch = host::init_patch();
    // SAFETY: this program's own table.
    let again = unsafe { patch.init(fgraph::patchable_functions!()) };
    assert_eq!(again, Err(PatchError::Initialised));
}

#[test]
fn a_table_without_one_function_is_an_error() {
    /// As other numbers in the flag leave it: no padding where the list says.
    static TEXT: [u64; 16] = [0xcccc_cccc_cccc_cccc; 16];
    static OTHER: Patch<host::Host> = Patch::new();
    let _alone = alone();
    host::init_patch();
    let listed = Box::leak(Box::new([&raw const TEXT as usize, 0]));
    let id = FGRAPH.register(Seen::new()).unwrap();
    for listed in [listed.as_slice(), &[]] {
        // SAFETY: no patchable functions, and more than 48 bytes at the one
        // address that is read.
        let found = unsafe { OTHER.init(listed) };
        assert_eq!(found, Err(PatchError::NoFunction));
        assert_eq!(OTHER.enable(id, |_| true), Err(PatchError::NotInitialised));
    }
    FGRAPH.unregister(id).unwrap();
}

/// Tries to patch from inside.
struct Patcher(AtomicUsize);

impl Callback for Patcher {
    type Frame = ();

    fn entry(&self, _: Entry<'_, ()>) -> Option<()> {
        let refused = host::PATCH.exclude(|_| true) == Err(PatchError::InCallback);
        self.0.fetch_add(usize::from(refused), Relaxed);
        None
    }

    fn exit(&self, _: Exit<'_, ()>, (): ()) {}
}

#[test]
fn a_callback_can_not_patch() {
    static PATCHER: Patcher = Patcher(AtomicUsize::new(0));
    let _alone = alone();
    let patch = host::init_patch();
    let id = FGRAPH.register(&PATCHER).unwrap();
    patch.enable(id, |func| func == address(one)).unwrap();
    one(1);
    assert_eq!(PATCHER.0.load(Relaxed), 1);
    patch.disable(id, |_| true).unwrap();
    FGRAPH.unregister(id).unwrap();
}

/// Waits until `go` is set.
fn wait_for(go: &AtomicBool) {
    while !go.load(Relaxed) {
        std::thread::yield_now();
    }
}

#[test]
fn a_thread_whose_test_has_ended_is_not_traced() {
    let [ended, on, done] = [const { AtomicBool::new(false) }; 3];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            drop(alone());
            ended.store(true, Relaxed);
            wait_for(&on);
            black_box(three(1));
            done.store(true, Relaxed);
        });
        wait_for(&ended);
        let _alone = alone();
        let patch = host::init_patch();
        let seen = Seen::new();
        let id = FGRAPH.register(seen).unwrap();
        let functions = [address(one), address(two), address(three)];
        let enabled = patch.enable(id, |func| functions.contains(&func));
        on.store(true, Relaxed);
        wait_for(&done);
        assert_eq!((enabled, seen.balanced()), (Ok(3), 0));
        patch.disable(id, |_| true).unwrap();
        FGRAPH.unregister(id).unwrap();
    });
}

/// A call that is in flight on another thread when its function is turned off,
/// or its callback leaves.
#[test]
fn a_call_in_flight_elsewhere_outlives_its_hook() {
    #[inline(never)]
    fn outer(inside: &AtomicUsize, go: &AtomicBool) -> u64 {
        one(black_box(inner(inside, go)))
    }
    #[inline(never)]
    fn inner(inside: &AtomicUsize, go: &AtomicBool) -> u64 {
        inside.fetch_add(1, Relaxed);
        wait_for(go);
        black_box(3)
    }
    type Held = fn(&AtomicUsize, &AtomicBool) -> u64;
    let functions = [outer as Held as usize, inner as Held as usize, address(one)];
    let _alone = alone();
    let patch = host::init_patch();
    for leaves in [false, true] {
        let (seen, inside, go) = (Seen::new(), AtomicUsize::new(0), AtomicBool::new(false));
        let id = FGRAPH.register(seen).unwrap();
        let enabled = patch.enable(id, |func| functions.contains(&func));
        assert_eq!(enabled, Ok(functions.len()));
        std::thread::scope(|scope| {
            let held = scope.spawn(|| {
                let stack = host::attach(4096);
                let result = outer(&inside, &go);
                (result, stack.depth(), stack.counters())
            });
            while inside.load(Relaxed) == 0 {
                std::thread::yield_now();
            }
            let counts = || (seen.entries.load(Relaxed), seen.exits.load(Relaxed));
            assert_eq!(counts(), (2, 0));
            if leaves {
                FGRAPH.unregister(id).unwrap();
            }
            assert_eq!(patch.disable(id, |_| true), Ok(functions.len()));
            assert_eq!(counts(), (2, 0), "still in flight");
            go.store(true, Relaxed);
            let (result, depth, counters) = held.join().unwrap();
            assert_eq!((result, depth, counters), (4, 0, Counters::default()));
            // What it called once that was off is not traced.
            assert_eq!(counts(), (2, if leaves { 0 } else { 2 }));
        });
        if !leaves {
            FGRAPH.unregister(id).unwrap();
        }
    }
}

#[test]
fn entries_are_turned_on_and_off_while_others_run_them() {
    let _alone = alone();
    let patch = host::init_patch();
    let (stop, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
    let expected = work(11);
    let seen = Seen::new();
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            host::attach(4096);
            while !stop.load(Relaxed) {
                assert_eq!(work(11), expected);
                rounds.fetch_add(1, Relaxed);
            }
        });
        for _ in 0..if cfg!(debug_assertions) { 10 } else { 50 } {
            let id = FGRAPH.register(seen).unwrap();
            patch.enable(id, |_| true).unwrap();
            let before = rounds.load(Relaxed);
            while rounds.load(Relaxed) == before && !worker.is_finished() {
                std::thread::yield_now();
            }
            patch.disable(id, |_| true).unwrap();
            FGRAPH.unregister(id).unwrap();
        }
        stop.store(true, Relaxed);
        worker.join().unwrap();
    });
    // Calls that were in flight at an unregister had no exit.
    assert!(seen.exits.load(Relaxed) <= seen.entries.load(Relaxed));
}
