//! The namespaces that a connection has opened, by the numbers that its client chose.

use std::collections::HashMap;

use terrace_engine::Namespace;
use terrace_wire::NamespaceNumber;

/// See the module's text.
#[derive(Default)]
pub(crate) struct OpenNamespaces {
    by_number: HashMap<u16, Namespace>,
    /// Of a namespace that was opened twice, the first number.
    numbers: HashMap<Namespace, NamespaceNumber>,
}

impl OpenNamespaces {
    /// Gives a namespace a number; false when the number is taken.
    //= docs/wire-protocol.md#WP-16
    pub(crate) fn add(&mut self, number: NamespaceNumber, namespace: Namespace) -> bool {
        if self.by_number.contains_key(&number.0) {
            return false;
        }
        self.by_number.insert(number.0, namespace);
        self.numbers.entry(namespace).or_insert(number);
        true
    }

    pub(crate) fn get(&self, number: NamespaceNumber) -> Option<Namespace> {
        self.by_number.get(&number.0).copied()
    }

    pub(crate) fn number_of(&self, namespace: Namespace) -> Option<NamespaceNumber> {
        self.numbers.get(&namespace).copied()
    }
}
