//! Owns the bounds on what a trace file can make the reader allocate.

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// Bounds of one read. Tests shrink them; everybody else takes [`Limits::DEFAULT`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Bytes after decompression.
    pub(super) decompressed_len_max: u64,
    /// Bytes before and after decompression of an xz file, which is decoded in memory.
    pub(super) xz_len_max: u64,
    /// Bytes of one line, without its end.
    pub(super) line_len_max: u64,
    /// Blocks of one request.
    pub(super) request_blocks_max: u64,
    /// Requests of one trace.
    pub(super) requests_max: u64,
    /// Block accesses of one trace.
    pub(super) accesses_max: u64,
}

impl Limits {
    /// The bounds for files.
    pub(super) const DEFAULT: Self = Self {
        // The largest sample is 10 MiB; 4 GiB of jsonl is about 8 million long requests.
        decompressed_len_max: 4 * GIB,
        // The decoder holds up to three copies of a block of the file.
        xz_len_max: GIB,
        // A line of 1 Mi ids of up to 14 characters.
        line_len_max: 16 * MIB,
        // 512 Mi tokens at 512 tokens per block.
        request_blocks_max: 1 << 20,
        // A request costs about 80 bytes beside its ids: 5 GiB. Two bytes of text make a request.
        requests_max: 1 << 26,
        // 2 GiB of ids. One short `.lis` line makes a million accesses.
        accesses_max: 1 << 28,
    };
}

const _: () = assert!(Limits::DEFAULT.xz_len_max <= Limits::DEFAULT.decompressed_len_max);
const _: () = assert!(Limits::DEFAULT.request_blocks_max <= Limits::DEFAULT.accesses_max);
