//! Work that blocks, as opening and closing a transfer engine do, for callers that must not: on a thread of
//! its own, which ends with it.

use std::io;

use futures_channel::oneshot;

/// Runs `work` on a new thread called `name`, and waits for what it returns. When the caller goes away
/// meanwhile, the work goes on and its result is dropped there.
///
/// # Errors
/// The thread cannot be had.
pub async fn on_thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (sender, receiver) = oneshot::channel();
    let run = move || {
        // Whoever asked may be gone.
        drop(sender.send(work()));
    };
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)?;
    let given_up = |_| io::Error::other("the thread that did it has failed");
    receiver.await.map_err(given_up)
}

/// Runs `work` on a new thread called `name` that nobody waits for. Without a thread what
/// it holds is dropped here.
pub fn leave_to_thread(name: &str, work: impl FnOnce() + Send + 'static) {
    drop(
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(work),
    );
}
