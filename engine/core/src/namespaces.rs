//! Namespaces: names to numbers for the whole engine, numbers to epochs in each shard.
//!
//! **Invariants**
//! - A name keeps its number as long as the engine is open.
//! - In a shard each number has a current epoch; records carry the epoch they were stored in.
//!   Removing a namespace gives it a new epoch: from then on no lookup reaches what was there,
//!   though the records are swept only later.
//! - An epoch is used again only after its last record is swept.
//! - A name is looked up on a shard's first use of it, not on every call.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use terrace_types::limits::NAMESPACES_MAX;
use terrace_types::{Namespace, NamespaceName};

use crate::error::Error;

/// The names of one engine.
pub(crate) struct NamespaceRegistry {
    engine: u32,
    names: Mutex<Names>,
}

#[derive(Default)]
struct Names {
    known: HashMap<NamespaceName, Namespace>,
    /// By number.
    list: Vec<NamespaceName>,
}

impl NamespaceRegistry {
    pub(crate) fn new(engine: u32) -> Self {
        Self {
            engine,
            names: Mutex::default(),
        }
    }

    /// The namespace of a name, new or known.
    pub(crate) fn get(&self, name: &str) -> Result<Namespace, Error> {
        let name = NamespaceName::new(name)?;
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = names.known.get(&name) {
            return Ok(*known);
        }
        let index = names.list.len();
        if index >= NAMESPACES_MAX {
            return Err(Error::TooManyNamespaces {
                name: name.as_str().to_owned(),
            });
        }
        let namespace = Namespace::new(self.engine, index as u16, &name);
        names.list.push(name.clone());
        names.known.insert(name, namespace);
        Ok(namespace)
    }

    /// The namespace with this number, if there is one.
    pub(crate) fn at(&self, number: u16) -> Option<Namespace> {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let name = names.list.get(usize::from(number))?;
        names.known.get(name).copied()
    }

    /// The name of a namespace that this registry handed out.
    pub(crate) fn name_of(&self, namespace: Namespace) -> Option<NamespaceName> {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.list.get(usize::from(namespace.index())).cloned()
    }
}

/// The epochs of one shard.
#[derive(Default)]
pub(crate) struct NamespaceEpochs {
    /// Current epoch of each namespace number; `None` before its first use.
    current: Vec<Option<u16>>,
    /// Records of each epoch.
    counts: Vec<u32>,
    /// The namespace of each epoch.
    namespaces: Vec<Namespace>,
    /// Names by namespace number, looked up once.
    names: Vec<Option<NamespaceName>>,
    /// Epochs that ended with records and are being swept.
    ended: Vec<u16>,
    vacant: Vec<u16>,
}

impl NamespaceEpochs {
    /// The epoch records of `namespace` carry now, if any was stored.
    #[inline]
    pub(crate) fn of(&self, namespace: Namespace) -> Option<u16> {
        self.current
            .get(usize::from(namespace.index()))
            .copied()
            .flatten()
    }

    /// The epoch to store a record under. `None` when all are waiting to be swept.
    pub(crate) fn of_or_new(&mut self, namespace: Namespace) -> Option<u16> {
        let index = usize::from(namespace.index());
        if self.current.len() <= index {
            self.current.resize(index + 1, None);
        }
        if self.current[index].is_none() {
            self.current[index] = self.new_epoch(namespace);
        }
        self.current[index]
    }

    /// The namespace of an epoch in use.
    pub(crate) fn namespace_of(&self, epoch: u16) -> Namespace {
        self.namespaces[usize::from(epoch)]
    }

    /// The name of a namespace.
    pub(crate) fn name_of(
        &mut self,
        namespace: Namespace,
        registry: &NamespaceRegistry,
    ) -> Option<NamespaceName> {
        let index = usize::from(namespace.index());
        if self.names.len() <= index {
            self.names.resize(index + 1, None);
        }
        let known = &mut self.names[index];
        if known.is_none() {
            *known = registry.name_of(namespace);
        }
        known.clone()
    }

    /// Ends the namespace's epoch. Returns it when it has records to be swept.
    pub(crate) fn end(&mut self, namespace: Namespace) -> Option<u16> {
        let current = self.current.get_mut(usize::from(namespace.index()))?;
        let ended = current.take()?;
        if self.counts[usize::from(ended)] == 0 {
            self.vacant.push(ended);
            return None;
        }
        self.ended.push(ended);
        Some(ended)
    }

    /// Whether records of `epoch` are to be swept.
    pub(crate) fn is_ended(&self, epoch: u16) -> bool {
        self.ended.contains(&epoch)
    }

    /// Lets epochs go whose last record is swept; true when none is left to sweep.
    pub(crate) fn finish_swept(&mut self) -> bool {
        let counts = &self.counts;
        let (swept, left) = self
            .ended
            .iter()
            .partition(|epoch| counts[usize::from(**epoch)] == 0);
        self.ended = left;
        let swept: Vec<u16> = swept;
        self.vacant.extend(swept);
        self.ended.is_empty()
    }

    pub(crate) fn count_up(&mut self, epoch: u16) {
        self.counts[usize::from(epoch)] += 1;
    }

    pub(crate) fn count_down(&mut self, epoch: u16) {
        self.counts[usize::from(epoch)] -= 1;
    }

    /// Records that carry `epoch`.
    pub(crate) fn count(&self, epoch: u16) -> u32 {
        self.counts[usize::from(epoch)]
    }

    fn new_epoch(&mut self, namespace: Namespace) -> Option<u16> {
        if let Some(epoch) = self.vacant.pop() {
            self.namespaces[usize::from(epoch)] = namespace;
            return Some(epoch);
        }
        let epoch = u16::try_from(self.counts.len()).ok()?;
        self.counts.push(0);
        self.namespaces.push(namespace);
        Some(epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registry_keeps_names_apart_up_to_its_limit() {
        let registry = NamespaceRegistry::new(3);
        let a = registry.get("a").unwrap();
        assert_eq!(registry.get("a").unwrap(), a);
        assert_ne!(registry.get("b").unwrap(), a);
        for i in 2..NAMESPACES_MAX {
            registry.get(&format!("n{i}")).unwrap();
        }
        let error = registry.get("one-more").unwrap_err().to_string();
        assert!(
            error.contains("one-more") && error.contains("4096"),
            "{error}"
        );
        assert!(registry.get("a").is_ok());
    }

    #[test]
    fn epoch_is_used_again_only_when_swept() {
        let registry = NamespaceRegistry::new(3);
        let ns = registry.get("a").unwrap();
        let mut epochs = NamespaceEpochs::default();
        assert_eq!(epochs.of(ns), None);
        let first = epochs.of_or_new(ns).unwrap();
        epochs.count_up(first);
        assert_eq!(epochs.end(ns), Some(first));
        assert_eq!(epochs.of(ns), None);
        let second = epochs.of_or_new(ns).unwrap();
        assert_ne!(first, second);
        epochs.count_down(first);
        assert!(epochs.is_ended(first) && !epochs.is_ended(second));
        assert_eq!(epochs.end(ns), None);
        assert_eq!(
            epochs.of_or_new(ns),
            Some(second),
            "the first waits for its sweep to end"
        );
        assert!(epochs.finish_swept());
        assert_eq!(epochs.end(ns), None);
        assert_eq!(epochs.of_or_new(ns), Some(second));
        let other = registry.get("b").unwrap();
        assert_eq!(epochs.of_or_new(other), Some(first));
    }
}
