//! Columns, to the character.

use super::*;

/// Collects text, up to a size.
struct Line([u8; 96], usize);

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.1 + text.len();
        let room = self.0.get_mut(self.1..end).ok_or(fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.1 = end;
        Ok(())
    }
}

#[test]
fn durations_fill_their_column_from_nothing_to_days() {
    for (nanoseconds, column) in [
        (0, "   0.000 us    "),
        (1_382, "   1.382 us    "),
        (10_000, "   10.000 us   "),
        (15_463, " + 15.463 us   "),
        (100_001, " ! 100.001 us  "),
        (1_000_001, " # 1000.001 us "),
        (12_345_678, " * 12345.67 us "),
        (123_456_789, " @ 123456.7 us "),
        (1_234_567_890, " $ 1234567 us  "),
        (99_999_999_999, " $ 99999999 us "),
        (100_000_000_000, " $ 100.000 s   "),
        (3_600_000_000_000, " $ 3600.000 s  "),
        (360_000_000_000_000, " $ 360000.0 s  "),
        (99_999_999_999_999_999, " $ 99999999 s  "),
        (100_000_000_000_000_000, " $ 27777.77 h  "),
        (u64::MAX, " $ 5124095 h   "),
    ] {
        let mut line = Line([0; 96], 0);
        let written = Print::new(&()).duration(&mut line, nanoseconds);
        assert_eq!(written, Ok(()));
        assert_eq!(core::str::from_utf8(&line.0[..line.1]), Ok(column));
    }
}

#[test]
fn the_heading_stands_over_its_columns() {
    let call = Call {
        func: Some(1),
        cpu: 0,
        task: 0,
        depth: 0,
        context: crate::Context::Task,
        begin: Some(0),
        arguments: Default::default(),
    };
    let bars = |line: &Line, found: &mut [usize; 3]| {
        let bars = line.0.iter().enumerate().filter(|(_, byte)| **byte == b'|');
        let mut count = 0;
        for ((at, _), found) in bars.zip(found) {
            *found = at;
            count += 1;
        }
        count
    };
    let columns = Shown::TIME | Shown::CPU | Shown::TASK;
    for bits in 0..=columns.bits() {
        let shown = Shown::from_bits_retain(bits & columns.bits()) | Shown::DURATION;
        for cpu_width in [1, 2, 5] {
            let print = Print {
                cpu_width,
                ..Print::new(&()).shown(shown)
            };
            let (mut heading, mut row) = (Line([0; 96], 0), Line([0; 96], 0));
            let (mut above, mut below) = ([0; 3], [0; 3]);
            assert_eq!(print.heading(&mut heading), Ok(()));
            assert_eq!(print.columns(&mut row, &call, 0, None), Ok(()));
            let count = bars(&heading, &mut above);
            assert_eq!((count, above), (bars(&row, &mut below), below), "{shown:?}");
            assert!(count > 0);
        }
    }
}
