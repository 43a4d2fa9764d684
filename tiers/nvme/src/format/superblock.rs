//! The superblock: what a device is, how it is divided, and which set it belongs to.

use std::fmt;

use terrace_types::limits::SHARDS_MAX;

use super::bytes::{Fields, put, seal};
use super::error::{FormatError, Limit, Structure};
use super::geometry::{SEGMENT_LEN_MIN, SEGMENT_LEN_STEP, segment_count};
use super::sequence::OPEN_EPOCH_MAX;
use super::{FORMAT_VERSION, UNIT_LEN};

const MAGIC: [u8; 8] = *b"TERRACES";

/// Most devices of a set; their list has to fit the superblock.
pub const DEVICES_MAX: usize = 64;

/// Bytes of a device in the list.
const DEVICE_LEN: usize = 40;

mod at {
    pub(super) const VERSION: usize = 8;
    pub(super) const LEN: usize = 12;
    pub(super) const WRITE_COUNT: usize = 16;
    pub(super) const DEVICE_ID: usize = 24;
    pub(super) const SET_ID: usize = 40;
    pub(super) const NODE_ID: usize = 56;
    pub(super) const SET_EPOCH: usize = 72;
    pub(super) const OPEN_EPOCH: usize = 80;
    pub(super) const FLAGS: usize = 84;
    pub(super) const SHARDS: usize = 88;
    pub(super) const PLACE: usize = 92;
    pub(super) const DEVICE_LEN: usize = 96;
    pub(super) const SEGMENT_LEN: usize = 104;
    pub(super) const SEGMENT_COUNT: usize = 112;
    pub(super) const SECTOR: usize = 116;
    pub(super) const DEVICE_COUNT: usize = 120;
    pub(super) const RESERVED: usize = 124;
    pub(super) const DEVICES: usize = 256;
    pub(super) const CHECKSUM: usize = 4088;
}

const FLAG_CLOSED_CLEANLY: u32 = 1;

/// The id of a device, a set or a node: random bits.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub [u8; 16]);

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a device of a set is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum DeviceState {
    /// It is read and written.
    InUse = 1,
    /// It was not there at the last change of the set.
    Absent = 2,
    /// It is read, and being emptied.
    Draining = 3,
    /// It was emptied: the set does without it once it is not there.
    Drained = 4,
}

/// A device as the set lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetDevice {
    /// Its id.
    pub id: DeviceId,
    /// Its length in use, bytes.
    pub len: u64,
    /// What it is used for.
    pub state: DeviceState,
    /// The set epoch when it was there last.
    pub last_set_epoch: u64,
}

/// One copy of a superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Of two valid copies the one with the higher count is read.
    pub write_count: u64,
    /// The id of this device.
    pub device_id: DeviceId,
    /// The id of its set.
    pub set_id: DeviceId,
    /// The id of the node that the set belongs to.
    pub node_id: DeviceId,
    /// Grows with every change of the list; 0 until the device is taken into the set.
    pub set_epoch: u64,
    /// Grows with every open.
    pub open_epoch: u32,
    /// Whether the last open ended with a close.
    pub closed_cleanly: bool,
    /// Count of shards of the last open.
    pub shards: u32,
    /// This device's place in `devices`.
    pub place: u32,
    /// Length in use, bytes.
    pub device_len: u64,
    /// Length of each segment, bytes.
    pub segment_len: u64,
    /// Count of segments.
    pub segment_count: u32,
    /// Length of a logical sector when formatted, bytes.
    pub sector: u32,
    /// All devices of the set.
    pub devices: Vec<SetDevice>,
}

impl Superblock {
    /// Writes the superblock.
    ///
    /// # Panics
    /// When `out` is not one unit or the list does not have 1 to 64 devices.
    pub fn encode(&self, out: &mut [u8]) {
        assert_eq!(out.len(), UNIT_LEN, "a superblock is one unit");
        assert!((1..=DEVICES_MAX).contains(&self.devices.len()));
        let own = &self.devices[self.place as usize];
        assert_eq!(own.id, self.device_id, "the device is at its place");
        assert!(self.open_epoch <= OPEN_EPOCH_MAX);
        out.fill(0);
        put(out, 0, &MAGIC);
        put(out, at::VERSION, &FORMAT_VERSION.to_le_bytes());
        put(out, at::LEN, &(UNIT_LEN as u32).to_le_bytes());
        put(out, at::WRITE_COUNT, &self.write_count.to_le_bytes());
        put(out, at::DEVICE_ID, &self.device_id.0);
        put(out, at::SET_ID, &self.set_id.0);
        put(out, at::NODE_ID, &self.node_id.0);
        put(out, at::SET_EPOCH, &self.set_epoch.to_le_bytes());
        put(out, at::OPEN_EPOCH, &self.open_epoch.to_le_bytes());
        let flags = u32::from(self.closed_cleanly) * FLAG_CLOSED_CLEANLY;
        put(out, at::FLAGS, &flags.to_le_bytes());
        put(out, at::SHARDS, &self.shards.to_le_bytes());
        put(out, at::PLACE, &self.place.to_le_bytes());
        put(out, at::DEVICE_LEN, &self.device_len.to_le_bytes());
        put(out, at::SEGMENT_LEN, &self.segment_len.to_le_bytes());
        put(out, at::SEGMENT_COUNT, &self.segment_count.to_le_bytes());
        put(out, at::SECTOR, &self.sector.to_le_bytes());
        let count = self.devices.len() as u32;
        put(out, at::DEVICE_COUNT, &count.to_le_bytes());
        for (place, device) in self.devices.iter().enumerate() {
            let start = at::DEVICES + place * DEVICE_LEN;
            put(out, start, &device.id.0);
            put(out, start + 16, &device.len.to_le_bytes());
            put(out, start + 24, &(device.state as u32).to_le_bytes());
            put(out, start + 32, &device.last_set_epoch.to_le_bytes());
        }
        seal(out);
    }

