//! Where each bit is, by literals; then what comes back.

use super::words::TIME_BITS;
use super::*;
use crate::arch::middle;
use crate::{Cause, Context};

const STAMP: Stamp = Stamp {
    time: 0x2a_89ab_cdef,
    task: 0x1234,
    depth: 0x56,
};

fn near(distance: isize) -> usize {
    middle().wrapping_add_signed(distance)
}

fn written(content: &Content, lap: usize) -> Record {
    let record = Record::new();
    assert!(record.claim(record.state(), lap));
    record.write(content, lap);
    record
}

fn words(record: &Record) -> [u32; 4] {
    let [a, b, c] = &record.content;
    [a, b, c, &record.state].map(|word| word.load(Ordering::Relaxed))
}

#[test]
fn bits_are_where_the_drawing_says() {
    let content = Content::near_entry(&STAMP, near(0x0fed_cba0), Context::Interrupt).unwrap();
    let entry = written(&content, 3);
    assert_eq!(
        words(&entry),
        [0x0fed_cba0, 0x89ab_cdef, 0xaa56_1234, 0x0000_001a]
    );
    assert!(entry.close(&content, 3, 0xab_cdef));
    assert_eq!(words(&entry)[3], 0xabcd_ef1c);

    let exit = Content::exit(&STAMP, near(0x10), 0x12_3456, Cause::Unwound);
    assert_eq!(
        words(&written(&exit, 31)),
        [0x10, 0x89ab_cdef, 0x6a56_1234, 0x1234_56fd]
    );
    let long = Content::exit(&STAMP, near(0x10), 0x1122_3344_5566, Cause::TaskExit);
    assert_eq!(
        words(&written(&long, 0)),
        [0x3344_5566, 0x89ab_cdef, 0xaa56_1234, 0x1122_0006]
    );
}

#[test]
fn what_is_written_is_read() {
    for depth in [0, 1, 255, 256, u16::MAX] {
        for func in [
            0,
            0x1000,
            near(0),
            near(1 << 31),
            near(-1 << 31),
            usize::MAX,
        ] {
            let stamp = Stamp { depth, ..STAMP };
            let (far, whole) = Content::far_entry(&stamp, func, Context::Nmi);
            let content = Content::near_entry(&stamp, func, Context::Nmi).unwrap_or(far);
            let read = written(&content, 7).read(7);
            let Ok(Read::Entry {
                stamp: s, func: f, ..
            }) = read
            else {
                panic!("{read:?}");
            };
            assert_eq!((s, f), (stamp, func));
            assert!(whole);
            for ticks in [0, 0xff_ffff, 0x100_0000, (1 << 48) - 1] {
                let exit = Content::exit(&stamp, func, ticks, Cause::Returned);
                let read = written(&exit, 7).read(7);
                let Ok(Read::Exit {
                    stamp: s,
                    func: f,
                    ticks: t,
                    ..
                }) = read
                else {
                    panic!("{read:?}");
                };
                assert_eq!((s, t), (stamp, ticks));
                assert!(f.is_none() || f == Some(func));
            }
        }
    }
}

#[test]
#[cfg(target_pointer_width = "64")]
fn an_address_of_more_than_48_bits_asks_for_a_note() {
    let (_, whole) = Content::far_entry(&STAMP, 0x1234_5678_9abc_def0, Context::Task);
    assert!(!whole);
}

#[test]
fn a_record_of_another_lap_is_not_read() {
    let note = Content::note(Note::Lost, 5, 0, 0);
    let record = written(&note, 9);
    assert_eq!(record.read(10), Err(Holder::Free));
    assert_eq!(record.read(8), Err(Holder::Ahead));
    assert!(record.claim(record.state(), 10));
    assert_eq!(record.read(10), Err(Holder::Busy));
    assert_eq!(record.read(11), Err(Holder::Stalled));
}

#[test]
fn free_is_what_holder_says() {
    for bits in 0..=0xff {
        let state = State(bits);
        for lap in 0..64 {
            assert_eq!(state.is_free(lap), state.holder(lap) == Holder::Free);
        }
    }
}

#[test]
fn an_entry_that_was_passed_stays_one() {
    let content = Content::near_entry(&STAMP, near(0), Context::Task).unwrap();
    let record = written(&content, 0);
    assert!(record.is_open(0));
    record.freeze(0);
    assert!(!record.is_open(0));
    assert!(!record.close(&content, 0, 1));
}

#[test]
fn a_foreign_entry_is_not_closed() {
    let content = Content::near_entry(&STAMP, near(0), Context::Task).unwrap();
    let later = Stamp {
        time: STAMP.time + 1,
        ..STAMP
    };
    let other = Content::near_entry(&later, near(0), Context::Task).unwrap();
    let record = written(&other, 0);
    assert!(!record.close(&content, 0, 1));
    assert!(!record.close(&other, 1, 1));
    assert!(!record.close(&other, 0, 1 << 24));
    assert!(record.close(&other, 0, (1 << 24) - 1));
}

#[test]
fn times_come_back_from_their_low_bits() {
    let bits = (1 << TIME_BITS) - 1;
    for near in [0, 1 << 40, u64::MAX / 2] {
        for ahead in [0, 1, (1 << (TIME_BITS - 1)) - 1] {
            assert_eq!(nearest((near + ahead) & bits, near), near + ahead);
            let back = near.wrapping_sub(ahead);
            assert_eq!(nearest(back & bits, near), back);
        }
    }
    let (from, to) = Era::changed(Era::change(Era(3), Era(9)));
    assert_eq!((from, to), (Era(3), Era(9)));
    assert_eq!(Era::of(Era(9).middle()), Era(9));
}
