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
    const STACK: Window = Window {
        base: 0xffff_c900_0000_1000,
    };

    #[test]
    fn near_frame() {
        let record = Record {
            func: 0xffff_ffff_0123_4560,
            ret: 0xffff_ffff_8765_4321,
            slot: 0xffff_c900_89ab_dde8,
            epoch: 0x1_2345,
        };
        let [record_word, index_word] = record.near(CODE, STACK).unwrap();
        let words = [record_word, with_set(index_word, 0x8001)];
        // func in the low half; kind 1, set from bit 2, epoch from bit 18,
        // slot's offset / 8 from bit 35.
        let index = 1 | 0x8001 << 2 | 0x1_2345 << 18 | (0x89ab_cde8_usize >> 3) << 35;
        assert_eq!(words, [0x8765_4321_0123_4560, index]);
        assert_eq!(index, 0x89ab_cdec_8d16_0005);
        assert_eq!(Record::from_near(words, CODE, STACK), record);
    }

    fn wide(record: Record, set: usize) -> [usize; WIDE_WORDS] {
        let [func, ret, slot, index] = record.wide();
        [func, ret, slot, with_set(index, set)]
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
            wide(record, 0xffff),
            [0x1234, usize::MAX, 8, usize::MAX - 1]
        );
        assert_eq!(wide(record, 0)[3], 0xffff_ffff_fffc_0002);
        assert_eq!(Record::from_wide(wide(record, 0xffff)), record);
    }

    #[test]
    fn data_index() {
        // kind 3, words from bit 2, callback from bit 6, distance from bit 10.
        assert_eq!(
            DataIndex::new(15, 15, 0x3f_ffff_ffff_ffff).word(),
            usize::MAX
        );
        assert_eq!(DataIndex::new(0, 1, 2).word(), 0x807);
        assert_eq!(DataIndex::new(9, 7, 0).word(), 0x25f);
        assert_eq!(gap(5), 0x1403);
    }

    #[test]
    fn state() {
        assert_eq!(State::EMPTY.at(3).claimed(5).word(), 0x0000_0000_8000_0003);
        assert_eq!(State::EMPTY.guarded(3).word(), 1 << 63);
        assert_eq!(State::EMPTY.all_guarded().word(), 0xf << 60);
        assert_eq!(MAX_WORDS, 0x3fff_ffff);
    }

    #[test]
    fn fields_that_a_near_frame_has_no_room_for_make_it_wide() {
        let near = Record {
            func: CODE.base,
            ret: CODE.base,
            slot: STACK.base + 8,
            epoch: 0,
        };
        let cases = [
            (near, true),
            (
                Record {
                    func: CODE.base - 1,
                    ..near
                },
                false,
            ),
            (
                Record {
                    func: CODE.base + 0xffff_ffff,
                    ..near
                },
                true,
            ),
            (
                Record {
                    func: CODE.base.wrapping_add(1 << 32),
                    ..near
                },
                false,
            ),
            (
                Record {
                    ret: CODE.base - 1,
                    ..near
                },
                false,
            ),
            (
                Record {
                    ret: CODE.base + 0xffff_ffff,
                    ..near
                },
                true,
            ),
            (
                Record {
                    ret: CODE.base.wrapping_add(1 << 32),
                    ..near
                },
                false,
            ),
            (
                Record {
                    slot: STACK.base + 0xffff_fff8,
                    ..near
                },
                true,
            ),
            (
                Record {
                    slot: STACK.base + 0x1_0000_0008,
                    ..near
                },
                false,
            ),
            (
                Record {
                    slot: STACK.base - 8,
                    ..near
                },
                false,
            ),
            // Its offset is 0, which stands for "no slot".
            (
                Record {
                    slot: STACK.base,
                    ..near
                },
                false,
            ),
            (
                Record {
                    slot: STACK.base + 4,
                    ..near
                },
                false,
            ),
            (Record { slot: 0, ..near }, true),
            (
                Record {
                    epoch: 0x1_ffff,
                    ..near
                },
                true,
            ),
            (
                Record {
                    epoch: 0x2_0000,
                    ..near
                },
                false,
            ),
        ];
        for (record, is_near) in cases {
            let near = record.near(CODE, STACK);
            assert_eq!(near.is_some(), is_near, "{record:x?}");
            let back = match near {
                Some(words) => Record::from_near(words, CODE, STACK),
                None => Record::from_wide(record.wide()),
            };
            assert_eq!(back, record);
        }
    }

    #[test]
    fn a_window_reaches_2_gib_to_both_sides_and_wraps() {
        let middle = 0xffff_ffff_ffff_f000;
        let window = Window::around(middle);
        assert_eq!(
            (window.base(), window.middle()),
            (0xffff_ffff_7fff_f000, middle)
        );
        let holds = |func: usize| {
            let record = Record {
                func,
                ret: middle,
                slot: 0,
                epoch: 0,
            };
            let near = record.near(window, window);
            near.map(|words| Record::from_near(words, window, window).func) == Some(func)
        };
        assert!(holds(middle) && holds(middle - (1 << 31)));
        assert!(!holds(middle - (1 << 31) - 1));
        // Over the end of the address space.
        assert!(holds(0) && holds(0x7fff_efff) && !holds(0x7fff_f000));
    }
}

#[cfg(target_pointer_width = "32")]
mod golden {
    use super::*;

    #[test]
    fn frames() {
        let window = Window::around(0);
        let near = Record {
            func: 0x1234,
            ret: 0x8765_4321,
            slot: 0xffff_fffc,
            epoch: 0x3fff,
        };
        let [func, ret, slot, index] = near.near(window, window).unwrap();
        let words = [func, ret, slot, with_set(index, 0x8001)];
        assert_eq!(words, [0x1234, 0x8765_4321, 0xffff_fffc, 0xfffe_0005]);
        assert_eq!(Record::from_near(words, window, window), near);
        let wide = Record {
            epoch: 0x4000,
            ..near
        };
        assert_eq!(wide.near(window, window), None);
        let [func, ret, slot, epoch, index] = wide.wide();
        let words = [func, ret, slot, epoch, with_set(index, 0xffff)];
        assert_eq!(words, [0x1234, 0x8765_4321, 0xffff_fffc, 0x4000, 0x3fffe]);
        assert_eq!(Record::from_wide(words), wide);
    }

    #[test]
    fn data_index_and_state() {
        assert_eq!(DataIndex::new(15, 15, 0x3f_ffff).word(), usize::MAX);
        assert_eq!(DataIndex::new(0, 1, 2).word(), 0x807);
        assert_eq!(State::EMPTY.at(3).claimed(5).word(), 0x8003);
        assert_eq!(State::EMPTY.guarded(3).word(), 1 << 31);
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
        match kind(bits) {
            Kind::None => assert_eq!(bits & 3, 0),
            Kind::Near(index) => assert_eq!((bits & 3, index.set()), (1, bits >> 2)),
            Kind::Wide(index) => assert_eq!((bits & 3, index.set()), (2, bits >> 2)),
            Kind::Data(data) => {
                assert_eq!((bits & 3, data.words()), (3, bits >> 2 & 15));
                assert_eq!(
                    (data.callback(), data.distance()),
                    (bits >> 6 & 15, bits >> 10)
                );
            }
            Kind::Gap(distance) => assert_eq!((bits & 0x3f, distance), (3, bits >> 10)),
        }
    }
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
    assert!(State::resting(9).is_at_rest() && State::resting(MAX_WORDS).is_at_rest());
    assert!(!state.is_at_rest() && !State::EMPTY.claimed(1).is_at_rest());
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
