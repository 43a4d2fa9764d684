//! Values on their way in: into a slot in pieces, or past.

use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

use terrace_fabric::{Receiver, TcpReceiver};
use terrace_types::Nanos;

use crate::connection::{Connection, TURN_LEN, Waiting};
use crate::latency::Hop;
use crate::session::End;
use crate::socket::ShardSocket;

/// Bytes that are received at once, and hashed while they are in the processor's cache.
const PIECE_LEN: usize = 128 << 10;

/// What a connection's frames come from.
pub(crate) type Frames = TcpReceiver<ShardSocket>;

/// Bytes of values that are passed over at once; they go nowhere, and their memory is the
/// connection's own.
const SKIP_LEN: usize = 16 << 10;

/// Fills `into` with the next bytes of values; `each` sees every piece as it arrives. How many came
/// before `deadline`: a client that sends a byte now and then must not hold a slot for ever.
pub(crate) async fn receive(
    connection: &Rc<Connection>,
    frames: &mut Frames,
    into: &mut [u8],
    deadline: Nanos,
    mut each: impl FnMut(&[u8]),
) -> Result<usize, End> {
    let (mut filled, mut turn) = (0, 0);
    let (mut receiving, mut hashing) = (Duration::ZERO, Duration::ZERO);
    let mut start = connection.wait_for(Waiting::Rest);
    while filled < into.len() && start < deadline {
        let end = into.len().min(filled + PIECE_LEN);
        let piece = &mut into[filled..end];
        let count = poll_fn(|context| frames.poll_slice(context, piece)).await;
        let count = count.map_err(|_| End::Gone)?;
        // The watch closes a connection whose frame does not go on.
        if count == 0 || connection.is_closed() {
            return Err(End::Gone);
        }
        let arrived = connection.host.now();
        receiving += arrived.since(start);
        each(&into[filled..filled + count]);
        start = connection.wait_for(Waiting::Rest);
        hashing += start.since(arrived);
        filled += count;
        turn += count;
        connection
            .host
            .count(|counters| counters.bytes_received += count as u64);
        // A client that is never waited for must not keep the thread to itself.
        if turn >= TURN_LEN {
            turn = 0;
            connection.shard().runtime().yield_now().await;
            start = connection.wait_for(Waiting::Rest);
        }
    }
    connection.wait_for(Waiting::Not);
    connection.note_hop(Hop::Receive, receiving);
    connection.note_hop(Hop::Hash, hashing);
    Ok(filled)
}

/// Passes over the next `len` bytes.
pub(crate) async fn skip(
    connection: &Rc<Connection>,
    frames: &mut Frames,
    len: u64,
) -> Result<(), End> {
    if len == 0 {
        return Ok(());
    }
    let mut scratch = vec![0; len.min(SKIP_LEN as u64) as usize];
    let mut left = len;
    while left > 0 {
        let count = left.min(scratch.len() as u64) as usize;
        let into = &mut scratch[..count];
        receive(connection, frames, into, Nanos::MAX, |_| {}).await?;
        left -= count as u64;
    }
    Ok(())
}
