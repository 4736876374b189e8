//! A kernel of one CPU that does what a test says: each test makes one of its
//! own with [`kernel!`], so that tests do not disturb each other.

/// Defines a module with a platform `Kernel`, its tracer `FGRAPH`, and what
/// steers them.
#[macro_export]
macro_rules! kernel {
    ($name:ident) => {
        #[allow(dead_code, reason = "no test uses all of it")]
        mod $name {
            use core::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering::SeqCst};
            use fgraph::fgraph::Call;
            use fgraph::hook::scope::Scope;
            use fgraph::{Context, Fgraph, Platform, RetStack};

            pub struct Kernel;
            pub static FGRAPH: Fgraph<Kernel> = Fgraph::new();
            pub static STACK: RetStack = RetStack::new();
            pub static OTHER: RetStack = RetStack::new();
            static ON_OTHER: AtomicUsize = AtomicUsize::new(0);
            static TASK: AtomicUsize = AtomicUsize::new(0);
            static NOW: AtomicU64 = AtomicU64::new(1_000);
            static CPU: AtomicUsize = AtomicUsize::new(0);
            static CONTEXT: AtomicUsize = AtomicUsize::new(0);
            /// How many readings of the clock remain before the interrupt.
            static FUSE: AtomicI64 = AtomicI64::new(-1);
            static HANDLER: AtomicUsize = AtomicUsize::new(0);

            // SAFETY: one CPU; tests use it from one thread.
            unsafe impl Platform for Kernel {
                fn current<R>(f: impl FnOnce(&RetStack) -> R) -> Option<R> {
                    Some(f(stack()))
                }
                fn clock() -> u64 {
                    if FUSE.load(SeqCst) >= 0 && FUSE.fetch_sub(1, SeqCst) == 0 {
                        interrupt();
                    }
                    NOW.load(SeqCst)
                }
                fn cpu() -> usize {
                    CPU.load(SeqCst)
                }
                fn context() -> Context {
                    match CONTEXT.load(SeqCst) {
                        0 => Context::Task,
                        1 => Context::SoftInterrupt,
                        2 => Context::Interrupt,
                        _ => Context::Nmi,
                    }
                }
                fn task() -> usize {
                    match TASK.load(SeqCst) {
                        0 => 100 + ON_OTHER.load(SeqCst),
                        task => task,
                    }
                }
            }

            /// The running task's stack.
            pub fn stack() -> &'static RetStack {
                match ON_OTHER.load(SeqCst) {
                    0 => &STACK,
                    _ => &OTHER,
                }
            }

            /// Gives both tasks words and a real stack, where `slot` lies in
            /// the first one's.
            pub fn attach() {
                attach_words(4096);
            }

            pub fn attach_words(words: usize) {
                let real = real_stack();
                let attach = |stack: &RetStack, range| {
                    let words = Box::leak(vec![0; words].into_boxed_slice());
                    stack.attach(words, range).expect("attached once");
                };
                attach(&STACK, real.start..real.end);
                attach(&OTHER, 0x10_0000..0x20_0000);
            }

            static SLOTS: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

            /// The range of the first task's real stack: that of the slots.
            pub fn real_stack() -> core::ops::Range<usize> {
                let start = SLOTS.as_ptr() as usize;
                start..start + size_of_val(&SLOTS)
            }

            /// The address of the return slot `depth` calls down.
            pub fn slot(depth: usize) -> usize {
                &raw const SLOTS[63 - depth] as usize
            }

            /// A call on the first task's real stack.
            pub fn enter(func: usize, depth: usize) -> bool {
                enter_call(func, depth, false)
            }

            /// The function on the slot jumps to `func`.
            pub fn tail_call(func: usize, depth: usize) -> bool {
                enter_call(func, depth, true)
            }

            fn enter_call(func: usize, depth: usize, tail: bool) -> bool {
                let call = Call {
                    func,
                    ret: 0x9000 + depth,
                    slot: slot(depth),
                    tail,
                    registers: None,
                };
                // SAFETY: the slots are words of this module's.
                unsafe { FGRAPH.enter(&call, usize::MAX) }
            }

            /// Its return.
            pub fn leave(depth: usize) {
                // SAFETY: as in `enter`; tests leave what they entered.
                let to = unsafe { FGRAPH.leave(slot(depth), None) };
                assert_eq!(to, Some(0x9000 + depth));
            }

            pub fn scope(func: usize) -> Scope<'static, Kernel, 16> {
                FGRAPH.scope(func, 0)
            }

            /// Time passes.
            pub fn pass(ticks: u64) {
                NOW.fetch_add(ticks, SeqCst);
            }

            /// The clock is set.
            pub fn set_clock(now: u64) {
                NOW.store(now, SeqCst);
            }

            pub fn now() -> u64 {
                NOW.load(SeqCst)
            }

            /// The CPU runs the other task, or the first again.
            pub fn switch(to_other: bool) {
                let before = stack();
                ON_OTHER.store(to_other.into(), SeqCst);
                FGRAPH.switch(Some(before), Some(stack()));
            }

            /// The running task has this number; 0 gives it its own again.
            pub fn set_task(task: usize) {
                TASK.store(task, SeqCst);
            }

            pub fn set_cpu(cpu: usize) {
                CPU.store(cpu, SeqCst);
            }

            /// Runs `f` as an interrupt of a kind.
            pub fn in_context<R>(context: Context, f: impl FnOnce() -> R) -> R {
                let before = CONTEXT.swap(context as usize, SeqCst);
                let result = f();
                CONTEXT.store(before, SeqCst);
                result
            }

            /// The clock's reading after the next `readings` is interrupted by
            /// `handler`.
            pub fn interrupt_reading(readings: i64, handler: fn()) {
                HANDLER.store(handler as usize, SeqCst);
                FUSE.store(readings, SeqCst);
            }

            /// Whether the interrupt has come; it does not come any more.
            pub fn interrupted() -> bool {
                FUSE.swap(-1, SeqCst) < 0
            }

            fn interrupt() {
                // SAFETY: nothing but a `fn()` is stored there.
                let handler: fn() = unsafe { core::mem::transmute(HANDLER.load(SeqCst)) };
                in_context(Context::Interrupt, handler);
            }
        }
    };
}
