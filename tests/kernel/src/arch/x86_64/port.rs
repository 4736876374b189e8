//! The devices behind I/O ports: the serial port, the one by which QEMU ends
//! with an exit code, and the old interrupt controllers, which are turned off.

use core::arch::asm;

const COM1: u16 = 0x3f8;
const LINE_STATUS: u16 = COM1 + 5;
const DEBUG_EXIT: u16 = 0xf4;

/// Writes to an I/O port.
///
/// # Safety
///
/// The device there does nothing that breaks memory safety.
pub(super) unsafe fn out8(port: u16, value: u8) {
    // SAFETY: the caller's contract.
    unsafe {
        asm!("out dx, al", in("dx") port, in("al") value, options(nomem, nostack, preserves_flags));
    }
}

/// Reads from an I/O port.
///
/// # Safety
///
/// As [`out8`].
pub(super) unsafe fn in8(port: u16) -> u8 {
    let value;
    // SAFETY: the caller's contract.
    unsafe {
        asm!("in al, dx", in("dx") port, out("al") value, options(nomem, nostack, preserves_flags));
    }
    value
}

/// Serial port: 8 data bits, FIFO on, no interrupts. Interrupt controllers: all
/// masked, or the PIT's would come as a double fault, vector 8.
pub(super) fn init() {
    for controller in [0x21, 0xa1] {
        // SAFETY: masking interrupts breaks nothing.
        unsafe { out8(controller, 0xff) };
    }
    for (register, value) in [
        (1, 0),
        (3, 0x80),
        (0, 1),
        (1, 0),
        (3, 0x03),
        (2, 0xc7),
        (4, 0x03),
    ] {
        // SAFETY: a serial port does not touch memory.
        unsafe { out8(COM1 + register, value) };
    }
}

/// Sends a byte, after the ones before it.
pub(crate) fn put_byte(byte: u8) {
    // SAFETY: a serial port does not touch memory.
    unsafe {
        while in8(LINE_STATUS) & 0x20 == 0 {
            core::hint::spin_loop();
        }
        out8(COM1, byte);
    }
}

/// Ends the machine. The script that started it turns what QEMU makes of this
/// into `code` again.
pub(crate) fn exit(code: u8) -> ! {
    // SAFETY: the machine ends.
    unsafe { out8(DEBUG_EXIT, code + 16) };
    loop {
        // SAFETY: nothing is left to do where there is no such device.
        unsafe { asm!("cli", "hlt") };
    }
}
