//! The profile's figures, exactly.
#[macro_use]
#[path = "common/fake.rs"]
mod fake;
#[path = "profile/again.rs"]
mod again;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[path = "common/host.rs"]
#[allow(dead_code, unused_imports, reason = "shared with the other tests")]
mod host;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[path = "profile/real.rs"]
mod real;
#[path = "profile/report.rs"]
mod report;

use fgraph::tracer::Profile;
use fgraph::tracer::filter::{Filtered, MinDuration, Predicate};
use fgraph::tracer::profile::{Order, Row, Summary};
use fgraph::{Context, Platform};

const A: usize = 0x1000;
const B: usize = 0x2000;
const C: usize = 0x3000;
const IRQ: usize = 0x8000;

/// `(hits, total, own)`.
fn figures<P: Platform, const N: usize>(profile: &Profile<P, N>, func: usize) -> (u64, u64, u64) {
    let summary = profile.get(func).unwrap_or_default();
    (summary.hits, summary.total, summary.own)
}

fn own<P: Platform, const N: usize>(profile: &Profile<P, N>) -> u64 {
    profile.summaries().map(|line| line.own).sum::<u64>() + profile.others().own
}

kernel!(tree);

#[test]
fn a_tree_is_told_by_total_and_own_time() {
    static ROWS: [Row<8>; 32] = [const { Row::new() }; 32];
    static PROFILE: Profile<tree::Kernel, 8> = Profile::new(&ROWS);
    use tree::{pass, scope};
    tree::attach();
    tree::FGRAPH.register(&PROFILE).unwrap();
    {
        let _a = scope(A);
        pass(10);
        for took in [1, 5, 3] {
            let _b = scope(B);
            pass(took);
            let _c = scope(C);
            pass(100);
        }
        pass(7);
    }
    let all: Vec<Summary> = [A, B, C].map(|f| PROFILE.get(f).unwrap()).into();
    assert_eq!(
        all,
        [
            Summary {
                func: A,
                hits: 1,
                total: 326,
                nested: 0,
                own: 17,
                min: 326,
                max: 326
            },
            Summary {
                func: B,
                hits: 3,
                total: 309,
                nested: 0,
                own: 9,
                min: 101,
                max: 105
            },
            Summary {
                func: C,
                hits: 3,
                total: 300,
                nested: 0,
                own: 300,
                min: 100,
                max: 100
            },
        ]
    );
    assert_eq!(all[1].average(), 103);
    assert_eq!(own(&PROFILE), 326);
    // 101, 105 and 103 ticks lie from 2⁶ to 2⁷; 326 above the last bucket.
    assert_eq!(PROFILE.histogram(B), Some([0, 0, 0, 0, 0, 0, 3, 0]));
    assert_eq!(PROFILE.histogram(A), Some([0, 0, 0, 0, 0, 0, 0, 1]));
    assert_eq!(PROFILE.histogram(IRQ), None);
    assert_eq!(PROFILE.others().hits, 0);

    PROFILE.clear();
    assert_eq!(PROFILE.summaries().count(), 0);
    drop(scope(A));
    assert_eq!(PROFILE.histogram(A), Some([1, 0, 0, 0, 0, 0, 0, 0]));
    assert_eq!(figures(&PROFILE, A), (1, 0, 0));
}

kernel!(recursion);

#[test]
fn of_a_recursive_function_the_outermost_call_counts_and_own_time_adds_up() {
    static ROWS: [Row; 32] = [const { Row::new() }; 32];
    static PROFILE: Profile<recursion::Kernel> = Profile::new(&ROWS);
    use recursion::{pass, scope};
    recursion::attach();
    recursion::FGRAPH.register(&PROFILE).unwrap();
    // Directly, and by way of another.
    fn a(n: u64) {
        let _a = scope(A);
        pass(1);
        if n > 0 {
            a(n - 1);
            b(n - 1);
        }
    }
    fn b(n: u64) {
        let _b = scope(B);
        pass(10);
        if n > 0 {
            a(n - 1);
        }
    }
    let begun = recursion::now();
    a(4);
    b(0);
    let took = recursion::now() - begun;
    let (a, b) = (PROFILE.get(A).unwrap(), PROFILE.get(B).unwrap());
    assert_eq!(a.total, took - 10, "the outermost call");
    assert_eq!((a.own, b.own), (a.hits, 10 * b.hits));
    assert_eq!(own(&PROFILE), took);
    // Every call's duration is in one of the two sums.
    assert_eq!((a.hits, a.min, a.max), (12, 1, took - 10));
    assert_eq!(a.average(), (a.total + a.nested) / 12);
    assert!(a.nested > 0 && b.total < took);
}

