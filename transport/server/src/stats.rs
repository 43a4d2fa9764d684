//! What a server counts, plain on each shard's thread, and the sums.

use crate::latency::Latencies;
use crate::slow::SlowRequest;

/// Declares the counters once: the struct, its sum, and the names they are published under.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident: $metric:literal,)*) => {
        /// What a server did since it started, and what it has now: connections, requests and bytes.
        /// What ends in `_total` only grows.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct ServerCounters { $($(#[$doc])* pub $name: u64,)* }

        impl ServerCounters {
            /// Adds another shard's.
            pub const fn add(&mut self, other: &Self) { $(self.$name += other.$name;)* }

            /// All with the names of their metrics.
            #[must_use]
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$(($metric, self.$name),)*]
            }
        }
    };
}

counters! {
    /// Connections that are open.
    connections: "terrace_server_connections",
    /// Requests that are not answered.
    requests_under_way: "terrace_server_requests_under_way",
    /// Bytes of replies that wait to be sent.
    unsent_bytes: "terrace_server_unsent_bytes",
    /// Subscriptions to events.
    subscriptions: "terrace_server_subscriptions",
    /// Connections that came, those that moved between shards at their hello included.
    connections_taken: "terrace_server_connections_taken_total",
    /// Connections closed as the client broke a rule of the protocol.
    closed_malformed: "terrace_server_closed_malformed_total",
    /// Connections closed as the client did not take what was sent.
    closed_slow: "terrace_server_closed_slow_total",
    /// Connections closed as a frame did not go on.
    closed_stalled: "terrace_server_closed_stalled_total",
    /// Connections closed as nothing came.
    closed_silent: "terrace_server_closed_silent_total",
    /// Connections closed as their clients and the node did not agree on TLS.
    tls_refused: "terrace_server_tls_refused_total",
    /// Requests that came.
    requests: "terrace_server_requests_total",
    /// Requests answered by an error.
    requests_refused: "terrace_server_requests_refused_total",
    /// Requests that took longer than the threshold of slow ones.
    requests_slow: "terrace_server_requests_slow_total",
    /// Entries of gets that were hits.
    get_hits: "terrace_server_get_hits_total",
    /// Entries of gets that were not.
    get_misses: "terrace_server_get_misses_total",
    /// Entries of puts whose values were taken.
    put_values: "terrace_server_put_values_total",
    /// Values of puts that were read from memory of the client.
    pulled_values: "terrace_server_pulled_values_total",
    /// Clients that were sent away as a lease on rails ended without a release, by this shard.
    clients_fenced: "terrace_server_clients_fenced_total",
    /// Leases by which blocks are read one-sided.
    rails_leases: "terrace_server_rails_leases_total",
    /// Keys that belong to another shard.
    wrong_shard: "terrace_server_wrong_shard_total",
    /// Entries of gets answered as timed out.
    timed_out: "terrace_server_timed_out_total",
    /// Events that were told to subscribers.
    events_sent: "terrace_server_events_sent_total",
    /// Frames sent.
    frames_sent: "terrace_server_frames_sent_total",
    /// Bytes sent.
    bytes_sent: "terrace_server_bytes_sent_total",
    /// Bytes received.
    bytes_received: "terrace_server_bytes_received_total",
}

/// One shard's part of a server: what it counts, how long its requests take, and the last slow ones.
#[derive(Clone, Debug, Default)]
pub struct ServerReport {
    /// What it counts.
    pub counters: ServerCounters,
    /// How long requests take.
    pub latencies: Latencies,
    /// The last slow requests, oldest first.
    pub slow: Vec<SlowRequest>,
}
