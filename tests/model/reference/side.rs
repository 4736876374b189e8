//! What a [`Reference`] answers and does.

use super::*;

impl Reference {
    /// The slots of a task's calls get their return addresses back, the newest
    /// first.
    fn put_all_back(&self, task: usize) {
        for frame in self.stack(task).frames.iter().rev() {
            if frame.slot != 0 && Some(read(frame.slot)) == self.stub {
                write(frame.slot, frame.ret);
            }
        }
    }
}

impl Side for Reference {
    fn enter(&self, call: Called, wanted: usize) -> bool {
        self.enter_current(call, wanted).is_some()
    }

    fn leave(&self, slot: usize) -> Option<usize> {
        if let Some(ret) = running().and_then(|task| self.leave_on(task, slot)) {
            return Some(ret);
        }
        // Not the running task's: its owner's, or lost.
        if let Some(owner) = owner(slot) {
            self.stack(owner).counters.strays += 1;
            if let Some(ret) = self.leave_on(owner, slot) {
                return Some(ret);
            }
        }
        if let Some(task) = running() {
            self.stack(task).counters.strays += 1;
        }
        None
    }

    fn scope(&self, func: usize, caller: usize) -> usize {
        let call = Called {
            func,
            ret: caller,
            slot: 0,
            tail: false,
        };
        let place = self.enter_current(call, usize::MAX);
        let mut state = self.state();
        state.scopes.push(place.map(|place| (place, func)));
        state.scopes.len() - 1
    }

    fn end_scope(&self, handle: usize) {
        let scope = self.state().scopes[handle].take();
        let (Some((place, func)), Some(task)) = (scope, running()) else {
            return;
        };
        let context = context();
        let is = |frame: &InFlight| {
            let wanted = !frame.callbacks.is_empty();
            wanted && frame.words.1 == place && frame.slot == 0 && frame.func == func
        };
        let found = {
            let mut stack = self.stack(task);
            if stack.len.is_none() {
                return;
            }
            if stack.inside[context] {
                stack.counters.strays += 1;
                return;
            }
            stack.frames.iter().rposition(is)
        };
        let Some(at) = found else {
            return;
        };
        self.stack(task).inside[context] = true;
        let calls_above = self.stack(task).frames[at + 1..]
            .iter()
            .any(|f| f.slot != 0);
        if calls_above {
            // They are still to return: the scope ends between them.
            let frame = self.stack(task).frames[at].clone();
            self.stack(task).frames[at].callbacks.clear();
            let all = self.stack(task).frames.len();
            // Interrupts stay above all of it.
            self.stack(task).reserved += 1;
            self.call_exits(task, &frame, at, Cause::Returned);
            self.end_left_behind(task, all);
            let mut stack = self.stack(task);
            stack.reserved = stack.top;
            drop(stack);
        } else {
            self.end_unwound(task, at + 1);
            self.end(task, Cause::Returned);
        }
        self.stack(task).inside[context] = false;
    }

    fn forget_scope(&self, handle: usize) {
        self.state().scopes[handle] = None;
    }

    fn register(&self, callback: usize) -> Result<usize, RegisterError> {
        let mut state = self.state();
        let owners = state.slots.iter().flatten();
        if owners.clone().any(|owner| owner.callback == callback) {
            return Err(RegisterError::AlreadyRegistered);
        }
        let free = state.slots.iter().position(Option::is_none);
        let slot = free.ok_or(RegisterError::Full)?;
        state.epoch += 1;
        let since = state.epoch;
        state.slots[slot] = Some(Owner { callback, since });
        state.missed[slot] = 0;
        state.ids.push((slot, since));
        Ok(slot)
    }

    fn unregister(&self, handle: usize) -> Result<(), UnregisterError> {
        if !self.is_registered(handle) {
            return Err(UnregisterError::NotRegistered);
        }
        let mut state = self.state();
        let (slot, _) = state.ids[handle];
        state.slots[slot] = None;
        if environment(|e| e.patient.get()) {
            Ok(())
        } else {
            Err(UnregisterError::StillRunning)
        }
    }

