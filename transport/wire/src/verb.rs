//! The verbs of the protocol: their numbers, and what each may carry.

use crate::error::WireError;

/// What the entries of a request are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryKind {
    None,
    Key,
    Get,
    Put,
    Pull,
    Access,
    LeaseId,
}

macro_rules! verbs {
    ($($(#[doc = $doc:literal])+ $name:ident = $number:literal $text:literal $entries:ident,)+) => {
        /// A verb of version 1.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Verb {
            $($(#[doc = $doc])+ $name = $number,)+
        }

        impl Verb {
            /// All verbs, by number.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// Its name in the protocol's document.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }

            /// What the entries of its requests are.
            pub(crate) const fn entries(self) -> EntryKind {
                match self {
                    $(Self::$name => EntryKind::$entries,)+
                }
            }
        }

        impl TryFrom<u8> for Verb {
            type Error = WireError;

            fn try_from(verb: u8) -> Result<Self, WireError> {
                match verb {
                    $($number => Ok(Self::$name),)+
                    //= docs/wire-protocol.md#WP-6
                    _ => Err(WireError::UnknownVerb { verb }),
                }
            }
        }
    };
}

verbs! {
    /// Opens the connection.
    Hello = 1 "hello" None,
    /// Announces the end.
    Goodbye = 2 "goodbye" None,
    /// Shows that the other side is there.
    Ping = 3 "ping" None,
    /// Gives credit.
    Credit = 4 "credit" None,
    /// Gives up a request.
    Cancel = 5 "cancel" None,
    /// Ends a request, or the connection.
    Error = 6 "error" None,
    /// Gives the name of a namespace a number.
    OpenNamespace = 7 "open_namespace" None,
    /// Removes all blocks of a namespace.
    RemoveNamespace = 8 "remove_namespace" None,
    /// Reads blocks or parts of them.
    Get = 16 "get" Get,
    /// Tells whether blocks are stored.
    Exists = 17 "exists" Key,
    /// Counts leading blocks that are stored.
    MatchPrefix = 18 "match_prefix" Key,
    /// Brings blocks to DRAM ahead of need.
    Prefetch = 19 "prefetch" Key,
    /// Tells the policy of a use.
    Touch = 20 "touch" Key,
    /// Tells what is known of blocks.
    Stat = 21 "stat" Key,
    /// Names stored blocks.
    List = 22 "list" None,
    /// Tells of a request's whole chain ahead.
    Announce = 23 "announce" Access,
    /// Subscribes to what happens to blocks.
    Events = 24 "events" None,
    /// Stores blocks.
    Put = 32 "put" Put,
    /// Stores blocks in place of what is there.
    Upsert = 33 "upsert" Put,
    /// Begins a streamed put.
    PutBegin = 34 "put_begin" Put,
    /// Carries a piece of it.
    PutPart = 35 "put_part" None,
    /// Publishes it.
    PutCommit = 36 "put_commit" None,
    /// Gives it up.
    PutAbort = 37 "put_abort" None,
    /// Removes blocks.
    Remove = 38 "remove" Key,
    /// Keeps blocks from being given up.
    Pin = 48 "pin" Key,
    /// Ends pins.
    Unpin = 49 "unpin" Key,
    /// Keeps slots.
    Lease = 50 "lease" Key,
    /// Keeps them again.
    Renew = 51 "renew" LeaseId,
    /// Ends leases.
    Release = 52 "release" LeaseId,
    /// Leases blocks and tells where their bytes lie.
    Locate = 53 "locate" Key,
    /// Asks for rails to the node's memory.
    Rails = 64 "rails" None,
    /// Stores blocks that the node reads out of the client's memory.
    Pull = 65 "pull" Pull,
}

impl Verb {
    /// The number on the wire.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Whether a client sends it under an id and waits for a last reply.
    //= docs/wire-protocol.md#WP-10
    #[must_use]
    pub const fn is_request(self) -> bool {
        !matches!(
            self,
            Self::Hello | Self::Goodbye | Self::Credit | Self::Cancel | Self::Error
        )
    }

    /// Whether it takes credit.
    //= docs/wire-protocol.md#WP-11
    #[must_use]
    pub const fn takes_credit(self) -> bool {
        self.is_request() && !matches!(self, Self::Ping)
    }

    /// Whether a node answers each entry by a record, over as many frames as it likes. A piece and
    /// the end of a streamed put count as one entry.
    #[must_use]
    pub const fn is_answered_by_entry(self) -> bool {
        match self {
            Self::MatchPrefix | Self::Announce => false,
            Self::PutPart | Self::PutCommit | Self::PutAbort => true,
            _ => !matches!(self.entries(), EntryKind::None),
        }
    }

    /// Whether its request may carry values.
    #[must_use]
    pub const fn carries_values(self) -> bool {
        matches!(self, Self::Put | Self::Upsert | Self::PutPart)
    }

    /// Whether its reply may carry values.
    #[must_use]
    pub const fn returns_values(self) -> bool {
        matches!(self, Self::Get | Self::Locate)
    }

    /// Whether its reply may come in several frames.
    #[must_use]
    pub const fn has_replies(self) -> bool {
        self.is_answered_by_entry() || matches!(self, Self::Events)
    }

    /// What the records of its replies are called in the protocol's document.
    pub(crate) const fn record(self) -> &'static str {
        match self {
            Self::Get => "value",
            Self::Stat => "facts",
            Self::Lease | Self::Renew => "lease",
            Self::Locate => "descriptor",
            Self::List => "listed block",
            Self::Events => "event",
            _ => "status",
        }
    }

    /// The options that its requests may have.
    //= docs/wire-protocol.md#WP-5
    #[must_use]
    pub const fn options(self) -> Options {
        match self {
            Self::Put | Self::Upsert | Self::PutBegin | Self::Pull => Options::DURABLE,
            Self::Get => Options::BYPASS,
            _ => Options::NONE,
        }
    }

    /// The feature that it belongs to; none when every node has it.
    #[must_use]
    pub const fn feature(self) -> Features {
        match self {
            Self::PutBegin | Self::PutPart | Self::PutCommit | Self::PutAbort => {
                Features::STREAMED_PUTS
            }
            Self::Events => Features::EVENTS,
            Self::Lease | Self::Renew | Self::Release => Features::LEASES,
            Self::Locate => Features::DESCRIPTORS,
            Self::Rails | Self::Pull => Features::ONE_SIDED,
            Self::List => Features::LISTING,
            Self::Pin | Self::Unpin => Features::PINS,
            _ => Features::NONE,
        }
    }
}

/// Options of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Options(pub u32);

impl Options {
    /// None.
    pub const NONE: Self = Self(0);
    /// A put is answered when its block is durable.
    pub const DURABLE: Self = Self(1);
    /// A get does not bring blocks into DRAM.
    pub const BYPASS: Self = Self(2);

    /// Whether it has all of `others`.
    #[must_use]
    pub const fn has(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }
}

/// What a node and a client can beyond what all can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Features(pub u64);

impl Features {
    /// None.
    pub const NONE: Self = Self(0);
    /// Puts whose value comes in parts.
    pub const STREAMED_PUTS: Self = Self(1);
    /// Subscriptions.
    pub const EVENTS: Self = Self(1 << 1);
    /// Leases.
    pub const LEASES: Self = Self(1 << 2);
    /// Descriptors.
    pub const DESCRIPTORS: Self = Self(1 << 3);
    /// Listing.
    pub const LISTING: Self = Self(1 << 4);
    /// Pins.
    pub const PINS: Self = Self(1 << 5);
    /// One-sided reads and pulled puts.
    pub const ONE_SIDED: Self = Self(1 << 8);
    /// Reserved for blocks by reference in shared memory.
    pub const SHARED_MEMORY: Self = Self(1 << 9);
    /// All that version 1 names.
    pub const ALL: Self = Self(0x33f);

    /// Whether it has all of `others`.
    #[must_use]
    pub const fn has(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }

    /// What both have.
    //= docs/wire-protocol.md#WP-8
    #[must_use]
    pub const fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Both together.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verb_and_number_are_one_to_one() {
        let known: Vec<u8> = Verb::ALL.iter().map(|verb| verb.number()).collect();
        assert!(known.is_sorted_by(|a, b| a < b), "{known:?}");
        for number in 0..=u8::MAX {
            match Verb::try_from(number) {
                Ok(verb) => assert_eq!(verb.number(), number),
                Err(error) => {
                    assert_eq!(error, WireError::UnknownVerb { verb: number });
                    assert!(!known.contains(&number));
                }
            }
        }
        // Reserved for shared memory, and for many nodes.
        assert!((66..96).all(|number| Verb::try_from(number).is_err()));
    }
}
