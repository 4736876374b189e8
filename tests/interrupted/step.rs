//! Running code one machine instruction at a time, by the trap flag.
//!
//! A signal handler runs after each instruction of a *section*. It works out
//! from the instruction's own bytes and the registers where the processor goes
//! next, and the next stop must be there: so no instruction runs unseen.
//! Sections nest: what is called at a stop may step a section of its own.
//!
//! This file knows nothing of tracing.

use std::arch::naked_asm;
use std::cell::Cell;
use std::ffi::{c_int, c_void};

use iced_x86::{Code, Decoder, FlowControl, Instruction, OpKind, Register};

/// Where the processor stands: before the instruction at `rip`.
#[derive(Clone, Copy, Debug)]
pub struct Stop {
    pub rip: usize,
    pub rsp: usize,
    pub rbp: usize,
}

/// The way that a section took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Way {
    /// How many instructions were stopped at.
    pub stops: usize,
    /// How many were not reached from the one before: none may be.
    pub leaps: usize,
    /// How many ran unseen behind a system call.
    pub late: usize,
    /// A sum over all the addresses in their order.
    pub path: u64,
}

struct Section<'a> {
    on_stop: &'a mut dyn FnMut(&Stop),
    way: Way,
    /// Where the instruction under way can lead.
    next: [usize; 2],
    /// If it is a system call, the address behind the instruction after it.
    behind_call: Option<usize>,
    /// The address after the section.
    end: usize,
    ended: bool,
}

thread_local! {
    /// The section under way runs on without a stop.
    static RELEASED: Cell<bool> = const { Cell::new(false) };
    static SECTION: Cell<*mut Section<'static>> = const { Cell::new(std::ptr::null_mut()) };
}

/// The longest instruction.
const LONGEST: usize = 15;
const TRAP_FLAG: i64 = 0x100;

/// Which stack the handler runs on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HandlerStack {
    /// Its own, as a kernel's interrupt stack.
    Own,
    /// The interrupted one, below what is in use.
    Same,
}

/// From here on this thread's sections stop in a handler on that stack.
pub fn handle_on(stack: HandlerStack) {
    const SIZE: usize = 1 << 20;
    thread_local! {
        static GIVEN: Cell<bool> = const { Cell::new(false) };
    }
    // SAFETY: the memory is the handler's for ever; the handler matches its
    // flags.
    unsafe {
        if !GIVEN.replace(true) {
            let own = libc::stack_t {
                ss_sp: Box::leak(vec![0_u8; SIZE].into_boxed_slice())
                    .as_mut_ptr()
                    .cast(),
                ss_flags: 0,
                ss_size: SIZE,
            };
            assert_eq!(libc::sigaltstack(&own, std::ptr::null_mut()), 0);
        }
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = trapped;
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        // A section inside of the handler traps too.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        if stack == HandlerStack::Own {
            action.sa_flags |= libc::SA_ONSTACK;
        }
        let failed = libc::sigaction(libc::SIGTRAP, &action, std::ptr::null_mut());
        assert_eq!(failed, 0);
    }
}

/// Runs `f`, and `on_stop` before each instruction of it.
pub fn stepped<F: FnMut()>(f: F, on_stop: &mut dyn FnMut(&Stop)) -> Way {
    stepped_if(true, f, on_stop)
}

/// From a stop: what is left of the section runs without one.
pub fn run_on() {
    RELEASED.set(true);
}

/// As [`stepped`]; or runs `f` without a stop, at the same depth of the stack.
pub fn stepped_if<F: FnMut()>(step: bool, mut f: F, on_stop: &mut dyn FnMut(&Stop)) -> Way {
    extern "C" fn call<F: FnMut()>(f: *mut F) {
        // SAFETY: `stepped_if` passes its own argument.
        unsafe { (*f)() }
    }
    let call: extern "C" fn(*mut F) = call::<F>;
    let mut section = Section {
        on_stop,
        way: Way {
            stops: 0,
            leaps: 0,
            late: 0,
            path: 0,
        },
        next: [call as usize; 2],
        behind_call: None,
        end: 0,
        ended: false,
    };
    let flag = if step { TRAP_FLAG } else { 0 };
    let outer = SECTION.replace((&raw mut section).cast());
    // SAFETY: the function takes the argument, and the section outlives the
    // call.
    unsafe {
        run(
            call as usize,
            (&raw mut f).cast(),
            &raw mut section.end,
            flag,
        )
    };
    SECTION.set(outer);
    assert_eq!(section.ended, step, "the section came to its end");
    section.way
}

/// Sets `flag`, the trap flag or nothing, and calls `f(argument)`: the first
/// trap is at the first instruction of `f`. The handler clears the flag at the
/// address that is put into `*end`.
#[unsafe(naked)]
unsafe extern "C" fn run(f: usize, argument: *mut c_void, end: *mut usize, flag: i64) {
    naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "lea rax, [rip + 2f]",
        "mov [rdx], rax",
        "mov rax, rdi",
        "mov rdi, rsi",
        "pushfq",
        "or [rsp], rcx",
        "popfq",
        "call rax",
        "2:",
        "pop rbp",
        "ret",
    )
}

