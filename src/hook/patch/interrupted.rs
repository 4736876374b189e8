//! Return addresses of calls that were interrupted in this hook's own code,
//! where no frame pointer leads to them.
//!
//! Where in the code the address is, [`arch`] knows; this file
//! turns the place into a slot. It writes nothing.

use super::{Global, Patch, PatchText};
use crate::RetStack;
use crate::arch;

impl<B: Global<N> + PatchText, const N: usize> Patch<B, N> {
    /// The true return address of a call that was interrupted in this hook's
    /// own code, for unwinders that start at an interrupted instruction: from
    /// the patched entry to the first instruction of the body, and from the
    /// body's return to the return to the caller.
    ///
    /// `None` where a frame pointer tells: there, and in code that is not this
    /// hook's, unwind as usual, and [`real_return`](crate::Fgraph::real_return)
    /// tells the true addresses. After `Some`, go on with the interrupted frame
    /// pointer: it is the caller's.
    ///
    /// `stack` is the shadow stack of the task that was interrupted, `pc` the
    /// interrupted instruction, and `sp` the stack pointer. Any context.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_patch!()]
    /// # struct TrapFrame { rip: usize, rsp: usize, rbp: usize }
    /// /// The caller of what was interrupted, if this hook knows better than
    /// /// the frame pointer.
    /// fn caller(frame: &TrapFrame) -> Option<usize> {
    ///     // SAFETY: the frame is that of an interrupt of this task.
    ///     unsafe { PATCH.interrupted(&STACK, frame.rip, frame.rsp) }
    /// }
    /// # // SAFETY: two patchable functions, which nobody else patches.
    /// # unsafe { PATCH.init(listed)? };
    /// # PATCH.enable(FGRAPH.register(&COUNTS)?, |_| true)?;
    /// // Before the entry's first instruction the address is where the call put it.
    /// let slots = [0x40_1000_usize];
    /// let mut frame = TrapFrame { rip: read, rsp: &raw const slots as usize, rbp: 0 };
    /// assert_eq!(caller(&frame), Some(0x40_1000));
    /// // Here the frame pointer tells.
    /// frame.rip = caller as fn(&TrapFrame) -> Option<usize> as usize;
    /// assert_eq!(caller(&frame), None);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    ///
    /// # Safety
    ///
    /// `pc` and `sp` are those of code that was interrupted and has not gone
    /// on. Its stack is readable, and so are the 32 bytes around `pc`.
    #[cfg(target_arch = "x86_64")]
    #[must_use]
    pub unsafe fn interrupted(&self, stack: &RetStack, pc: usize, sp: usize) -> Option<usize> {
        // SAFETY: the caller's.
        let place = unsafe { arch::interrupted(pc, arch::stub::<B, N>()) }?;
        let (slot, seen) = match place {
            arch::Place::Slot(offset) => {
                let slot = sp.wrapping_add(offset);
                // SAFETY: the caller's: the slot is on the interrupted stack.
                (slot, unsafe { (slot as *const usize).read_volatile() })
            }
            // What lies below the stack pointer may be gone.
            arch::Place::Below => {
                let slot = sp.wrapping_sub(size_of::<usize>());
                (slot, arch::stub_return::<B, N>())
            }
        };
        Some(B::fgraph().real_return(stack, slot, seen))
    }

    /// The true return address of a call that was interrupted in this hook's
    /// own code, for unwinders that start at an interrupted instruction: from
    /// the patched entry to the first instruction of the body, and from the
    /// body's return to the return to the caller.
    ///
    /// `None` where the frame pointer tells: there, and in code that is not
    /// this hook's, unwind as usual, and
    /// [`real_return`](crate::Fgraph::real_return) tells the true addresses.
    /// After `Some`, go on with the interrupted frame pointer: it is the
    /// caller's.
    ///
    /// `stack` is the shadow stack of the task that was interrupted, `pc` the
    /// interrupted instruction, `sp` the stack pointer, and `link` the link
    /// register, `x30`. Any context.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_patch!()]
    /// # struct TrapFrame { pc: usize, sp: usize, link: usize }
    /// /// The caller of what was interrupted, if this hook knows better than
    /// /// the frame pointer.
    /// fn caller(frame: &TrapFrame) -> Option<usize> {
    ///     // SAFETY: the frame is that of an interrupt of this task.
    ///     unsafe { PATCH.interrupted(&STACK, frame.pc, frame.sp, frame.link) }
    /// }
    /// # // SAFETY: two patchable functions, which nobody else patches.
    /// # unsafe { PATCH.init(listed)? };
    /// # PATCH.enable(FGRAPH.register(&COUNTS)?, |_| true)?;
    /// // Before the entry's first instruction the address is where the call put it.
    /// let sp = SLOTS.as_ptr_range().end as usize;
    /// let mut frame = TrapFrame { pc: read, sp, link: 0x40_1000 };
    /// assert_eq!(caller(&frame), Some(0x40_1000));
    /// // Here the frame pointer tells.
    /// frame.pc = caller as fn(&TrapFrame) -> Option<usize> as usize;
    /// assert_eq!(caller(&frame), None);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    ///
    /// # Safety
    ///
    /// `pc`, `sp` and `link` are those of code that was interrupted and has not
    /// gone on. Its stack is readable, and so are the 32 bytes around `pc`.
    #[cfg(target_arch = "aarch64")]
    #[must_use]
    pub unsafe fn interrupted(
        &self,
        stack: &RetStack,
        pc: usize,
        sp: usize,
        link: usize,
    ) -> Option<usize> {
        let word = size_of::<usize>();
        // SAFETY: the caller's.
        let (slot, seen) = match unsafe { arch::interrupted(pc, arch::stub::<B, N>()) }? {
            arch::Place::Link => (sp.wrapping_sub(word), link),
            arch::Place::Pushed => {
                let slot = sp.wrapping_add(word);
                // SAFETY: the caller's: in a record on the interrupted stack.
                (slot, unsafe { (slot as *const usize).read_volatile() })
            }
            arch::Place::Shadow => (sp.wrapping_sub(word), arch::stub_return::<B, N>()),
        };
        Some(B::fgraph().real_return(stack, slot, seen))
    }
}
