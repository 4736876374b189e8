//! The operations of a [`World`].

use super::*;

/// An address in this program's code, or far from it.
fn code(number: usize, far: bool) -> usize {
    let near = code as fn(usize, bool) -> usize as usize;
    if far {
        near.wrapping_add(1_usize.rotate_right(24))
            .wrapping_add(number * 16)
    } else {
        near + number * 16
    }
}

fn word_at(slot: usize) -> &'static AtomicUsize {
    // SAFETY: slots are words of the leaked memory.
    unsafe { &*(slot as *const AtomicUsize) }
}

impl<S: Side> World<'_, S> {
    /// A word for a return slot below what is in use.
    fn push(&self, gap: usize) -> Option<(usize, (usize, usize))> {
        let mut task = self.tasks[self.current()].borrow_mut();
        let before = (task.sp, self.interrupt_sp.get());
        let place = |sp: usize| sp.checked_sub(1 + gap);
        let memory = if self.on_interrupt_stack.get() {
            self.interrupt_sp.set(place(before.1)?);
            &self.interrupt[self.interrupt_sp.get()]
        } else {
            task.sp = place(before.0)?;
            &task.memory[task.sp]
        };
        Some((std::ptr::from_ref(memory) as usize, before))
    }

    /// The newest call that the running context may end.
    fn newest(&self, task: usize) -> Option<InFlight> {
        let base = if task == self.current() {
            self.base.get()
        } else {
            0
        };
        let task = self.tasks[task].borrow();
        let newest = *task.calls.last()?;
        (task.calls.len() > base).then_some(newest)
    }

    fn pop(&self, task: usize) {
        let mut task = self.tasks[task].borrow_mut();
        if let Some(call) = task.calls.pop() {
            task.sp = task.sp.max(call.before.0);
            self.interrupt_sp
                .set(self.interrupt_sp.get().max(call.before.1));
        }
    }

    pub(super) fn call(&self, step: Step) {
        let Some((slot, before)) = self.push(step.a() % 4) else {
            return;
        };
        let far = step.b();
        let ret = code(1000 + step.a(), far & 15 == 1);
        word_at(slot).store(ret, Relaxed);
        let called = Called {
            func: code(step.a() % 40, far & 15 == 2),
            ret,
            slot,
            tail: false,
        };
        let wanted = if far & 0x30 == 0 { far >> 6 } else { 0xffff };
        // Counted as in flight first: interrupts in callbacks come on top.
        self.tasks[self.current()]
            .borrow_mut()
            .calls
            .push(InFlight {
                slot,
                ret,
                scope: usize::MAX,
                before,
            });
        self.enter(called, wanted);
    }

    fn enter(&self, called: Called, wanted: usize) {
        let entered = self.side.enter(called, wanted);
        let slot = called.slot;
        self.log(Event::Entered {
            slot,
            wanted: entered,
        });
        if entered {
            word_at(slot).store(self.stub, Relaxed);
        }
    }

    pub(super) fn tail(&self, step: Step) {
        let Some(call) = self.newest(self.current()) else {
            return;
        };
        if call.slot == 0 {
            return;
        }
        let ret = word_at(call.slot).load(Relaxed);
        let called = Called {
            func: code(step.a() % 40, step.b() & 15 == 2),
            ret,
            slot: call.slot,
            tail: ret == self.stub,
        };
        self.enter(called, 0xffff);
    }

    /// The newest call of the task returns, by way of the hooks on its slot.
    pub(super) fn give_back(&self, task: usize) {
        let Some(call) = self.newest(task) else {
            return;
        };
        if call.slot == 0 {
            if task == self.current() {
                self.end_scope();
            }
            return;
        }
        let mut to = word_at(call.slot).load(Relaxed);
        // At the stub it is left, as often as that leads to the stub again.
        let mut left_at_all = true;
        while to == self.stub && left_at_all {
            let left = self.side.leave(call.slot);
            self.log(Event::Left {
                slot: call.slot,
                to: left,
            });
            left_at_all = left.is_some();
            to = left.unwrap_or(call.ret);
        }
        // Whatever was lost on the way: nobody is sent to a wrong place.
        if to != call.ret {
            let log = self.log.borrow();
            let last = log.iter().rev().take(40);
            let lines: String = last.map(|event| format!("  {event:x?}\n")).collect();
            panic!("after\n{lines}a return to {to:#x} and not {:#x}", call.ret);
        }
        self.pop(task);
    }

    pub(super) fn jump(&self, over: usize) {
        let task = self.current();
        for _ in 0..over {
            let Some(call) = self.newest(task) else {
                return;
            };
            if call.slot == 0 {
                self.side.forget_scope(call.scope);
            }
            self.pop(task);
        }
    }

    pub(super) fn scope(&self, step: Step) {
        let task = self.current();
        if self.tasks[task].borrow().calls.len() > 40 {
            return;
        }
        let before = (self.tasks[task].borrow().sp, self.interrupt_sp.get());
        let func = code(step.a() % 4, step.b() & 15 == 2);
        self.tasks[task].borrow_mut().calls.push(InFlight {
            slot: 0,
            ret: 0,
            scope: usize::MAX,
            before,
        });
        let scope = self.side.scope(func, code(1000 + step.a(), false));
        let mut task = self.tasks[task].borrow_mut();
        if let Some(call) = task.calls.last_mut() {
            call.scope = scope;
        }
        // Moved out of its block: it ends whenever it is dropped.
        if step.b() & 0x70 == 0 && self.nested.get() == 0 {
            task.calls.pop();
            task.adrift.push(scope);
        }
    }

    pub(super) fn end_scope(&self) {
        let task = self.current();
        match self.newest(task) {
            Some(call) if call.slot == 0 => {
                self.side.end_scope(call.scope);
                self.pop(task);
            }
            _ => {}
        }
    }

    pub(super) fn end_old_scope(&self, step: Step) {
        // A guard stays with the task, and is dropped where that runs.
        if self.nested.get() > 0 {
            return;
        }
        let mut task = self.tasks[self.current()].borrow_mut();
        if task.adrift.is_empty() {
            return;
        }
        let at = step.a() % task.adrift.len();
        let scope = task.adrift.remove(at);
        drop(task);
        self.side.end_scope(scope);
    }

    pub(super) fn register(&self, callback: usize) {
        let result = self.side.register(callback);
        if result.is_ok() {
            self.live.borrow_mut().push(self.registrations.get());
            self.registrations.set(self.registrations.get() + 1);
        }
        self.log(Event::Registered(result));
    }

    pub(super) fn unregister(&self, step: Step) {
        if self.registrations.get() == 0 {
            return;
        }
        environment(|e| e.patient.set(step.b() & 7 != 0));
        // Mostly one that is there.
        let live = self.live.borrow().len();
        let handle = if live == 0 || step.b() & 0x38 == 0 {
            step.a() % self.registrations.get()
        } else {
            self.live.borrow()[step.a() % live]
        };
        let was = self.side.is_registered(handle);
        let result = self.side.unregister(handle);
        assert!(!self.side.is_registered(handle));
        assert_eq!(was, result != Err(UnregisterError::NotRegistered));
        self.live.borrow_mut().retain(|&other| other != handle);
        self.log(Event::Unregistered(result));
        self.log(Event::Missed(handle, self.side.missed(handle)));
    }

    pub(super) fn attach(&self, step: Step, nested: bool) {
        let task = step.a() % TASKS;
        // Nobody attaches the words of a task that is just being ended.
        if nested && task == self.current() {
            return;
        }
        const SIZES: [usize; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 9, 12, 17, 25, 40, 64, 120, 400];
        let words = SIZES[step.b() & 15];
        let real = range(self.tasks[task].borrow().memory);
        let range = match step.b() >> 4 & 7 {
            // In the stack, bounds unknown.
            0 | 1 => real.start + 64..real.start + 64,
            // A window that no slot is in.
            2 => 0x10_0000..0x10_0000,
            // Nonsense.
            3 if step.b() & 0x80 != 0 => real.end..real.start,
            _ => real,
        };
        let result = self.side.attach(task, words, range);
        self.log(Event::Attached(result));
    }

    pub(super) fn detach(&self, task: usize) {
        let result = self.side.detach(task);
        self.log(Event::Detached(result));
    }

    pub(super) fn exit(&self, task: usize) {
        let result = self.side.exit(task);
        self.log(Event::Detached(result));
        if result.is_ok() {
            // None of its calls returns.
            let mut task = self.tasks[task].borrow_mut();
            for call in std::mem::take(&mut task.calls) {
                if call.slot == 0 {
                    self.side.forget_scope(call.scope);
                }
            }
            task.sp = task.memory.len();
        }
    }

    pub(super) fn walk(&self, task: usize) {
        let mut frames = Vec::new();
        self.side.frames(task, &mut |frame| frames.push(frame));
        self.log(Event::Walked {
            depth: frames.len(),
            capacity: self.side.capacity(task),
            inside: self.side.is_inside(task),
        });
        self.log
            .borrow_mut()
            .extend(frames.into_iter().map(Event::Frame));
    }

    /// An unwinder asks for every call in flight.
    pub(super) fn real_return(&self, task: usize) {
        let calls = self.tasks[task].borrow().calls.clone();
        for call in calls.iter().filter(|call| call.slot != 0) {
            let seen = word_at(call.slot).load(Relaxed);
            let real = self.side.real_return(task, call.slot, seen);
            self.log(Event::Number(real));
        }
    }

    pub(super) fn restore(&self) {
        // Where nobody knows the stub, the slots would keep it.
        if !self.stub_is_known {
            return;
        }
        let ended = self.side.restore();
        self.log(Event::Number(ended));
    }

    /// Everything ends, so that the next case finds nothing.
    pub(super) fn finish(&self) {
        environment(|e| e.patient.set(true));
        for task in 0..TASKS {
            environment(|e| e.task.set(Some(task)));
            self.step.set(Step(0));
            self.callbacks.set(0);
            self.log(Event::Counters(task, self.side.counters(task)));
            self.exit(task);
            self.log(Event::Counters(task, self.side.counters(task)));
            for scope in std::mem::take(&mut self.tasks[task].borrow_mut().adrift) {
                self.side.end_scope(scope);
            }
        }
        for handle in self.live.take() {
            self.log(Event::Missed(handle, self.side.missed(handle)));
            let result = self.side.unregister(handle);
            self.log(Event::Unregistered(result));
        }
    }
}