extern "C" fn trapped(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes the interrupted context, the handler's own
    // until it returns.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let register = |which: c_int| registers[which as usize] as usize;
    let stop = Stop {
        rip: register(libc::REG_RIP),
        rsp: register(libc::REG_RSP),
        rbp: register(libc::REG_RBP),
    };
    let section = SECTION.get();
    if section.is_null() {
        // A trap that no section has asked for.
        std::process::abort();
    }
    // SAFETY: set by `stepped_if`, which is under way. A section inside of this
    // one's stop has an object of its own.
    let section = unsafe { &mut *section };
    if !section.next.contains(&stop.rip) {
        if section.behind_call == Some(stop.rip) {
            section.way.late += 1;
        } else {
            section.way.leaps += 1;
        }
    }
    if stop.rip == section.end {
        section.ended = true;
        registers[libc::REG_EFL as usize] &= !TRAP_FLAG;
        return;
    }
    section.way.stops += 1;
    section.way.path =
        (section.way.path.rotate_left(5) ^ stop.rip as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    section.next = successors(registers);
    section.behind_call = behind_call(stop.rip);
    (section.on_stop)(&stop);
    if RELEASED.take() {
        section.ended = true;
        registers[libc::REG_EFL as usize] &= !TRAP_FLAG;
    }
}

/// The instruction at an address of code.
fn decode(at: usize) -> Instruction {
    // SAFETY: code, which more than an instruction's length of read-only data
    // follows.
    let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, LONGEST) };
    Decoder::with_ip(64, bytes, at as u64, 0).decode()
}

/// If a system call is at `at`, and a plain instruction after it: the address
/// behind that.
fn behind_call(at: usize) -> Option<usize> {
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    // SAFETY: code.
    if unsafe { *(at as *const [u8; 2]) } != SYSCALL {
        return None;
    }
    let after = decode(at + SYSCALL.len());
    (after.flow_control() == FlowControl::Next).then(|| after.next_ip() as usize)
}

/// Where the instruction at `rip` can lead.
fn successors(registers: &[i64]) -> [usize; 2] {
    let at = registers[libc::REG_RIP as usize] as usize;
    let instruction = decode(at);
    let next = instruction.next_ip() as usize;
    let target = instruction.near_branch_target() as usize;
    match instruction.flow_control() {
        // A trap comes after each turn of a repeated instruction.
        FlowControl::Next if instruction.has_rep_prefix() || instruction.has_repne_prefix() => {
            [next, at]
        }
        FlowControl::Next => [next; 2],
        FlowControl::UnconditionalBranch => [target; 2],
        FlowControl::ConditionalBranch => [next, target],
        FlowControl::Call if instruction.code() == Code::Syscall => [next; 2],
        FlowControl::Call => [target; 2],
        FlowControl::IndirectBranch | FlowControl::IndirectCall => {
            [operand(&instruction, registers).unwrap_or(0); 2]
        }
        FlowControl::Return => {
            let stack = registers[libc::REG_RSP as usize] as usize;
            // SAFETY: the stack's newest word, which a return is about to take.
            [unsafe { *(stack as *const usize) }; 2]
        }
        FlowControl::Interrupt | FlowControl::XbeginXabortXend | FlowControl::Exception => [0; 2],
    }
}

/// The target of an indirect branch.
fn operand(instruction: &Instruction, registers: &[i64]) -> Option<usize> {
    let general = |register| general(register, registers);
    match instruction.op0_kind() {
        OpKind::Register => general(instruction.op0_register()).map(|value| value as usize),
        _ => {
            let at = instruction.virtual_address(0, 0, |register, _, _| general(register))?;
            // SAFETY: the memory that the branch is about to read.
            Some(unsafe { *(at as *const usize) })
        }
    }
}

fn general(register: Register, registers: &[i64]) -> Option<u64> {
    let which = match register {
        Register::RAX => libc::REG_RAX,
        Register::RBX => libc::REG_RBX,
        Register::RCX => libc::REG_RCX,
        Register::RDX => libc::REG_RDX,
        Register::RSI => libc::REG_RSI,
        Register::RDI => libc::REG_RDI,
        Register::RBP => libc::REG_RBP,
        Register::RSP => libc::REG_RSP,
        Register::R8 => libc::REG_R8,
        Register::R9 => libc::REG_R9,
        Register::R10 => libc::REG_R10,
        Register::R11 => libc::REG_R11,
        Register::R12 => libc::REG_R12,
        Register::R13 => libc::REG_R13,
        Register::R14 => libc::REG_R14,
        Register::R15 => libc::REG_R15,
        // The bases of the data segments.
        Register::CS | Register::DS | Register::ES | Register::SS => return Some(0),
        _ => return None,
    };
    Some(registers[which as usize] as u64)
}
