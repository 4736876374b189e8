//! The model again, with a tracer that knows where its hook's calls return to:
//! restoring and unwinding among random operations.
//!
//! A program of its own, since the hook writes text while no other test runs.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

#[path = "common/host.rs"]
#[allow(dead_code, unused_imports, reason = "shared with the other tests")]
mod host;
#[path = "model/random.rs"]
mod random;
#[path = "model/real.rs"]
mod real;
#[path = "model/reference.rs"]
mod reference;
#[path = "model/world.rs"]
mod world;

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use fgraph::hook::Global;
use fgraph::hook::patch::{Patch, PatchText};
use fgraph::{Callback, Entry, Exit, Fgraph, RetStack};

use real::{Real, Sim};
use reference::Reference;
use world::play;

static FGRAPH: Fgraph<Sim> = Fgraph::new();
static PATCH: Patch<Sim> = Patch::new();

impl Global for Sim {
    fn fgraph() -> &'static Fgraph<Self> {
        &FGRAPH
    }
}

// SAFETY: the host's.
unsafe impl PatchText for Sim {
    fn patch_text<R>(f: impl FnOnce() -> R) -> R {
        <host::Host as PatchText>::patch_text(f)
    }
}

/// Sees where a hooked call returns to.
struct Probe(AtomicUsize);

impl Callback for Probe {
    type Frame = ();

    fn entry(&self, call: Entry<'_, ()>) -> Option<()> {
        self.0.store(call.return_slot(), Relaxed);
        Some(())
    }

    fn exit(&self, _: Exit<'_, ()>, (): ()) {}
}

static PROBE: Probe = Probe(AtomicUsize::new(0));

#[inline(never)]
fn probed() -> usize {
    let slot = PROBE.0.load(Relaxed) as *const usize;
    // SAFETY: this call's own return slot, if it is hooked.
    unsafe { slot.read_volatile() }
}

/// The address to which hooked calls return.
fn stub() -> usize {
    let stack: &'static RetStack = Box::leak(Box::default());
    let words = Box::leak(vec![0; 256].into_boxed_slice());
    stack.attach(words, host::real_stack()).unwrap();
    real::with_current(stack, || {
        // SAFETY: this program's own table.
        unsafe { PATCH.init(fgraph::patchable_functions!()) }.unwrap();
        let id = FGRAPH.register(&PROBE).unwrap();
        let probe = probed as fn() -> usize as usize;
        assert_eq!(PATCH.enable(id, |func| func == probe), Ok(1));
        let stub = probed();
        PATCH.disable(id, |_| true).unwrap();
        FGRAPH.unregister(id).unwrap();
        stub
    })
}

#[test]
fn hooked() {
    let stub = stub();
    // As many registrations as were before; the slots are free again.
    let epoch = std::cell::Cell::new(1);
    random::check("hooked", random::wanted() * 12 / 100, |steps, memory| {
        let real = Real::of(&FGRAPH);
        let got = play(&real, steps, memory, stub, true);
        let reference = Reference::new(16, epoch.get(), Some(stub));
        let expected = play(&reference, steps, memory, stub, true);
        epoch.set(epoch.get() + reference.registrations());
        random::difference(&got, &expected)
    });
    assert!(epoch.get() > 1);
}
