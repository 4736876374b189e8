//! A callback that writes what it sees, for a filter to wrap.

use std::fmt::Write;
use std::sync::Mutex;

use fgraph::tracer::filter::Deferred;
use fgraph::{Callback, Cause, Entry, Exit, FrameData};

use super::E;

/// Writes what it sees. Keeps three words that only it can know, in itself and
/// from its parent: if a filter mixed its words with these, it would show.
pub struct Log(Mutex<String>);

impl Log {
    pub const fn new() -> Self {
        Self(Mutex::new(String::new()))
    }

    /// What was written since the last time.
    pub fn take(&self) -> String {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

#[derive(Clone, Copy)]
pub struct Kept {
    func: usize,
    around: usize,
    inside: usize,
}

impl FrameData for Kept {
    type Words = [usize; 3];
    fn to_words(self) -> [usize; 3] {
        [self.func, self.around, self.inside]
    }
    fn from_words([func, around, inside]: [usize; 3]) -> Self {
        Self {
            func,
            around,
            inside,
        }
    }
}

impl Callback for Log {
    type Frame = Kept;

    fn entry(&self, call: Entry<'_, Kept>) -> Option<Kept> {
        let parent = call.parent();
        let around = match &parent {
            Some(parent) => {
                let kept = parent.get();
                assert_eq!(kept.func, parent.func(), "the parent's own words");
                parent.set(Kept {
                    inside: kept.inside + 1,
                    ..kept
                });
                assert_eq!(parent.add(2, 0), Some(kept.inside + 1));
                assert_eq!(parent.add(3, 1), None, "three words are all");
                kept.func
            }
            None => 0,
        };
        assert_eq!(call.parents().count(), call.depth());
        assert_eq!(parent.is_some(), call.depth() > 0);
        write!(
            self.0.lock().unwrap(),
            "{:x}{}( ",
            call.func(),
            call.depth()
        )
        .unwrap();
        // E is what it does not want.
        (call.func() != E).then_some(Kept {
            func: call.func(),
            around,
            inside: 0,
        })
    }

    fn exit(&self, call: Exit<'_, Kept>, data: Kept) {
        self.end(call, data, ')');
    }
}

impl Log {
    /// The function, how it ended, and how many calls it saw inside, the
    /// refused ones included.
    fn end(&self, call: Exit<'_, Kept>, data: Kept, sign: char) {
        assert_eq!(data.func, call.func());
        let around = call.parent().map_or(0, |parent| parent.func());
        assert_eq!(data.around, around);
        let how = match call.cause() {
            Cause::Returned => "",
            Cause::Unwound => "!",
            Cause::TaskExit => "x",
        };
        write!(
            self.0.lock().unwrap(),
            "{sign}{:x}{how}{} ",
            data.func,
            data.inside
        )
        .unwrap();
    }
}

impl Deferred for Log {
    fn discard(&self, call: Exit<'_, Kept>, data: Kept) {
        self.end(call, data, '~');
    }
}
