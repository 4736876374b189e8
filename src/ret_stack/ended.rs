//! Scopes that have ended under calls: their words stay until the calls above
//! have gone, and are then given back to whoever enters next.
//!
//! Such a frame has no slot, and nobody wants its return.

use super::word::{self, Kind, State, TELLING};
use super::{Found, RetStack, View};

impl RetStack {
    /// Whether the newest frame of a stack at rest is of a scope that has ended.
    /// Such a frame puts calls in doubt, but not another scope.
    #[inline(always)]
    pub(crate) fn is_over_ended(&self, state: State) -> bool {
        let is = |[.., index]: [usize; TELLING]| match word::kind(index) {
            Kind::Near(index) | Kind::Wide(index) => index.set() == 0,
            _ => false,
        };
        self.filled_at_rest(state).is_some_and(|view| {
            // SAFETY: no frame ends above the words.
            unsafe { view.near_ending_at(state.resting_top(), is) }.is_some()
        })
    }
}

impl View<'_> {
    /// Whether the newest frame of `state` is of a scope that has ended.
    pub(crate) fn ends_with_ended(&self, state: State) -> bool {
        let newest = self.frame_below(state.top());
        newest.is_some_and(|found| found.set == 0)
    }

    /// Takes scopes that have ended off the top. They were kept because a call
    /// lay above, which has gone since.
    #[cold]
    #[inline(never)]
    pub(crate) fn drop_ended(&self) {
        loop {
            let now = self.stack.state();
            let is_ended = |found: &Found| found.set == 0;
            // Below a claim all stays as it is.
            let found = (!now.has_claim()).then(|| self.frame_below(now.top()));
            let Some(ended) = found.flatten().filter(is_ended) else {
                return;
            };
            // If it is not replaced, an interrupt came between.
            let below = self.state_below(&ended, now);
            self.stack.replace_state(now, below);
        }
    }
}
