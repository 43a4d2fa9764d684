//! A server of this process over a real engine.

use std::net::TcpListener;

use terrace_engine::{Engine, EngineConfig, HugepageMode};
use terrace_server::{Server, ServerConfig};

/// An engine in DRAM only.
pub(crate) fn engine(dram_mib: u64, shards: usize) -> EngineConfig {
    EngineConfig {
        dram_bytes: dram_mib << 20,
        shards,
        hugepages: HugepageMode::Off,
        ..EngineConfig::default()
    }
}

pub(crate) fn start_with(engine: EngineConfig, config: ServerConfig) -> (Engine, Server) {
    let engine = Engine::open(engine).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::start(&engine, listener, config).unwrap();
    (engine, server)
}
