//! A profile that is used again, and what its report leaves out.

use fgraph::tracer::profile::{Histogram, Order, Row, Summary};
use fgraph::tracer::{Profile, Scale};

use crate::{A, B, C, figures};

kernel!(cleared);

#[test]
fn a_profile_that_is_cleared_begins_anew() {
    use cleared::{pass, scope, set_clock};
    static ROWS: [Row; 1] = [const { Row::new() }; 1];
    static PROFILE: Profile<cleared::Kernel> = Profile::new(&ROWS);
    cleared::attach();
    cleared::FGRAPH.register(&PROFILE).unwrap();
    let call = |func, ticks| {
        let _call = scope(func);
        pass(ticks);
    };
    // One has the row, the other has none; a clock goes backwards.
    for func in [A, B] {
        call(func, 8);
        call(func, 32);
    }
    let backwards = scope(B);
    set_clock(1);
    drop(backwards);
    assert_eq!(PROFILE.others().hits, 3);
    PROFILE.clear();
    assert_eq!((PROFILE.others(), PROFILE.backwards()), Default::default());
    assert_eq!((PROFILE.get(A), PROFILE.summaries().count()), (None, 0));
    // What is least and most is of the calls since.
    for func in [A, B] {
        call(func, 16);
    }
    let same = |summary: Summary| (summary.hits, summary.min, summary.max, summary.total);
    assert_eq!(PROFILE.get(A).map(same), Some((1, 16, 16, 16)));
    assert_eq!(same(PROFILE.others()), (1, 16, 16, 16));
}

kernel!(partly);

#[test]
fn a_call_whose_clock_went_back_a_little_lasts_as_long_as_what_is_inside() {
    use partly::{pass, scope, set_clock};
    static ROWS: [Row; 32] = [const { Row::new() }; 32];
    static PROFILE: Profile<partly::Kernel> = Profile::new(&ROWS);
    partly::attach();
    partly::FGRAPH.register(&PROFILE).unwrap();
    for behind in [49, 50] {
        let start = partly::now();
        {
            let _a = scope(A);
            {
                let _b = scope(B);
                pass(50);
            }
            set_clock(start + behind);
        }
    }
    assert_eq!(figures(&PROFILE, A), (2, 100, 0));
    assert_eq!(PROFILE.backwards(), 1);
}

kernel!(hidden);

/// Rows lie in an order of their own, which is none of the report's.
#[test]
fn a_report_keeps_the_greatest_of_many() {
    use hidden::{pass, scope};
    static ROWS: [Row; 64] = [const { Row::new() }; 64];
    static PROFILE: Profile<hidden::Kernel> = Profile::new(&ROWS);
    hidden::attach();
    hidden::FGRAPH.register(&PROFILE).unwrap();
    let func = |n: usize| 0x1000 + 0x40 * n;
    for n in 0..20 {
        let _call = scope(func(n));
        pass(1 + n as u64);
    }
    for room in 0..20 {
        let mut scratch = [Summary::default(); 20];
        let report = PROFILE.report(Order::Total, &mut scratch[..room]);
        let told: Vec<usize> = report.lines().iter().map(|line| line.func).collect();
        let greatest: Vec<usize> = (0..20).rev().take(room).map(func).collect();
        assert_eq!(told, greatest);
        let rest = 20 - room as u64;
        let (functions, hidden) = report.hidden();
        let expected = Summary {
            func: 0,
            hits: rest,
            total: rest * (rest + 1) / 2,
            nested: 0,
            own: rest * (rest + 1) / 2,
            min: 1,
            max: rest,
        };
        assert_eq!((functions as u64, *hidden), (rest, expected));
    }
}

kernel!(scaled);

#[test]
fn the_average_of_recursive_calls_is_in_the_reports_unit() {
    use scaled::{pass, scope};
    static ROWS: [Row; 32] = [const { Row::new() }; 32];
    static PROFILE: Profile<scaled::Kernel> = Profile::new(&ROWS);
    scaled::attach();
    scaled::FGRAPH.register(&PROFILE).unwrap();
    {
        let _outer = scope(C);
        let _inner = scope(C);
        pass(10);
    }
    // Ten ticks are a microsecond.
    let mut scratch = [Summary::default(); 1];
    let report = PROFILE.report(Order::Total, &mut scratch);
    let report = report.scale(Scale::new(10, 1_000).unwrap()).to_string();
    let line = report.lines().nth(1).expect("a function");
    let figures: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(
        figures,
        ["2", "1.000", "1.000", "1.000", "1.000", "1.000", "0x3000"]
    );
}

kernel!(wide);

/// Columns grow with what is in them.
#[test]
fn large_numbers_and_a_clock_that_went_back_are_told() {
    use wide::{scope, set_clock};
    static ROWS: [Row; 32] = [const { Row::new() }; 32];
    static PROFILE: Profile<wide::Kernel> = Profile::new(&ROWS);
    wide::attach();
    wide::FGRAPH.register(&PROFILE).unwrap();
    for _ in 0..12_345 {
        drop(scope(A));
    }
    let call = scope(B);
    set_clock(1);
    drop(call);
    let mut scratch = [Summary::default(); 2];
    let report = PROFILE.report(Order::Hits, &mut scratch).to_string();
    assert_eq!(
        report.lines().collect::<Vec<_>>(),
        [
            " hits  total us  self us  average us  min us  max us  function",
            "12345     0.000    0.000       0.000   0.000   0.000  0x1000",
            "    1     0.000    0.000       0.000   0.000   0.000  0x2000",
            "the clock went backwards 1 times",
        ]
    );
    let mut buckets = [0; 41];
    (buckets[4], buckets[40]) = (1_234_567, 1);
    let histogram = Histogram::new(buckets, Scale::NANOSECONDS).to_string();
    let lines: Vec<&str> = histogram.lines().collect();
    assert_eq!(lines[0], "       from us    calls");
    assert_eq!(lines[1].trim_end_matches('#'), "         0.016  1234567  ");
    assert_eq!(lines[37], "1099511627.776        1  #");
    assert_eq!(lines.len(), 38);
}
