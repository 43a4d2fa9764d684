//! Many reads at once: a device is idle while one thread waits for it.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Reads under way. Eight of 1 MiB keep a fast NVMe device busy.
const THREADS: usize = 8;

/// The outcomes of `job` for 0 to `count`, in this order.
pub(super) fn map<T: Send>(count: usize, job: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count {
                return done;
            }
            done.push((at, job(at)));
        }
    };
    let mut outcomes = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS.min(count)).map(|_| scope.spawn(work)).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        let done = joined.map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        done.flatten().collect::<Vec<_>>()
    });
    outcomes.sort_by_key(|(at, _)| *at);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn outcomes_come_in_order() {
        let squares = super::map(1000, |at| at * at);
        assert!(squares.iter().enumerate().all(|(at, it)| at * at == *it));
        assert!(super::map(0, |at| at).is_empty());
    }
}
