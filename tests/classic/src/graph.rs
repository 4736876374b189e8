//! The callback of this program: it records what it sees of some functions,
//! as all functions of the program come by.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use fgraph::{Callback, Cause, Entry, Exit};

use crate::host::FGRAPH;

/// What was seen of a call: `+` its entry, `-` its return, `!` unwound.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Event {
    pub what: char,
    pub func: usize,
    pub caller: usize,
    pub slot: usize,
    pub value: Option<usize>,
}

#[derive(Clone, Copy)]
struct Wanted {
    name: &'static str,
    func: usize,
}

/// How far into a function its hook's call may lie.
const PROLOGUE: usize = 64;

static WANTED: Mutex<Vec<Wanted>> = Mutex::new(Vec::new());
static EVENTS: Mutex<Vec<Event>> = Mutex::new(Vec::new());
static SEEN: AtomicUsize = AtomicUsize::new(0);

/// The wanted function that `address` lies in the prologue of.
fn find(address: usize) -> Option<usize> {
    let wanted = WANTED.lock().expect("not poisoned");
    let inside = |wanted: &&Wanted| address.wrapping_sub(wanted.func) < PROLOGUE;
    wanted.iter().filter(inside).map(|wanted| wanted.func).max()
}

struct Graph;
static GRAPH: Graph = Graph;

impl Graph {
    fn push(&self, event: Event) {
        EVENTS.lock().expect("not poisoned").push(event);
    }
}

impl Callback for Graph {
    type Frame = [usize; 2];

    fn entry(&self, call: Entry<'_, [usize; 2]>) -> Option<[usize; 2]> {
        SEEN.fetch_add(1, Relaxed);
        let func = find(call.func())?;
        self.push(Event {
            what: '+',
            func,
            caller: call.caller(),
            slot: call.return_slot(),
            value: call.registers().and_then(|r| r.argument(0)),
        });
        Some([func, !call.return_slot()])
    }

    fn exit(&self, call: Exit<'_, [usize; 2]>, [func, slot]: [usize; 2]) {
        let damaged = slot != !call.return_slot();
        self.push(Event {
            what: match call.cause() {
                _ if damaged => '?',
                Cause::Returned => '-',
                Cause::Unwound => '!',
                Cause::TaskExit => 'x',
            },
            func,
            caller: call.caller(),
            slot: call.return_slot(),
            value: call.return_value(),
        });
    }
}

/// How many entries were seen, of all functions.
pub fn seen() -> usize {
    SEEN.load(Relaxed)
}

/// Runs `f` while the callback is registered; what it saw of the functions of
/// `names`.
pub fn trace<R>(names: &[(usize, &'static str)], f: impl FnOnce() -> R) -> (R, Vec<Event>) {
    *WANTED.lock().expect("not poisoned") = names
        .iter()
        .map(|&(func, name)| Wanted { name, func })
        .collect();
    EVENTS.lock().expect("not poisoned").clear();
    let id = FGRAPH.register(&GRAPH).expect("a slot is free");
    let result = f();
    FGRAPH.unregister(id).expect("registered");
    (
        result,
        std::mem::take(&mut EVENTS.lock().expect("not poisoned")),
    )
}

/// The events in short: `+outer +inner -inner -outer`.
pub fn short(events: &[Event]) -> String {
    let one = |event: &Event| format!("{}{}", event.what, name(event.func));
    events.iter().map(one).collect::<Vec<_>>().join(" ")
}

fn name(func: usize) -> &'static str {
    let wanted = WANTED.lock().expect("not poisoned");
    let found = wanted.iter().find(|wanted| wanted.func == func);
    found.map_or("?", |wanted| wanted.name)
}

/// Prints the events as a graph.
pub fn print(events: &[Event]) {
    let mut depth = 0;
    for (i, event) in events.iter().enumerate() {
        let name = name(event.func);
        let leaf = |at: usize| {
            let pair = events.get(at).zip(events.get(at + 1));
            pair.is_some_and(|(a, b)| a.what == '+' && b.what != '+' && a.func == b.func)
        };
        match event.what {
            '+' if leaf(i) => println!("{:depth$}{name}();", ""),
            '+' => {
                println!("{:depth$}{name}() {{", "");
                depth += 2;
            }
            _ if i > 0 && leaf(i - 1) => {}
            _ => {
                depth -= 2;
                println!("{:depth$}}} {name}", "");
            }
        }
    }
}
