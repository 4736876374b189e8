//! The work that is traced: a JSON library that knows nothing of tracing
//! parses a document and writes it again.

use serde_json::Value;

/// A small document, different for each `seed`.
pub fn document(seed: usize) -> String {
    format!(
        r#"{{"disk": {seed}, "blocks": [{}, -1.5e3, null], "owner": {{"user": "r\u00f6ot"}}}}"#,
        seed * 512
    )
}

/// Parses and writes `text`; returns what was written.
pub fn round_trip(text: &str) -> Result<String, serde_json::Error> {
    let value: Value = serde_json::from_str(text)?;
    serde_json::to_string(&value)
}

/// The bytes that a task has written in the end, by other means.
pub fn bytes_written(number: usize, rounds: usize) -> usize {
    let bytes = |seed: usize| {
        let (disk, block) = (seed.to_string().len(), (seed * 512).to_string().len());
        // Keys come out sorted, without spaces, the escape as a character.
        r#"{"blocks":[,-1500.0,null],"disk":,"owner":{"user":"röot"}}"#.len() + disk + block
    };
    (0..rounds).map(|round| bytes(number + round)).sum()
}
