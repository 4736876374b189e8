//! Names for addresses, from the table that comes as a boot module: lines of
//! `address name`, sorted by address, as `nm` prints them. It is read where it
//! lies.

use core::cell::UnsafeCell;
use core::fmt;

struct Table(UnsafeCell<&'static [u8]>);

// SAFETY: written once, before there is a second CPU or task.
unsafe impl Sync for Table {}

static TABLE: Table = Table(UnsafeCell::new(&[]));

/// Where the kernel's functions are.
pub(crate) fn text() -> core::ops::Range<usize> {
    unsafe extern "C" {
        static text_start: [u8; 0];
        static text_end: [u8; 0];
    }
    (&raw const text_start) as usize..(&raw const text_end) as usize
}

/// Takes the table.
///
/// # Safety
///
/// Before there is a second CPU, a task or an interrupt.
pub(crate) unsafe fn init(table: &'static [u8]) {
    // SAFETY: the caller's contract.
    unsafe { *TABLE.0.get() = table };
}

/// The function around an address.
#[derive(Clone, Copy)]
pub(crate) struct Symbol {
    /// Its first instruction.
    pub(crate) start: usize,
    /// What the source calls it.
    pub(crate) name: &'static str,
}

/// The function around `address`, if the table has it.
pub(crate) fn find(address: usize) -> Option<Symbol> {
    if !text().contains(&address) {
        return None;
    }
    // SAFETY: nobody writes it any more.
    let table = unsafe { *TABLE.0.get() };
    // Bisection over bytes: `low` is a line's beginning that is not too far,
    // `high` one that is, or the end.
    let mut best = None;
    let (mut low, mut high) = (0, table.len());
    while low < high {
        let middle = low + (high - low) / 2;
        let begin = table[low..middle]
            .iter()
            .rposition(|&b| b == b'\n')
            .map_or(low, |at| low + at + 1);
        let len = table[begin..].iter().position(|&b| b == b'\n');
        let end = len.map_or(table.len(), |len| begin + len + 1);
        match parse(&table[begin..end]) {
            Some(symbol) if symbol.start <= address => {
                best = Some(symbol);
                low = end;
            }
            // A line that is none (an empty last one) is too far.
            _ => high = begin,
        }
    }
    best
}

fn parse(line: &'static [u8]) -> Option<Symbol> {
    let line = str::from_utf8(line).ok()?;
    let (start, name) = line.trim_end().split_once(' ')?;
    Some(Symbol {
        start: usize::from_str_radix(start, 16).ok()?,
        name,
    })
}

/// Prints an instruction's address by its function's name, else in hexadecimal.
pub(crate) struct At(pub(crate) usize);

/// The same for a return address: the function is that of the call before it,
/// which may be its function's last instruction.
pub(crate) struct After(pub(crate) usize);

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_address(f, self.0, self.0)
    }
}

impl fmt::Display for After {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_address(f, self.0, self.0.wrapping_sub(1))
    }
}

fn write_address(f: &mut fmt::Formatter<'_>, address: usize, inside: usize) -> fmt::Result {
    match find(inside) {
        Some(Symbol { start, name }) => write!(f, "{name}+{:#x}", address - start),
        None => write!(f, "{address:#x}"),
    }
}
