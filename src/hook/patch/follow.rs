//! Who follows which function: entries turned on and off.
//!
//! This file decides what is written to an entry; how it looks is
//! [`arch`]'s. It knows no call.

use super::{Global, Patch, PatchError, PatchText};
use crate::arch::{self, entry};
use crate::fgraph::CallbackId;

impl<B: Global<N> + PatchText, const N: usize> Patch<B, N> {
    /// Excludes functions for good: those whose address `which` accepts are
    /// turned off and never hooked again, by no callback. Returns how many. Task
    /// context.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_patch!()]
    /// # // SAFETY: two patchable functions, which nobody else patches.
    /// # unsafe { PATCH.init(listed)? };
    /// # let id = FGRAPH.register(&COUNTS)?;
    /// assert_eq!(PATCH.exclude(|func| func == read)?, 1);
    /// // Only the other one is left.
    /// assert_eq!(PATCH.enable(id, |_| true)?, 1);
    /// assert!(PATCH.functions().eq([check]));
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PatchError::NotInitialised`], [`PatchError::InCallback`].
    pub fn exclude(&self, mut which: impl FnMut(usize) -> bool) -> Result<usize, PatchError> {
        self.patch(|func| {
            // SAFETY: `patch` calls this for functions of the table with text
            // writable.
            unsafe {
                if entry::padding(func) == entry::Padding::Excluded || !which(func) {
                    return false;
                }
                if entry::padding(func) == entry::Padding::Ready {
                    entry::turn_off(func);
                    entry::store_set(func, 0);
                }
                entry::exclude(func);
            }
            true
        })
    }

    /// Lets a callback follow the functions whose address `which` accepts.
    /// Returns how many it now follows in addition; 0, and traces none, if
    /// `which` accepts none. Task context.
    ///
    /// `which` is asked once for each function that can be hooked, in the
    /// table's order, while other CPUs are held out: it should be quick. A
    /// function that is too far from the stub for a jump is left off.
    ///
    /// # Errors
    ///
    /// [`PatchError::NotRegistered`], [`PatchError::NotInitialised`],
    /// [`PatchError::InCallback`].
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_patch!()]
    /// # // SAFETY: two patchable functions, which nobody else patches.
    /// # unsafe { PATCH.init(listed)? };
    /// let id = FGRAPH.register(&COUNTS)?;
    /// assert_eq!(PATCH.enable(id, |func| func == read)?, 1);
    /// assert_eq!(run(read), 1);
    /// assert_eq!(run(check), 2);
    /// // Of the two calls, one was followed.
    /// assert_eq!(COUNTS.others(), 1);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn enable(
        &self,
        id: CallbackId,
        mut which: impl FnMut(usize) -> bool,
    ) -> Result<usize, PatchError> {
        let bit = 1 << id.slot();
        let stub = arch::stub::<B, N>();
        let tracer = B::fgraph();
        // The slot stays this callback's while functions name it.
        tracer.hook(id)?;
        let mut follows = false;
        let on = self.patch(|func| {
            // SAFETY: as in `exclude`; the padding is made ready before a set
            // is stored or the entry turned on.
            unsafe {
                let set = match entry::padding(func) {
                    entry::Padding::Ready => entry::set(func),
                    entry::Padding::Fresh => 0,
                    _ => return false,
                };
                if set & bit != 0 {
                    follows = true;
                    return false;
                }
                if !which(func) {
                    return false;
                }
                if entry::padding(func) == entry::Padding::Fresh && !entry::make_ready(func, stub) {
                    return false;
                }
                entry::store_set(func, set | bit);
                entry::turn_on(func);
            }
            follows = true;
            true
        });
        if !follows {
            tracer.unhook(id);
        }
        on
    }

    /// Lets a callback no longer follow the functions whose address `which`
    /// accepts. Returns how many it followed. Calls in flight still return to
    /// it. Task context.
    ///
    /// A callback that was unregistered while it followed functions keeps its
    /// slot from being given out until it is disabled for all of them.
    ///
    /// # Errors
    ///
    /// [`PatchError::NotInitialised`], [`PatchError::InCallback`].
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_patch!()]
    /// # // SAFETY: two patchable functions, which nobody else patches.
    /// # unsafe { PATCH.init(listed)? };
    /// let id = FGRAPH.register(&COUNTS)?;
    /// PATCH.enable(id, |_| true)?;
    /// run(read);
    /// assert_eq!(PATCH.disable(id, |_| true)?, 2);
    /// run(read);
    /// assert_eq!(COUNTS.others(), 1);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn disable(
        &self,
        id: CallbackId,
        mut which: impl FnMut(usize) -> bool,
    ) -> Result<usize, PatchError> {
        let bit = 1 << id.slot();
        let mut left = 0;
        if !B::fgraph().is_hooked(id) {
            return Ok(0);
        }
        let off = self.patch(|func| {
            // SAFETY: as in `exclude`; sets are read of ready paddings only.
            unsafe {
                if entry::padding(func) != entry::Padding::Ready {
                    return false;
                }
                let set = entry::set(func);
                if set & bit == 0 {
                    return false;
                }
                if !which(func) {
                    left += 1;
                    return false;
                }
                entry::store_set(func, set & !bit);
                if set == bit {
                    entry::turn_off(func);
                }
            }
            true
        })?;
        if left == 0 {
            B::fgraph().unhook(id);
        }
        Ok(off)
    }

    /// The functions that can be hooked, by address, in the table's order. Any
    /// context; of text that is patched meanwhile it tells the old or the new.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_patch!()]
    /// # // SAFETY: two patchable functions, which nobody else patches.
    /// # unsafe { PATCH.init(listed)? };
    /// assert!(PATCH.functions().eq([read, check]));
    /// # Ok::<(), PatchError>(())
    /// ```
    pub fn functions(&self) -> impl Iterator<Item = usize> + '_ {
        self.table()
            .iter()
            .map(|&listed| entry::func(listed))
            // SAFETY: the table is this image's.
            .filter(|&func| unsafe {
                matches!(
                    entry::padding(func),
                    entry::Padding::Fresh | entry::Padding::Ready
                )
            })
    }

    /// The functions that a callback follows, by address, in the table's order.
    /// Any context, as for [`functions`](Self::functions).
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_patch!()]
    /// # // SAFETY: two patchable functions, which nobody else patches.
    /// # unsafe { PATCH.init(listed)? };
    /// let id = FGRAPH.register(&COUNTS)?;
    /// PATCH.enable(id, |func| func == check)?;
    /// assert!(PATCH.enabled(id).eq([check]));
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn enabled(&self, id: CallbackId) -> impl Iterator<Item = usize> + '_ {
        let bit = 1 << id.slot();
        self.table()
            .iter()
            .map(|&listed| entry::func(listed))
            // SAFETY: the table is this image's.
            .filter(move |&func| unsafe {
                entry::padding(func) == entry::Padding::Ready && entry::set(func) & bit != 0
            })
    }
}
