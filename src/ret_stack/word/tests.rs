//! Absolute bit positions first, properties after.

extern crate std;

use std::format;

use super::*;

#[cfg(target_pointer_width = "64")]
mod golden {
    use super::*;

    const CODE: Window = Window {
        base: 0xffff_ffff_0000_0000,
    };
    const BASE: usize = 0xffff_c900_0000_1000;
    const STACK: Slots = Slots::around(BASE + (1 << 31));

    #[test]
    fn near_frame() {
        let record = Record {
            func: 0xffff_ffff_0123_4560,
            ret: 0xffff_ffff_8765_4321,
            slot: 0xffff_c900_89ab_dde8,
            epoch: 0x1_2345,
        };
        let words = record.near(0x8001, CODE, STACK).unwrap();
        // func in the low half; set, epoch from bit 16, slot's offset / 8 from
        // bit 33, kind 3.
        let index = 0x8001 | 0x1_2345 << 16 | (0x89ab_cde8_usize >> 3) << 33 | 3 << 62;
        assert_eq!(words, [0x8765_4321_0123_4560, index]);
        assert_eq!(index, 0xe26a_f37b_2345_8001);
        assert_eq!(Record::from_near(words, CODE, STACK), record);
    }

    #[test]
    fn wide_frame() {
        let record = Record {
            func: 0x1234,
            ret: usize::MAX,
            slot: 8,
            epoch: MAX_EPOCH,
        };
        assert_eq!(
            record.wide(0xffff),
            [0x1234, usize::MAX, 8, 0xbfff_ffff_ffff_ffff]
        );
        assert_eq!(record.wide(0)[3], 0xbfff_ffff_ffff_0000);
        assert_eq!(Record::from_wide(record.wide(0xffff)), record);
    }

    #[test]
    fn data_index() {
        // distance, callback from bit 54, words from bit 58, kind 1.
        assert_eq!(
            DataIndex::new(15, 15, 0xffff_ffff).word(),
            0x7fc0_0000_ffff_ffff
        );
        assert_eq!(DataIndex::new(0, 1, 2).word(), 0x4400_0000_0000_0002);
        assert_eq!(DataIndex::new(9, 7, 0).word(), 0x5e40_0000_0000_0000);
        assert_eq!(gap(5), 0x4000_0000_0000_0005);
    }

    #[test]
    fn state() {
        assert_eq!(State::EMPTY.at(3).claimed(5).word(), 2 << 34 | 3);
        assert_eq!(State::EMPTY.guarded(3).word(), 1 << 33);
        assert_eq!(State::EMPTY.all_guarded().word(), 0xf << 30);
        assert_eq!(
            State::resting(3).claiming(5, 1).word(),
            5 << 34 | 1 << 31 | 3
        );
        assert_eq!(MAX_WORDS, 0x3fff_ffff);
    }

    #[test]
    fn fields_that_a_near_frame_has_no_room_for_make_it_wide() {
        let near = Record {
            func: CODE.base,
            ret: CODE.base,
            slot: BASE + 8,
            epoch: 0,
        };
        let func = |func| Record { func, ..near };
        let ret = |ret| Record { ret, ..near };
        let slot = |slot| Record { slot, ..near };
        let epoch = |epoch| Record { epoch, ..near };
        let scope = |caller| Record {
            slot: 0,
            ..ret(caller)
        };
        let (last, beyond) = (CODE.base + 0xffff_ffff, CODE.base.wrapping_add(1 << 32));
        let cases = [
            (near, true),
            (func(CODE.base - 1), false),
            (func(last), true),
            (func(beyond), false),
            (ret(CODE.base - 1), false),
            (ret(last), true),
            (ret(beyond), false),
            (ret(0), false),
            (slot(BASE + 0xffff_fff8), true),
            (slot(BASE + 0x1_0000_0008), false),
            (slot(BASE - 8), false),
            // Its offset is 0, which stands for "no slot".
            (slot(BASE), false),
            (slot(BASE + 4), false),
            // A scope's caller, which may be unknown, and then has that code.
            (scope(CODE.base), false),
            (scope(CODE.base + 1), true),
            (scope(0), true),
            (epoch(0x1_ffff), true),
            (epoch(0x2_0000), false),
        ];
        for (record, is_near) in cases {
            let near = record.near(0xffff, CODE, STACK);
            assert_eq!(near.is_some(), is_near, "{record:x?}");
            let back = match near {
                Some(words) => Record::from_near(words, CODE, STACK),
                None => Record::from_wide(record.wide(0xffff)),
            };
            assert_eq!(back, record);
        }
    }

