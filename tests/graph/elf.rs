//! The names of this program's functions, from its own file.

use std::error::Error;

use crate::uftrace::Program;
use fgraph::tracer::{Symbol, Symbols};
use object::{Object, ObjectSegment, ObjectSymbol, SymbolKind};

/// Functions by address, and tasks by number.
pub struct Elf {
    path: String,
    range: std::ops::Range<usize>,
    /// Sorted.
    functions: Vec<Function>,
    tasks: Vec<(usize, String)>,
}

/// A function, in the running program.
pub struct Function {
    pub start: usize,
    pub size: usize,
    /// Demangled.
    pub name: String,
}

impl Elf {
    /// Reads the running program's symbol table.
    pub fn of_this_program() -> Result<Self, Box<dyn Error>> {
        unsafe extern "C" {
            static __executable_start: u8;
        }
        let file = std::fs::read("/proc/self/exe")?;
        let file = object::File::parse(&*file)?;
        let lowest = file.segments().map(|segment| segment.address()).min();
        let lowest = lowest.ok_or("the program's file has no segments")?;
        let start = &raw const __executable_start as usize;
        let bias = (start as u64).wrapping_sub(lowest);
        let ends = file
            .segments()
            .map(|segment| segment.address().wrapping_add(segment.size()));
        let end = ends.max().unwrap_or(lowest).wrapping_add(bias) as usize;
        let mut functions: Vec<Function> = file
            .symbols()
            .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition())
            .filter_map(|symbol| {
                let name = symbol.name().ok().filter(|name| !name.is_empty())?;
                Some(Function {
                    start: symbol.address().wrapping_add(bias) as usize,
                    size: symbol.size() as usize,
                    // Without the hash that the compiler appends.
                    name: format!("{:#}", rustc_demangle::demangle(name)),
                })
            })
            .collect();
        functions.sort_by_key(|function| function.start);
        functions.dedup_by_key(|function| function.start);
        if functions.is_empty() {
            return Err("the program's file has no symbols: it was stripped".into());
        }
        let path = std::env::current_exe()?;
        Ok(Self {
            path: path.display().to_string(),
            range: start..end,
            functions,
            tasks: Vec::new(),
        })
    }

    /// Gives a task a name.
    pub fn name_task(&mut self, task: usize, name: &str) {
        self.tasks.push((task, name.to_owned()));
    }

    /// All functions.
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// All functions, as a list with names of its own.
    pub fn named_functions(&self) -> impl Iterator<Item = (usize, usize, String)> {
        let all = self.functions.iter();
        all.map(|function| (function.start, function.size, function.name.clone()))
    }

    /// This program, with names for `functions`.
    pub fn program<'a>(
        &'a self,
        functions: &'a mut dyn Iterator<Item = (usize, usize, String)>,
    ) -> Program<'a> {
        Program {
            path: &self.path,
            range: self.range.clone(),
            functions,
        }
    }

    fn function(&self, address: usize) -> Option<&Function> {
        let above = self
            .functions
            .partition_point(|function| function.start <= address);
        let function = self.functions.get(above.checked_sub(1)?)?;
        (address - function.start < function.size.max(1)).then_some(function)
    }
}

impl Symbols for Elf {
    fn symbol(&self, address: usize) -> Option<Symbol<'_>> {
        self.function(address).map(|function| Symbol {
            name: &function.name,
            start: function.start,
        })
    }

    fn task(&self, task: usize) -> Option<&str> {
        let found = self.tasks.iter().find(|&&(number, _)| number == task);
        found.map(|(_, name)| name.as_str())
    }
}

/// The same names without what makes them long: the modules of types, and all
/// but the last of a function's.
pub struct Short<'a> {
    elf: &'a Elf,
    names: Vec<String>,
}

impl<'a> Short<'a> {
    pub fn of(elf: &'a Elf) -> Self {
        let short = |function: &Function| shorten(&function.name);
        Self {
            elf,
            names: elf.functions.iter().map(short).collect(),
        }
    }
}

impl Symbols for Short<'_> {
    fn symbol(&self, address: usize) -> Option<Symbol<'_>> {
        let Symbol { start, .. } = self.elf.symbol(address)?;
        let at = self
            .elf
            .functions
            .partition_point(|function| function.start < start);
        let name = self.names.get(at)?;
        Some(Symbol { name, start })
    }

    fn task(&self, task: usize) -> Option<&str> {
        self.elf.task(task)
    }
}

fn shorten(name: &str) -> String {
    let in_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let mut short = String::new();
    let mut rest = name;
    while !rest.is_empty() {
        let path = rest.find(|c| !in_path(c)).unwrap_or(rest.len());
        let (path, behind) = rest.split_at(path);
        // Either may be joined to what stands beside it.
        let inner = path.trim_matches(':');
        let segments: Vec<&str> = inner.split("::").collect();
        let is_type = segments
            .last()
            .is_some_and(|last| last.starts_with(char::is_uppercase));
        let kept = segments.len().min(if is_type { 1 } else { 2 });
        if path.starts_with("::") {
            short += "::";
        }
        short += &segments[segments.len() - kept..].join("::");
        if path.ends_with("::") && !inner.is_empty() {
            short += "::";
        }
        rest = behind;
        if let Some(other) = rest.chars().next() {
            short.push(other);
            rest = &rest[other.len_utf8()..];
        }
    }
    short
}
