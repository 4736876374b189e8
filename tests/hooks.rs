//! Calls caught by the hooks, through the public API.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[path = "common/host.rs"]
#[allow(dead_code)]
mod host;

use fgraph::{Callback, Entry, Exit};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

struct Count(AtomicUsize, AtomicUsize);
impl Callback for Count {
    type Frame = usize;
    fn entry(&self, call: Entry<'_, usize>) -> Option<usize> {
        self.0.fetch_add(1, Relaxed);
        Some(call.func())
    }
    fn exit(&self, call: Exit<'_, usize>, data: usize) {
        assert_eq!(call.func(), data);
        self.1.fetch_add(1, Relaxed);
    }
}
static COUNT: Count = Count(AtomicUsize::new(0), AtomicUsize::new(0));

#[inline(never)]
fn fib(n: u64) -> u64 {
    if n < 2 { n } else { fib(n - 1) + fib(n - 2) }
}

#[test]
fn everything() {
    let patch = host::init_patch();
    let n = patch.functions().count();
    let id = host::FGRAPH.register(&COUNT).unwrap();
    let on = patch.enable(id, |_| true).unwrap();
    let v = fib(20);
    let s = format!("{:?}", vec![1, 2, 3]);
    patch.disable(id, |_| true).unwrap();
    println!("{v} {s} {n} {on} {:?}", COUNT.0);
    assert_eq!(COUNT.0.load(Relaxed), COUNT.1.load(Relaxed));
    host::FGRAPH.unregister(id).unwrap();
}
