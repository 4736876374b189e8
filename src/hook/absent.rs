//! The macros of hooks that the target does not have: all that they do is to
//! say so, where a name that is not found would say nothing.

#[cfg(not(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_pointer_width = "64"
)))]
mod patch {
    /// This target has no patched entries: see [`hook`](crate::hook).
    #[macro_export]
    macro_rules! patchable_functions {
        () => {
            ::core::compile_error!(
                "fgraph has patched entries on x86-64 and AArch64 only; elsewhere \
                 calls are traced by `Fgraph::scope`, or by an entry hook of the \
                 kernel's own over `Fgraph::enter` and `Fgraph::leave`"
            )
        };
    }
}

#[cfg(not(all(target_arch = "x86_64", target_pointer_width = "64")))]
mod classic {
    #[doc(hidden)]
    #[macro_export]
    macro_rules! __no_classic_hook {
        () => {
            ::core::compile_error!(
                "fgraph has classic hooks on x86-64 only; elsewhere calls are traced \
                 by patched entries where there are some, by `Fgraph::scope`, or by \
                 an entry hook of the kernel's own over `Fgraph::enter` and \
                 `Fgraph::leave`"
            );
        };
    }

    /// This target has no classic hooks: see [`hook`](crate::hook).
    #[macro_export]
    macro_rules! bind_fentry {
        ($($any:tt)*) => {
            $crate::__no_classic_hook!();
        };
    }

    /// This target has no classic hooks: see [`hook`](crate::hook).
    #[macro_export]
    macro_rules! bind_mcount {
        ($($any:tt)*) => {
            $crate::__no_classic_hook!();
        };
    }

    /// This target has no classic hooks: see [`hook`](crate::hook).
    #[macro_export]
    macro_rules! bind_sancov {
        ($($any:tt)*) => {
            $crate::__no_classic_hook!();
        };
    }
}
