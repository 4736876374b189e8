//! Atomics whose every access the model checker may interleave with another
//! thread's.
//!
//! The checker's own are made at run time, inside of a model, and the crate's
//! constructors are `const`. So each is made at its first use; until then it is
//! its initial value, which no thread can have changed.

extern crate std;

use core::mem::ManuallyDrop;
use core::sync::atomic::Ordering;
use std::boxed::Box;
use std::sync::OnceLock;

use loom::sync::atomic;

use loom::sync::MutexGuard;
pub(crate) use loom::sync::atomic::fence;

/// Orders an owner and its interrupts, which run on one CPU: there are none in
/// a model.
pub(crate) fn compiler_fence(_: Ordering) {}

/// Other words in the place of these, since the checker's are no plain ones.
/// They are not given back.
pub(crate) fn words(words: &mut [usize]) -> *mut AtomicUsize {
    let words: Box<[_]> = words.iter().map(|&word| AtomicUsize::new(word)).collect();
    Box::leak(words).as_mut_ptr()
}

macro_rules! late {
    ($name:ident $(<$t:ident>)?, $value:ty, $($method:ident)*) => {
        /// Made at its first use.
        pub(crate) struct $name$(<$t>)? {
            initial: $value,
            // Without a destructor, as `const` functions replace some.
            made: ManuallyDrop<OnceLock<atomic::$name$(<$t>)?>>,
        }

        // SAFETY: the value is one of an atomic, which threads share.
        unsafe impl$(<$t>)? Send for $name$(<$t>)? {}
        // SAFETY: as above.
        unsafe impl$(<$t>)? Sync for $name$(<$t>)? {}

        #[allow(dead_code, reason = "each type has what some have need of")]
        impl$(<$t>)? $name$(<$t>)? {
            pub(crate) const fn new(initial: $value) -> Self {
                let made = ManuallyDrop::new(OnceLock::new());
                Self { initial, made }
            }

            fn made(&self) -> &atomic::$name$(<$t>)? {
                self.made.get_or_init(|| atomic::$name::new(self.initial))
            }

            pub(crate) fn load(&self, order: Ordering) -> $value {
                self.made().load(order)
            }

            pub(crate) fn store(&self, value: $value, order: Ordering) {
                self.made().store(value, order);
            }

            pub(crate) fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.made().compare_exchange(current, new, success, failure)
            }

            pub(crate) fn fetch_update(
                &self,
                success: Ordering,
                failure: Ordering,
                f: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                self.made().fetch_update(success, failure, f)
            }

            $(pub(crate) fn $method(&self, value: $value, order: Ordering) -> $value {
                self.made().$method(value, order)
            })*
        }

        impl$(<$t>)? core::fmt::Debug for $name$(<$t>)? {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                self.load(Ordering::Relaxed).fmt(f)
            }
        }
    };
}

late!(AtomicPtr<T>, *mut T, swap);
late!(AtomicUsize, usize, swap fetch_add fetch_sub fetch_and fetch_or fetch_max fetch_min);
late!(AtomicU64, u64, swap fetch_add fetch_sub fetch_and fetch_or fetch_max fetch_min);
late!(AtomicU32, u32, swap fetch_add fetch_sub fetch_and fetch_or fetch_max fetch_min);
#[cfg(target_arch = "aarch64")]
late!(AtomicU16, u16, swap fetch_add fetch_sub fetch_and fetch_or fetch_max fetch_min);

/// Made at its first use, as the atomics are.
#[derive(Debug)]
pub(crate) struct Mutex<T>(OnceLock<loom::sync::Mutex<T>>);

impl Mutex<()> {
    pub(crate) const fn new((): ()) -> Self {
        Self(OnceLock::new())
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        let lock = self.0.get_or_init(|| loom::sync::Mutex::new(()));
        lock.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
