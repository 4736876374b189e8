//! C functions, compiled with `-pg`.

use crate::graph::{Event, print, short, trace};
use crate::host;

unsafe extern "C" {
    fn c_leaf(a: i64, b: i64, c: i64, d: i64, e: i64, f: i64, g: i64) -> i64;
    fn c_middle(n: i64) -> i64;
    fn c_top(n: i64) -> i64;
    fn c_varargs(n: i32, ...) -> f64;
    fn c_calls_varargs() -> f64;
    fn c_nested(n: i64) -> i64;
    fn c_calls_large(by: i64) -> i64;
    fn c_dive(n: i64) -> i64;
    fn c_jumper(n: i64) -> i64;
    fn c_ping(n: i64, sum: i64) -> i64;
    fn c_pong(n: i64, sum: i64) -> i64;
    fn c_tail(n: i64, reached: *mut usize) -> i64;
    fn c_nothing();
}

fn names() -> Vec<(usize, &'static str)> {
    vec![
        (c_leaf as *const () as usize, "leaf"),
        (c_middle as *const () as usize, "middle"),
        (c_top as *const () as usize, "top"),
        (c_varargs as *const () as usize, "varargs"),
        (c_calls_varargs as *const () as usize, "calls_varargs"),
        (c_nested as *const () as usize, "nested"),
        (c_dive as *const () as usize, "dive"),
        (c_jumper as *const () as usize, "jumper"),
        (c_ping as *const () as usize, "ping"),
        (c_pong as *const () as usize, "pong"),
        (c_tail as *const () as usize, "tail"),
        (c_nothing as *const () as usize, "nothing"),
    ]
}

pub fn all() {
    // SAFETY: none of them asks for anything of its caller.
    unsafe {
        calls();
        jumps();
        tails();
    }
}

unsafe fn calls() {
    let names = names();
    // SAFETY: the caller's.
    let call = || unsafe {
        c_nothing();
        (c_top(5), c_calls_varargs(), c_nested(9), c_calls_large(2))
    };
    let untraced = call();
    let (traced, events) = trace(&names, call);
    assert_eq!(traced, untraced);
    assert_eq!(traced.1, 6.875);
    print(&events);
    let expected = "+nothing -nothing +top +middle +leaf -leaf +leaf -leaf -middle +leaf -leaf \
                    -top +calls_varargs +varargs -varargs -calls_varargs +nested";
    assert!(short(&events).starts_with(expected), "{}", short(&events));
    let top = events.iter().find(|event| names[2].0 == event.func);
    let top = top.expect("seen");
    // At a function's entry its address and its arguments are known.
    if cfg!(feature = "fentry") {
        assert_eq!(top.value, Some(5));
    }
    let end = events.iter().rfind(|event| event.func == top.func);
    assert_eq!(end.and_then(|event| event.value), Some(traced.0 as usize));
}

unsafe fn jumps() {
    for depth in [0, 1, 9, 999] {
        // SAFETY: the caller's.
        let (thrown, events) = trace(&names(), || unsafe { (c_jumper(depth), c_top(1)) });
        assert_eq!(thrown.0, 77 + depth);
        let dives = vec!["+dive"; depth as usize + 1].join(" ");
        let ends = vec!["!dive"; depth as usize + 1].join(" ");
        let expected = format!("+jumper {dives} {ends} -jumper +top");
        assert!(short(&events).starts_with(&expected), "{}", short(&events));
        assert!(short(&events).ends_with("-top"));
    }
}

unsafe fn tails() {
    const CALLS: usize = 1000;
    let mut reached = [0; 2];
    let [untraced, traced] = &mut reached;
    // SAFETY: the caller's.
    let call = |reached: &mut usize| unsafe { c_tail(CALLS as i64, reached) };
    let sum = call(untraced);
    let (again, events) = trace(&names(), || call(traced));
    assert_eq!(sum, again);
    let overruns = host::attach(0).counters().overruns;
    assert_eq!(overruns, 0);
    let events: Vec<Event> = events;
    assert_eq!(events.len(), 2 * (CALLS + 2));
    let (entries, exits) = events[1..events.len() - 1].split_at(CALLS + 1);
    for (i, entry) in entries.iter().enumerate() {
        let exit = exits[CALLS - i];
        assert_eq!((entry.what, exit.what), ('+', '-'));
        assert_eq!((entry.func, entry.slot), (exit.func, exit.slot));
        // Each shows the true caller, and all are on one slot.
        assert_eq!(
            (entry.caller, entry.slot),
            (entries[0].caller, entries[0].slot)
        );
        assert!(entry.caller.wrapping_sub(events[0].func) < 4096);
    }
    // The real stack is as deep as for one call, traced or not.
    assert!(reached[0] - reached[1] < 4096, "{reached:x?}");
    let mut one = 0;
    // SAFETY: the caller's.
    let _ = trace(&[], || unsafe { c_tail(1, &mut one) });
    assert!(one - reached[1] < 256, "{one:x} {reached:x?}");
}
