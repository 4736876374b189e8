//! Damage: flipped bits, arbitrary memory, a platform that lies, callbacks
//! that panic or do not return.

mod common;
#[path = "faults/damaged.rs"]
mod damaged;
#[path = "faults/flips.rs"]
mod flips;
#[path = "fuzz/inputs.rs"]
mod inputs;
#[path = "faults/liar.rs"]
mod liar;
#[path = "faults/panics.rs"]
mod panics;

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use common::own::{self, Own};
use fgraph::tracer::{Buffer, Cursor, Full, Graph, Open, Record, Scale, Trace};

/// Numbers that look random and are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// Runs `what` on inputs of all lengths; `FGRAPH_INPUTS=N` on N of them.
fn tried(name: &str, inputs: usize, seed: u64, what: fn(&[u8])) {
    let wanted = std::env::var("FGRAPH_INPUTS").ok();
    let inputs = wanted.and_then(|n| n.parse().ok()).unwrap_or(inputs);
    let mut numbers = Numbers(seed);
    for _ in 0..inputs {
        let len = numbers.below(1500);
        // Few bits, many bits, or only some bytes.
        let how = numbers.next();
        let mut byte = || {
            let n = numbers.next();
            match how % 4 {
                0 => n as u8,
                1 => (n & n >> 8 & n >> 16) as u8,
                2 => (n | n >> 8 | n >> 16) as u8,
                _ if n >> 62 == 0 => (n >> 8) as u8,
                _ => 0,
            }
        };
        let input: Vec<u8> = (0..len).map(|_| byte()).collect();
        what(&input);
    }
    println!("{name}: {inputs} inputs tried");
}

#[test]
fn arbitrary_words() {
    tried("words", 20_000, 1, inputs::words);
}

#[test]
fn arbitrary_records() {
    tried("records", 500, 2, inputs::records);
}

/// A damaged record leads a live reader beyond the newest one; when it is
/// mended, the reader is ahead of all that was written.
#[test]
fn reader_that_is_ahead_of_the_newest_record() {
    static RECORDS: [Record; 64] = [const { Record::new() }; 64];
    static BUFFERS: [Buffer; 1] = [Buffer::new(&RECORDS, Full::Overwrite)];
    static GRAPH: Graph<Own> = Graph::new(&BUFFERS);

    own::with_stack(64);
    let fgraph = own::fgraph();
    fgraph.register(&GRAPH).unwrap();
    let call = || drop(fgraph.scope(1, 0));
    (0..5).for_each(|_| call());
    let newest = BUFFERS[0].written();
    let state = |at: usize| {
        // SAFETY: a record is four atomic words of any value; the last tells
        // who holds it.
        unsafe { &*(&raw const RECORDS[at]).cast::<AtomicU32>().add(3) }
    };
    let mut cursors = [const { Cursor::new() }; 1];
    let mut open = [const { Open::new() }; 8];
    let mut live = Trace::live(&BUFFERS, Scale::NANOSECONDS, &mut cursors, &mut open).unwrap();
    let before = state(newest).load(Relaxed);
    for at in newest..newest + 3 {
        state(at).store(state(newest - 1).load(Relaxed), Relaxed);
    }
    assert!(live.by_ref().take(1000).count() < 1000);
    for at in newest..newest + 3 {
        state(at).store(before, Relaxed);
    }
    // What it does next, it does at once.
    assert_eq!(live.by_ref().take(1000).count(), 0);
    call();
    live.finish();
    assert!(live.take(1000).count() < 1000);
}

#[test]
fn no_input_and_all_ones() {
    for len in [0, 1, 2, 7, 100, 4000] {
        inputs::words(&vec![0; len]);
        inputs::words(&vec![255; len]);
        inputs::records(&vec![0; len]);
        inputs::records(&vec![255; len]);
    }
}
