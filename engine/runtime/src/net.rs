//! TCP connections on a shard's executor: read into and written from memory of the caller.
//!
//! The executor's own streams know neither vectored writes nor the memory of slots, but how to
//! wait. So each call asks the kernel first, without waiting, and waits only when it has to: as
//! `busy` does while sockets are busy, else by the executor.
//!
//! **Invariants**
//! - Memory of the caller is used within a poll only: a wait that is given up touches none.
//! - `fd` is open as long as `waits`, which owns it.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_lite::{AsyncRead, AsyncWrite};
use nix::errno::Errno;
use nix::sys::socket::{self, MsgFlags, Shutdown};

use crate::busy::{Direction, Entry};
use crate::fd::{as_fd, from_glommio_stream, to_glommio_stream};

/// A connected TCP socket of one shard's thread.
pub struct TcpSocket {
    waits: RefCell<glommio::net::TcpStream>,
    fd: RawFd,
    entry: Entry,
}

impl TcpSocket {
    /// Takes a connected socket over, on the shard's thread that is to use it.
    ///
    /// # Errors
    /// What the operating system said, normally `EMFILE`: too many open files.
    pub fn adopt(socket: TcpStream) -> io::Result<Self> {
        // Replies are written whole: waiting for more of them gains nothing.
        socket.set_nodelay(true)?;
        let fd = socket.as_raw_fd();
        let entry = Entry::add(socket.as_fd())?;
        let waits = RefCell::new(to_glommio_stream(OwnedFd::from(socket)));
        Ok(Self { waits, fd, entry })
    }

    /// The connection for another thread, which may adopt it once this socket is dropped.
    ///
    /// # Errors
    /// What the operating system said, normally `EMFILE`: too many open files.
    pub fn release(self) -> io::Result<TcpStream> {
        from_glommio_stream(&self.waits.borrow())
    }

