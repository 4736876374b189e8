//! The crate as a [`Side`]: its tracer on a platform that answers from the
//! played world.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use fgraph::fgraph::{Call, RegisterError, UnregisterError};
use fgraph::hook::scope::Scope;
use fgraph::ret_stack::{AttachError, Counters, DetachError, Frame};
use fgraph::{Callback, CallbackId, Context, Entry, Exit, Fgraph, FrameData, Platform, RetStack};

use crate::world::{
    self, CONTEXTS, Called, POOL, Reply, Seen, Side, TASKS, Words, environment, hands,
};

/// The played platform.
#[derive(Debug)]
pub struct Sim;

thread_local! {
    static STACKS: Cell<[Option<&'static RetStack>; TASKS]> = const { Cell::new([None; TASKS]) };
}

fn stack(task: usize) -> Option<&'static RetStack> {
    STACKS.get().get(task).copied().flatten()
}

/// Runs `f` with a stack of its own, outside of any world.
#[allow(dead_code, reason = "for `model_hooked` alone")]
pub fn with_current<R>(stack: &'static RetStack, f: impl FnOnce() -> R) -> R {
    STACKS.set([Some(stack), None, None]);
    environment(|e| {
        e.task.set(Some(0));
        e.context.set(0);
    });
    let result = f();
    STACKS.set([None; TASKS]);
    result
}

// SAFETY: one thread plays one world; which task runs changes between calls.
unsafe impl Platform for Sim {
    fn current<R>(f: impl FnOnce(&RetStack) -> R) -> Option<R> {
        environment(|e| e.task.get()).and_then(stack).map(f)
    }

    fn clock() -> u64 {
        0
    }

    fn context() -> Context {
        CONTEXTS[environment(|e| e.context.get()) as usize]
    }

    fn synchronize() -> bool {
        environment(|e| e.patient.get())
    }

    fn owner<R>(slot: usize, f: impl FnOnce(&RetStack) -> R) -> Option<R> {
        world::owner(slot).and_then(stack).map(f)
    }
}

/// A callback of the pool.
pub struct Pooled<const W: usize>(usize);

impl<const W: usize> Pooled<W> {
    /// Its slot is told apart by nothing that it is shown, so it is asked of
    /// the tracer.
    fn slot(&self) -> usize {
        SLOTS.with(|slots| slots.borrow()[self.0])
    }

    fn follow(&self, seen: Seen, set: impl FnOnce([usize; W])) -> Option<[usize; W]> {
        let hands = hands();
        let Reply { accept, parent } = hands.observe(seen, self.slot());
        let array = |words: Words| <[usize; W]>::try_from(words.as_slice()).ok();
        if let Some(words) = parent.and_then(array) {
            set(words);
        }
        hands.act();
        accept.and_then(array)
    }
}

impl<const W: usize> Callback for Pooled<W> {
    type Frame = [usize; W];

    fn entry(&self, call: Entry<'_, [usize; W]>) -> Option<[usize; W]> {
        let parent = call.parent();
        let seen = Seen {
            callback: self.0,
            func: call.func(),
            caller: call.caller(),
            slot: call.return_slot(),
            depth: call.depth(),
            context: call.context() as u8,
            parent: parent.as_ref().map(|p| (p.func(), Words::new(&p.get()))),
            end: None,
        };
        self.follow(seen, |words| {
            if let Some(parent) = parent {
                parent.set(words);
            }
        })
    }

    fn exit(&self, call: Exit<'_, [usize; W]>, data: [usize; W]) {
        let parent = call.parent();
        let seen = Seen {
            callback: self.0,
            func: call.func(),
            caller: call.caller(),
            slot: call.return_slot(),
            depth: call.depth(),
            context: call.context() as u8,
            parent: parent.as_ref().map(|p| (p.func(), Words::new(&p.get()))),
            end: Some((call.cause(), Words::new(&data.to_words()))),
        };
        self.follow(seen, |words| {
            if let Some(parent) = parent {
                parent.set(words);
            }
        });
    }
}

thread_local! {
    /// Which slot each callback of the pool is in.
    static SLOTS: RefCell<[usize; POOL.len()]> = const { RefCell::new([0; POOL.len()]) };
}

macro_rules! pool {
    ($($words:literal)*) => {
        /// Registers a callback of the pool.
        fn register<const N: usize>(
            fgraph: &Fgraph<Sim, N>,
            callback: usize,
        ) -> Result<CallbackId, RegisterError> {
            match POOL[callback] {
                $($words => {
                    static ALL: [Pooled<$words>; POOL.len()] = {
                        let mut all = [const { Pooled(0) }; POOL.len()];
                        let mut i = 0;
                        while i < all.len() {
                            all[i] = Pooled(i);
                            i += 1;
                        }
                        all
                    };
                    fgraph.register(&ALL[callback])
                })*
                other => unreachable!("{other} words"),
            }
        }
    };
}

pool!(0 1 2 3 4 5 6 7 15);

/// The crate, with `N` slots.
pub struct Real<const N: usize> {
    fgraph: &'static Fgraph<Sim, N>,
    /// Its own, to be freed.
    owned: Option<*mut Fgraph<Sim, N>>,
    ids: RefCell<Vec<CallbackId>>,
    scopes: RefCell<Vec<Option<Scope<'static, Sim, N>>>>,
}

