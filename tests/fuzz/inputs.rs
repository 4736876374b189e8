//! Arbitrary bytes as the memory that the crate reads: a shadow stack's words,
//! and a buffer's records. No panic, no read out of bounds, no endless loop.
//!
//! Shared by the fuzz targets and by `tests/faults.rs`, which runs them on a
//! bounded number of inputs without a fuzzer.
#![allow(dead_code, reason = "a fuzz target uses one of them")]

use std::cell::{Cell, RefCell};
use std::fmt::Write;
use std::sync::Once;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};

use fgraph::fgraph::Call;
use fgraph::tracer::{
    Buffer, ByteSink, Cursor, Full, Graph, Open, Print, Record, Scale, Shown, Trace, folded, fxt,
    json,
};
use fgraph::{Callback, Context, Entry, Exit, Fgraph, FrameData, Platform, RetStack};

/// A kernel whose task, time and context are those of the input.
pub struct Kernel;

thread_local! {
    static STACK: Cell<Option<&'static RetStack>> = const { Cell::new(None) };
    static CONTEXT: Cell<Context> = const { Cell::new(Context::Task) };
    static CLOCK: Cell<u64> = const { Cell::new(0) };
    static CPU: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: one thread runs one task; contexts do not nest.
unsafe impl Platform for Kernel {
    fn current<R>(f: impl FnOnce(&RetStack) -> R) -> Option<R> {
        STACK.get().map(f)
    }

    fn clock() -> u64 {
        // Any time after any other.
        CLOCK.set(CLOCK.get().rotate_left(7) ^ 0x1234_5678);
        CLOCK.get()
    }

    fn context() -> Context {
        CONTEXT.get()
    }

    fn cpu() -> usize {
        CPU.get()
    }

    fn task() -> usize {
        CLOCK.get() as usize >> 13
    }
}

/// Reads everything that it can reach, and writes into its parent.
struct Curious<const W: usize>(usize);

impl<const W: usize> Callback for Curious<W> {
    type Frame = [usize; W];

    fn entry(&self, call: Entry<'_, Self::Frame>) -> Option<Self::Frame> {
        let parent = call.parent().map_or([W; W], |parent| parent.get());
        let data = call.caller() ^ call.depth() ^ call.func() ^ call.return_slot();
        Some(parent.map(|word| word ^ data ^ self.0))
    }

    fn exit(&self, call: Exit<'_, Self::Frame>, data: Self::Frame) {
        let bound = call.stack().capacity();
        assert!(call.depth() <= bound && call.stack().depth() <= bound);
        if let Some(parent) = call.parent() {
            assert_eq!(parent.get().to_words().len(), W);
            parent.set(data);
        }
        let _ = (call.caller(), format!("{call:?}"));
    }
}

fn fgraph() -> &'static Fgraph<Kernel> {
    static FGRAPH: Fgraph<Kernel> = Fgraph::new();
    static ONCE: Once = Once::new();
    macro_rules! register {
        ($($number:literal $words:literal,)*) => { ONCE.call_once(|| {
            $(FGRAPH.register(&Curious::<$words>($number)).expect("there is a slot");)*
        }) };
    }
    register!(0 0, 1 1, 2 2, 3 3, 4 15, 5 4, 6 5, 7 0, 8 1, 9 2, 10 3, 11 6, 12 7,);
    &FGRAPH
}

/// Takes bytes from the input; zeros after its end.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn byte(&mut self) -> usize {
        match self.0 {
            [first, rest @ ..] => {
                self.0 = rest;
                usize::from(*first)
            }
            [] => 0,
        }
    }

    fn word(&mut self) -> usize {
        (0..size_of::<usize>()).fold(0, |word, _| word << 8 | self.byte())
    }
}

const SLOTS: usize = 16;

