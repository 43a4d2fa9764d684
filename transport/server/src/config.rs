//! What a server is started with.

use std::time::Duration;

use terrace_fabric::tls::NodeTls;
use terrace_types::limits::BLOCK_LEN_MAX;
use terrace_wire::FrameLimits;
use terrace_wire::limits::BODY_LEN_MAX;

use crate::one_sided::OneSidedConfig;

/// What a server is started with. Start from [`ServerConfig::default`].
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// What a client has to show in its hello; `None` for nothing.
    pub token: Option<Vec<u8>>,
    /// TLS below the frames of all connections; `None` for none.
    pub tls: Option<NodeTls>,
    /// The node's id, the same for ever.
    pub node_id: [u8; 16],
    /// Grows with every start of the node.
    pub node_epoch: u64,
    /// Most connections at once, over all shards.
    pub connections_max: usize,
    /// Requests of a connection that may be under way.
    pub credit_requests: u32,
    /// How long a client may take for its hello, and for a frame that it began to go on.
    pub stall_max: Duration,
    /// How long a client may be silent with nothing under way.
    pub silence_max: Duration,
    /// Longest deadline of a request, and that of requests that give none.
    pub deadline_max: Duration,
    /// Longest lease or pin.
    pub lease_max: Duration,
    /// How clients read leased blocks by themselves; `None`: they do not.
    pub one_sided: Option<OneSidedConfig>,
    /// Requests that take longer are remembered as slow, and logged; zero for none.
    pub slow: Duration,
}

/// Most bytes of values in a frame that a node takes. They go to slots one after the other, so
/// this bounds no memory; it bounds what is lost when a connection breaks.
pub(crate) const VALUES_LEN_MAX: u32 = 2 * BLOCK_LEN_MAX as u32;

/// The longest frame that a node takes.
pub(crate) const LIMITS: FrameLimits = FrameLimits {
    body_len_max: BODY_LEN_MAX,
    values_len_max: VALUES_LEN_MAX,
};

/// Bytes of requests under way: two of the longest frames.
pub(crate) const CREDIT_BYTES: u64 = 2 * (32 + BODY_LEN_MAX as u64 + VALUES_LEN_MAX as u64);

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            token: None,
            tls: None,
            node_id: [0; 16],
            node_epoch: 1,
            connections_max: 16_384,
            credit_requests: 128,
            stall_max: Duration::from_secs(10),
            silence_max: Duration::from_secs(300),
            deadline_max: Duration::from_secs(30),
            lease_max: Duration::from_secs(600),
            one_sided: None,
            slow: Duration::from_millis(100),
        }
    }
}
