//! This program's text, made writable for a while.

use std::ops::Range;

/// The pages that hold functions: from the lowest that is listed to the end of
/// the code. Not from the start of the program, for a page between its
/// read-only data and its code may be mapped to nothing.
fn text() -> Range<usize> {
    unsafe extern "C" {
        static etext: u8;
    }
    // SAFETY: no memory is passed.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let end = &raw const etext as usize;
    let start = fgraph::patchable_functions!().iter().min();
    let start = start.map_or(end, |&lowest| lowest & !(page - 1));
    start..end.next_multiple_of(page)
}

/// Runs `f` while the text is writable, and executable as always.
pub fn with_writable_text<R>(f: impl FnOnce() -> R) -> R {
    let text = text();
    let protect = |how| {
        let start = text.start as *mut libc::c_void;
        // SAFETY: the range is this program's text, which stays readable and
        // executable.
        let failed = unsafe { libc::mprotect(start, text.len(), how) } != 0;
        assert!(!failed, "mprotect: {}", std::io::Error::last_os_error());
    };
    protect(libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC);
    let result = f();
    protect(libc::PROT_READ | libc::PROT_EXEC);
    result
}
