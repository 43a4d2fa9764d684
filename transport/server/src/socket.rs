//! A socket of the shard's executor as the fabric takes it, and waits that end in time.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use terrace_fabric::Socket;
use terrace_runtime::net::TcpSocket;
use terrace_runtime::{LocalFuture, Runtime};
use terrace_types::Nanos;

/// A connection on a shard's thread.
pub(crate) struct ShardSocket(pub(crate) TcpSocket);

impl Socket for ShardSocket {
    fn poll_recv(&self, context: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        self.0.poll_recv(context, into)
    }

    fn poll_send(
        &self,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_send(context, slices)
    }

    fn finish(&self) {
        self.0.finish();
    }

    fn close(&self) {
        self.0.close();
    }
}

/// What `work` comes to, or `None` at `deadline`. Work that needs no waiting sets no timer, and is
/// done though the deadline has passed.
pub(crate) async fn before<T>(
    runtime: &Rc<dyn Runtime>,
    deadline: Nanos,
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut work = pin!(work);
    let mut timer: Option<LocalFuture<'static, ()>> = None;
    poll_fn(|context| {
        if let Poll::Ready(value) = work.as_mut().poll(context) {
            return Poll::Ready(Some(value));
        }
        let timer = timer.get_or_insert_with(|| runtime.sleep_until(deadline));
        timer.as_mut().poll(context).map(|()| None)
    })
    .await
}
