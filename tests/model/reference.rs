//! A tracer that is plain, slow and right: frames are structs in a `Vec`, data
//! are `Vec`s, and every rule is written as it is told.
//!
//! Of words it knows how many a frame takes, since that decides what finds
//! room; not what is in them.

use std::cell::{RefCell, RefMut};
use std::ops::Range;

use fgraph::Cause;
use fgraph::fgraph::{RegisterError, UnregisterError};
use fgraph::ret_stack::{AttachError, Counters, DetachError, Frame, NEAR_WORDS, WIDE_WORDS};

use crate::world::{Called, POOL, Seen, Side, TASKS, Words, environment, hands, owner};

#[derive(Clone, Copy)]
struct Owner {
    callback: usize,
    since: usize,
}

#[derive(Clone)]
struct InFlight {
    func: usize,
    ret: usize,
    slot: usize,
    epoch: usize,
    callbacks: Vec<usize>,
    data: Vec<(usize, Words)>,
    /// The first word, the callback-index word, and the position above.
    words: (usize, usize, usize),
    /// Filled and claimed words, once it is gone.
    after: (usize, usize),
    /// It lies over what an interrupted owner had claimed.
    over_claim: bool,
}

#[derive(Default)]
struct Stack {
    /// How many words, once attached.
    len: Option<usize>,
    range: Range<usize>,
    frames: Vec<InFlight>,
    top: usize,
    reserved: usize,
    inside: [bool; 4],
    counters: Counters,
}

impl Stack {
    /// Scopes that ended under calls give their words back when those are gone.
    fn drop_ended(&mut self) {
        while let Some(ended) = self
            .frames
            .pop_if(|frame| self.top == self.reserved && frame.callbacks.is_empty())
        {
            (self.top, self.reserved) = ended.after;
        }
    }
}

struct State {
    slots: Vec<Option<Owner>>,
    missed: Vec<u32>,
    epoch: usize,
    /// Slot, epoch and callback of each registration.
    ids: Vec<(usize, usize)>,
    stacks: [Stack; TASKS],
    /// Position and function of each scope that somebody followed.
    scopes: Vec<Option<(usize, usize)>>,
}

pub struct Reference {
    state: RefCell<State>,
    stub: Option<usize>,
}

fn words_of(callback: usize) -> usize {
    POOL[callback]
}

/// The words that a callback's data take, with the one that says whose.
fn room_of(callback: usize) -> usize {
    match words_of(callback) {
        0 => 0,
        words => words + 1,
    }
}

fn context() -> usize {
    environment(|e| e.context.get()).into()
}

fn running() -> Option<usize> {
    environment(|e| e.task.get())
}

/// Within 2 GiB of `middle`.
fn is_in_window(middle: usize, address: usize) -> bool {
    let distance = address.wrapping_sub(middle) as isize;
    i64::from(i32::MIN) <= distance as i64 && distance as i64 <= i64::from(i32::MAX)
}

fn is_near(call: &Called, epoch: usize, stack: &Range<usize>) -> bool {
    // Without bounds it lies around what is known.
    let below_end = stack.is_empty() || call.slot < stack.end;
    if cfg!(target_pointer_width = "32") {
        return epoch < 1 << 14 && below_end;
    }
    let middle = match stack.is_empty() {
        true => stack.start,
        false => stack.end.wrapping_sub(1 << 31),
    };
    let code = words_of as fn(usize) -> usize as usize;
    let slot = call.slot == 0
        || (is_in_window(middle, call.slot)
            // The window's first address stands for no slot.
            && is_in_window(middle, call.slot.wrapping_sub(1))
            && call.slot.is_multiple_of(8));
    is_in_window(code, call.func) && is_in_window(code, call.ret) && slot && epoch < 1 << 17
}

/// What an entry or an exit is about, apart from the stack.
struct Event<'a> {
    task: usize,
    call: &'a InFlight,
    /// How many frames enclose the call.
    below: usize,
    end: Option<Cause>,
}

impl Reference {
    /// `slots` slots, after `epoch` registrations; `stub` is where hooked
    /// calls return to, if the tracer knows.
    pub fn new(slots: usize, epoch: usize, stub: Option<usize>) -> Self {
        Self {
            state: RefCell::new(State {
                slots: vec![None; slots],
                missed: vec![0; 16],
                epoch,
                ids: Vec::new(),
                stacks: Default::default(),
                scopes: Vec::new(),
            }),
            stub,
        }
    }

    /// How many there were.
    #[allow(dead_code, reason = "for `model_hooked` alone")]
    pub fn registrations(&self) -> usize {
        self.state().ids.len()
    }

