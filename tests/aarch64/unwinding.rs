//! Chains of frame records with hooked calls in flight: told truly, and put
//! back.

use std::arch::asm;
use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::panic::{AssertUnwindSafe, catch_unwind};

use fgraph::RetStack;
use fgraph::fgraph::Call;

use super::functions::{Calling, bare, early, plain, signed_a, signed_b, tail};
use super::{FGRAPH, Following, Task, Watch, host};

#[inline(always)]
fn frame_pointer() -> usize {
    let fp;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, x29", out(reg) fp, options(nomem, nostack)) };
    fp
}

thread_local! {
    /// Where chains end: the frame record of the test.
    static END: Cell<usize> = const { Cell::new(0) };
    static CHAINS: RefCell<Vec<Vec<usize>>> = const { RefCell::new(Vec::new()) };
    static ENDED: Cell<usize> = const { Cell::new(0) };
}

/// The return addresses from `fp` on, as an unwinder tells them: `real` asks
/// the tracer.
fn chain(mut fp: usize, real: bool) -> Vec<usize> {
    let stack = host::attach(0);
    let mut chain = Vec::new();
    while fp < END.get() {
        // SAFETY: a chain of this thread's records, up to the test's.
        let (next, seen) = unsafe { *(fp as *const (usize, usize)) };
        chain.push(if real {
            FGRAPH.real_return(stack, fp + 8, seen)
        } else {
            seen
        });
        assert!(fp < next, "up");
        fp = next;
    }
    chain
}

/// The innermost function: keeps the chain from its caller's record on. What
/// its own return address is differs from call to call.
extern "C" fn look() -> usize {
    let chain = chain(frame_pointer(), true);
    CHAINS.with_borrow_mut(|chains| chains.push(chain[1..].to_vec()));
    7
}

/// Restores, then keeps the chain as it is.
extern "C" fn restore() -> usize {
    // SAFETY: the chain is whole.
    ENDED.set(unsafe { FGRAPH.restore() });
    let chain = chain(frame_pointer(), false);
    CHAINS.with_borrow_mut(|chains| chains.push(chain[1..].to_vec()));
    7
}

/// Runs a function with chains that end here, and returns those it kept.
#[inline(never)]
fn chains_of(f: impl FnOnce()) -> Vec<Vec<usize>> {
    END.set(frame_pointer());
    f();
    END.set(0);
    black_box(());
    CHAINS.take()
}

#[inline(never)]
fn outer(f: Calling, innermost: extern "C" fn() -> usize) -> usize {
    black_box(middle(f, innermost)) + 1
}

#[inline(never)]
fn middle(f: Calling, innermost: extern "C" fn() -> usize) -> usize {
    let words = black_box([1_usize; 100]);
    black_box(f(innermost)) + words[99]
}

type Through = fn(Calling, extern "C" fn() -> usize) -> usize;

fn functions(f: Calling) -> [usize; 3] {
    [
        outer as Through as usize,
        middle as Through as usize,
        f as usize,
    ]
}

const ALL: [(&str, Calling); 5] = [
    ("plain", plain),
    ("signed with A", signed_a),
    ("signed with B", signed_b),
    ("without a record", bare),
    ("tail-called", tail),
];

/// The same call from the same place.
#[inline(never)]
fn run(f: Calling, innermost: extern "C" fn() -> usize) {
    assert_eq!(outer(f, innermost), 9);
}

#[test]
fn an_unwinder_is_told_what_it_would_have_found() {
    let task = Task::new();
    for (name, f) in ALL {
        let look = |traced: &[usize]| {
            chains_of(|| {
                let following =
                    (!traced.is_empty()).then(|| Following::new(Watch::count(), traced));
                run(f, look);
                drop(following);
            })
        };
        let strip = |chains: Vec<Vec<usize>>| -> Vec<usize> {
            chains.concat().into_iter().map(stripped).collect()
        };
        let expected = strip(look(&[]));
        assert!(expected.len() >= 3, "{name}");
        let all = functions(f);
        let both = [all.as_slice(), &[plain as Calling as usize]].concat();
        let mut sets: Vec<&[usize]> = vec![&all, &all[..1], &all[1..2], &all[2..]];
        if f as usize == tail as Calling as usize {
            sets.push(&both);
            sets.push(&both[2..]);
            sets.push(&both[3..]);
        }
        for traced in sets {
            assert_eq!(
                strip(look(traced)),
                expected,
                "{name}, {traced:x?} of {both:x?}"
            );
        }
    }
    drop(task);
}

