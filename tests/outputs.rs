//! What the graph tracer records, and each output, read by its own reader.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

#[path = "graph/elf.rs"]
#[allow(dead_code, reason = "shared with the example")]
mod elf;
#[path = "common/host.rs"]
#[allow(dead_code, unused_imports, reason = "shared with the other tests")]
mod host;
#[path = "outputs/hostile.rs"]
mod hostile;
#[path = "graph/output.rs"]
#[allow(dead_code, reason = "shared with the example")]
mod output;
#[path = "outputs/readers.rs"]
#[allow(dead_code, reason = "shared with the test of the kernel")]
mod readers;
#[path = "outputs/small.rs"]
mod small;
#[path = "graph/uftrace.rs"]
#[allow(dead_code, reason = "shared with the example")]
mod uftrace;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;

use fgraph::tracer::profile::{Row, Summary};
use fgraph::tracer::{Buffer, Full, Graph, Profile, Record, Scale, Symbols, Trace};

use elf::Elf;
use host::{FGRAPH, Host};
use readers::{Table, Tree};

/// Tests share the tracer.
static ALONE: Mutex<()> = Mutex::new(());

/// A directory of this process.
fn scratch(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("fgraph-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&path).expect("it can be made");
    path
}

/// What every output tells of the same buffers.
struct Outputs {
    json: Tree,
    folded: Table,
    graph: (Vec<(String, usize)>, u64),
    fxt: Option<Tree>,
    uftrace: Option<readers::Uftrace>,
    flames: String,
    text: String,
}

fn read_all(buffers: &[Buffer], scale: Scale, symbols: &dyn Symbols, name: &str) -> Outputs {
    let directory = scratch(name);
    let written = |write: &dyn Fn(&mut Vec<u8>, &mut Trace<'_>)| {
        let mut bytes = Vec::new();
        output::with_trace(buffers, scale, |trace| write(&mut bytes, trace)).expect("memory");
        bytes
    };
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    let graph = text(written(&|out, trace| {
        output::write_graph(out, trace, symbols).expect("it is written");
    }));
    let json = text(written(&|out, trace| {
        output::write_json(out, trace, symbols).expect("it is written");
    }));
    let folded = text(written(&|out, trace| {
        output::write_folded(out, trace, symbols).expect("it is written");
    }));
    let fxt = written(&|out, trace| {
        output::write_fxt(out, trace, symbols).expect("it is written");
    });
    let path = directory.join("trace.fxt");
    std::fs::write(&path, fxt).expect("it can be written");
    let uftrace = directory.join("uftrace");
    written(&|_, trace| small::write_uftrace(&uftrace, trace, symbols));
    let (folded, flames) = match folded.is_empty() {
        true => (Table::new(), String::new()),
        false => readers::folded(&folded),
    };
    let has_calls = !folded.is_empty();
    let json = readers::json(&json);
    // What is lost, what needs escaping, and the end of a 64-bit clock do not
    // come out of its dump.
    let dumped = !["names", "end of time"].contains(&name) && json.lost == 0;
    let outputs = Outputs {
        json,
        folded,
        graph: readers::graph(&graph),
        fxt: readers::fxt(&path),
        // It does not take a trace of nothing for one.
        uftrace: has_calls
            .then(|| readers::uftrace(&uftrace, dumped))
            .flatten(),
        flames,
        text: graph,
    };
    std::fs::remove_dir_all(directory).expect("it can be removed");
    outputs
}

thread_local! {
    /// Calls of this thread by function, counted by the functions themselves.
    static COUNTED: Cell<[u64; 3]> = const { Cell::new([0; 3]) };
}

fn count(function: usize) {
    let mut counted = COUNTED.get();
    counted[function] += 1;
    COUNTED.set(counted);
}

#[inline(never)]
fn fork(n: u64) -> u64 {
    count(0);
    match n {
        0 => leaf(n),
        _ => fork(n - 1) + twice(n - 1),
    }
}

#[inline(never)]
fn twice(n: u64) -> u64 {
    count(1);
    match n {
        0 => leaf(n) + leaf(n + 1),
        _ => fork(n - 1) + leaf(n),
    }
}

#[inline(never)]
fn leaf(n: u64) -> u64 {
    count(2);
    std::hint::black_box(n)
}

const FUNCTIONS: [&str; 3] = ["outputs::fork", "outputs::twice", "outputs::leaf"];

fn buffers(records: usize) -> &'static [Buffer] {
    // SAFETY: it has no preconditions.
    let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    let buffer = |_| {
        let records: Vec<Record> = (0..records).map(|_| Record::new()).collect();
        Buffer::new(records.leak(), Full::Overwrite)
    };
    (0..cpus).map(buffer).collect::<Vec<_>>().leak()
}

