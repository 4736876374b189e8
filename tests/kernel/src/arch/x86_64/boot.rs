//! The way into long mode ([`boot.s`](boot.s)), and what the loader hands over.

use core::arch::global_asm;
use core::ffi::CStr;
use core::mem::offset_of;
use core::slice;

use crate::arch::stacks;
use crate::cpu::{CPUS, Cpu, MAX_CPUS};

global_asm!(
    include_str!("boot.s"),
    stack_size = const stacks::BOOT_STACK,
    cpus = const MAX_CPUS,
    cpu_size = const size_of::<Cpu>(),
    cpu_this = const offset_of!(Cpu, this),
    cpu_number = const offset_of!(Cpu, number),
    cpu_table = sym CPUS,
    main = sym start,
    options(att_syntax),
);

/// The first Rust function of each CPU.
extern "C" fn start(cpu: u32, info: *const StartInfo) -> ! {
    if cpu == 0 {
        // SAFETY: the loader left the address in ebx.
        crate::main(&Boot(unsafe { &*info }))
    }
    crate::cpu_main()
}

/// PVH's `hvm_start_info`, as far as it is used.
#[repr(C)]
struct StartInfo {
    magic: u32,
    version: u32,
    flags: u32,
    modules: u32,
    module_list: u64,
    command_line: u64,
}

/// PVH's `hvm_modlist_entry`.
#[repr(C)]
struct Module {
    address: u64,
    size: u64,
    command_line: u64,
    reserved: u64,
}

/// What the loader handed over. It lies in memory that the kernel never uses.
pub(crate) struct Boot(&'static StartInfo);

impl Boot {
    /// The command line.
    pub(crate) fn command_line(&self) -> &'static str {
        if self.0.command_line == 0 {
            return "";
        }
        // SAFETY: PVH gives the address of a zero-terminated string.
        let line = unsafe { CStr::from_ptr(self.0.command_line as *const _) };
        line.to_str().unwrap_or("")
    }

    /// The first boot module; empty without one.
    pub(crate) fn module(&self) -> &'static [u8] {
        if self.0.modules == 0 {
            return &[];
        }
        // SAFETY: PVH gives the address of a list of so many modules, and each
        // is so many bytes.
        unsafe {
            let module = &*(self.0.module_list as *const Module);
            slice::from_raw_parts(module.address as *const u8, module.size as usize)
        }
    }
}
