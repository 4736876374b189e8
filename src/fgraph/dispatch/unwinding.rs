//! A callback that unwinds out of its step: what is left to do is done, by a
//! guard that each step holds while it calls its callback, and forgets.

use super::{Dispatch, Thunks};
use crate::fgraph::Cause;
use crate::fgraph::table::Table;
use crate::ret_stack::word::Progress;

/// An entry under way. Dropped only if a callback unwinds: those that had
/// accepted get their exit, and the call goes on untraced.
pub(super) struct EntryUnwound<'d, 'a> {
    pub(super) dispatch: &'d mut Dispatch<'a>,
    pub(super) table: &'d Table,
    /// The callbacks not yet called, and the one that unwinds.
    pub(super) pending: usize,
    pub(super) epoch: usize,
    pub(super) progress: Progress,
}

impl Drop for EntryUnwound<'_, '_> {
    /// In parts, so that a step has none of it in memory.
    #[inline(always)]
    fn drop(&mut self) {
        let (pending, progress) = (self.pending, self.progress);
        entry_unwound(self.dispatch, self.table, pending, self.epoch, progress);
    }
}

#[cold]
#[inline(never)]
fn entry_unwound(
    dispatch: &mut Dispatch<'_>,
    table: &Table,
    pending: usize,
    epoch: usize,
    progress: Progress,
) {
    let asked = dispatch.view().set_at(dispatch.index);
    let accepted = asked & !pending & !progress.refused();
    dispatch.cause = Cause::Unwound;
    table.leave(dispatch, accepted, epoch, progress.position());
    table.give_up(dispatch, dispatch.without);
}

/// An exit under way. Dropped only if a callback unwinds: the others get
/// their exit, and the frame is gone.
pub(super) struct ExitUnwound<'d, 'a> {
    pub(super) dispatch: &'d mut Dispatch<'a>,
    pub(super) table: &'d Table,
    /// The callbacks not yet called.
    pub(super) pending: usize,
    pub(super) epoch: usize,
    pub(super) end: usize,
}

impl Drop for ExitUnwound<'_, '_> {
    /// As for an entry.
    #[inline(always)]
    fn drop(&mut self) {
        exit_unwound(
            self.dispatch,
            self.table,
            self.pending,
            self.epoch,
            self.end,
        );
    }
}

#[cold]
#[inline(never)]
fn exit_unwound(
    dispatch: &mut Dispatch<'_>,
    table: &Table,
    pending: usize,
    epoch: usize,
    end: usize,
) {
    Thunks::next_exit(dispatch, table, pending, epoch, end);
    table.give_up(dispatch, dispatch.without);
}
