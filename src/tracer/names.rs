//! Names of addresses, as a kernel supplies them for reports.
//!
//! This file knows no symbol table.

use core::fmt;

/// A function that an address lies in.
///
/// # Example
///
/// ```
/// use fgraph::tracer::{Symbol, Symbols};
///
/// /// One function that is known.
/// struct Boot;
///
/// impl Symbols for Boot {
///     fn symbol(&self, address: usize) -> Option<Symbol<'_>> {
///         let boot = Symbol { name: "boot", start: 0x1000 };
///         (0x1000..0x1200).contains(&address).then_some(boot)
///     }
/// }
/// assert_eq!(Boot.symbol(0x1004).unwrap().start, 0x1000);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Symbol<'a> {
    /// What to print.
    pub name: &'a str,
    /// The address of the function.
    pub start: usize,
}

/// A symbol table. Asked when a report is written, never while a call is
/// traced.
///
/// `()` knows no names: reports then show addresses.
///
/// # Example
///
/// ```
/// use fgraph::tracer::{Symbol, Symbols};
///
/// /// Functions, by ascending address.
/// struct Table(&'static [(usize, &'static str)]);
///
/// impl Symbols for Table {
///     fn symbol(&self, address: usize) -> Option<Symbol<'_>> {
///         let above = self.0.partition_point(|&(start, _)| start <= address);
///         let &(start, name) = self.0.get(above.checked_sub(1)?)?;
///         Some(Symbol { name, start })
///     }
/// }
///
/// let table = Table(&[(0x1000, "boot"), (0x2000, "idle")]);
/// assert_eq!(table.symbol(0x1fff).unwrap().name, "boot");
/// assert_eq!(table.symbol(0xfff), None);
/// ```
pub trait Symbols {
    /// The function that `address` lies in.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::Symbols;
    ///
    /// assert_eq!(().symbol(0x1000), None, "`()` knows no names");
    /// ```
    fn symbol(&self, address: usize) -> Option<Symbol<'_>>;

    /// The name of a task, by [`Platform::task`](crate::Platform::task)'s
    /// number. Default: knows none.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::{Symbol, Symbols};
    ///
    /// struct Tasks;
    ///
    /// impl Symbols for Tasks {
    ///     fn symbol(&self, _address: usize) -> Option<Symbol<'_>> {
    ///         None
    ///     }
    ///
    ///     fn task(&self, task: usize) -> Option<&str> {
    ///         (task == 0).then_some("idle")
    ///     }
    /// }
    /// assert_eq!(Tasks.task(0), Some("idle"));
    /// ```
    fn task(&self, task: usize) -> Option<&str> {
        let _ = task;
        None
    }
}

impl Symbols for () {
    fn symbol(&self, _address: usize) -> Option<Symbol<'_>> {
        None
    }
}

impl<S: Symbols + ?Sized> Symbols for &S {
    fn symbol(&self, address: usize) -> Option<Symbol<'_>> {
        S::symbol(self, address)
    }

    fn task(&self, task: usize) -> Option<&str> {
        S::task(self, task)
    }
}

/// The tasks that were named last: a writer names a task before its first
/// event, and again where it has forgotten that.
pub(crate) struct Named([Option<usize>; 64]);

impl Named {
    pub(crate) const NONE: Self = Self([None; 64]);

    /// Whether `task` is to be named now.
    pub(crate) fn is_new(&mut self, task: usize) -> bool {
        let place = self.0.get_mut(task % 64);
        place.is_some_and(|place| place.replace(task) != Some(task))
    }
}

/// Displays a function by name, or by address where it has none. Control
/// characters, which would break lines, are escaped.
pub(crate) struct Name<'a, S: ?Sized>(pub(crate) &'a S, pub(crate) usize);

impl<S: Symbols + ?Sized> fmt::Display for Name<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &Self(symbols, address) = self;
        match symbols.symbol(address) {
            Some(symbol) => {
                for part in symbol.name.split_inclusive(char::is_control) {
                    let name = part.trim_end_matches(char::is_control);
                    f.write_str(name)?;
                    write!(
                        f,
                        "{}",
                        part.trim_start_matches(|c: char| !c.is_control())
                            .escape_default()
                    )?;
                }
                match address.wrapping_sub(symbol.start) {
                    0 => Ok(()),
                    offset => write!(f, "+{offset:#x}"),
                }
            }
            None => write!(f, "{address:#x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Named, Symbol, Symbols};

    #[test]
    fn a_task_is_new_once_unless_another_took_its_place() {
        let mut named = Named::NONE;
        for task in [0, 7, 63, 1 << 20] {
            assert!(named.is_new(task));
        }
        for task in [7, 63, 1 << 20] {
            assert!(!named.is_new(task), "{task}");
        }
        // The two share one.
        assert!(named.is_new(0) && !named.is_new(0));
        assert!(named.is_new(1 << 20));
    }

    struct Names;

    impl Symbols for Names {
        fn symbol(&self, start: usize) -> Option<Symbol<'_>> {
            Some(Symbol { name: "f", start })
        }

        fn task(&self, _task: usize) -> Option<&str> {
            Some("t")
        }
    }

    #[test]
    fn what_is_borrowed_knows_the_same() {
        fn known<S: Symbols>(symbols: S) -> bool {
            symbols.symbol(3).is_some_and(|symbol| symbol.start == 3)
                && symbols.task(4) == Some("t")
        }
        assert!(known(Names) && known(&Names));
        assert_eq!(().task(4), None);
    }
}
