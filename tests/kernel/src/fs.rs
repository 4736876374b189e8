//! A file system in memory: a tree of directories and files in one array.

/// Nodes that there is room for.
const MAX_NODES: usize = 192;
const MAX_DEPTH: usize = 5;

/// Which node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Node(u16);

/// The root directory.
pub(crate) const ROOT: Node = Node(0);

#[derive(Clone, Copy)]
enum Kind {
    Directory { first: Option<Node> },
    File { seed: u32, len: u16 },
}

#[derive(Clone, Copy)]
struct Entry {
    name: u32,
    next: Option<Node>,
    kind: Kind,
}

/// The file system.
pub(crate) struct FileSystem {
    entries: [Entry; MAX_NODES],
    len: usize,
}

impl FileSystem {
    /// Only a root directory.
    pub(crate) const fn new() -> Self {
        let root = Entry {
            name: 0,
            next: None,
            kind: Kind::Directory { first: None },
        };
        Self {
            entries: [root; MAX_NODES],
            len: 1,
        }
    }

    /// Fills it, the same way every time.
    pub(crate) fn fill(&mut self) {
        self.len = 1;
        self.entries[0].kind = Kind::Directory { first: None };
        self.fill_directory(ROOT, 1);
    }

    fn fill_directory(&mut self, directory: Node, depth: usize) {
        for name in 0..6 {
            let deeper = depth < MAX_DEPTH && name % 3 == 0;
            let kind = if deeper {
                Kind::Directory { first: None }
            } else {
                let seed = (depth * 31 + name) as u32 ^ u32::from(directory.0);
                Kind::File {
                    seed,
                    len: (64 + seed * 7 % 192) as u16,
                }
            };
            let Some(node) = self.create(directory, name as u32, kind) else {
                return;
            };
            if deeper {
                self.fill_directory(node, depth + 1);
            }
        }
    }

    fn create(&mut self, directory: Node, name: u32, kind: Kind) -> Option<Node> {
        if self.len == MAX_NODES {
            return None;
        }
        let node = Node(self.len as u16);
        self.len += 1;
        let next = self.children(directory);
        self.entries[usize::from(node.0)] = Entry { name, next, kind };
        self.entries[usize::from(directory.0)].kind = Kind::Directory { first: Some(node) };
        Some(node)
    }

    fn entry(&self, node: Node) -> &Entry {
        &self.entries[usize::from(node.0)]
    }

    fn children(&self, node: Node) -> Option<Node> {
        match self.entry(node).kind {
            Kind::Directory { first } => first,
            Kind::File { .. } => None,
        }
    }

    /// Goes from the root along names.
    pub(crate) fn lookup(&self, path: &[u32]) -> Option<Node> {
        path.iter()
            .try_fold(ROOT, |directory, &name| self.find(directory, name))
    }

    fn find(&self, directory: Node, name: u32) -> Option<Node> {
        let mut node = self.children(directory)?;
        while self.entry(node).name != name {
            node = self.entry(node).next?;
        }
        Some(node)
    }

    /// A checksum over everything from `node` down.
    #[inline(never)]
    pub(crate) fn walk(&self, node: Node) -> u64 {
        let entry = self.entry(node);
        let mut sum = mix(0x7265, u64::from(entry.name));
        match entry.kind {
            Kind::File { seed, len } => mix(sum, read_file(seed, len)),
            Kind::Directory { first } => {
                let mut child = first;
                while let Some(node) = child {
                    sum = mix(sum, self.walk(node));
                    child = self.entry(node).next;
                }
                sum
            }
        }
    }
}

/// Reads a file, block by block.
#[inline(never)]
fn read_file(seed: u32, len: u16) -> u64 {
    let mut sum = 0;
    let mut block = [0; 32];
    let mut state = u64::from(seed);
    for _ in 0..len / 32 {
        read_block(&mut state, &mut block);
        sum = block
            .iter()
            .fold(sum, |sum, &byte| mix(sum, u64::from(byte)));
    }
    sum
}

#[inline(never)]
fn read_block(state: &mut u64, block: &mut [u8; 32]) {
    for byte in block {
        *state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        *byte = (*state >> 56) as u8;
    }
}

/// Folds a value into a checksum.
pub(crate) fn mix(sum: u64, value: u64) -> u64 {
    (sum.rotate_left(7) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
