//! Arguments and results of every kind.

use std::hint::black_box;

use crate::callbacks::{Alone, Wrecker};

/// More than two registers: passed on the stack, returned in memory.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Debug)]
struct Large {
    words: [u64; 5],
    float: f64,
}

/// One general register and one vector register.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Debug)]
struct Mixed {
    int: u64,
    float: f64,
}

/// Two general registers.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Debug)]
struct Pair(u64, u64);

/// Two vector registers.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Debug)]
struct Floats(f64, f64);

#[inline(never)]
extern "C" fn nine(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64, g: u64, h: u64, i: u64) -> u64 {
    [a, b, c, d, e, f, g, h, i]
        .into_iter()
        .fold(0, |all, digit| all * 10 + digit)
}

#[inline(never)]
extern "C" fn ten(
    a: f64,
    b: f64,
    c: f64,
    d: f64,
    e: f64,
    f: f64,
    g: f64,
    h: f64,
    i: f64,
    j: f64,
) -> f64 {
    [a, b, c, d, e, f, g, h, i, j]
        .into_iter()
        .fold(0.0, |all, digit| all * 10.0 + digit)
}

#[inline(never)]
extern "C" fn narrow(
    a: u8,
    b: f32,
    c: i16,
    d: f64,
    e: bool,
    f: u32,
    g: i8,
    h: u32,
    i: i64,
    j: f32,
) -> i64 {
    let floats = (f64::from(b) * 4.0 + d * 8.0 + f64::from(j) * 16.0) as i64;
    let ints = [
        a.into(),
        c.into(),
        e.into(),
        f.into(),
        g.into(),
        h.into(),
        i,
    ];
    ints.into_iter().fold(floats, |all, n: i64| all * 7 + n)
}

#[inline(never)]
extern "C" fn in_memory(a: u64, large: Large, b: f64) -> Large {
    Large {
        words: large.words.map(|word| word * 2 + a),
        float: large.float - b,
    }
}

#[inline(never)]
extern "C" fn pair(a: u64, b: u64) -> Pair {
    Pair(b, !a)
}

#[inline(never)]
extern "C" fn floats(a: f64, b: Floats) -> Floats {
    Floats(a * b.1, a - b.0)
}

#[inline(never)]
extern "C" fn mixed(mixed: Mixed, by: f64) -> Mixed {
    Mixed {
        int: mixed.int + 1,
        float: mixed.float * by,
    }
}

#[inline(never)]
extern "C" fn wide(a: u128, b: u64, c: i128, d: u128) -> u128 {
    a.wrapping_mul(3) ^ (u128::from(b) << 70) ^ c as u128 ^ d.rotate_left(9)
}

/// Numbers and floats by turns, as many as the first says.
#[inline(never)]
unsafe extern "C" fn variadic(count: i32, mut arguments: ...) -> f64 {
    let mut sum = 0.0;
    for _ in 0..count {
        // SAFETY: the caller passes one of each.
        sum = sum * 2.0 + unsafe { arguments.arg::<i64>() as f64 + arguments.arg::<f64>() };
    }
    sum
}

#[inline(never)]
fn tail(count: u64, sum: u64, last: fn(u64) -> Pair) -> Pair {
    if count == 0 {
        become ended(0, sum, last)
    }
    become tail(count - 1, sum * 3 + count, last)
}

#[inline(never)]
fn ended(_: u64, sum: u64, last: fn(u64) -> Pair) -> Pair {
    let Pair(a, b) = last(sum);
    Pair(b, a)
}

#[inline(never)]
fn last(sum: u64) -> Pair {
    black_box(Pair(sum, sum / 2))
}

/// The Rust convention: wide pointers, closures, trait objects, a result that
/// owns memory.
#[inline(never)]
fn native(words: &[u16], name: &str, f: &dyn Fn(u64) -> Option<f64>, out: &mut i128) -> String {
    let sum: u64 = words.iter().map(|&word| u64::from(word)).sum();
    *out -= i128::from(sum) << 65;
    format!("{name}: {sum} {:?} {:?}", f(sum), f(0))
}

#[inline(never)]
fn result(n: u32) -> Result<(u8, i128, [f32; 3]), Box<str>> {
    if n.is_multiple_of(2) {
        Ok((n as u8, -i128::from(n) << 90, [n as f32, 0.5, -1.0]))
    } else {
        Err(format!("{n} is odd").into())
    }
}

#[inline(never)]
fn recursive(n: u32, f: &mut dyn FnMut(u32) -> f64) -> f64 {
    if n == 0 {
        0.5
    } else {
        recursive(n - 1, f) * 1.5 + f(n)
    }
}

