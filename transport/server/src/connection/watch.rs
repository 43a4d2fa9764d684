//! What the watch over a connection looks at: what it waits for, since when, and what it holds.

use terrace_types::Nanos;

use super::Connection;

/// What a connection waits for, and since when; the watch looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// For the hello.
    Hello,
    /// For the next frame.
    Frame,
    /// For the rest of a frame.
    Rest,
    /// Not for the client.
    Not,
}

/// Why a connection is ended by the watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overdue {
    /// Bytes wait for it that it does not take.
    SlowReader,
    /// A frame does not go on.
    Stalled,
    /// Nothing came, and nothing is under way or held.
    Silent,
}

impl Connection {
    /// Notes what is waited for; since when.
    pub(crate) fn wait_for(&self, waiting: Waiting) -> Nanos {
        let now = self.host.now();
        self.waiting.set((waiting, now));
        now
    }

    /// What the watch finds: why the connection has to end, if it has to.
    pub(crate) fn overdue(&self, now: Nanos) -> Option<Overdue> {
        let config = self.host.config();
        if let Some(since) = self.unsent_since.get()
            && now.since(since) > config.stall_max
        {
            return Some(Overdue::SlowReader);
        }
        let (waiting, since) = self.waiting.get();
        let span = now.since(since);
        match waiting {
            Waiting::Hello | Waiting::Rest if span > config.stall_max => Some(Overdue::Stalled),
            Waiting::Frame if span > config.silence_max => {
                // What it holds ends by itself, so this does too.
                let is_silent = self.is_idle() && !self.holds_something();
                is_silent.then_some(Overdue::Silent)
            }
            _ => None,
        }
    }

    /// Gives back pins and streamed puts whose time is over.
    pub(crate) fn expire(&self, now: Nanos) {
        //= docs/wire-protocol.md#WP-24
        self.pins.borrow_mut().retain(|_, (_, until)| now < *until);
        self.leases
            .borrow_mut()
            .retain(|_, leased| now < leased.until);
        let longest = self.host.config().deadline_max;
        let mut streams = self.streams.borrow_mut();
        streams.retain(|_, stream| now.since(stream.used) <= longest);
    }

    /// Whether its client relies on it though nothing is under way.
    fn holds_something(&self) -> bool {
        !self.pins.borrow().is_empty() || !self.leases.borrow().is_empty()
    }
}