kernel!(recursion_exact);

#[test]
fn functions_that_share_a_bit_are_not_taken_for_recursion() {
    static ROWS: [Row<0>; 1024] = [const { Row::new() }; 1024];
    static PROFILE: Profile<recursion_exact::Kernel, 0> = Profile::new(&ROWS);
    use recursion_exact::{pass, scope};
    recursion_exact::attach();
    recursion_exact::FGRAPH.register(&PROFILE).unwrap();
    let funcs = (1..=200).map(|i| i * 0x10_0000).collect::<Vec<usize>>();
    for pair in funcs.windows(2) {
        PROFILE.clear();
        {
            let _outer = scope(pair[0]);
            let _inner = scope(pair[1]);
            pass(3);
        }
        assert_eq!(figures(&PROFILE, pair[1]), (1, 3, 3), "{:#x}", pair[1]);
    }
}

kernel!(full);

#[test]
fn what_finds_no_row_is_counted_and_sums_hold() {
    static ROWS: [Row<0>; 4] = [const { Row::new() }; 4];
    static PROFILE: Profile<full::Kernel, 0> = Profile::new(&ROWS);
    use full::{pass, scope};
    full::attach();
    full::FGRAPH.register(&PROFILE).unwrap();
    let begun = full::now();
    for round in 1..=2 {
        let _zero = scope(0);
        pass(1);
        for func in 1..=10 {
            let _scope = scope(func * 0x1000);
            pass(func as u64);
        }
        assert_eq!(PROFILE.summaries().count(), 4);
        let rows: u64 = PROFILE.summaries().map(|line| line.hits).sum();
        assert_eq!((rows, PROFILE.others().hits), (4 * round, 7 * round - 1));
    }
    assert_eq!(own(&PROFILE), full::now() - begun);
    assert_eq!(PROFILE.others().hits, 14);
}

kernel!(none);

#[test]
fn a_profile_without_rows_counts_all_together() {
    static PROFILE: Profile<none::Kernel> = Profile::new(&[]);
    none::attach();
    none::FGRAPH.register(&PROFILE).unwrap();
    let scope = none::scope(A);
    none::pass(5);
    drop(scope);
    let Summary {
        hits, total, own, ..
    } = PROFILE.others();
    assert_eq!((hits, total, own), (1, 5, 5));
    let text = PROFILE.report(Order::Own, &mut []).to_string();
    assert!(text.contains("(functions without a row)"), "{text}");
}

kernel!(backwards);

#[test]
fn a_clock_that_goes_backwards_is_counted_and_sums_hold() {
    static ROWS: [Row; 32] = [const { Row::new() }; 32];
    static PROFILE: Profile<backwards::Kernel> = Profile::new(&ROWS);
    use backwards::{pass, scope, set_clock};
    backwards::attach();
    backwards::FGRAPH.register(&PROFILE).unwrap();
    {
        let _a = scope(A);
        {
            let _b = scope(B);
            pass(100);
        }
        {
            let _c = scope(C);
            set_clock(3);
        }
        // Long before A began, which has 100 ticks inside it all the same.
    }
    assert_eq!(figures(&PROFILE, C), (1, 0, 0));
    assert_eq!(figures(&PROFILE, A), (1, 100, 0));
    assert_eq!(own(&PROFILE), 100);
    assert_eq!(PROFILE.backwards(), 2);
    // And to the far end of what a clock can show.
    set_clock(u64::MAX - 5);
    let a = scope(A);
    set_clock(4);
    drop(a);
    assert_eq!(figures(&PROFILE, A), (2, 110, 10));
    assert_eq!(PROFILE.backwards(), 2);
}

