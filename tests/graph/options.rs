//! The arguments of the example.

use std::path::PathBuf;

/// How the example is used.
pub const USAGE: &str = "\
usage: graph [OPTION]...
Traces a JSON library at work and shows what it called.

  --filter GLOB    follow functions whose name matches (* and ?)
                   [default: *serde_json*]
  --depth N        record calls that fewer than N others enclose [default: 6]
  --callbacks N    register N callbacks, 1 to 16 [default: 1]
  --rounds N       documents that each task works through [default: 1]
  --format FORMAT  graph, profile, folded, json, fxt or uftrace [default: graph]
  --output PATH    write all of it there; a directory for uftrace
  --help           show this
";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    Graph,
    Profile,
    Folded,
    Json,
    Fxt,
    Uftrace,
}

const FORMATS: [(&str, Format); 6] = [
    ("graph", Format::Graph),
    ("profile", Format::Profile),
    ("folded", Format::Folded),
    ("json", Format::Json),
    ("fxt", Format::Fxt),
    ("uftrace", Format::Uftrace),
];

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    pub filter: String,
    pub depth: usize,
    pub callbacks: usize,
    pub rounds: usize,
    pub format: Format,
    pub output: Option<PathBuf>,
}

/// What was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Asked {
    Help,
    Trace(Options),
}

/// Reads the arguments; an error is a sentence for the user.
pub fn parse(arguments: impl Iterator<Item = String>) -> Result<Asked, String> {
    let mut options = Options {
        filter: "*serde_json*".to_owned(),
        depth: 6,
        callbacks: 1,
        rounds: 1,
        format: Format::Graph,
        output: None,
    };
    let mut arguments = arguments.peekable();
    while let Some(argument) = arguments.next() {
        let (name, given) = match argument.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (argument.clone(), None),
        };
        if name == "--help" || name == "-h" {
            return Ok(Asked::Help);
        }
        let known = [
            "--filter",
            "--depth",
            "--callbacks",
            "--rounds",
            "--format",
            "--output",
        ];
        if !known.contains(&name.as_str()) {
            return Err(format!("unknown argument `{argument}`"));
        }
        let value = given
            .or_else(|| arguments.next())
            .ok_or_else(|| format!("`{name}` wants a value"))?;
        match name.as_str() {
            "--filter" => options.filter = value,
            "--depth" => options.depth = number(&name, &value, 0..=usize::from(u16::MAX))?,
            "--callbacks" => options.callbacks = number(&name, &value, 1..=16)?,
            "--rounds" => options.rounds = number(&name, &value, 0..=1_000_000)?,
            "--format" => {
                let found = FORMATS.iter().find(|(name, _)| *name == value);
                options.format = found.map(|&(_, format)| format).ok_or_else(|| {
                    let names = FORMATS.map(|(name, _)| name).join(", ");
                    format!("unknown format `{value}`: choose one of {names}")
                })?;
            }
            _ => options.output = Some(value.into()),
        }
    }
    let binary = matches!(options.format, Format::Fxt | Format::Uftrace);
    if binary && options.output.is_none() {
        return Err("this format is binary: say where to write it with `--output PATH`".to_owned());
    }
    Ok(Asked::Trace(options))
}

fn number(
    name: &str,
    value: &str,
    range: std::ops::RangeInclusive<usize>,
) -> Result<usize, String> {
    match value.parse() {
        Ok(number) if range.contains(&number) => Ok(number),
        _ => Err(format!(
            "`{name}` wants a number from {} to {}, not `{value}`",
            range.start(),
            range.end()
        )),
    }
}

/// Whether `name` matches `glob`, in which `*` stands for any characters and
/// `?` for one.
pub fn matches(glob: &str, name: &str) -> bool {
    let (glob, name): (Vec<char>, Vec<char>) = (glob.chars().collect(), name.chars().collect());
    let (mut g, mut n) = (0, 0);
    // Where the last star is, and what it stands for so far.
    let mut star = None;
    while n < name.len() {
        match glob.get(g) {
            Some('*') => {
                star = Some((g, n));
                g += 1;
            }
            Some(&c) if c == '?' || c == name[n] => {
                g += 1;
                n += 1;
            }
            _ => match star {
                Some((at, upto)) => {
                    star = Some((at, upto + 1));
                    (g, n) = (at + 1, upto + 1);
                }
                None => return false,
            },
        }
    }
    glob[g..].iter().all(|&c| c == '*')
}
