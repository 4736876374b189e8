//! Architectures without a hook: no registers are ever saved, and no return
//! address is replaced.

pub(crate) use super::on_stack as chain;

/// On this architecture there are none.
#[derive(Debug)]
pub struct Registers {
    never: core::convert::Infallible,
}

impl Registers {
    /// The `n`th integer argument.
    #[must_use]
    pub fn argument(&self, _n: usize) -> Option<usize> {
        match self.never {}
    }

    /// The first return register.
    #[must_use]
    pub fn return_value(&self) -> usize {
        match self.never {}
    }
}
