//! What holds for namespaces, changed while the engine is open.

use std::sync::PoisonError;

use super::Engine;
use super::calls::Reply;
use crate::config::{NamespaceOptions, validate_namespaces};
use crate::error::Error;

impl Engine {
    /// Sets what holds for a namespace from now on, in place of what did. What it holds beyond
    /// its quotas goes as far as it can at once. Devices keep blocks and no rules: after a restart
    /// those of [`crate::EngineConfig::namespaces`] hold.
    ///
    /// # Errors
    /// [`Error::Config`] with the field, the namespace and the limit; [`Error::Key`] for a name
    /// that is not allowed, [`Error::TooManyNamespaces`]; [`Error::ShardStart`] for a shard that
    /// does not answer: the others have the new rules.
    pub async fn set_namespace(&self, name: &str, options: NamespaceOptions) -> Result<(), Error> {
        let namespace = {
            let mut rules = self
                .inner
                .rules
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let mut wanted = rules.clone();
            match wanted.iter_mut().find(|(known, _)| known == name) {
                Some((_, known)) => *known = options,
                None => wanted.push((name.to_owned(), options)),
            }
            validate_namespaces(self.config(), &wanted)?;
            let namespace = self.namespace(name)?;
            *rules = wanted;
            namespace
        };
        for shard in 0..self.shards() {
            let set = self.call(shard, move |shard, reply| {
                Reply(reply).now(shard.set_namespace(namespace, &options))
            });
            set.await.map_err(|reason| Error::ShardStart {
                shard,
                why: reason.to_string(),
            })??;
        }
        Ok(())
    }
}
