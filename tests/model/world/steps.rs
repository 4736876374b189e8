//! What is played: operations as numbers, and data as words.

/// One operation, as random as its bits are.
#[derive(Clone, Copy)]
pub struct Step(pub u64);

impl Step {
    pub fn op(self) -> Op {
        let mut left = self.0 as u8 as usize % Op::WEIGHTS;
        for &(op, weight) in Op::TABLE {
            if left < weight {
                return op;
            }
            left -= weight;
        }
        Op::Walk
    }

    pub fn a(self) -> usize {
        (self.0 >> 8) as u8 as usize
    }

    pub fn b(self) -> usize {
        (self.0 >> 16) as u16 as usize
    }

    /// Which callbacks accept, by slot. Most do.
    pub fn accept(self, slot: usize) -> bool {
        (self.0 >> 32 & self.0 >> 48) >> slot & 1 == 0
    }

    /// At which callback of this operation something happens, and what.
    pub fn inside(self) -> (usize, usize) {
        let bits = (self.0 >> 40) as u8 as usize;
        (bits & 7, bits >> 3)
    }
}

impl std::fmt::Debug for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Step({:#x}) /* {:?} */", self.0, self.op())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    Walk,
    Call,
    Return,
    Tail,
    Jump,
    Scope,
    EndScope,
    EndOldScope,
    Interrupt,
    Register,
    Unregister,
    Attach,
    Detach,
    Exit,
    Switch,
    ReturnElsewhere,
    RealReturn,
    Restore,
}

impl Op {
    const TABLE: &[(Self, usize)] = &[
        (Self::Walk, 4),
        (Self::Call, 30),
        (Self::Return, 24),
        (Self::Tail, 9),
        (Self::Jump, 6),
        (Self::Scope, 7),
        (Self::EndScope, 6),
        (Self::EndOldScope, 2),
        (Self::Interrupt, 9),
        (Self::Register, 9),
        (Self::Unregister, 5),
        (Self::Attach, 5),
        (Self::Detach, 2),
        (Self::Exit, 1),
        (Self::Switch, 3),
        (Self::ReturnElsewhere, 2),
        (Self::RealReturn, 3),
        (Self::Restore, 1),
    ];
    const WEIGHTS: usize = 128;
}

const _: () = {
    let (mut sum, mut i) = (0, 0);
    while i < Op::TABLE.len() {
        sum += Op::TABLE[i].1;
        i += 1;
    }
    assert!(sum == Op::WEIGHTS);
};

/// Up to fifteen words.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Words {
    len: usize,
    words: [usize; 15],
}

impl Words {
    pub fn new(from: &[usize]) -> Self {
        let mut words = [0; 15];
        words[..from.len()].copy_from_slice(from);
        Self {
            len: from.len(),
            words,
        }
    }

    pub fn as_slice(&self) -> &[usize] {
        &self.words[..self.len]
    }
}

impl std::fmt::Debug for Words {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(self.as_slice().iter().map(|w| format!("{w:#x}")))
            .finish()
    }
}
