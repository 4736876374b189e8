//! What does reading a shadow stack cost: a walk, and one return address?

use std::cell::RefCell;
use std::hint::black_box;

mod support;

use support::text::follow;
use support::tracer::{FGRAPH, attach, register};
use support::{Effort, line, nanoseconds};

thread_local! {
    static TIMES: RefCell<Vec<f64>> = const { RefCell::new(Vec::new()) };
}

#[inline(never)]
fn descend(depth: usize, effort: Effort) -> usize {
    if depth > 1 {
        return black_box(descend(black_box(depth - 1), effort)) + 1;
    }
    measure(effort);
    1
}

#[inline(never)]
fn measure(effort: Effort) {
    let stack = attach(0);
    assert_eq!(stack.depth(), 50);
    let newest = stack.frames().next().expect("50 frames");
    // SAFETY: a live call's return slot.
    let seen = unsafe { (newest.slot as *const usize).read() };
    assert_ne!(seen, newest.ret, "the slot is hooked");
    assert_eq!(FGRAPH.real_return(stack, newest.slot, seen), newest.ret);

    let mut empty = |calls| {
        for call in 0..calls {
            black_box(call);
        }
    };
    let mut walk = |calls| {
        for _ in 0..calls {
            let sum = |sum: usize, frame: fgraph::ret_stack::Frame| sum.wrapping_add(frame.ret);
            black_box(black_box(stack).frames().fold(0, sum));
        }
    };
    let mut look_up = |calls| {
        for _ in 0..calls {
            let slot = black_box(newest.slot);
            black_box(FGRAPH.real_return(black_box(stack), slot, seen));
        }
    };
    let times = nanoseconds(effort, &mut [&mut empty, &mut walk, &mut look_up]);
    TIMES.replace(times);
}

fn main() {
    let effort = Effort::from_args();
    let ids = register(1, ());
    follow(&ids, &[descend as fn(usize, Effort) -> usize as usize]);
    assert_eq!(descend(50, effort), 50);
    let times = TIMES.take();
    line("walk/50", times[1] - times[0], "ns");
    line("walk/newest", times[2] - times[0], "ns");
}
