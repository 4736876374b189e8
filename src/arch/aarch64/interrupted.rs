//! Where the return address of a traced call is while the stub has it: for
//! unwinders that start at an interrupted instruction.
//!
//! | interrupted | the return address is |
//! | --- | --- |
//! | at the entry, in the thunk, before the frame record | in `x30` |
//! | before `x29` leads to the record | at `sp + 8` |
//! | up to the end of the frame record | where `x29` leads |
//! | at the call of the body, and after its return | on the shadow stack |
//! | before `x29` leads to the new record | at `sp + 8`: the stub's address |
//! | up to the end of that record | where `x29` leads |
//! | at the end | in `x30` |
//! | where nobody wants the return: up to the end of the record | where `x29` leads |
//! | after that | in `x30` |

/// Where a return address is, if the frame pointer does not tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// In `x30`.
    Link,
    /// In the frame record at the stack pointer.
    Pushed,
    /// In no register and in no word of the real stack.
    Shadow,
}

/// Where it is in a thunk to the stub.
pub(crate) const IN_THUNK: Place = Place::Link;

/// Where it is from the stub's begin, and from each of the header's bounds, on:
/// the rows of the table above.
pub(crate) const PLACES: [Option<Place>; 9] = [
    Some(Place::Link),
    Some(Place::Pushed),
    None,
    Some(Place::Shadow),
    Some(Place::Pushed),
    None,
    Some(Place::Link),
    None,
    Some(Place::Link),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::{interrupted, stub};
    use crate::hook::Global;
    use crate::{Fgraph, Platform, RetStack};

    struct Test;

    // SAFETY: there is no task.
    unsafe impl Platform for Test {
        fn current<R>(_: impl FnOnce(&RetStack) -> R) -> Option<R> {
            None
        }

        fn clock() -> u64 {
            0
        }
    }

    impl Global for Test {
        fn fgraph() -> &'static Fgraph<Self> {
            static FGRAPH: Fgraph<Test> = Fgraph::new();
            &FGRAPH
        }
    }

    /// What each instruction of the stub does to the return address, told by
    /// the instruction and not by the header.
    #[test]
    fn every_instruction_of_the_stub() {
        let stub = stub::<Test, 16>();
        let mut place = Some(Place::Link);
        let mut pc = stub;
        let mut seen = [0; 4];
        loop {
            // SAFETY: in the stub, whose end is found below.
            let (told, instruction) = unsafe { (interrupted(pc, stub), (pc as *const u32).read()) };
            assert_eq!(told, place, "{:#x}: {instruction:#x}", pc - stub);
            seen[place.map_or(3, |place| place as usize)] += 1;
            place = match (instruction, place) {
                // stp x29, x30, [sp, #-16]!
                (0xa9bf_7bfd, Some(Place::Link | Place::Shadow)) => Some(Place::Pushed),
                // mov x29, sp
                (0x9100_03fd, Some(Place::Pushed)) => None,
                // ldr x29, [sp], #16
                (0xf841_07fd, None) => Some(Place::Shadow),
                // ldp x29, x30, [sp], #16
                (0xa8c1_7bfd, None) => Some(Place::Link),
                // ret; what follows is branched to, with the record in place
                (0xd65f_03c0, Some(Place::Link)) => None,
                // br x17
                (0xd61f_0220, Some(Place::Link)) => break,
                _ => place,
            };
            pc += 4;
        }
        // SAFETY: as above: behind the stub is code, or its padding.
        assert_eq!(unsafe { interrupted(pc + 4, stub) }, None);
        assert_eq!([seen[0], seen[1], seen[2]], [3, 2, 3]);
    }
}
