//! How many bytes do frames and tasks take? Found by filling shadow stacks,
//! not by adding up sizes.

mod support;

use fgraph::ret_stack::words_for;
use fgraph::{FrameData, RetStack};
use support::line;
use support::tracer::{attach, push, register, unregister};

const WORD: usize = size_of::<usize>();

/// The words that are in use with `depth` frames, whose callbacks are
/// registered.
fn used(depth: usize, near: bool) -> usize {
    let stack = attach(1 << 16);
    let before = stack.high_water();
    assert_eq!(before, 0, "a stack that was never used");
    // On the real stack, as return slots are.
    let slots = [0; 128];
    push(&slots[..depth], near);
    stack.high_water()
}

/// Prints the bytes that one frame takes: the difference of two depths. Each
/// case runs in a thread of its own, on a stack of its own.
fn frame<D: FrameData + Sync + Send>(name: &str, callbacks: usize, data: D, near: bool) {
    let words = std::thread::scope(|scope| {
        let run = |depth| {
            let thread = scope.spawn(move || used(depth, near));
            thread.join().expect("the frames fit")
        };
        let ids = register(callbacks, data);
        let words = run(101) - run(1);
        unregister(ids);
        words
    });
    line(name, (words * WORD) as f64 / 100.0, "bytes");
}

fn task<D: FrameData + Sync + Send>(name: &str, callbacks: usize, data: D) {
    let ids = register(callbacks, data);
    let words = std::thread::spawn(|| used(50, true)).join();
    unregister(ids);
    let bytes = words.expect("the frames fit") * WORD;
    line(name, bytes as f64, "bytes");
}

fn main() {
    for callbacks in [1, 2, 16] {
        frame(&format!("frame/near/cb={callbacks}"), callbacks, (), true);
        let name = format!("frame/near/cb={callbacks}/data=1");
        frame(&name, callbacks, 7_usize, true);
    }
    frame("frame/wide/cb=1", 1, (), false);
    frame("frame/wide/cb=1/data=1", 1, 7_usize, false);
    for callbacks in [1, 2, 16] {
        task(&format!("task/depth=50/cb={callbacks}"), callbacks, ());
        let name = format!("task/depth=50/cb={callbacks}/data=1");
        task(&name, callbacks, 7_usize);
    }
    line("task/control", size_of::<RetStack>() as f64, "bytes");
    line(
        "page/frames/cb=1",
        (4096 / (words_for(1, &[]) * WORD)) as f64,
        "frames",
    );
    line(
        "page/frames/cb=1/data=1",
        (4096 / (words_for(1, &[1]) * WORD)) as f64,
        "frames",
    );
    println!("# for comparison, the patch that this layout answers, with 16 callbacks:");
    println!("# 168 bytes a frame, 8400 bytes a task of 50 frames; 1280 bytes before it");
}