fn functions() -> Vec<usize> {
    vec![
        nine as extern "C" fn(_, _, _, _, _, _, _, _, _) -> _ as usize,
        ten as extern "C" fn(_, _, _, _, _, _, _, _, _, _) -> _ as usize,
        narrow as extern "C" fn(_, _, _, _, _, _, _, _, _, _) -> _ as usize,
        in_memory as extern "C" fn(_, _, _) -> _ as usize,
        pair as extern "C" fn(_, _) -> _ as usize,
        floats as extern "C" fn(_, _) -> _ as usize,
        mixed as extern "C" fn(_, _) -> _ as usize,
        wide as extern "C" fn(_, _, _, _) -> _ as usize,
        variadic as unsafe extern "C" fn(i32, ...) -> f64 as usize,
        tail as fn(u64, u64, fn(u64) -> Pair) -> Pair as usize,
        ended as fn(u64, u64, fn(u64) -> Pair) -> Pair as usize,
        last as fn(u64) -> Pair as usize,
        native as fn(&[u16], &str, &dyn Fn(u64) -> Option<f64>, &mut i128) -> String as usize,
        result as fn(u32) -> Result<(u8, i128, [f32; 3]), Box<str>> as usize,
        recursive as fn(u32, &mut dyn FnMut(u32) -> f64) -> f64 as usize,
    ]
}

/// Calls of the functions above by this test: 1 each, but for `tail` and
/// `recursive` 4 and 2 for `result`.
const CALLS: usize = 12 + 4 + 4 + 2;

/// An optimised build makes a loop of the three calls of `tail` by itself.
const CALLED: std::ops::RangeInclusive<usize> = CALLS - 3..=CALLS;

/// Calls them all, and checks what they give.
fn check() {
    assert_eq!(nine(1, 2, 3, 4, 5, 6, 7, 8, 9), 123_456_789);
    let ones: f64 = ten(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 0.5);
    assert_eq!(ones.to_bits(), 1_234_567_890.5_f64.to_bits());
    // ((((((20·7 + 1)·7 − 2)·7 + 1)·7 + 97)·7 − 3)·7 + 5)·7 + 6
    let narrowed = narrow(1, 1.0, -2, 1.0, true, 97, -3, 5, 6, 0.5);
    assert_eq!(narrowed, 16_590_461);
    let large = Large {
        words: [1, 2, 3, 4, u64::MAX / 4],
        float: 8.25,
    };
    let doubled = Large {
        words: [3, 5, 7, 9, u64::MAX / 4 * 2 + 1],
        float: 8.0,
    };
    assert_eq!(in_memory(1, large, 0.25), doubled);
    assert_eq!(pair(0, 77), Pair(77, u64::MAX));
    assert_eq!(floats(2.0, Floats(0.5, 3.0)), Floats(6.0, 1.5));
    let half = Mixed { int: 6, float: 1.5 };
    assert_eq!(mixed(half, 3.0), Mixed { int: 7, float: 4.5 });
    let expected = (3 << 100) ^ (5 << 70) ^ (u128::MAX - 1) ^ (1 << 8);
    assert_eq!(wide(1 << 100, 5, -2, 1 << 127), expected);
    // SAFETY: five of each, more than there are registers.
    let sum = unsafe {
        variadic(
            5, 1_i64, 0.5, 2_i64, 0.25, 3_i64, 0.125, 4_i64, 0.0, 5_i64, 0.75,
        )
    };
    assert_eq!(sum.to_bits(), 68.25_f64.to_bits());
    // ((1·3 + 3)·3 + 2)·3 + 1
    assert_eq!(tail(3, 1, last), Pair(30, 61));
    let mut out = 1;
    let half = |n: u64| (n > 0).then(|| n as f64 / 2.0);
    let text = native(&[1, 2, 60_000], "sum", &half, &mut out);
    assert_eq!(
        (&*text, out),
        ("sum: 60003 Some(30001.5) None", 1 - (60_003 << 65))
    );
    assert_eq!(result(300), Ok((44, -(300 << 90), [300.0, 0.5, -1.0])));
    assert_eq!(result(7), Err("7 is odd".into()));
    let mut seen = Vec::new();
    let float = recursive(3, &mut |n| {
        seen.push(n);
        f64::from(n) * 0.25
    });
    // ((0.5·1.5 + 0.25)·1.5 + 0.5)·1.5 + 0.75
    assert_eq!((float.to_bits(), seen), (3.75_f64.to_bits(), vec![1, 2, 3]));
}

#[test]
fn every_value_is_right_through_traced_functions() {
    let alone = Alone::new();
    let functions = functions();
    let which = |func| functions.contains(&func);
    check();
    for accept in [true, false] {
        let wrecker = Wrecker::<0>::new(accept);
        alone.follow(wrecker, which, check);
        assert!(CALLED.contains(&wrecker.calls()));
        let wrecker = Wrecker::<7>::new(accept);
        alone.follow(wrecker, which, check);
        assert!(CALLED.contains(&wrecker.calls()));
    }
    alone.follow_sixteen(which, check);
    check();
}

#[test]
fn every_value_is_right_with_all_functions_traced() {
    let alone = Alone::new();
    let wrecker = Wrecker::<1>::new(true);
    alone.follow(wrecker, |_| true, check);
    assert!(wrecker.calls() > *CALLED.end());
}