kernel!(sleep);

#[test]
fn sleep_is_counted_or_left_out() {
    static ROWS: [[Row; 32]; 2] = [const { [const { Row::new() }; 32] }; 2];
    static WITH: Profile<sleep::Kernel> = Profile::new(&ROWS[0]);
    static WITHOUT: Profile<sleep::Kernel> = Profile::new(&ROWS[1]).without_sleep();
    use sleep::{pass, scope, switch};
    sleep::attach();
    sleep::FGRAPH.register(&WITH).unwrap();
    sleep::FGRAPH.register(&WITHOUT).unwrap();
    {
        let _a = scope(A);
        pass(1);
        {
            let _b = scope(B);
            pass(20);
            switch(true);
            pass(1000);
            {
                let _c = scope(C);
                pass(400);
            }
            switch(false);
            pass(20);
        }
        {
            // Interrupted, not switched out.
            let _b = scope(B);
            pass(3);
        }
        pass(2);
    }
    assert_eq!(figures(&WITH, A), (1, 1446, 3));
    assert_eq!(figures(&WITH, B), (2, 1443, 1443));
    assert_eq!(figures(&WITHOUT, A), (1, 46, 3));
    assert_eq!(figures(&WITHOUT, B), (2, 43, 43));
    for profile in [&WITH, &WITHOUT] {
        assert_eq!(figures(profile, C), (1, 400, 400));
        assert_eq!(profile.backwards(), 0);
    }
}

kernel!(endings);

#[test]
fn calls_that_end_unwound_or_with_their_task_count_once() {
    static ROWS: [Row; 32] = [const { Row::new() }; 32];
    static PROFILE: Profile<endings::Kernel> = Profile::new(&ROWS);
    use endings::{enter, leave, pass, tail_call};
    endings::attach();
    endings::FGRAPH.register(&PROFILE).unwrap();
    let begun = endings::now();
    // A tail call is inside the call that made it.
    enter(A, 1);
    pass(1);
    enter(B, 2);
    pass(10);
    tail_call(C, 2);
    pass(100);
    leave(2);
    leave(2);
    leave(1);
    assert_eq!(figures(&PROFILE, A), (1, 111, 1));
    assert_eq!(figures(&PROFILE, B), (1, 110, 10));
    assert_eq!(figures(&PROFILE, C), (1, 100, 100));
    // B and C are jumped over.
    enter(A, 1);
    pass(1);
    enter(B, 2);
    pass(10);
    enter(C, 3);
    pass(100);
    leave(1);
    assert_eq!(figures(&PROFILE, A), (2, 222, 2));
    assert_eq!(figures(&PROFILE, C), (2, 200, 200));
    // The task ends inside C.
    enter(A, 1);
    enter(C, 2);
    pass(1000);
    // SAFETY: nothing of it will return.
    unsafe { endings::FGRAPH.exit_task(&endings::STACK) }.unwrap();
    assert_eq!(figures(&PROFILE, A), (3, 1222, 2));
    assert_eq!(figures(&PROFILE, C), (3, 1200, 1200));
    assert_eq!(own(&PROFILE), endings::now() - begun);
}

kernel!(interrupts);

