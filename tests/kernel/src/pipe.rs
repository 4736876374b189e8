//! A pipe: bytes from one task to another, with a little room between.

use crate::sched;
use crate::sync::SpinLock;

const ROOM: usize = 64;

/// A pipe. The same key for readers and writers: who is woken looks again.
pub(crate) struct Pipe(SpinLock<Ring>);

struct Ring {
    bytes: [u8; ROOM],
    first: usize,
    len: usize,
    closed: bool,
}

impl Pipe {
    pub(crate) const fn new() -> Self {
        Self(SpinLock::new(Ring {
            bytes: [0; ROOM],
            first: 0,
            len: 0,
            closed: false,
        }))
    }

    /// Opens it again, empty.
    pub(crate) fn reopen(&self) {
        let mut ring = self.0.lock();
        ring.len = 0;
        ring.closed = false;
    }

    /// Writes all of it, and sleeps while there is no room.
    pub(crate) fn write(&self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let mut ring = self.0.lock();
            let written = ring.put(bytes);
            if written == 0 {
                sched::wait(self.key(), ring);
                continue;
            }
            drop(ring);
            bytes = &bytes[written..];
            sched::wake_all(self.key());
        }
    }

    /// Reads what there is, and sleeps while there is nothing. Nothing at the
    /// end.
    pub(crate) fn read(&self, into: &mut [u8]) -> usize {
        loop {
            let mut ring = self.0.lock();
            let len = ring.take(into);
            if len == 0 && !ring.closed {
                sched::wait(self.key(), ring);
                continue;
            }
            drop(ring);
            sched::wake_all(self.key());
            return len;
        }
    }

    /// There will be no more.
    pub(crate) fn close(&self) {
        self.0.lock().closed = true;
        sched::wake_all(self.key());
    }

    fn key(&self) -> usize {
        (&raw const *self) as usize
    }
}

impl Ring {
    fn put(&mut self, bytes: &[u8]) -> usize {
        let len = bytes.len().min(ROOM - self.len);
        for &byte in &bytes[..len] {
            self.bytes[(self.first + self.len) % ROOM] = byte;
            self.len += 1;
        }
        len
    }

    fn take(&mut self, into: &mut [u8]) -> usize {
        let len = into.len().min(self.len);
        for to in &mut into[..len] {
            *to = self.bytes[self.first];
            self.first = (self.first + 1) % ROOM;
            self.len -= 1;
        }
        len
    }
}