/// Without its signature.
fn stripped(mut address: usize) -> usize {
    // SAFETY: computes.
    unsafe {
        asm!("mov x30, {0}", "hint #7", "mov {0}, x30", inout(reg) address, out("x30") _);
    }
    address
}

#[test]
fn a_callback_finds_the_callers_at_entry_and_at_return() {
    let task = Task::new();
    let watch = Watch::new(|_, _| {
        let chain = chain(frame_pointer(), true);
        CHAINS.with_borrow_mut(|chains| chains.push(chain));
    });
    let func = plain as Calling as usize;
    let chains = chains_of(|| task.traced(watch, &[func], || run(plain, look)));
    let [entry, inside, exit] = chains.as_slice() else {
        panic!("{} chains", chains.len());
    };
    // Inside, the first is the function's own return address.
    assert!(inside.len() >= 4);
    assert!(
        entry.len() > inside.len() && entry.ends_with(inside),
        "entry"
    );
    assert!(exit.len() > inside.len() && exit.ends_with(inside), "exit");
}

#[test]
fn restored_calls_return_on_their_own() {
    let task = Task::new();
    for (name, f) in ALL {
        if f as usize == bare as Calling as usize {
            continue;
        }
        let mut traced = functions(f).to_vec();
        if f as usize == tail as Calling as usize {
            traced.push(plain as Calling as usize);
        }
        let frames = traced.len();
        let watch = Watch::count();
        let go = || run(f, restore);
        // As it lies on the stack.
        let expected = chains_of(go).concat();
        let got = task.traced(watch, &traced, || chains_of(go)).concat();
        let strip =
            |chain: &[usize]| -> Vec<usize> { chain.iter().copied().map(stripped).collect() };
        assert_eq!(strip(&got), strip(&expected), "{name}");
        // A signature depends on the stack pointer. That it is the right one
        // is shown by the function's return.
        let is_signed = |chain: &[usize]| chain[0] != stripped(chain[0]);
        assert_eq!(is_signed(&got), is_signed(&expected), "{name}");
        assert_eq!(is_signed(&got), name.starts_with("signed"), "{name}");
        assert_eq!(ENDED.get(), frames, "{name}");
        assert_eq!(watch.seen(), (frames, 0, frames), "{name}");
    }
}

/// A last call may be a jump, from a function whose record is then overwritten.
#[test]
fn a_restore_that_is_a_last_call_finds_all() {
    #[inline(never)]
    extern "C" fn last() -> usize {
        // SAFETY: the chain is whole.
        unsafe { FGRAPH.restore() }
    }
    #[inline(never)]
    fn calling(depth: usize) -> usize {
        let below = if depth == 0 {
            last()
        } else {
            calling(depth - 1)
        };
        black_box(below)
    }
    let task = Task::new();
    let watch = Watch::count();
    let traced = [calling as fn(_) -> _ as usize];
    let ended = task.traced(watch, &traced, || calling(5));
    assert_eq!(ended, 6);
    assert_eq!(watch.seen(), (6, 0, 6));
}

/// Its return address can not be found: then every frame stays, and it still
/// returns through the hook.
#[test]
fn a_function_without_a_record_keeps_all_frames() {
    let task = Task::new();
    let watch = Watch::count();
    task.traced(watch, &functions(bare), || {
        chains_of(|| run(bare, restore));
        assert_eq!((ENDED.get(), watch.seen()), (0, (3, 1, 0)));
        // The two that were restored returned past the hook; the next calls
        // prove it.
        chains_of(|| run(bare, look));
    });
    assert_eq!(watch.seen(), (6, 4, 2));
}

#[test]
fn a_panic_goes_through_hooked_calls() {
    let task = Task::new();
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {
        // SAFETY: the chain is whole.
        ENDED.set(unsafe { FGRAPH.restore() });
    }));
    let watch = Watch::count();
    #[inline(never)]
    extern "C-unwind" fn inner() {
        black_box(());
        panics_unwinding();
    }
    #[inline(never)]
    extern "C-unwind" fn panics_unwinding() {
        panic!("through hooked calls");
    }
    type Plain = extern "C-unwind" fn();
    let traced = [inner as Plain as usize, panics_unwinding as Plain as usize];
    let (result, again) = task.traced(watch, &traced, || {
        let result = catch_unwind(AssertUnwindSafe(|| inner()));
        let ended = ENDED.get();
        // Traced again, and restored again.
        let again = catch_unwind(AssertUnwindSafe(|| inner()));
        (result.is_err() && ended == 2, again.is_err())
    });
    std::panic::set_hook(hook);
    assert!(result && again);
    assert_eq!(watch.seen(), (4, 0, 4));
}

