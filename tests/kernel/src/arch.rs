//! What the kernel needs of a processor, and which one this build has.
//!
//! One folder an architecture, beside which `stacks` has what is alike. It supplies,
//! by these names:
//!
//! | name | what |
//! | --- | --- |
//! | `Boot`, `init`, `init_cpu`, `start_cpus` | the first CPU's set-up; each CPU's own; waking the others, which call [`crate::cpu_main`] |
//! | `put_byte`, `exit` | a byte out of the serial port; the end of the machine |
//! | `interrupts_off`, `interrupts_restore`, `interrupts_on`, `wait_for_interrupt` | masking |
//! | `ticks`, `ticks_to_ns` | a counter that all CPUs agree on |
//! | `this_cpu`, `cpu_number`, `current`, `begin_current` | per-CPU data; `current` is right even if the caller is moved to another CPU meanwhile |
//! | `prepare_stack`, `switch` | a task's first stack, and the change from one to another |
//! | `raise_nmi`, `serialise` | an interrupt to another CPU that is not masked where others are, for [`crate::stop`]; forgetting instructions that were fetched |
//! | `frame_pointer`, `interrupt_stack`, `TrapFrame`, `ROOTS` | where an unwinder starts, what it may read, and where it may end |
//! | `probe_read`, `breakpoint`, `step_through` | reading an address that may not be mapped; the debugger's traps |
//!
//! It calls back [`crate::trap`], when something interrupts.

mod stacks;
pub(crate) use stacks::{boot_stack, handler_stack};

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::*;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("this kernel runs on x86-64 and AArch64; another is one folder under src/arch");
