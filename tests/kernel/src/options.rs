//! The kernel's command line: words of `key=value`.
//!
//! | key | what | default |
//! | --- | --- | --- |
//! | `trace` | which functions: patterns with `*`, separated by commas | none |
//! | `depth` | how many calls deep | no limit |
//! | `sleep` | `out`: durations without the time that the task was switched out | `in` |
//! | `format` | what is printed of it: `graph`, `profile`, `folded`, `json`, `fxt`, `uftrace`, or several, separated by commas | `graph` |
//! | `tasks` | `yes`: the graph has a column with the task | `no` |
//! | `records` | records of each CPU's buffer, of which the newest are kept | 2048 |
//! | `cpu` | only what runs on that CPU | all |
//! | `words` | words of each shadow stack | 1024 |
//! | `own` | `yes`: the tracer's own functions too | `no` |
//! | `rounds` | how often each task of the workload does its work | 20 |
//! | `seconds` | do it so long instead | - |
//! | `test` | run that scenario instead of the workload | - |

/// The command line, read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) trace: Option<&'static str>,
    pub(crate) depth: usize,
    pub(crate) sleep: bool,
    /// See [`formats`](Self::formats).
    format: &'static str,
    pub(crate) tasks: bool,
    pub(crate) records: usize,
    pub(crate) cpu: Option<usize>,
    pub(crate) words: usize,
    pub(crate) own: bool,
    pub(crate) rounds: usize,
    pub(crate) seconds: Option<usize>,
    pub(crate) test: Option<&'static str>,
}

/// How a trace is printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    Graph,
    Profile,
    Folded,
    Json,
    Fxt,
    Uftrace,
}

impl Format {
    const ALL: [Self; 6] = [
        Self::Graph,
        Self::Profile,
        Self::Folded,
        Self::Json,
        Self::Fxt,
        Self::Uftrace,
    ];

    /// As the command line, and what is printed, calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Graph => "graph",
            Self::Profile => "profile",
            Self::Folded => "folded",
            Self::Json => "json",
            Self::Fxt => "fxt",
            Self::Uftrace => "uftrace",
        }
    }

    fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }
}

/// A word that is no option, or whose value is not one that it may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BadWord(pub(crate) &'static str);

impl Options {
    /// The formats that were asked for.
    pub(crate) fn formats(&self) -> impl Iterator<Item = Format> + use<> {
        self.format.split(',').filter_map(Format::find)
    }

    /// Reads the command line.
    pub(crate) fn parse(line: &'static str) -> Result<Self, BadWord> {
        let mut options = Self {
            trace: None,
            depth: usize::MAX,
            sleep: true,
            format: "graph",
            tasks: false,
            records: 2048,
            cpu: None,
            words: 1024,
            own: false,
            rounds: 20,
            seconds: None,
            test: None,
        };
        for word in line.split_ascii_whitespace() {
            let bad = BadWord(word);
            let (key, value) = word.split_once('=').ok_or(bad)?;
            let number = || value.parse::<usize>().map_err(|_| bad);
            match key {
                "trace" => options.trace = Some(value),
                "depth" => options.depth = number()?,
                "sleep" => options.sleep = value != "out",
                "format" => {
                    let known = value.split(',').all(|name| Format::find(name).is_some());
                    options.format = known.then_some(value).ok_or(bad)?;
                }
                "tasks" => options.tasks = value == "yes",
                "records" => options.records = number()?,
                "cpu" => options.cpu = Some(number()?),
                "words" => options.words = number()?,
                "own" => options.own = value == "yes",
                "rounds" => options.rounds = number()?,
                "seconds" => options.seconds = Some(number()?),
                "test" => options.test = Some(value),
                _ => return Err(bad),
            }
        }
        Ok(options)
    }
}