/// Interrupted before its prologue, or in a leaf: the address is in `x30`.
#[test]
fn an_address_in_the_link_register_is_told_by_the_stack_pointer() {
    extern "C" fn ask(link: usize, sp: usize) -> usize {
        FGRAPH.real_return(host::attach(0), sp - 8, link)
    }
    extern "C" fn link(link: usize, _: usize) -> usize {
        link
    }
    #[inline(never)]
    fn from_one_place(f: extern "C" fn(usize, usize) -> usize) -> usize {
        black_box(early(f))
    }
    let task = Task::new();
    let expected = from_one_place(link);
    assert_eq!(from_one_place(ask), expected);
    let watch = Watch::count();
    let traced = [
        early as extern "C" fn(_) -> _ as usize,
        from_one_place as fn(_) -> _ as usize,
    ];
    task.traced(watch, &traced, || {
        assert_ne!(from_one_place(link), expected);
        assert_eq!(from_one_place(ask), expected);
    });
    assert_eq!(watch.seen(), (4, 4, 0));
}

/// A call was jumped out of, and now a body has its slot inside of its frame,
/// above the frame record: on a stack of which nothing is known, on one that is
/// known to be an interrupt's, and where a handler runs on one above.
#[test]
fn a_dead_frame_inside_a_living_one_is_not_its() {
    thread_local! {
        static ASK: Cell<fn(usize) -> usize> = const { Cell::new(|_| 0) };
        static TOLD: Cell<usize> = const { Cell::new(0) };
    }
    fn own() -> &'static RetStack {
        host::attach(0)
    }
    fn enter(slot: usize) {
        let func = enter as fn(usize) as usize;
        let call = Call {
            func,
            ret: func + 4,
            slot,
            tail: false,
            registers: None,
        };
        // SAFETY: it is never left, and so nothing is written.
        assert!(unsafe { FGRAPH.enter(&call, usize::MAX) });
    }
    /// Asks for the caller of the calling body, by its record.
    fn told(fp: usize) -> usize {
        // SAFETY: a frame record of this thread.
        let seen = unsafe { *((fp + 8) as *const usize) };
        FGRAPH.real_return(own(), fp + 8, seen)
    }
    extern "C" fn innermost() -> usize {
        // SAFETY: this function's record leads to its caller's.
        let fp = unsafe { *(frame_pointer() as *const usize) };
        TOLD.set(ASK.get()(fp));
        7
    }
    #[inline(never)]
    fn from_one_place(dead: Option<usize>) -> usize {
        if let Some(slot) = dead {
            enter(slot);
        }
        black_box(plain(innermost))
    }
    fn seen(fp: usize) -> usize {
        // SAFETY: as in `told`.
        unsafe { *((fp + 8) as *const usize) }
    }

    let task = Task::new();
    let func = plain as Calling as usize;
    let go = |dead: Option<usize>, ask: fn(usize) -> usize| {
        // The bounds of the real stack are not known.
        let here = frame_pointer();
        let stack: &'static RetStack = Box::leak(Box::default());
        stack
            .attach(Box::leak(vec![0; 256].into_boxed_slice()), here..here)
            .expect("a new stack takes its words");
        ASK.set(ask);
        let before = host::replace_current(Some(stack));
        assert_eq!(from_one_place(dead), 7);
        host::replace_current(before);
        host::set_interrupt_stack(0..0);
        assert_eq!(stack.depth(), usize::from(dead.is_some()));
        TOLD.get()
    };
    let caller = go(None, seen);
    let following = Following::new(Watch::count(), &[func]);
    let hooked = go(None, seen);
    let slot = go(None, |_| {
        own().frames().next().map_or(0, |frame| frame.slot)
    });
    assert_ne!(hooked, caller);
    assert_eq!(go(None, told), caller, "no dead frame");
    // Which of the two it is can not be told.
    assert_eq!(go(Some(slot - 8), told), hooked, "nothing is known");
    let restored = go(Some(slot - 8), |_| {
        // SAFETY: the chain is whole.
        unsafe { FGRAPH.restore() }
    });
    assert_eq!(restored, 0, "and the call returned through the hook");
    let known = go(Some(slot - 8), |fp| {
        host::set_interrupt_stack(fp - 0x1000..fp + 0x1000);
        told(fp)
    });
    assert_eq!(known, caller, "a known stack");
    let handler = go(None, |fp| {
        let above = fp + 0x10_0000;
        host::set_interrupt_stack(above..above + 0x1000);
        enter(above + 8);
        told(fp)
    });
    assert_eq!(handler, caller, "a handler above");
    drop(following);
    drop(task);
}
