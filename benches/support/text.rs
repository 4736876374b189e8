//! Patched entries for the benches: one thread, so text is written with nobody
//! beside it.

use fgraph::CallbackId;
use fgraph::hook::patch::{Patch, PatchText};

use super::tracer::{Bench, attach};
use writable::with_writable_text;

#[path = "../../tests/common/writable.rs"]
mod writable;

static PATCH: Patch<Bench> = Patch::new();

// SAFETY: the pages are writable while `f` runs, and the program has one
// thread and no signal handlers.
unsafe impl PatchText for Bench {
    fn patch_text<R>(f: impl FnOnce() -> R) -> R {
        with_writable_text(f)
    }
}

/// Takes the table of this program's functions, once, while a slot is free.
pub fn init() {
    static INIT: std::sync::Once = std::sync::Once::new();
    INIT.call_once(|| {
        attach(4096);
        // SAFETY: this program's own table.
        unsafe { PATCH.init(fgraph::patchable_functions!()) }.expect("the first init");
    });
}

/// Lets the callbacks follow the functions at these addresses, and no other.
pub fn follow(ids: &[CallbackId], functions: &[usize]) {
    init();
    for &id in ids {
        PATCH.disable(id, |_| true).expect("initialised");
        let on = PATCH.enable(id, |func| functions.contains(&func));
        assert_eq!(on, Ok(functions.len()), "all functions can be hooked");
    }
}
