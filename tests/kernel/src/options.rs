//! The kernel's command line: words of `key=value`.
//!
//! | key | what | default |
//! | --- | --- | --- |
//! | `trace` | which functions: patterns with `*`, separated by commas | none |
//! | `depth` | how many calls deep | no limit |
//! | `tracer` | `graph` or `profile` | `graph` |
//! | `sleep` | `out`: durations without the time that the task was switched out | `in` |
//! | `format` | how the graph is printed: `text`, `json`, `folded` | `text` |
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
    pub(crate) tracer: &'static str,
    pub(crate) sleep: bool,
    pub(crate) format: &'static str,
    pub(crate) cpu: Option<usize>,
    pub(crate) words: usize,
    pub(crate) own: bool,
    pub(crate) rounds: usize,
    pub(crate) seconds: Option<usize>,
    pub(crate) test: Option<&'static str>,
}

/// A word that is no option, or whose value is no number where one belongs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BadWord(pub(crate) &'static str);

impl Options {
    /// Reads the command line.
    pub(crate) fn parse(line: &'static str) -> Result<Self, BadWord> {
        let mut options = Self {
            trace: None,
            depth: usize::MAX,
            tracer: "graph",
            sleep: true,
            format: "text",
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
                "tracer" => options.tracer = value,
                "sleep" => options.sleep = value != "out",
                "format" => options.format = value,
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