/// A shadow stack whose words are the input.
pub fn words(input: &[u8]) {
    let mut input = Bytes(input);
    let fgraph = fgraph();
    let len = input.byte() % 96;
    let words: &'static [AtomicUsize] = (0..len).map(AtomicUsize::new).collect::<Vec<_>>().leak();
    let real: &'static [AtomicUsize] = (0..SLOTS).map(AtomicUsize::new).collect::<Vec<_>>().leak();
    let slot = |at: usize| std::ptr::from_ref(&real[at % SLOTS]) as usize;
    let stack: &'static RetStack = Box::leak(Box::default());
    let range = match input.byte() % 3 {
        0 => slot(0)..slot(SLOTS - 1),
        1 => slot(0)..slot(0),
        _ => 0..usize::from(u16::MAX),
    };
    // SAFETY: leaked, and written through atomics alone, as the crate does.
    let attached = unsafe {
        let words = words.as_ptr().cast::<usize>().cast_mut();
        stack.attach(std::slice::from_raw_parts_mut(words, len), range)
    };
    attached.expect("a new stack takes its words");
    STACK.set(Some(stack));
    CONTEXT.set(Context::Task);
    let code = fgraph as *const _ as usize;
    let call = |at: usize, func: usize| Call {
        func: code.wrapping_add(func),
        ret: code.wrapping_add(func << 1),
        slot: slot(at),
        tail: func & 3 == 3,
        registers: None,
    };
    // Down the real stack, until the words are full or the slots are.
    for at in (0..1 + input.byte() % SLOTS).rev() {
        // SAFETY: the slots are words.
        let _ = unsafe { fgraph.enter(&call(at, input.byte()), input.word() | input.byte()) };
    }
    // Now the memory is what the input says, in parts.
    for word in words {
        let how = input.byte();
        let kind = how & 3;
        match how >> 2 & 7 {
            0..3 => {}
            3 | 4 => word.store(input.word(), Relaxed),
            // What looks like an index, with small fields.
            5 => word.store(kind | input.byte() << 2 | input.byte() << 10, Relaxed),
            6 => word.store(kind | input.byte() << 10, Relaxed),
            _ => word.store(
                word.load(Relaxed) ^ 1 << (input.byte() % usize::BITS as usize),
                Relaxed,
            ),
        }
    }
    walk(fgraph, stack, len, code);
    for _ in 0..input.byte() % 32 {
        let at = input.byte();
        match at >> 5 {
            // SAFETY: the slots are words.
            0 | 1 => drop(unsafe { fgraph.leave(slot(at), None) }),
            // SAFETY: as above.
            2 | 3 => drop(unsafe { fgraph.enter(&call(at, input.byte()), usize::MAX) }),
            4 => drop(fgraph.scope(code.wrapping_add(at), code)),
            5 => CONTEXT.set(Context::Interrupt),
            6 => CONTEXT.set(Context::Task),
            _ => walk(fgraph, stack, len, code),
        }
    }
    CONTEXT.set(Context::Task);
    // SAFETY: none of the calls returns.
    let ended = unsafe { fgraph.exit_task(stack) };
    assert_eq!(ended.map(|words| words.len()), Ok(len));
    STACK.set(None);
    // SAFETY: leaked above; the stack has given the words back.
    unsafe {
        drop(Box::from_raw(std::ptr::from_ref(stack).cast_mut()));
        drop(Box::from_raw(std::ptr::from_ref(words).cast_mut()));
        drop(Box::from_raw(std::ptr::from_ref(real).cast_mut()));
    }
}

/// A walk of a stack of `len` words ends, and so does everything built on it.
fn walk(fgraph: &Fgraph<Kernel>, stack: &RetStack, len: usize, seen: usize) {
    let mut count = 0;
    for frame in stack.frames() {
        count += 1;
        assert!(count <= len, "a walk that is longer than the stack");
        let _ = fgraph.real_return(stack, frame.slot, frame.ret);
        let _ = fgraph.real_return(stack, frame.slot, seen);
    }
    assert_eq!(stack.depth(), count);
    assert!(stack.high_water() <= len);
    let _ = format!("{stack:?} {:?}", stack.frames());
}

const RECORDS: usize = 64;