    fn state(&self) -> RefMut<'_, State> {
        self.state.borrow_mut()
    }

    fn stack(&self, task: usize) -> RefMut<'_, Stack> {
        RefMut::map(self.state(), |state| &mut state.stacks[task])
    }

    /// The callback in `slot`, if it was there at `epoch`.
    fn participant(&self, slot: usize, epoch: usize) -> Option<usize> {
        let owner = self.state().slots[slot]?;
        (owner.since <= epoch).then_some(owner.callback)
    }

    /// Calls the callback of `slot`; returns what it keeps.
    fn call_back(&self, event: &Event<'_>, callback: usize, slot: usize) -> Option<Words> {
        let data_of = |frame: &InFlight| {
            let data = frame.data.iter().find(|data| data.0 == slot);
            data.map_or(Words::new(&[]), |data| data.1)
        };
        let seen = {
            let state = self.state();
            let since = state.slots[slot].map_or(usize::MAX, |owner| owner.since);
            let enclosing = &state.stacks[event.task].frames[..event.below];
            let own: Vec<&InFlight> = enclosing
                .iter()
                .filter(|frame| frame.callbacks.contains(&slot) && since <= frame.epoch)
                .collect();
            // A run of tail calls returns to where its oldest does.
            let tails = enclosing
                .iter()
                .rev()
                .take_while(|frame| event.call.slot != 0 && frame.slot == event.call.slot);
            Seen {
                callback,
                func: event.call.func,
                caller: tails.last().map_or(event.call.ret, |frame| frame.ret),
                slot: event.call.slot,
                depth: own.len(),
                context: context() as u8,
                parent: own.last().map(|frame| (frame.func, data_of(frame))),
                end: event.end.map(|cause| (cause, data_of(event.call))),
            }
        };
        let reply = hands().observe(seen, slot);
        if let Some(words) = reply.parent {
            let mut stack = self.stack(event.task);
            let own = stack.frames[..event.below]
                .iter_mut()
                .rfind(|frame| frame.callbacks.contains(&slot) && seen.parent.is_some());
            let data = own.and_then(|frame| frame.data.iter_mut().find(|data| data.0 == slot));
            if let Some(data) = data {
                data.1 = words;
            }
        }
        hands().act();
        reply.accept
    }

    /// Ends the newest frame.
    fn end(&self, task: usize, cause: Cause) {
        let (context, below, frame) = {
            let mut stack = self.stack(task);
            let Some(frame) = stack.frames.pop() else {
                return;
            };
            (stack.top, stack.reserved) = (frame.after.0, frame.words.2);
            stack.inside[context()] = true;
            (context(), stack.frames.len(), frame)
        };
        self.call_exits(task, &frame, below, cause);
        self.end_left_behind(task, below);
        let mut stack = self.stack(task);
        (stack.top, stack.reserved) = frame.after;
        stack.inside[context] = true;
    }

    fn call_exits(&self, task: usize, frame: &InFlight, below: usize, cause: Cause) {
        let event = Event {
            task,
            call: frame,
            below,
            end: Some(cause),
        };
        for &slot in frame.callbacks.iter().rev() {
            if let Some(callback) = self.participant(slot, frame.epoch) {
                self.call_back(&event, callback, slot);
            }
        }
    }

    /// Interrupts have ended, and so have the calls that they left behind.
    fn end_left_behind(&self, task: usize, below: usize) {
        self.end_unwound(task, below);
    }

    fn end_unwound(&self, task: usize, down_to: usize) {
        while self.stack(task).frames.len() > down_to {
            let wanted = |frame: &InFlight| !frame.callbacks.is_empty();
            let unwound = self.stack(task).frames.last().is_some_and(wanted);
            self.stack(task).counters.unwound += u32::from(unwound);
            self.end(task, Cause::Unwound);
        }
    }

    /// How many frames stay when a call enters on `slot`; the others are
    /// proven to be dead.
    fn alive(stack: &Stack, slot: usize, tail: bool) -> usize {
        let all = stack.frames.len();
        let known = |slot: &usize| stack.range.contains(slot);
        let newest = stack.frames.iter().rfind(|frame| frame.slot != 0);
        // Calls go down the real stack; nothing to see.
        if newest.is_none_or(|frame| frame.slot > slot) {
            return all;
        }
        let mut alive = all;
        for (at, frame) in stack.frames.iter().enumerate().rev() {
            let newer = stack.frames.get(at + 1);
            if newer.is_some_and(|newer| newer.over_claim) {
                break;
            }
            if tail && frame.slot == slot {
                // It is running: whatever it called has ended.
                return at + 1;
            }
            let lower = frame.slot < slot && known(&slot) && known(&frame.slot);
            let dead = frame.slot == slot || lower;
            let proven = stack.frames[at + 1..alive].iter().all(|f| f.slot == 0);
            if dead && proven {
                alive = at;
            } else if frame.slot != 0 && !tail {
                break;
            }
        }
        alive
    }

    /// Returns the position of the frame.
    fn enter_on(&self, task: usize, call: Called, set: &[usize]) -> Option<usize> {
        let context = context();
        let (epoch, suspect) = {
            let state = self.state();
            let stack = &state.stacks[task];
            stack.len?;
            (state.epoch, call.slot != 0 && stack.top == stack.reserved)
        };
        if self.stack(task).inside[context] {
            self.stack(task).counters.recursions += 1;
            return None;
        }
        self.stack(task).inside[context] = true;
        self.stack(task).drop_ended();
        if suspect {
            let alive = Self::alive(&self.stack(task), call.slot, call.tail);
            self.end_unwound(task, alive);
            self.stack(task).drop_ended();
        }
        let entered = self.enter_inside(task, call, set, epoch);
        self.stack(task).inside[context] = false;
        entered
    }

    fn enter_inside(
        &self,
        task: usize,
        call: Called,
        set: &[usize],
        epoch: usize,
    ) -> Option<usize> {
        let (mut frame, limit, below) = {
            let mut state = self.state();
            let owners = state.slots.iter().flatten();
            let room: usize = owners.map(|owner| room_of(owner.callback)).sum();
            let stack = &state.stacks[task];
            let (len, over_claim) = (stack.len?, stack.top != stack.reserved);
            let near = !over_claim && is_near(&call, epoch, &stack.range);
            let start = stack.reserved + usize::from(over_claim);
            let end = start + if near { NEAR_WORDS } else { WIDE_WORDS };
            if end > len {
                state.stacks[task].counters.overruns += 1;
                for &slot in set {
                    let owner = state.slots[slot];
                    if owner.is_some_and(|owner| owner.since <= epoch) {
                        state.missed[slot] += 1;
                    }
                }
                return None;
            }
            let frame = InFlight {
                func: call.func,
                ret: call.ret,
                slot: call.slot,
                epoch,
                callbacks: Vec::new(),
                data: Vec::new(),
                words: (start, end - 1, end),
                after: if over_claim {
                    (stack.top, stack.reserved)
                } else {
                    (start, start)
                },
                over_claim,
            };
            let limit = (end + room).min(len);
            let stack = &mut state.stacks[task];
            stack.reserved = limit;
            (frame, limit, stack.frames.len())
        };
        let mut overrun = false;
        for &slot in set {
            let Some(callback) = self.participant(slot, epoch) else {
                continue;
            };
            if frame.words.2 + room_of(callback) > limit {
                self.state().missed[slot] += 1;
                if !overrun {
                    self.stack(task).counters.overruns += 1;
                }
                overrun = true;
                continue;
            }
            let event = Event {
                task,
                call: &frame,
                below,
                end: None,
            };
            let Some(words) = self.call_back(&event, callback, slot) else {
                continue;
            };
            frame.words.2 += room_of(callback);
            frame.callbacks.push(slot);
            frame.data.push((slot, words));
        }
        self.end_left_behind(task, below);
        let mut stack = self.stack(task);
        if frame.callbacks.is_empty() {
            (stack.top, stack.reserved) = frame.after;
            return None;
        }
        (stack.top, stack.reserved) = (frame.words.2, frame.words.2);
        let index = frame.words.1;
        stack.frames.push(frame);
        Some(index)
    }

    /// The callbacks that are wanted and there.
    fn present(&self, wanted: usize) -> Vec<usize> {
        let state = self.state();
        let present = |&slot: &usize| state.slots[slot].is_some() && wanted >> slot & 1 != 0;
        (0..state.slots.len()).filter(present).collect()
    }

    fn enter_current(&self, call: Called, wanted: usize) -> Option<usize> {
        let set = self.present(wanted);
        if set.is_empty() {
            return None;
        }
        self.enter_on(running()?, call, &set)
    }

    fn leave_on(&self, task: usize, slot: usize) -> Option<usize> {
        let context = context();
        let at = {
            let stack = self.stack(task);
            stack.len?;
            assert!(
                !stack.inside[context],
                "the world leaves no callback by a jump"
            );
            stack.frames.iter().rposition(|frame| frame.slot == slot)?
        };
        self.stack(task).inside[context] = true;
        self.end_unwound(task, at + 1);
        let ret = self.stack(task).frames[at].ret;
        write(slot, ret);
        self.end(task, Cause::Returned);
        self.stack(task).inside[context] = false;
        Some(ret)
    }
}

fn read(slot: usize) -> usize {
    // SAFETY: the world's slots are words.
    unsafe { (slot as *const usize).read_volatile() }
}

fn write(slot: usize, word: usize) {
    // SAFETY: the world's slots are words.
    unsafe { (slot as *mut usize).write_volatile(word) }
}

#[path = "reference/side.rs"]
mod side;
