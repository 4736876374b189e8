//! Which functions: patterns over their names.

use crate::symbols;

/// Whether the name of the function at `func` matches one of the patterns,
/// which are separated by commas. `*` stands for anything. A function without
/// a name matches `*` alone.
pub(crate) fn selects(patterns: &str, func: usize) -> bool {
    let name = symbols::find(func).map_or("", |symbol| symbol.name);
    patterns.split(',').any(|pattern| matches(pattern, name))
}

fn matches(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(mut name) = name.strip_prefix(start) else {
        return false;
    };
    let mut rest = rest;
    // What lies between two stars is best found as early as can be.
    while let Some((middle, after)) = rest.split_once('*') {
        let Some(at) = name.find(middle) else {
            return false;
        };
        name = &name[at + middle.len()..];
        rest = after;
    }
    name.ends_with(rest)
}
