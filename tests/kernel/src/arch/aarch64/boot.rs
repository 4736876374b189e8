//! The way to Rust ([`boot.s`](boot.s)), what the emulator hands over, and the
//! firmware's call that starts the other CPUs.

use core::arch::{asm, global_asm};
use core::mem::offset_of;
use core::slice;

use super::host;
use crate::arch::stacks;
use crate::cpu::{CPUS, Cpu, MAX_CPUS};
use crate::time;

/// Where `run` has QEMU load the boot module, and before it its length.
const MODULE: usize = 0x4300_0000;
const MODULE_LEN: usize = MODULE - size_of::<usize>();

global_asm!(
    include_str!("boot.s"),
    stack_size = const stacks::BOOT_STACK,
    cpus = const MAX_CPUS,
    cpu_size = const size_of::<Cpu>(),
    cpu_number = const offset_of!(Cpu, number),
    cpu_table = sym CPUS,
    main = sym start,
);

/// The first Rust function of each CPU.
extern "C" fn start(cpu: usize) -> ! {
    if cpu == 0 {
        crate::main(&Boot(()))
    }
    crate::cpu_main()
}

/// What the emulator hands over.
pub(crate) struct Boot(());

impl Boot {
    /// The command line.
    pub(crate) fn command_line(&self) -> &'static str {
        // The first word is the program.
        host::command_line()
            .split_once(' ')
            .map_or("", |(_, line)| line)
    }

    /// The boot module; empty without one.
    pub(crate) fn module(&self) -> &'static [u8] {
        // SAFETY: RAM that the kernel never uses; zero, or as `run` says.
        unsafe {
            let len = (MODULE_LEN as *const usize).read();
            slice::from_raw_parts(MODULE as *const u8, len)
        }
    }
}

/// Has the firmware start the other CPUs, and waits a little for them.
pub(super) fn start_cpus() {
    for cpu in 1..MAX_CPUS {
        // QEMU's CPUs have their number for an affinity. One that is not there
        // is an error, and nothing more.
        cpu_on(cpu, cpu);
    }
    let patience = time::now() + 100_000_000;
    while time::now() < patience {
        if CPUS.iter().filter(|cpu| cpu.is_online()).count() == MAX_CPUS {
            break;
        }
        core::hint::spin_loop();
    }
}

/// PSCI's CPU_ON; whether it did.
fn cpu_on(affinity: usize, number: usize) -> bool {
    const CPU_ON: usize = 0xc400_0003;
    unsafe extern "C" {
        static boot_cpu: [u8; 0];
    }
    let result: isize;
    // SAFETY: the CPU begins at `boot_cpu`, with a stack and data of its own. It
    // reads nothing but text before its caches are on, and then what was stored
    // here before.
    unsafe {
        asm!(
            "dsb ish",
            "hvc #0",
            inout("x0") CPU_ON => result,
            inout("x1") affinity => _,
            inout("x2") (&raw const boot_cpu) as usize => _,
            inout("x3") number => _,
            clobber_abi("C"),
        );
    }
    result == 0
}