impl<const N: usize> Real<N> {
    /// A tracer of its own.
    #[allow(dead_code, reason = "for `model` alone")]
    pub fn new() -> Self {
        let owned = Box::into_raw(Box::new(Fgraph::new()));
        // SAFETY: freed by `drop`, after everything that borrows it.
        let mut this = Self::of(unsafe { &*owned });
        this.owned = Some(owned);
        this
    }

    pub fn of(fgraph: &'static Fgraph<Sim, N>) -> Self {
        STACKS.set(std::array::from_fn(|_| Some(&*Box::leak(Box::default()))));
        Self {
            fgraph,
            owned: None,
            ids: RefCell::default(),
            scopes: RefCell::default(),
        }
    }

    fn stack(&self, task: usize) -> &'static RetStack {
        stack(task).expect("the world's tasks have stacks")
    }
}

impl<const N: usize> Drop for Real<N> {
    fn drop(&mut self) {
        // A failed case may be in the middle of anything: then it leaks.
        if std::thread::panicking() {
            for id in self.ids.take() {
                let _ = self.fgraph.unregister(id);
            }
            return;
        }
        self.scopes.borrow_mut().clear();
        for stack in STACKS.replace([None; TASKS]).into_iter().flatten() {
            assert!(!stack.is_attached());
            // SAFETY: leaked by `of`, and nobody has it any more.
            drop(unsafe { Box::from_raw(std::ptr::from_ref(stack).cast_mut()) });
        }
        if let Some(owned) = self.owned {
            // SAFETY: made by `new`; the scopes are gone.
            drop(unsafe { Box::from_raw(owned) });
        }
    }
}

impl<const N: usize> Side for Real<N> {
    fn enter(&self, call: Called, wanted: usize) -> bool {
        let call = Call {
            func: call.func,
            ret: call.ret,
            slot: call.slot,
            tail: call.tail,
            registers: None,
        };
        // SAFETY: the world's slot is a word, and `tail` is as it says.
        unsafe { self.fgraph.enter(&call, wanted) }
    }

    fn leave(&self, slot: usize) -> Option<usize> {
        // SAFETY: the call was entered on this slot, and ends.
        unsafe { self.fgraph.leave(slot, None) }
    }

    fn scope(&self, func: usize, caller: usize) -> usize {
        let scope = self.fgraph.scope(func, caller);
        self.scopes.borrow_mut().push(Some(scope));
        self.scopes.borrow().len() - 1
    }

    fn end_scope(&self, handle: usize) {
        let scope = self.scopes.borrow_mut()[handle].take();
        drop(scope);
    }

    fn forget_scope(&self, handle: usize) {
        std::mem::forget(self.scopes.borrow_mut()[handle].take());
    }

    fn register(&self, callback: usize) -> Result<usize, RegisterError> {
        let id = register(self.fgraph, callback)?;
        self.ids.borrow_mut().push(id);
        SLOTS.with(|slots| slots.borrow_mut()[callback] = id.slot());
        Ok(id.slot())
    }

    fn unregister(&self, handle: usize) -> Result<(), UnregisterError> {
        let id = self.ids.borrow()[handle];
        self.fgraph.unregister(id)
    }

    fn is_registered(&self, handle: usize) -> bool {
        self.fgraph.is_registered(self.ids.borrow()[handle])
    }

    fn missed(&self, handle: usize) -> u32 {
        self.fgraph.missed(self.ids.borrow()[handle])
    }

    fn attach(&self, task: usize, words: usize, range: Range<usize>) -> Result<(), AttachError> {
        // Full of what looks like frames, which attaching must clear.
        let words = vec![0x5555_5555_5555_5555_u64 as usize; words].into_boxed_slice();
        let words = Box::into_raw(words);
        // SAFETY: a box that nobody else has, given back below or by `free`.
        let result = self.stack(task).attach(unsafe { &mut *words }, range);
        if result.is_err() {
            free(words);
        }
        result
    }

    fn detach(&self, task: usize) -> Result<(), DetachError> {
        // SAFETY: nothing else runs.
        let words = unsafe { self.stack(task).detach() };
        words.map(|words| free(words))
    }

    fn exit(&self, task: usize) -> Result<(), DetachError> {
        // SAFETY: nothing else runs, and the world forgets the task's calls.
        let words = unsafe { self.fgraph.exit_task(self.stack(task)) };
        words.map(|words| free(words.as_ptr()))
    }

    fn restore(&self) -> usize {
        // SAFETY: all slots are leaked memory.
        unsafe { self.fgraph.restore() }
    }

    fn real_return(&self, task: usize, slot: usize, seen: usize) -> usize {
        self.fgraph.real_return(self.stack(task), slot, seen)
    }

    fn frames(&self, task: usize, each: &mut dyn FnMut(Frame)) {
        let frames = self.stack(task).frames();
        assert!(!frames.is_stale());
        frames.for_each(each);
    }

    fn counters(&self, task: usize) -> Counters {
        self.stack(task).counters()
    }

    fn capacity(&self, task: usize) -> usize {
        let stack = self.stack(task);
        assert!(stack.high_water() <= stack.capacity());
        stack.capacity()
    }

    fn is_inside(&self, task: usize) -> bool {
        self.stack(task).is_inside()
    }
}

fn free(words: *mut [usize]) {
    // SAFETY: boxed by `attach`, and the stack has given them back.
    drop(unsafe { Box::from_raw(words) });
}
