//! What does an entry and its return cost, without a way of catching them?

mod support;

use support::tracer::{attach, pair, register, unregister};
use support::{Effort, line, nanoseconds};

const ALL: usize = 0xffff;

fn main() {
    let effort = Effort::from_args();
    attach(1024);
    for count in [0, 1, 2, 4, 8, 16] {
        let ids = register(count, ());
        report(effort, &format!("pair/cb={count}"), ALL);
        if count == 1 {
            report(effort, "pair/none", 0);
        }
        unregister(ids);
    }
    for count in [1, 2, 4, 16] {
        let ids = register(count, 7_usize);
        report(effort, &format!("pair/cb={count}/data=1"), ALL);
        unregister(ids);
    }
}

fn report(effort: Effort, name: &str, wanted: usize) {
    let mut subject = |calls| pair::pair(calls, wanted);
    let mut baseline = pair::empty;
    let times = nanoseconds(effort, &mut [&mut subject, &mut baseline]);
    line(name, times[0], "ns");
    line(&format!("{name}/ratio"), times[0] / times[1], "ratio");
}
