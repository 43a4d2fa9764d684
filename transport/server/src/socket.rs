//! A socket of the shard's executor as the fabric takes it, with TLS or without, and waits that end in
//! time.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use terrace_fabric::Socket;
use terrace_fabric::tls::TlsSession;
use terrace_runtime::net::TcpSocket;
use terrace_runtime::{LocalFuture, Runtime};
use terrace_types::Nanos;

/// Bytes that are thrown away behind an alert, so that it arrives before the connection is reset.
const LINGER_LEN_MAX: usize = 64 << 10;

/// The records of a connection. They are large beside a connection without them.
pub(crate) type Records = Box<RefCell<TlsSession>>;

/// A connection on a shard's thread.
pub(crate) struct ShardSocket {
    tcp: TcpSocket,
    /// What lies below the frames; `None` when they go as they are.
    tls: Option<Records>,
}

impl ShardSocket {
    pub(crate) const fn new(tcp: TcpSocket, tls: Option<Records>) -> Self {
        Self { tcp, tls }
    }

    /// The parts, for another thread.
    pub(crate) fn into_parts(self) -> (TcpSocket, Option<Records>) {
        (self.tcp, self.tls)
    }

    //= docs/wire-protocol.md#WP-26
    /// Agrees with the client on TLS, unless that is done or there is none.
    ///
    /// # Errors
    /// What stands against it. The client is told, as far as it listens: see [`ShardSocket::linger`].
    pub(crate) async fn shake_hands(&self) -> io::Result<()> {
        let Some(tls) = &self.tls else {
            return Ok(());
        };
        poll_fn(|context| {
            let cell = RefCell::new(context);
            tls.borrow_mut().poll_handshake(
                |into| self.tcp.poll_recv(&mut cell.borrow_mut(), into),
                |slices| self.tcp.poll_send(&mut cell.borrow_mut(), slices),
            )
        })
        .await
    }

    /// Sends nothing more and reads to nowhere: closing with bytes unread would reset the connection,
    /// and the alert with it.
    pub(crate) async fn linger(&self) {
        self.tcp.finish();
        let mut scratch = [0; 4096];
        let mut read = 0;
        while read < LINGER_LEN_MAX {
            match poll_fn(|context| self.tcp.poll_recv(context, &mut scratch)).await {
                Ok(count) if count > 0 => read += count,
                _ => return,
            }
        }
    }
}

impl Socket for ShardSocket {
    fn poll_recv(&self, context: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        let Some(tls) = &self.tls else {
            return self.tcp.poll_recv(context, into);
        };
        let mut recv = |into: &mut [u8]| self.tcp.poll_recv(context, into);
        let received = tls.borrow_mut().poll_recv(into, &mut recv);
        match received {
            // It goes on behind the other tasks of the thread.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
            received => received,
        }
    }

    fn poll_send(
        &self,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &self.tls {
            None => self.tcp.poll_send(context, slices),
            Some(tls) => {
                let send = |slices: &[IoSlice<'_>]| self.tcp.poll_send(context, slices);
                tls.borrow_mut().poll_send(slices, send)
            }
        }
    }

    fn finish(&self) {
        if let Some(tls) = &self.tls {
            let mut context = Context::from_waker(Waker::noop());
            let send = |slices: &[IoSlice<'_>]| self.tcp.poll_send(&mut context, slices);
            tls.borrow_mut().finish(send);
        }
        self.tcp.finish();
    }

    fn close(&self) {
        self.tcp.close();
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
