//! AArch64's own: registers, chains of frame records, signed return addresses
//! and guarded pages, with hooked calls in flight.
#![cfg(all(target_arch = "aarch64", target_os = "linux"))]

#[path = "common/host.rs"]
#[allow(dead_code, unused_imports, reason = "shared with the other tests")]
mod host;

#[path = "aarch64/functions.rs"]
mod functions;
#[path = "aarch64/interrupted.rs"]
mod interrupted;
#[path = "aarch64/registers.rs"]
mod registers;
#[path = "aarch64/unwinding.rs"]
mod unwinding;

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

use fgraph::hook::Registers;
use fgraph::{Callback, CallbackId, Cause, Entry, Exit, RetStack};
use host::FGRAPH;

/// Calls `see` at each entry (true) and each return (false), and counts both.
struct Watch {
    see: fn(bool, Option<&Registers>),
    entries: AtomicUsize,
    returned: AtomicUsize,
    unwound: AtomicUsize,
}

impl Watch {
    fn new(see: fn(bool, Option<&Registers>)) -> &'static Self {
        Box::leak(Box::new(Self {
            see,
            entries: AtomicUsize::new(0),
            returned: AtomicUsize::new(0),
            unwound: AtomicUsize::new(0),
        }))
    }

    fn count() -> &'static Self {
        Self::new(|_, _| {})
    }

    /// Entries, returns, and frames that were unwound.
    fn seen(&self) -> (usize, usize, usize) {
        let [entries, returned, unwound] =
            [&self.entries, &self.returned, &self.unwound].map(|count| count.load(Relaxed));
        (entries, returned, unwound)
    }
}

impl Callback for Watch {
    type Frame = usize;

    fn entry(&self, call: Entry<'_, usize>) -> Option<usize> {
        self.entries.fetch_add(1, Relaxed);
        (self.see)(true, call.registers());
        Some(!call.func())
    }

    fn exit(&self, call: Exit<'_, usize>, data: usize) {
        // A panic here would cross the hook's assembly.
        if data != !call.func() {
            std::process::abort();
        }
        match call.cause() {
            Cause::Returned => {
                self.returned.fetch_add(1, Relaxed);
                (self.see)(false, call.registers());
            }
            _ => {
                self.unwound.fetch_add(1, Relaxed);
            }
        }
    }
}

/// A task that may change what is traced: one at a time.
struct Task {
    stack: &'static RetStack,
    _one: MutexGuard<'static, ()>,
}

impl Task {
    fn new() -> Self {
        static ONE: Mutex<()> = Mutex::new(());
        let one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let stack = host::attach(4096);
        host::init_patch();
        Self { stack, _one: one }
    }

    /// Lets a callback follow the functions while `f` runs.
    fn traced<R>(&self, callback: &'static Watch, funcs: &[usize], f: impl FnOnce() -> R) -> R {
        let following = Following::new(callback, funcs);
        let result = f();
        drop(following);
        assert_eq!(self.stack.depth(), 0);
        result
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        host::resign();
    }
}

struct Following(CallbackId);

impl Following {
    fn new(callback: &'static Watch, funcs: &[usize]) -> Self {
        let id = FGRAPH.register(callback).expect("a slot is free");
        let on = host::PATCH.enable(id, |func| funcs.contains(&func));
        assert_eq!(on, Ok(funcs.len()));
        Self(id)
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let off = host::PATCH.disable(self.0, |_| true);
        let gone = FGRAPH.unregister(self.0);
        assert!(off.is_ok() && gone.is_ok(), "{off:?} {gone:?}");
    }
}
