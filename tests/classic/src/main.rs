//! A program that is traced by the calls that its compilers put into every
//! function: this file's, the tracer's own, those of the platform under it.
//!
//! Prints the graph of some calls, and checks itself: it panics where a call
//! computed something else than it should, or was not seen as it should.

#[path = "../../common/host.rs"]
#[allow(dead_code, unused_imports, reason = "shared with the other tests")]
mod host;
#[path = "../../common/state.rs"]
mod state;

#[cfg(c)]
mod c;
mod edges;
mod graph;
mod rust;
mod walk;

#[cfg(feature = "fentry")]
fgraph::bind_fentry!(host::Host);
#[cfg(feature = "mcount")]
fgraph::bind_mcount!(host::Host);
#[cfg(feature = "sancov")]
fgraph::bind_sancov!(host::Host);

fn main() {
    restoring_panics();
    // Before there is a shadow stack, and before there is a callback.
    rust::untraced();
    host::attach(8192);
    rust::untraced();
    #[cfg(not(feature = "fentry"))]
    {
        rust::calls();
        rust::panics();
        walk::chains();
        rust::interrupts();
        rust::threads();
    }
    #[cfg(c)]
    c::all();
    edges::slots();
    println!("{} calls traced, all right", graph::seen());
}

/// A panic gives the return slots back before it unwinds.
fn restoring_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        // SAFETY: no stack with frames on it was freed.
        unsafe { host::FGRAPH.restore() };
        if !info.payload().is::<rust::Expected>() {
            before(info);
        }
    }));
}
