//! What a namespace may use, and how long its blocks are kept.

use std::time::Duration;

use terrace_types::NamespaceName;
use terrace_types::limits::{NAMESPACES_MAX, SLOT_ALIGN};

use super::{EngineConfig, check};
use crate::error::Error;

/// Shortest lifetime: the engine counts it in tenths of a second.
const TTL_MIN: Duration = Duration::from_secs(1);
/// Longest lifetime.
const TTL_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// What holds for the blocks of one namespace. The default asks for nothing.
///
/// Bytes are counted in whole granules of 4 KiB a block, and divided evenly among the shards:
/// keys spread evenly over these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceOptions {
    /// Most bytes in DRAM, slots that are being filled included; `None` for no bound. At the
    /// bound the namespace's own blocks make room, and when none of them can go a put is `Busy`.
    pub dram_quota_bytes: Option<u64>,
    /// Most bytes on the devices; `None` for no bound. At the bound the namespace's own blocks
    /// leave the devices; when none can, a block that leaves DRAM is given up.
    pub nvme_quota_bytes: Option<u64>,
    /// Bytes in DRAM below which blocks of other namespaces do not push it.
    pub dram_floor_bytes: u64,
    /// Among the blocks that a policy would give up next, those of the lowest priority go first.
    /// [`terrace_types::RequestContext::priority`] raises single blocks above it.
    pub priority: u8,
    /// How long a block is served after its put; `None` for ever. After a restart, and when it
    /// is changed, the time begins anew for the blocks there are.
    pub ttl: Option<Duration>,
}

/// Checks the options of all namespaces of an engine together.
///
/// # Errors
/// [`Error::Config`] with the field, the namespace and the limit.
pub(crate) fn validate_namespaces(
    config: &EngineConfig,
    namespaces: &[(String, NamespaceOptions)],
) -> Result<(), Error> {
    let count = namespaces.len();
    check("namespaces", count, count <= NAMESPACES_MAX, || {
        format!("at most {NAMESPACES_MAX}")
    })?;
    let mut floors = 0_u64;
    for (at, (name, options)) in namespaces.iter().enumerate() {
        NamespaceName::new(name)?;
        let twice = namespaces[..at].iter().any(|(known, _)| known == name);
        check("namespaces", name, !twice, || {
            "each namespace once".to_owned()
        })?;
        options.validate(config.shards as u64, name)?;
        floors = floors.saturating_add(options.dram_floor_bytes);
    }
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a share of memory needs no last bit; validated to lie in 0..=1"
    )]
    let most = (config.dram_bytes as f64 * config.floor_ratio_max) as u64;
    check("dram_floor_bytes", floors, floors <= most, || {
        format!("at most {most} over all namespaces: floor_ratio_max of dram_bytes")
    })
}

impl NamespaceOptions {
    fn validate(&self, shards: u64, name: &str) -> Result<(), Error> {
        let least = shards * SLOT_ALIGN;
        let quotas = [
            ("dram_quota_bytes", self.dram_quota_bytes),
            ("nvme_quota_bytes", self.nvme_quota_bytes),
        ];
        for (field, quota) in quotas {
            let quota = quota.unwrap_or(u64::MAX);
            check(
                field,
                format!("{quota} of `{name}`"),
                quota >= least,
                || format!("at least {least}, 4096 a shard"),
            )?;
        }
        let most = self.dram_quota_bytes.unwrap_or(u64::MAX);
        let floor = self.dram_floor_bytes;
        check(
            "dram_floor_bytes",
            format!("{floor} of `{name}`"),
            floor <= most,
            || format!("at most {most}, its dram_quota_bytes"),
        )?;
        let ttl = self.ttl.unwrap_or(TTL_MIN);
        let sane = ttl >= TTL_MIN && ttl <= TTL_MAX;
        check("ttl", format!("{ttl:?} of `{name}`"), sane, || {
            format!("{TTL_MIN:?} to {TTL_MAX:?}")
        })
    }
}
