//! What may be shared and sent, and what must not, as the compiler sees it.
//! Nothing here runs: that it compiles is the test.
//!
//! Misuse that types prevent is tested where it is prevented, by examples that
//! must not compile.

use fgraph::fgraph::{Call, Parent, RegisterError, UnregisterError};
use fgraph::hook::scope::Scope;
use fgraph::ret_stack::{AttachError, Counters, DetachError, Frame, Frames, InlineStack};
use fgraph::tracer::{Buffer, Cursor, Graph, Open, Record, Scale, Trace};
use fgraph::{CallbackId, Cause, Context, Entry, Exit, Fgraph, Platform, RetStack};

/// A platform that is itself neither: what is generic over it must not care.
struct Kernel(#[allow(dead_code, reason = "its type is what matters")] *const ());

// SAFETY: it has no task.
unsafe impl Platform for Kernel {
    fn current<R>(_: impl FnOnce(&RetStack) -> R) -> Option<R> {
        None
    }

    fn clock() -> u64 {
        0
    }
}

const fn send<T: Send>() {}
const fn sync<T: Sync>() {}
const fn fixed<T: 'static>() {}

/// Fails to compile if the type is `$trait`: then two implementations match,
/// and which is meant can not be inferred.
macro_rules! is_not {
    ($trait:ident: $($type:ty),* $(,)?) => {$(
        const _: fn() = || {
            trait Ambiguous<A> {
                fn item() {}
            }
            impl<T: ?Sized> Ambiguous<()> for T {}
            struct Is;
            impl<T: ?Sized + $trait> Ambiguous<Is> for T {}
            let _ = <$type as Ambiguous<_>>::item;
        };
    )*};
}

macro_rules! is {
    ($check:ident: $($type:ty),* $(,)?) => { const _: () = { $($check::<$type>();)* }; };
}

// A task struct holds them, CPUs walk them, interrupts use them.
is!(sync: RetStack, InlineStack<64>, Fgraph<Kernel>, Fgraph<Kernel, 1>);
is!(send: RetStack, InlineStack<64>, Fgraph<Kernel>, Fgraph<Kernel, 1>);
is!(sync: Buffer, Record, Graph<Kernel>);
is!(send: Buffer, Record, Graph<Kernel>, Cursor, Open, Trace<'static>);

// Values.
is!(send: CallbackId, Counters, Frame, Cause, Context, Scale);
is!(sync: CallbackId, Counters, Frame, Cause, Context, Scale);
is!(send: AttachError, DetachError, RegisterError, UnregisterError);
is!(sync: AttachError, DetachError, RegisterError, UnregisterError);
is!(fixed: CallbackId, Counters, Frame);

// A scope ends on the task where it began: another's shadow stack has no such
// frame, or has a stranger's in its place.
is_not!(Send: Scope<'static, Kernel, 16>);
is_not!(Sync: Scope<'static, Kernel, 16>);

// Events are of the CPU that runs the callback: what they lead to is written
// by it alone.
is_not!(Send: Entry<'static, usize>, Exit<'static, usize>, Parent<'static, usize>);
is_not!(Sync: Entry<'static, usize>, Exit<'static, usize>, Parent<'static, usize>);

// A walk reads words that are given back when the task ends; its borrow is of
// the stack, on the CPU that has promised to wait.
is_not!(Send: Frames<'static>);

// Pinned: the control block points at the words.
is_not!(Unpin: InlineStack<64>);

// Copies of an end would end it twice.
is_not!(Clone: Scope<'static, Kernel, 16>, RetStack, Fgraph<Kernel>);
is!(fixed: Call<'static>);

#[test]
fn it_compiles() {
    assert!(Kernel::current(|_| ()).is_none());
    assert_eq!(
        (Kernel::clock(), Kernel(std::ptr::null()).0),
        (0, std::ptr::null())
    );
}