    fn is_registered(&self, handle: usize) -> bool {
        let state = self.state();
        let (slot, since) = state.ids[handle];
        state.slots[slot].is_some_and(|owner| owner.since == since)
    }

    fn missed(&self, handle: usize) -> u32 {
        let state = self.state();
        state.missed[state.ids[handle].0]
    }

    fn attach(&self, task: usize, words: usize, range: Range<usize>) -> Result<(), AttachError> {
        let mut stack = self.stack(task);
        if range.start > range.end {
            return Err(AttachError::StackRange);
        }
        if stack.len.is_some() {
            return Err(AttachError::Attached);
        }
        *stack = Stack {
            len: Some(words),
            range,
            ..Stack::default()
        };
        Ok(())
    }

    fn detach(&self, task: usize) -> Result<(), DetachError> {
        let mut stack = self.stack(task);
        if stack.len.is_none() {
            return Err(DetachError::Detached);
        }
        stack.drop_ended();
        if !stack.frames.is_empty() {
            return Err(DetachError::InUse);
        }
        stack.len = None;
        Ok(())
    }

    fn exit(&self, task: usize) -> Result<(), DetachError> {
        if self.stack(task).len.is_none() {
            return Err(DetachError::Detached);
        }
        // Neither the task nor the one that runs is traced meanwhile.
        let before = running().map(|running| self.stack(running).inside);
        for task in running().into_iter().chain([task]) {
            self.stack(task).inside = [true; 4];
        }
        if running() == Some(task) {
            self.put_all_back(task);
        }
        while !self.stack(task).frames.is_empty() {
            self.end(task, Cause::TaskExit);
        }
        let mut stack = self.stack(task);
        stack.len = None;
        stack.inside = [false; 4];
        (stack.top, stack.reserved) = (0, 0);
        drop(stack);
        if let (Some(running), Some(before)) = (running(), before) {
            self.stack(running).inside = before;
        }
        Ok(())
    }

    fn restore(&self) -> usize {
        let Some(task) = running() else {
            return 0;
        };
        let context = context();
        let frames = {
            if self.stack(task).len.is_none() {
                return 0;
            }
            self.put_all_back(task);
            let stack = self.stack(task);
            if context != 0 || stack.inside[0] {
                return 0;
            }
            let wanted = |frame: &&InFlight| !frame.callbacks.is_empty();
            stack.frames.iter().filter(wanted).count()
        };
        self.stack(task).inside[0] = true;
        self.end_unwound(task, 0);
        self.stack(task).inside[0] = false;
        frames
    }

    fn real_return(&self, task: usize, slot: usize, seen: usize) -> usize {
        if Some(seen) != self.stub {
            return seen;
        }
        let stack = self.stack(task);
        if stack.len.is_none() {
            return seen;
        }
        let mut on_slot = stack.frames.iter().rev().filter(|frame| frame.slot == slot);
        let real = on_slot.find(|frame| Some(frame.ret) != self.stub);
        real.map_or(seen, |frame| frame.ret)
    }

    fn frames(&self, task: usize, each: &mut dyn FnMut(Frame)) {
        let frames = self.stack(task).frames.clone();
        let wanted = |frame: &&InFlight| !frame.callbacks.is_empty();
        frames.iter().rev().filter(wanted).for_each(|frame| {
            each(Frame {
                func: frame.func,
                ret: frame.ret,
                slot: frame.slot,
                callbacks: frame.callbacks.iter().fold(0, |set, slot| set | 1 << slot),
            });
        });
    }

    fn counters(&self, task: usize) -> Counters {
        self.stack(task).counters
    }

    fn capacity(&self, task: usize) -> usize {
        self.stack(task).len.unwrap_or(0)
    }

    fn is_inside(&self, task: usize) -> bool {
        self.stack(task).inside.contains(&true)
    }
}
