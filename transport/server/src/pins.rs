//! Pins of a connection: blocks that it keeps from being given up, for a time.

use std::rc::Rc;
use std::time::Duration;

use terrace_engine::{BlockKey, Hint, Lookup, Tier};
use terrace_wire::{KeyStatus, RequestHead};

use crate::connection::{Connection, Ticket};
use crate::dispatch::get_options;

//= docs/wire-protocol.md#WP-24
pub(crate) async fn pin(
    connection: &Rc<Connection>,
    ticket: &Ticket,
    told: &RequestHead,
    key: &BlockKey,
    hint: Hint,
) -> KeyStatus {
    let shard = connection.shard();
    let options = get_options(hint, told.context);
    let get = shard.get(key, &options);
    let found = ticket.before_deadline(shard.runtime(), get).await;
    match found {
        None => KeyStatus::TimedOut,
        Some(Lookup::Hit { tier, value: pin }) => {
            let longest = connection.host.config().lease_max;
            let span = Duration::from_millis(told.argument.into()).min(longest);
            let until = connection.host.now() + span;
            let mut pins = connection.pins.borrow_mut();
            let until = pins
                .get(key)
                .map_or(until, |(_, earlier)| until.max(*earlier));
            let before = pins.insert(key.clone(), (pin, until));
            drop(pins);
            drop(before);
            KeyStatus::Hit(tier)
        }
        Some(lookup) => KeyStatus::of_lookup(&lookup),
    }
}

pub(crate) fn unpin(connection: &Connection, key: &BlockKey) -> KeyStatus {
    let pin = connection.pins.borrow_mut().remove(key);
    pin.map_or(KeyStatus::Miss, |_| KeyStatus::Hit(Tier::Dram))
}
