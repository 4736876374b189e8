//! Sums of threads that signals interrupt.

use std::cell::Cell;
use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use fgraph::Context;
use fgraph::tracer::Profile;
use fgraph::tracer::profile::Row;

use super::{IRQ, figures, own};
use crate::host::{self, Host};

static ROWS: [Row; 64] = [const { Row::new() }; 64];
static PROFILE: Profile<Host> = Profile::new(&ROWS);
static SIGNALS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Inside the root: a signal's calls are inside it too.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

extern "C" fn handler(_: libc::c_int) {
    if INSIDE.get() {
        host::in_context(Context::Interrupt, || {
            let _irq = host::FGRAPH.scope(IRQ, 0);
            SIGNALS.fetch_add(1, SeqCst);
        });
    }
}

fn work(depth: usize) {
    let _scope = host::FGRAPH.scope(depth * 0x1000, 0);
    if depth < 6 {
        work(depth + 1);
        work(depth + 2);
    }
}

/// Signals arrive at any instruction of a thread that is profiled, and
/// other threads count in the same rows.
#[test]
fn sums_hold_under_interrupts_at_any_instruction() {
    let id = host::FGRAPH.register(&PROFILE).unwrap();
    let handler = handler as extern "C" fn(libc::c_int) as usize;
    // SAFETY: the handler traces and counts, nothing else.
    unsafe { libc::signal(libc::SIGUSR1, handler) };
    let rounds = 300;
    let threads: Vec<_> = (0..2)
        .map(|i| {
            std::thread::spawn(move || {
                host::attach(4096);
                for _ in 0..rounds {
                    let _root = host::FGRAPH.scope(0xa_0000 + i * 0x1000, 0);
                    INSIDE.set(true);
                    work(1);
                    INSIDE.set(false);
                }
            })
        })
        .collect();
    while !threads.iter().all(|thread| thread.is_finished()) {
        for thread in threads.iter().filter(|thread| !thread.is_finished()) {
            // SAFETY: not joined yet.
            unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGUSR1) };
        }
    }
    threads.into_iter().for_each(|thread| drop(thread.join()));
    host::FGRAPH.unregister(id).unwrap();
    let calls: u64 = (0..2)
        .map(|i| figures(&PROFILE, 0xa_0000 + i * 0x1000).0)
        .sum();
    assert_eq!(calls, 2 * rounds);
    let roots = |i: usize| figures(&PROFILE, 0xa_0000 + i * 0x1000).1;
    assert_eq!(own(&PROFILE), roots(0) + roots(1));
    assert_eq!(PROFILE.backwards(), 0);
    assert_eq!(figures(&PROFILE, 0x1000).0, 2 * rounds);
    // 1, 1, 2, 3, 5, 8: as many ways lead down.
    assert_eq!(figures(&PROFILE, 0x6000).0, 8 * 2 * rounds);
    assert_eq!(figures(&PROFILE, IRQ).0, SIGNALS.load(SeqCst));
    assert_eq!(PROFILE.others().hits, 0);
}