    #[test]
    fn a_window_reaches_2_gib_to_both_sides_and_wraps() {
        let middle = 0xffff_ffff_ffff_f000;
        let window = Window::around(middle);
        let slots = Slots::around(middle);
        assert_eq!(
            (window.base, slots.end()),
            (0xffff_ffff_7fff_f000, 0x7fff_f000)
        );
        let holds = |func: usize| {
            let record = Record {
                func,
                ret: middle,
                slot: 0,
                epoch: 0,
            };
            let near = record.near(1, window, slots);
            near.map(|words| Record::from_near(words, window, slots).func) == Some(func)
        };
        assert!(holds(middle) && holds(middle - (1 << 31)));
        assert!(!holds(middle - (1 << 31) - 1));
        // Over the end of the address space.
        assert!(holds(0) && holds(0x7fff_efff) && !holds(0x7fff_f000));
        for slot in [8, 0x7fff_eff8, middle, middle - (1 << 31) + 8] {
            let record = Record {
                func: middle,
                ret: middle,
                slot,
                epoch: 0,
            };
            let words = record.near(1, window, slots).unwrap();
            assert_eq!(Record::from_near(words, window, slots), record);
        }
    }

    #[test]
    fn a_slot_is_compared_with_a_near_frame_alone() {
        let at = |slot| Record {
            func: CODE.base,
            ret: CODE.base + 1,
            slot,
            epoch: 0x1_ffff,
        };
        let near = |slot| at(slot).near(0xffff, CODE, STACK).unwrap()[1];
        let code = |slot| Some(SlotCode::of(slot, STACK)).filter(|code| code.may_be_code());
        let is_below = |slot, index| code(slot).is_some_and(|code| code.is_below([index]));
        let is_of = |slot, index| code(slot).is_some_and(|code| code.is_of([index]));
        let (first, last) = (BASE + 8, BASE + 0xffff_fff8);
        for slot in [first, BASE + (1 << 31), last] {
            let index = near(slot);
            assert!(is_of(slot, index) && !is_below(slot, index));
            assert_eq!(is_below(slot - 8, index), slot != first);
            for other in [slot + 8, slot - 4, BASE, BASE - 8, 8, 1] {
                assert!(!is_below(other, index) && !is_of(other, index));
            }
        }
        // Of a frame without a slot, and other words.
        let scope = near(0);
        assert!(SlotCode::is_none_of([scope]));
        assert!(!SlotCode::is_none_of([near(first)]));
        let wide = at(0).wide(0xffff)[3];
        for other in [scope, wide, DataIndex::new(15, 15, 2).word(), gap(2), 0] {
            for slot in [BASE - 8, BASE, first, last, last + 8] {
                assert!(!is_below(slot, other) && !is_of(slot, other));
            }
        }
        // Where another kind's code would be.
        for far in 1..=3 {
            assert!(!is_of(BASE - (far << 32), (3 - far) << 62));
        }
    }

    #[test]
    fn slots_end_with_the_stack() {
        let slots = Slots::up_to(0x7000_1000);
        assert_eq!(slots.end(), 0x7000_1000);
        let is_code = |slot: usize| SlotCode::of(slot, slots).is_code();
        assert!(is_code(0x7000_0ff8) && is_code(0x7000_0000));
        assert!(!is_code(0x7000_1000) && !is_code(0x7000_2000));
        assert!(is_code(0xffff_ffff_7000_1008) && !is_code(0xffff_ffff_7000_0ff8));
    }

    #[test]
    fn an_epoch_that_near_frames_have_no_room_for_needs_too_much() {
        assert_eq!(near_need(5, 0x1_ffff), 7);
        assert!(near_need(5, 0x2_0000) > MAX_WORDS);
    }
}

#[cfg(target_pointer_width = "32")]
mod golden {
    use super::*;

    #[test]
    fn frames() {
        let (window, slots) = (Window::around(0), Slots::around(0x1234_5678));
        assert_eq!(slots.end(), 0, "all");
        let near = Record {
            func: 0x1234,
            ret: 0x8765_4321,
            slot: 0xffff_fffc,
            epoch: 0x3fff,
        };
        let words = near.near(0x8001, window, slots).unwrap();
        assert_eq!(words, [0x1234, 0x8765_4321, 0xffff_fffc, 0xffff_8001]);
        assert_eq!(Record::from_near(words, window, slots), near);
        let wide = Record {
            epoch: 0x4000,
            ..near
        };
        assert_eq!(wide.near(0xffff, window, slots), None);
        let words = wide.wide(0xffff);
        assert_eq!(
            words,
            [0x1234, 0x8765_4321, 0xffff_fffc, 0x4000, 0x8000_ffff]
        );
        assert_eq!(Record::from_wide(words), wide);
        // Above the stack's end.
        let below = Slots::up_to(0xffff_fffc);
        assert_eq!(below.end(), 0xffff_fffc);
        assert_eq!(near.near(1, window, below), None);
        let slot = 0xffff_fff8;
        assert!(Record { slot, ..near }.near(1, window, below).is_some());
    }

