//! The tracers that the command line can choose.

use fgraph::CallbackId;
use fgraph::tracer::filter::{Cpus, Depth, Filtered};
use fgraph::tracer::profile::Row;
use fgraph::tracer::{Buffer, Full, Graph, Profile, Record, Recorded};

use super::follow;
use super::platform::Kernel;
use crate::cpu::MAX_CPUS;
use crate::options::{Format, Options};
use crate::sync::Late;

/// Records that a CPU can have.
const MAX_RECORDS: usize = 1 << 17;

static RECORDS: [[Record; MAX_RECORDS]; MAX_CPUS] =
    [const { [const { Record::new() }; MAX_RECORDS] }; MAX_CPUS];
static ROWS: [Row; 512] = [const { Row::new() }; 512];

/// A tracer behind the filters of the command line.
type Limited<C> = Depth<Filtered<C, &'static Cpus<Kernel>>>;

/// The CPUs whose calls are wanted.
static WANTED: Cpus<Kernel> = Cpus::new();
static BUFFERS: Late<[Buffer; MAX_CPUS]> = Late::new();
static GRAPH: Late<Limited<Graph<Kernel>>> = Late::new();
static PROFILE: Late<Limited<Profile<Kernel>>> = Late::new();

/// Starts the tracers that the formats of the command line need.
pub(super) fn start(options: &Options, patterns: &str) -> [Option<CallbackId>; 2] {
    for cpu in 0..MAX_CPUS {
        WANTED.set(cpu, options.cpu.is_none_or(|only| only == cpu));
    }
    let is_profile = |format| format == Format::Profile;
    // The graph is the outer one: its calls have the profile's inside.
    let graph = options.formats().any(|format| !is_profile(format));
    let profile = options.formats().any(is_profile);
    [
        graph.then(|| follow(GRAPH.set(limited(new_graph(options), options)), patterns)),
        profile.then(|| {
            follow(
                PROFILE.set(limited(new_profile(options), options)),
                patterns,
            )
        }),
    ]
}

fn limited<C>(tracer: C, options: &Options) -> Limited<C> {
    Depth::new(Filtered::new(tracer, &WANTED), options.depth)
}

fn new_graph(options: &Options) -> Graph<Kernel> {
    let buffers = RECORDS.each_ref().map(|records| {
        let used = options.records.min(records.len());
        Buffer::new(&records[..used], Full::Overwrite)
    });
    let recorded = match options.sleep {
        true => Recorded::empty(),
        false => Recorded::WITHOUT_SLEEP,
    };
    Graph::new(BUFFERS.set(buffers)).recorded(recorded)
}

fn new_profile(options: &Options) -> Profile<Kernel> {
    match options.sleep {
        true => Profile::new(&ROWS),
        false => Profile::new(&ROWS).without_sleep(),
    }
}

/// The graph, if there is one.
pub(super) fn graph() -> Option<&'static Graph<Kernel>> {
    GRAPH.get().map(|limited| limited.callback().callback())
}

/// The profile, if there is one.
pub(super) fn profile() -> Option<&'static Profile<Kernel>> {
    PROFILE.get().map(|limited| limited.callback().callback())
}
