//! Patched entries for the benches: one thread, so text is written with nobody
//! beside it.

use fgraph::CallbackId;
use fgraph::hook::patch::{Patch, PatchText};

use super::tracer::{Bench, attach};

static PATCH: Patch<Bench> = Patch::new();

// SAFETY: the pages are writable while `f` runs, and the program has one
// thread and no signal handlers.
unsafe impl PatchText for Bench {
    fn patch_text<R>(f: impl FnOnce() -> R) -> R {
        unsafe extern "C" {
            static __executable_start: u8;
            static etext: u8;
        }
        let start = (&raw const __executable_start as usize) & !0xfff;
        let len = (&raw const etext as usize - start).next_multiple_of(0x1000);
        let protect = |how| {
            // SAFETY: the program's text, which stays readable and executable.
            let result = unsafe { libc::mprotect(start as *mut libc::c_void, len, how) };
            assert_eq!(result, 0, "text is made writable");
        };
        protect(libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC);
        let result = f();
        protect(libc::PROT_READ | libc::PROT_EXEC);
        result
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