#[test]
fn all_outputs_tell_the_same() {
    let _alone = ALONE.lock();
    let patch = host::init_patch();
    let mut elf = Elf::of_this_program().expect("this program has symbols");
    let wanted = |name: &str| FUNCTIONS.contains(&name);
    let addresses: Vec<usize> = elf
        .functions()
        .iter()
        .filter(|function| wanted(&function.name))
        .map(|function| function.start)
        .collect();
    assert_eq!(addresses.len(), FUNCTIONS.len());

    let graph: &'static Graph<Host> = Box::leak(Box::new(Graph::new(buffers(1 << 18))));
    let rows: Vec<Row<32>> = (0..16).map(|_| Row::new()).collect();
    let profile: &'static Profile<Host> = Box::leak(Box::new(Profile::new(rows.leak())));
    let graph_id = FGRAPH.register(graph).expect("a slot");
    let profile_id = FGRAPH.register(profile).expect("a slot");
    for id in [graph_id, profile_id] {
        let followed = patch.enable(id, |func| addresses.contains(&func));
        assert_eq!(followed, Ok(FUNCTIONS.len()));
    }
    let work = |n| {
        host::attach(4096);
        fork(n);
        (COUNTED.get(), <Host as fgraph::Platform>::task())
    };
    let threads = [18, 20].map(|n| std::thread::spawn(move || work(n)));
    let counted = threads.map(|thread| thread.join().expect("it ends"));
    for id in [graph_id, profile_id] {
        patch.disable(id, |_| true).expect("it was enabled");
        FGRAPH.unregister(id).expect("it was registered");
    }

    let mut expected: BTreeMap<&str, u64> = BTreeMap::new();
    for (counts, task) in counted {
        for (name, count) in FUNCTIONS.into_iter().zip(counts) {
            *expected.entry(name).or_default() += count;
        }
        elf.name_task(task, &format!("task \"{task}\""));
    }
    let all: u64 = expected.values().sum();
    assert!(all > 100_000, "{all} calls");

    let (ns, ticks) = host::clock_rate();
    let scale = Scale::new(ticks, ns).expect("the clock runs");
    let outputs = read_all(graph.buffers(), scale, &elf, "all");
    compare(&outputs, &expected);
    let hits: BTreeMap<String, u64> = profile
        .summaries()
        .map(|Summary { func, hits, .. }| {
            (
                elf.symbol(func).map_or("", |symbol| symbol.name).to_owned(),
                hits,
            )
        })
        .collect();
    for (name, count) in &expected {
        assert_eq!(hits.get(*name), Some(count), "profile: {name}");
    }
    let records: usize = graph.buffers().iter().map(Buffer::written).sum();
    let bytes = (records * size_of::<Record>()) as f64 / all as f64;
    println!("{all} calls, {bytes:.1} bytes of buffer each");
    assert!(bytes <= 32.0);
}

/// Counts, nesting and times are the same in all outputs, and the counts those
/// that are `expected`.
fn compare(outputs: &Outputs, expected: &BTreeMap<&str, u64>) {
    let json = &outputs.json.table;
    assert_eq!(outputs.json.lost, 0);
    let calls = |table: &Table| -> BTreeMap<String, u64> {
        table
            .iter()
            .map(|(name, told)| (name.clone(), told.calls))
            .collect()
    };
    let expected: BTreeMap<String, u64> = expected
        .iter()
        .map(|(&name, &count)| (name.to_owned(), count))
        .collect();
    assert_eq!(calls(json), expected, "JSON");
    for (name, told) in json {
        let folded = outputs.folded.get(name).copied().unwrap_or_default();
        assert_eq!(
            (folded.calls, folded.own),
            (told.calls, told.own),
            "folded: {name}"
        );
    }
    assert_eq!(outputs.folded.len(), json.len());
    if let Some(fxt) = &outputs.fxt {
        assert_eq!((&fxt.table, fxt.lost), (json, 0), "fxt");
    }
    if let Some(uftrace) = &outputs.uftrace {
        let table = uftrace.tree.as_ref().map(|tree| &tree.table);
        assert_eq!(table, Some(json), "uftrace");
    }
    let mut shown: BTreeMap<String, u64> = BTreeMap::new();
    for (name, _) in &outputs.graph.0 {
        *shown.entry(name.clone()).or_default() += 1;
    }
    assert_eq!(shown, expected, "graph");
}