    /// Reads a copy from the first unit of `bytes`.
    ///
    /// # Errors
    /// [`FormatError::NotOurs`] when none was written here; otherwise what is wrong with it. A
    /// later version is told only of a copy whose checksum is right: rot is not a version.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        //= docs/on-disk-format.md#OD-1
        let fields = Fields::new(Structure::Superblock, bytes);
        fields.check_magic(0, MAGIC)?;
        fields.check_checksum(at::CHECKSUM)?;
        let found = fields.u32(at::VERSION)?;
        if found != FORMAT_VERSION {
            let structure = Structure::Superblock;
            return Err(FormatError::Version { structure, found });
        }
        let len = u64::from(fields.u32(at::LEN)?);
        fields.check("length", len, Limit::Exactly(UNIT_LEN as u64))?;
        let superblock = Self {
            write_count: fields.u64(at::WRITE_COUNT)?,
            device_id: DeviceId(fields.id(at::DEVICE_ID)?),
            set_id: DeviceId(fields.id(at::SET_ID)?),
            node_id: DeviceId(fields.id(at::NODE_ID)?),
            set_epoch: fields.u64(at::SET_EPOCH)?,
            open_epoch: fields.u32(at::OPEN_EPOCH)?,
            closed_cleanly: fields.u32(at::FLAGS)? & FLAG_CLOSED_CLEANLY != 0,
            shards: fields.u32(at::SHARDS)?,
            place: fields.u32(at::PLACE)?,
            device_len: fields.u64(at::DEVICE_LEN)?,
            segment_len: fields.u64(at::SEGMENT_LEN)?,
            segment_count: fields.u32(at::SEGMENT_COUNT)?,
            sector: fields.u32(at::SECTOR)?,
            devices: decode_devices(&fields)?,
        };
        superblock.check(&fields)?;
        Ok(superblock)
    }

    fn check(&self, fields: &Fields<'_>) -> Result<(), FormatError> {
        let open_epoch = u64::from(self.open_epoch);
        let epoch_max = Limit::AtMost(u64::from(OPEN_EPOCH_MAX));
        fields.check("open epoch", open_epoch, epoch_max)?;
        let shards = u64::from(self.shards);
        fields.check("shard count", shards, Limit::AtLeast(1))?;
        fields.check("shard count", shards, Limit::AtMost(SHARDS_MAX as u64))?;
        let len_min = Limit::AtLeast(SEGMENT_LEN_MIN);
        fields.check("segment length", self.segment_len, len_min)?;
        let step = Limit::MultipleOf(SEGMENT_LEN_STEP);
        fields.check("segment length", self.segment_len, step)?;
        let count = u64::from(self.segment_count);
        let held = segment_count(self.device_len, self.segment_len);
        fields.check("segment count", count, Limit::AtMost(u64::from(held)))?;
        let sector = u64::from(self.sector);
        if !self.sector.is_power_of_two() || !(512..=UNIT_LEN as u64).contains(&sector) {
            let limit = Limit::Is("512, 1024, 2048 or 4096");
            return Err(fields.wrong("sector length", sector, limit));
        }
        let place = u64::from(self.place);
        let last = self.devices.len() as u64 - 1;
        fields.check("place in the list", place, Limit::AtMost(last))?;
        let own = self.devices.get(self.place as usize);
        if own.is_none_or(|own| own.id != self.device_id) {
            let limit = Limit::Is("that of this device's id");
            return Err(fields.wrong("place in the list", place, limit));
        }
        Ok(())
    }
}

fn decode_devices(fields: &Fields<'_>) -> Result<Vec<SetDevice>, FormatError> {
    let count = fields.u32(at::DEVICE_COUNT)?;
    let field = "count of devices";
    fields.check(field, u64::from(count), Limit::AtLeast(1))?;
    let count_max = Limit::AtMost(DEVICES_MAX as u64);
    fields.check(field, u64::from(count), count_max)?;
    let mut devices: Vec<SetDevice> = Vec::with_capacity(count as usize);
    for place in 0..count as usize {
        let start = at::DEVICES + place * DEVICE_LEN;
        let state = fields.u32(start + 24)?;
        let state = match state {
            1 => DeviceState::InUse,
            2 => DeviceState::Absent,
            3 => DeviceState::Draining,
            4 => DeviceState::Drained,
            _ => {
                let limit = Limit::Is("1 to 4");
                return Err(fields.wrong("state of a device", u64::from(state), limit));
            }
        };
        let id = DeviceId(fields.id(start)?);
        if devices.iter().any(|known| known.id == id) {
            let limit = Limit::Is("that of a device listed once");
            return Err(fields.wrong("place in the list", place as u64, limit));
        }
        devices.push(SetDevice {
            id,
            len: fields.u64(start + 16)?,
            state,
            last_set_epoch: fields.u64(start + 32)?,
        });
    }
    Ok(devices)
}

const _: () = assert!(at::RESERVED == at::DEVICE_COUNT + 4);
const _: () = assert!(at::RESERVED + 132 == at::DEVICES);
const _: () = assert!(at::DEVICES + DEVICES_MAX * DEVICE_LEN <= at::CHECKSUM);
const _: () = assert!(at::CHECKSUM + 8 == UNIT_LEN);
