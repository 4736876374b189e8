//! Callbacks that leave nothing as it was, and the ways in which functions are
//! traced by them.

use std::arch::asm;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

use fgraph::hook::Registers;
use fgraph::{Callback, CallbackId, Cause, Entry, Exit};

use crate::host::{self, FGRAPH, PATCH};

/// Changes every register that a function may change, keeps `W` words, and
/// computes with floating point.
pub struct Wrecker<const W: usize> {
    accept: bool,
    pub entries: AtomicUsize,
    pub exits: AtomicUsize,
    /// The six arguments that the last entry saw.
    pub arguments: [AtomicUsize; 6],
    /// The result that the last exit saw.
    pub result: AtomicUsize,
    damaged: AtomicUsize,
}

impl<const W: usize> Wrecker<W> {
    pub fn new(accept: bool) -> &'static Self {
        Box::leak(Box::new(Self {
            accept,
            entries: AtomicUsize::new(0),
            exits: AtomicUsize::new(0),
            arguments: Default::default(),
            result: AtomicUsize::new(0),
            damaged: AtomicUsize::new(0),
        }))
    }

    fn data(func: usize) -> [usize; W] {
        core::array::from_fn(|i| func.rotate_left(i as u32 + 1))
    }

    /// How many calls there were, all of which have returned.
    pub fn calls(&self) -> usize {
        let (entries, exits) = (self.entries.load(Relaxed), self.exits.load(Relaxed));
        assert_eq!(exits, if self.accept { entries } else { 0 });
        assert_eq!(self.damaged.load(Relaxed), 0, "words of others");
        entries
    }
}

/// Runs through the floating-point units.
#[inline(never)]
fn compute(seed: usize) -> f64 {
    let mut sums = [seed as f64 + 0.1, 0.7, 1.3, 1.9];
    for i in 1..20 {
        let step = black_box(f64::from(i));
        for (n, sum) in sums.iter_mut().enumerate() {
            *sum = (*sum / step).sqrt() + step * n as f64;
        }
    }
    sums.iter().sum()
}

/// Leaves no register as it was that a function may change.
fn wreck() {
    black_box(compute(black_box(3)));
    // SAFETY: changes registers alone, and says which; the x87 stack is as
    // before.
    unsafe {
        asm!(
            "fldpi",
            "fld1",
            "faddp st(1), st",
            "fstp st(0)",
            "mov rax, -1",
            "mov rcx, rax",
            "mov rdx, rax",
            "mov rsi, rax",
            "mov rdi, rax",
            "mov r8, rax",
            "mov r9, rax",
            "mov r10, rax",
            "mov r11, rax",
            ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
            "pcmpeqd xmm\\i, xmm\\i",
            ".endr",
            "add rax, rax",
            clobber_abi("sysv64"),
        );
    }
}

impl<const W: usize> Callback for Wrecker<W> {
    type Frame = [usize; W];

    fn entry(&self, call: Entry<'_, [usize; W]>) -> Option<[usize; W]> {
        self.entries.fetch_add(1, Relaxed);
        for (i, place) in self.arguments.iter().enumerate() {
            let argument = call.registers().and_then(|registers| registers.argument(i));
            place.store(argument.unwrap_or(0), Relaxed);
        }
        wreck();
        self.accept.then(|| Self::data(call.func()))
    }

    fn exit(&self, call: Exit<'_, [usize; W]>, data: [usize; W]) {
        self.exits.fetch_add(1, Relaxed);
        let right = data == Self::data(call.func()) && call.cause() == Cause::Returned;
        self.damaged.fetch_add((!right).into(), Relaxed);
        let result = call.registers().map_or(0, Registers::return_value);
        self.result.store(result, Relaxed);
        wreck();
    }
}

/// The program's entries, for one test at a time.
pub struct Alone {
    _one: MutexGuard<'static, ()>,
}

impl Alone {
    pub fn new() -> Self {
        static ONE: Mutex<()> = Mutex::new(());
        let one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        host::attach(4096);
        host::init_patch();
        Self { _one: one }
    }

    /// Runs `f` while a callback follows the functions that `which` accepts.
    pub fn follow<C: Callback>(
        &self,
        callback: &'static C,
        which: impl Fn(usize) -> bool,
        f: impl FnOnce(),
    ) {
        let id = begin(callback, which);
        f();
        end(id);
    }

    /// As [`follow`](Self::follow), with all sixteen slots taken.
    pub fn follow_sixteen(&self, which: impl Fn(usize) -> bool, f: impl FnOnce()) {
        let none = (0..8).map(|_| begin(Wrecker::<0>::new(true), &which));
        let some = (0..4).map(|_| begin(Wrecker::<3>::new(true), &which));
        let refuse = (0..4).map(|_| begin(Wrecker::<1>::new(false), &which));
        let ids: Vec<CallbackId> = none.chain(some).chain(refuse).collect();
        f();
        ids.into_iter().for_each(end);
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        host::resign();
    }
}

fn begin<C: Callback>(callback: &'static C, which: impl Fn(usize) -> bool) -> CallbackId {
    let id = FGRAPH.register(callback).expect("a slot is free");
    let on = PATCH.enable(id, which).expect("outside of callbacks");
    assert!(on > 0, "functions are followed");
    id
}

/// Inlined: a call of it would be followed, and return after the callback left.
#[inline(always)]
fn end(id: CallbackId) {
    PATCH.disable(id, |_| true).expect("outside of callbacks");
    FGRAPH.unregister(id).expect("registered until now");
}
