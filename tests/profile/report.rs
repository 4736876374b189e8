//! How a profile looks, and its times in other units.

use fgraph::tracer::profile::{Histogram, Order, Row, Summary};
use fgraph::tracer::{Profile, Scale, Symbol, Symbols};

use super::{A, B, C};

struct Names;
impl Symbols for Names {
    fn symbol(&self, address: usize) -> Option<Symbol<'_>> {
        match address {
            A => Some(("main", A)),
            B => Some(("a<b> \"c\"; d\nü", B)),
            C => Some(("inside", C - 0x10)),
            _ => None,
        }
        .map(|(name, start)| Symbol { name, start })
    }
}

kernel!(reported);

#[test]
fn the_report_is_sorted_and_aligned() {
    static ROWS: [Row; 64] = [const { Row::new() }; 64];
    static PROFILE: Profile<reported::Kernel> = Profile::new(&ROWS);
    use reported::{pass, scope};
    reported::attach();
    reported::FGRAPH.register(&PROFILE).unwrap();
    let mut scratch = [Summary::default(); 4];
    assert_eq!(
        PROFILE.report(Order::Total, &mut scratch).to_string(),
        "hits  total us  self us  average us  min us  max us  function\n"
    );
    {
        let _a = scope(A);
        for _ in 0..12 {
            let _b = scope(B);
            pass(1_000);
        }
        // Three hours.
        let _c = scope(C);
        pass(3 * 3_600_000_000_000);
    }
    {
        let _d = scope(0x4000);
        pass(5);
    }
    assert_eq!(
        PROFILE
            .report(Order::Total, &mut scratch)
            .symbols(Names)
            .to_string(),
        "\
hits         total us          self us       average us           min us           max us  function
   1  10800000012.000            0.000  10800000012.000  10800000012.000  10800000012.000  main
   1  10800000000.000  10800000000.000  10800000000.000  10800000000.000  10800000000.000  inside+0x10
  12           12.000           12.000            1.000            1.000            1.000  a<b> \"c\"; d\\nü
   1            0.005            0.005            0.005            0.005            0.005  0x4000
"
    );
    let order = |order, room: usize| {
        let mut scratch = [Summary::default(); 8];
        let report = PROFILE.report(order, &mut scratch[..room]);
        let funcs: Vec<usize> = report.lines().iter().map(|line| line.func).collect();
        (funcs, report.hidden().0, report.hidden().1.hits)
    };
    assert_eq!(order(Order::Total, 4), (vec![A, C, B, 0x4000], 0, 0));
    assert_eq!(order(Order::Own, 4), (vec![C, B, 0x4000, A], 0, 0));
    assert_eq!(order(Order::Hits, 4), (vec![B, A, C, 0x4000], 0, 0));
    assert_eq!(order(Order::Hits, 8), (vec![B, A, C, 0x4000], 0, 0));
    assert_eq!(order(Order::Hits, 3), (vec![B, A, C], 1, 1));
    assert_eq!(order(Order::Own, 1), (vec![C], 3, 14));
    assert_eq!(order(Order::Own, 0), (vec![], 4, 15));
    assert_eq!(
        PROFILE
            .report(Order::Hits, &mut scratch[..1])
            .scale(Scale::new(10, 1_000).unwrap())
            .to_string(),
        "\
hits           total us            self us        average us   min us             max us  function
  12           1200.000           1200.000           100.000  100.000            100.000  0x2000
   3  2160000001200.500  1080000000000.500  720000000400.166    0.500  1080000001200.000  (3 more functions)
"
    );
}

#[test]
fn a_histogram_is_drawn_from_its_first_to_its_last_bucket() {
    let drawn = Histogram::new([0, 3, 0, 120, 1, 0], Scale::NANOSECONDS).to_string();
    assert_eq!(
        drawn,
        format!(
            "\
from us  calls
  0.002      3  #
  0.004      0
  0.008    120  {}
  0.016      1  #
",
            "#".repeat(40)
        )
    );
    let empty = Histogram::new([0; 4], Scale::NANOSECONDS).to_string();
    assert_eq!(empty, "from us  calls\n");
    let zero = Histogram::new([u64::MAX], Scale::NANOSECONDS).to_string();
    assert!(
        zero.contains("  0.000  18446744073709551615  ###"),
        "{zero}"
    );
    assert_eq!(
        Histogram::new([], Scale::NANOSECONDS).to_string(),
        "from us  calls\n"
    );
}

#[test]
fn scales_neither_overflow_nor_lose_the_small_end() {
    assert_eq!(Scale::new(0, 1), None);
    let tsc = Scale::new(2_999_999_999, 1_000_000_000).unwrap();
    assert_eq!(
        [0, 1, 2, 3, 2_999_999_999].map(|ticks| tsc.nanoseconds(ticks)),
        [0, 0, 0, 1, 1_000_000_000]
    );
    assert_eq!(tsc.nanoseconds(u64::MAX), 6_148_914_693_286_155_436);
    assert_eq!(Scale::new(1, 1000).unwrap().nanoseconds(u64::MAX), u64::MAX);
}