/// Buffers whose records are the input, read in every way.
pub fn records(input: &[u8]) {
    static MEMORY: [[Record; RECORDS]; 2] = [const { [const { Record::new() }; RECORDS] }; 2];
    static BUFFERS: [Buffer; 2] = [
        Buffer::new(&MEMORY[0], Full::Overwrite),
        Buffer::new(&MEMORY[1], Full::Stop),
    ];
    static GRAPH: Graph<Kernel> = Graph::new(&BUFFERS);
    static FGRAPH: Fgraph<Kernel> = Fgraph::new();
    static ONCE: Once = Once::new();
    thread_local! {
        static TASK: RefCell<Option<&'static RetStack>> = const { RefCell::new(None) };
    }
    // The buffers are one for all threads.
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    ONCE.call_once(|| {
        FGRAPH.register(&GRAPH).expect("there is a slot");
    });
    let stack = TASK.with_borrow_mut(|task| {
        *task.get_or_insert_with(|| {
            let stack: &'static RetStack = Box::leak(Box::default());
            let words = Box::leak(vec![0; 64].into_boxed_slice());
            stack
                .attach(words, 0..0)
                .expect("a new stack takes its words");
            stack
        })
    });
    STACK.set(Some(stack));
    CONTEXT.set(Context::Task);
    let mut input = Bytes(input);
    CLOCK.set(input.word() as u64);
    let fgraph = &FGRAPH;
    let memory = (&raw const MEMORY).cast::<AtomicU8>();
    let damage = |input: &mut Bytes<'_>| {
        // Real records first, so that heads and tails are anywhere.
        STACK.set(Some(stack));
        for _ in 0..input.byte() {
            CPU.set(input.byte() % 3);
            let outer = fgraph.scope(input.word(), 0);
            CPU.set(input.byte() % 3);
            drop(fgraph.scope(input.byte(), 0));
            drop(outer);
        }
        STACK.set(None);
        // Then the memory is what the input says.
        for _ in 0..input.byte() * 4 {
            let at = input.word() % size_of_val(&MEMORY);
            // SAFETY: in bounds; a record is atomic words, of any value.
            unsafe { &*memory.add(at) }.store(input.byte() as u8, Relaxed);
        }
    };
    damage(&mut input);
    read(&BUFFERS, &mut input, damage);
}

/// Takes everything, and keeps nothing.
struct Sink(usize);

impl Write for Sink {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0 += text.len();
        Ok(())
    }
}

impl ByteSink for Sink {
    type Error = std::convert::Infallible;

    fn write(&mut self, bytes: &[u8]) -> Result<(), Self::Error> {
        self.0 += bytes.len();
        Ok(())
    }
}

fn read(buffers: &'static [Buffer], input: &mut Bytes<'_>, damage: impl Fn(&mut Bytes<'_>)) {
    let mut cursors = [const { Cursor::new() }; 2];
    let mut open = vec![Open::new(); 1 + input.byte() % 40];
    let ticks = input.word() as u64;
    let scale = Scale::new(ticks, input.word() as u64).unwrap_or(Scale::NANOSECONDS);
    // A damaged record leads some laps ahead; more events than that is an
    // endless loop.
    let most = 64 * RECORDS * buffers.len();
    fn whole<'a>(
        buffers: &'static [Buffer],
        scale: Scale,
        cursors: &'a mut [Cursor],
        open: &'a mut [Open],
    ) -> Trace<'a> {
        Trace::whole(buffers, scale, cursors, open).expect("there is memory to read with")
    }
    macro_rules! whole {
        () => {
            whole(buffers, scale, &mut cursors, &mut open)
        };
    }
    let mut sink = Sink(0);
    let told = whole!().take(most).map(|event| write!(sink, "{event:?}"));
    assert!(told.count() < most, "a reading that does not end");
    let shown = Shown::from_bits_truncate(input.word() as u16);
    let printed = Print::new(&()).shown(shown).trace(&mut sink, &mut whole!());
    printed.expect("a sink takes everything");
    json(&mut sink, &mut whole!(), &()).expect("as above");
    folded(&mut sink, &mut whole!(), &()).expect("as above");
    let Ok(()) = fxt(&mut sink, &mut whole!(), &());
    // Last, as it takes the records out.
    let mut live =
        Trace::live(buffers, scale, &mut cursors, &mut open).expect("there is memory to read with");
    for _ in 0..3 {
        assert!(live.by_ref().take(most).count() < most);
        damage(input);
    }
    live.finish();
    assert!(live.take(most).count() < most);
}
