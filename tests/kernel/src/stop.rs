//! NMIs to other CPUs, and holding those out of the kernel's text. The other
//! half, what a CPU does when the NMI arrives, is in the architecture's stub.

use core::sync::atomic::Ordering;

use crate::arch;
use crate::cpu::CPUS;
use crate::sync::SpinLock;

/// Sends the CPU of that number an NMI, for [`crate::trap::nmi`].
pub(crate) fn send_nmi(cpu: usize) {
    let on = arch::interrupts_off();
    CPUS[cpu].nmi_wanted.store(1, Ordering::Release);
    arch::raise_nmi(cpu);
    arch::interrupts_restore(on);
}

/// Runs `f` while all other CPUs wait in their NMI stub, in assembly that has
/// no patchable entry, with interrupts off here. An NMI reaches them with
/// interrupts off too, so they may hold any lock: `f` takes none, and so it
/// prints nothing. They execute a serialising instruction before they go on,
/// so text that `f` wrote is what they see; here the same is done at the end.
///
/// Text is mapped writable in this kernel.
pub(crate) fn with_other_cpus_stopped<R>(f: impl FnOnce() -> R) -> R {
    /// One at a time. Who waits for it is still stopped by the one before.
    static STOPPING: SpinLock<()> = SpinLock::new(());

    let _one = STOPPING.lock();
    let me = arch::cpu_number();
    let others = || {
        CPUS.iter()
            .enumerate()
            .filter(|&(n, cpu)| n != me && cpu.is_online())
    };
    for (number, cpu) in others() {
        // Release: the stub must not see the request after its release below.
        cpu.stop.store(1, Ordering::Release);
        arch::raise_nmi(number);
    }
    for (_, cpu) in others() {
        // Acquire: what they did before they stopped is seen by `f`.
        while cpu.stopped.load(Ordering::Acquire) == 0 {
            core::hint::spin_loop();
        }
    }
    let result = f();
    arch::serialise();
    for (_, cpu) in others() {
        // Release: they see what `f` wrote.
        cpu.stop.store(0, Ordering::Release);
    }
    for (_, cpu) in others() {
        // A CPU on its way out would pass for stopped in the next round.
        while cpu.stopped.load(Ordering::Acquire) != 0 {
            core::hint::spin_loop();
        }
    }
    result
}
