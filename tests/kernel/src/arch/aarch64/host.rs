//! The serial port, and what the emulator does when it is asked by a trap
//! ("semihosting"): the command line, and an exit code.

use core::arch::asm;
use core::cell::UnsafeCell;
use core::ptr;

/// The PL011.
const UART: usize = 0x0900_0000;
const DATA: usize = 0x00;
const FLAGS: usize = 0x18;
const LINE: usize = 0x2c;
const CONTROL: usize = 0x30;

const FULL: u32 = 1 << 5;

fn read(register: usize) -> u32 {
    // SAFETY: the port's registers are mapped, and reading these changes nothing.
    unsafe { ptr::read_volatile((UART + register) as *const u32) }
}

fn write(register: usize, value: u32) {
    // SAFETY: the port's registers are mapped. It does not touch memory.
    unsafe { ptr::write_volatile((UART + register) as *mut u32, value) };
}

/// Serial port: 8 data bits, FIFO on, no interrupts; the speed is as it was.
pub(super) fn init() {
    write(CONTROL, 0);
    write(LINE, 0x70);
    write(CONTROL, 0x301);
}

/// Sends a byte, after the ones before it.
pub(crate) fn put_byte(byte: u8) {
    while read(FLAGS) & FULL != 0 {
        core::hint::spin_loop();
    }
    write(DATA, u32::from(byte));
}

/// Asks the emulator.
///
/// # Safety
///
/// `block` is what the operation takes.
unsafe fn ask<T>(operation: usize, block: *mut T) -> isize {
    let result;
    // SAFETY: the caller's contract; no register changes but the first.
    unsafe {
        asm!("hlt #0xf000", inout("x0") operation => result, in("x1") block, options(nostack));
    }
    result
}

/// The program and its arguments. Once, on the first CPU.
pub(super) fn command_line() -> &'static str {
    const GET_COMMAND_LINE: usize = 0x15;
    const ROOM: usize = 2048;
    struct Line(UnsafeCell<[u8; ROOM]>);
    // SAFETY: written once, before there is a second CPU.
    unsafe impl Sync for Line {}
    static LINE: Line = Line(UnsafeCell::new([0; ROOM]));

    let mut block = [LINE.0.get() as usize, ROOM];
    // SAFETY: address and length of a buffer; it answers with the length of
    // what it wrote there.
    let line = unsafe {
        if ask(GET_COMMAND_LINE, &raw mut block) != 0 {
            return "";
        }
        (*LINE.0.get()).get(..block[1])
    };
    line.and_then(|line| str::from_utf8(line).ok())
        .map_or("", |line| line.trim_end_matches('\0'))
}

/// Ends the machine. The script that started it turns what QEMU makes of this
/// into `code` again.
pub(crate) fn exit(code: u8) -> ! {
    const EXIT: usize = 0x18;
    /// The program has ended, with a code.
    const APPLICATION_EXIT: usize = 0x20026;
    let mut block = [APPLICATION_EXIT, usize::from(code) + 16];
    // SAFETY: the machine ends.
    unsafe { ask(EXIT, &raw mut block) };
    loop {
        // SAFETY: nothing is left to do where nobody answers.
        unsafe { asm!("msr daifset, #15", "wfi") };
    }
}
