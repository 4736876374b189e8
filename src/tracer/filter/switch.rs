//! A filter that others turn on and off. It knows nothing of the call.

use super::Filter;
use crate::sync::{AtomicUsize, Ordering};
use crate::{Entry, FrameData};

/// Accepts all calls while it is on, none while it is off. Used by reference,
/// so that others switch it: a kernel's command, or a
/// [trigger](crate::tracer::trigger::Trigger).
///
/// Calls that began before it was switched off are seen to their end.
///
/// # Example
///
/// ```
/// use fgraph::tracer::filter::Switch;
///
/// static SWITCH: Switch = Switch::new(true);
/// SWITCH.set(false);
/// assert!(!SWITCH.is_on());
/// ```
#[derive(Debug)]
pub struct Switch(AtomicUsize);

impl Switch {
    /// On or off.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::filter::Switch;
    ///
    /// static SWITCH: Switch = Switch::new(false);
    /// assert!(!SWITCH.is_on());
    /// ```
    #[must_use]
    pub const fn new(on: bool) -> Self {
        Self(AtomicUsize::new(on as usize))
    }

    /// Switches it. Any context.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::filter::{Filtered, Switch};
    /// use fgraph::tracer::trigger::Counts;
    #[doc = example_kernel!()]
    ///
    /// static SWITCH: Switch = Switch::new(false);
    /// static COUNTS: Filtered<Counts, &Switch> = Filtered::new(Counts::new(&[]), &SWITCH);
    ///
    /// FGRAPH.register(&COUNTS)?;
    /// drop(FGRAPH.scope(0x1000, 0));
    /// SWITCH.set(true);
    /// drop(FGRAPH.scope(0x1000, 0));
    /// assert_eq!(COUNTS.callback().others(), 1);
    /// # Ok::<(), fgraph::fgraph::RegisterError>(())
    /// ```
    pub fn set(&self, on: bool) {
        // Relaxed: a call that begins meanwhile is judged by the old or the new
        // setting, and nothing else is published by it.
        self.0.store(on.into(), Ordering::Relaxed);
    }

    /// Whether it is on.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::filter::Switch;
    ///
    /// static SWITCH: Switch = Switch::new(true);
    /// assert!(SWITCH.is_on());
    /// ```
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

impl Filter for Switch {
    #[inline]
    fn accepts<D: FrameData>(&self, _call: &Entry<'_, D>) -> bool {
        self.is_on()
    }
}