    /// Receives up to `into.len()` bytes; 0 when the other side sends no more.
    pub fn poll_recv(&self, context: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        while self.entry.is_ready(Direction::Receive) {
            match socket::recv(self.fd, into, MsgFlags::MSG_DONTWAIT) {
                Ok(count) => {
                    if count > 0 && count < into.len() {
                        self.entry.moved_less(Direction::Receive);
                    }
                    return Poll::Ready(Ok(count));
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => self.entry.blocked(Direction::Receive),
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
        if self.entry.wait(Direction::Receive, context) {
            return Poll::Pending;
        }
        let mut waits = self.waits.borrow_mut();
        let received = ready!(Pin::new(&mut *waits).poll_read(context, into));
        self.entry.is_awake(Direction::Receive);
        Poll::Ready(received)
    }

    /// Sends bytes of `slices` in order; how many went.
    pub fn poll_send(
        &self,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        while self.entry.is_ready(Direction::Send) {
            match socket::sendmsg::<()>(self.fd, slices, &[], flags, None) {
                Ok(count) => {
                    if count < slices.iter().map(|slice| slice.len()).sum() {
                        self.entry.moved_less(Direction::Send);
                    }
                    return Poll::Ready(Ok(count));
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => self.entry.blocked(Direction::Send),
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
        if self.entry.wait(Direction::Send, context) {
            return Poll::Pending;
        }
        let Some(first) = slices.iter().find(|slice| !slice.is_empty()) else {
            return Poll::Ready(Ok(0));
        };
        let mut waits = self.waits.borrow_mut();
        let sent = ready!(Pin::new(&mut *waits).poll_write(context, first));
        self.entry.is_awake(Direction::Send);
        Poll::Ready(sent)
    }

    /// Ends both directions: who waits is woken.
    pub fn close(&self) {
        // It is closed already when the other side was faster.
        let _ = socket::shutdown(self.fd, Shutdown::Both);
    }

    /// Tells the other side that nothing more is sent.
    pub fn finish(&self) {
        let _ = socket::shutdown(self.fd, Shutdown::Write);
    }
}

impl Drop for TcpSocket {
    fn drop(&mut self) {
        // A duplicate of the descriptor, in other hands, would keep it watched.
        self.entry.remove(as_fd(&self.waits.borrow()));
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;
    use crate::executor::{ExecutorConfig, ShardThread};

    /// Both ends of a connection over the loopback.
    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    fn on_executor<F: Future<Output = ()> + 'static>(
        main: impl FnOnce(TcpSocket) -> F + Send + 'static,
        socket: TcpStream,
    ) -> ShardThread {
        let config = ExecutorConfig {
            shard: 0,
            cpu: None,
            spin: std::time::Duration::ZERO,
        };
        ShardThread::start(&config, move |_| async move {
            main(TcpSocket::adopt(socket).unwrap()).await;
        })
        .unwrap()
    }

    /// Aim: more than the kernel's buffers hold goes both ways at once, in order. Method: an echo of
    /// 8 MiB whose client writes and reads from two threads.
    #[test]
    fn tcp_socket_echoes_more_than_buffers_hold() {
        let (mut near, far) = pair();
        let thread = on_executor(
            |socket| async move {
                let mut piece = vec![0; 100_000];
                loop {
                    let count = poll_fn(|cx| socket.poll_recv(cx, &mut piece))
                        .await
                        .unwrap();
                    if count == 0 {
                        return socket.close();
                    }
                    let mut sent = 0;
                    while sent < count {
                        let (a, b) = piece[sent..count].split_at((count - sent) / 2);
                        let slices = [IoSlice::new(a), IoSlice::new(b)];
                        sent += poll_fn(|cx| socket.poll_send(cx, &slices)).await.unwrap();
                    }
                }
            },
            far,
        );
        let bytes: Vec<u8> = (0..8_u32 << 20).map(|i| (i % 251) as u8).collect();
        let mut writes = near.try_clone().unwrap();
        let sent = bytes.clone();
        let writer = std::thread::spawn(move || {
            writes.write_all(&sent).unwrap();
            writes.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut echoed = Vec::new();
        near.read_to_end(&mut echoed).unwrap();
        writer.join().unwrap();
        assert!(thread.join());
        assert!(echoed == bytes);
    }

    /// Aim: a socket is heard again however long it was silent, and whatever the others do. Method: two
    /// sockets echo bytes; the silences are shorter and longer than sockets count as busy, and one
    /// socket is silent while the other one is not.
    #[test]
    fn tcp_socket_is_heard_after_any_silence() {
        let ((mut near, far), (mut other, other_far)) = (pair(), pair());
        let thread = on_executor(
            |socket| async move {
                let other = TcpSocket::adopt(other_far).unwrap();
                let echo = |socket: TcpSocket| async move {
                    let mut byte = [0; 2];
                    while let Ok(1..) = poll_fn(|cx| socket.poll_recv(cx, &mut byte)).await {
                        let slices = [IoSlice::new(&byte[..1])];
                        poll_fn(|cx| socket.poll_send(cx, &slices)).await.unwrap();
                    }
                };
                futures_lite::future::zip(echo(socket), echo(other)).await;
            },
            far,
        );
        let ask = |socket: &mut TcpStream, number: u8| {
            socket.write_all(&[number]).unwrap();
            let mut echoed = [0];
            socket.read_exact(&mut echoed).unwrap();
            assert_eq!(echoed, [number]);
        };
        for (number, silence_ms) in [0, 1, 4, 12, 0, 0, 25, 6, 2].into_iter().enumerate() {
            std::thread::park_timeout(std::time::Duration::from_millis(silence_ms));
            ask(&mut near, number as u8);
            (0..200).for_each(|round| ask(&mut other, round));
        }
        ask(&mut near, 99);
        drop((near, other));
        assert!(thread.join());
    }

    /// Aim: a mailbox is heard while sockets are busy. Method: messages that come while the executor
    /// waits for a socket that nothing comes from, and each is answered before the next.
    #[test]
    fn executor_that_waits_for_a_busy_socket_hears_its_mailbox() {
        let (mut near, far) = pair();
        let (sender, inbox) = crate::mailbox::mailbox::<u8>(4).unwrap();
        let (answers, heard) = std::sync::mpsc::channel();
        let config = ExecutorConfig {
            shard: 0,
            cpu: None,
            spin: std::time::Duration::ZERO,
        };
        let thread = ShardThread::start(&config, move |runtime| async move {
            let socket = TcpSocket::adopt(far).unwrap();
            let mut byte = [0; 2];
            let silent = async {
                while let Ok(1..) = poll_fn(|cx| socket.poll_recv(cx, &mut byte)).await {}
            };
            let letters = async {
                loop {
                    match inbox.try_recv() {
                        Some(0) => return,
                        Some(letter) => answers.send(letter).unwrap(),
                        None => inbox.sleep(&*runtime).await,
                    }
                }
            };
            futures_lite::future::zip(silent, letters).await;
        })
        .unwrap();
        for round in 1..=100 {
            near.write_all(&[round]).unwrap();
            assert!(sender.try_send(round).is_ok());
            assert_eq!(heard.recv(), Ok(round));
        }
        assert!(sender.try_send(0).is_ok());
        drop(near);
        assert!(thread.join());
    }

    /// Aim: whoever waits for bytes is woken when the socket is closed on its own side.
    #[test]
    fn tcp_socket_closed_wakes_its_reader() {
        let (near, far) = pair();
        let thread = on_executor(
            |socket| async move {
                let mut byte = [0];
                let received = poll_fn(|cx| socket.poll_recv(cx, &mut byte));
                let closing = async {
                    futures_lite::future::yield_now().await;
                    socket.close();
                };
                let (received, ()) = futures_lite::future::zip(received, closing).await;
                assert_eq!(received.unwrap(), 0);
            },
            far,
        );
        assert!(thread.join());
        drop(near);
    }
}