#[test]
fn an_interrupt_at_any_reading_of_the_clock_keeps_sums_right() {
    static ROWS: [Row; 64] = [const { Row::new() }; 64];
    static PROFILE: Profile<interrupts::Kernel> = Profile::new(&ROWS);
    use interrupts::{in_context, pass, scope};
    interrupts::attach();
    interrupts::FGRAPH.register(&PROFILE).unwrap();
    fn handler() {
        pass(3);
        let irq = scope(IRQ);
        pass(1000);
        // And an NMI inside it.
        in_context(Context::Nmi, || {
            let _nmi = scope(IRQ + 0x1000);
            pass(50);
        });
        drop(irq);
        pass(4);
    }
    let mut reading = 0;
    loop {
        PROFILE.clear();
        interrupts::interrupt_reading(reading, handler);
        let begun = {
            let root = scope(A);
            let begun = interrupts::now();
            pass(1);
            for _ in 0..2 {
                let _b = scope(B);
                pass(10);
                {
                    let _c = scope(C);
                    pass(100);
                }
                pass(20);
            }
            pass(2);
            drop(root);
            begun
        };
        let took = interrupts::now() - begun;
        let came = interrupts::interrupted();
        // The root's own entry is before its time, its end after.
        let last = reading + 1 == 10;
        let inside = came && reading > 0;
        let root = figures(&PROFILE, A);
        assert_eq!(root.0, 1);
        if !came {
            assert_eq!(reading, 10, "two readings a call");
            assert_eq!(own(&PROFILE), 263);
            break;
        }
        assert_eq!(figures(&PROFILE, IRQ), (1, 1050, 1000), "{reading}");
        assert_eq!(figures(&PROFILE, C).0, 2);
        assert!(PROFILE.backwards() == 0);
        if inside && !last {
            // All that passed, and each tick once.
            assert_eq!((root.1, own(&PROFILE)), (took, took), "{reading}");
            // What the interrupt took is nobody's own but its own.
            let own = [A, B, C].map(|func| figures(&PROFILE, func).2);
            assert_eq!(own.iter().sum::<u64>(), 263 + 7, "{reading} {own:?}");
        }
        reading += 1;
    }
}

kernel!(refused);

#[test]
fn what_a_filter_refuses_is_its_callers_own() {
    static ROWS: [[Row; 32]; 2] = [const { [const { Row::new() }; 32] }; 2];
    static FEW: Filtered<Profile<refused::Kernel>, Predicate> =
        Filtered::new(Profile::new(&ROWS[0]), Predicate(|func| func != B));
    static SLOW: MinDuration<refused::Kernel, Profile<refused::Kernel>> =
        MinDuration::new(Profile::new(&ROWS[1]), 100);
    use refused::{pass, scope};
    refused::attach();
    refused::FGRAPH.register(&FEW).unwrap();
    refused::FGRAPH.register(&SLOW).unwrap();
    {
        let _a = scope(A);
        pass(1);
        for took in [99, 100, 10] {
            let _b = scope(B);
            pass(10);
            {
                let _c = scope(C);
                pass(took);
            }
        }
    }
    assert_eq!(figures(FEW.callback(), A), (1, 240, 31));
    assert_eq!(figures(FEW.callback(), B), (0, 0, 0));
    assert_eq!(figures(FEW.callback(), C), (3, 209, 209));
    // B of 109 and 110, C of 100.
    assert_eq!(figures(SLOW.callback(), A), (1, 240, 21));
    assert_eq!(figures(SLOW.callback(), B), (2, 219, 119));
    assert_eq!(figures(SLOW.callback(), C), (1, 100, 100));
}

kernel!(discarded);

#[test]
fn a_discarded_call_hands_on_what_ran_inside_it() {
    static ROWS: [Row; 32] = [const { Row::new() }; 32];
    static SLOW: MinDuration<discarded::Kernel, Profile<discarded::Kernel>> =
        MinDuration::new(Profile::new(&ROWS), 100);
    use discarded::{now, pass, scope, set_clock};
    discarded::attach();
    discarded::FGRAPH.register(&SLOW).unwrap();
    {
        let _a = scope(A);
        pass(50);
        {
            let _b = scope(B);
            {
                let _c = scope(C);
                pass(100);
            }
            // B ends before it began: no time, although C inside took some.
            set_clock(now() - 110);
        }
        pass(200);
    }
    let profile = SLOW.callback();
    assert_eq!(figures(profile, A), (1, 240, 140));
    assert_eq!(figures(profile, B), (0, 0, 0));
    assert_eq!(figures(profile, C), (1, 100, 100));
    assert_eq!(SLOW.backwards(), 1);
}

#[test]
#[cfg(target_pointer_width = "64")]
fn a_row_is_as_large_as_it_says() {
    assert_eq!((size_of::<Row>(), size_of::<Row<0>>()), (320, 64));
}
