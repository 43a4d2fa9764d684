//! What a caller decides about a set.

/// What becomes of devices that the set lists and that are not given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingDevices {
    /// The set is refused.
    #[default]
    Refuse,
    /// The set is opened without them, and takes them back when they are given again.
    Accept,
    /// The set is opened without them, and never takes them back.
    Forget,
}

/// Where ids come from.
pub type Random = Box<dyn Fn() -> std::io::Result<[u8; 16]> + Send>;

/// How a set is opened.
pub struct SetOptions {
    /// Count of shards.
    pub shards: u32,
    /// Largest block that will be written, in bytes.
    pub block_len_max: u64,
    /// What becomes of devices that are not given.
    pub missing: MissingDevices,
    /// Places of given devices that are to be emptied.
    pub drain: Vec<usize>,
    /// Write nothing: for looking at a set.
    pub read_only: bool,
    /// Where ids come from; [`super::os_random`] outside tests.
    pub random: Random,
}