    #[test]
    fn data_index_and_state() {
        assert_eq!(DataIndex::new(15, 15, 0xffff).word(), 0x7fc0_ffff);
        assert_eq!(DataIndex::new(0, 1, 2).word(), 0x4400_0002);
        assert_eq!(State::EMPTY.at(3).claimed(5).word(), 2 << 18 | 3);
        assert_eq!(State::EMPTY.guarded(3).word(), 1 << 17);
        assert_eq!(MAX_WORDS, 0x3fff);
    }
}

#[test]
fn zeroed_memory_is_no_frame() {
    assert_eq!(kind(0), Kind::None);
}

#[test]
fn every_word_has_one_kind() {
    for bits in 0..=0xffff_usize {
        // The highest sixteen; the lowest are a set, or a distance.
        let word = bits << (usize::BITS - 16) | 0x1234;
        let data = matches!(kind(word), Kind::Data(_));
        assert_eq!(distance(word), data.then_some(0x1234));
        match kind(word) {
            Kind::None => assert_eq!(bits >> 14, 0),
            Kind::Near(index) => assert_eq!((bits >> 14, index.set()), (3, 0x1234)),
            Kind::Wide(index) => assert_eq!((bits >> 14, index.set()), (2, 0x1234)),
            Kind::Data(data) => {
                assert_eq!((bits >> 14, data.words()), (1, bits >> 10 & 15));
                assert_eq!(data.callback(), bits >> 6 & 15);
                assert_eq!(data.distance(), 0x1234);
            }
            Kind::Gap(distance) => assert_eq!((bits >> 10, distance), (1 << 4, 0x1234)),
        }
    }
}

#[test]
fn an_entry_keeps_its_position_apart_from_refusals() {
    let progress = Progress::at(MAX_WORDS - 20);
    assert_eq!(progress.of_all(), Some(MAX_WORDS - 20));
    let progress = progress.advanced(16);
    assert_eq!(
        (progress.of_all(), progress.refused()),
        (Some(MAX_WORDS - 4), 0)
    );
    let progress = progress.refusing(0).refusing(15).advanced(4);
    assert_eq!(
        (progress.position(), progress.refused()),
        (MAX_WORDS, 0x8001)
    );
    assert_eq!(progress.of_all(), None);
}

#[test]
fn callbacks_are_taken_out_of_a_set() {
    let record = Record {
        slot: 0,
        ..Record::NONE
    };
    let index = record.wide(0x8421)[WIDE_WORDS - 1];
    let less = without(index, 0x8001);
    assert_eq!((set_of(index), set_of(less)), (0x8421, 0x0420));
    assert_eq!(without(index, 0xffff), record.wide(0)[WIDE_WORDS - 1]);
}

#[test]
fn data_are_told_by_callback_and_length_alone() {
    for distance in [0, 1, 77] {
        let word = DataIndex::new(4, 3, distance).word();
        assert!(is_data_of(word, 4, 3));
        assert!(!is_data_of(word, 5, 3) && !is_data_of(word, 4, 2));
    }
    assert!(!is_data_of(0, 0, 0));
}

#[test]
fn the_state_moves_parts_apart_from_each_other() {
    let state = State::EMPTY.at(7).guarded(1);
    assert!(state.is_guarded(1) && !state.is_guarded(0) && state.is_any_guarded());
    let claimed = state.claimed(MAX_WORDS).guarded(2);
    assert_eq!((claimed.top(), claimed.reserved()), (7, MAX_WORDS));
    assert!(claimed.has_claim() && claimed.is_guarded(1) && claimed.is_guarded(2));
    let moved = claimed.at(9);
    assert!(!moved.has_claim() && moved.is_guarded(1) && moved.is_guarded(2));
    let given = moved.with_guards_of(State::EMPTY);
    assert_eq!(given, State::EMPTY.at(9));
    for other in [state, State::EMPTY.claimed(1), State::EMPTY.guarded(0)] {
        assert!(other.resting_top() > MAX_WORDS);
    }
    assert_eq!(State::resting(MAX_WORDS).resting_top(), MAX_WORDS);
    assert_eq!(State::resting(9), State::EMPTY.at(9));
    let abandoned = claimed.abandoned(2);
    assert_eq!(abandoned, state);
}

#[test]
fn words_are_printed_by_field() {
    let state = State::EMPTY.at(1).claimed(2).guarded(0);
    assert_eq!(
        format!("{state:?}"),
        "State { top: 1, reserved: 2, guards: 0b0001 }"
    );
    let data = DataIndex::new(1, 2, 3);
    assert_eq!(
        format!("{data:?}"),
        "DataIndex { callback: 1, words: 2, distance: 3 }"
    );
}
