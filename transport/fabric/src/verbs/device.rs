//! RDMA devices: which there are, what they can do, how their ports are; and protection domains.
//!
//! An opened device closes when its last domain, region and queue is gone: each holds what it was
//! made on, so the order of drops does not matter to callers.

use std::ffi::CStr;
use std::fmt;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::abi;
use super::error::VerbsError;
use super::gid::{self, GidChoice, GidRecord};
use super::library::Library;

/// The kind of network that a port is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkLayer {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet, so RoCE.
    Ethernet,
    /// Something else, such as iWARP with an older driver.
    Other(u8),
}

impl LinkLayer {
    fn from_raw(raw: u8) -> Self {
        match raw {
            abi::LINK_LAYER_INFINIBAND => Self::InfiniBand,
            abi::LINK_LAYER_ETHERNET => Self::Ethernet,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InfiniBand => f.write_str("InfiniBand"),
            Self::Ethernet => f.write_str("Ethernet"),
            Self::Other(raw) => write!(f, "of kind {raw}"),
        }
    }
}

/// Whether a port carries packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortState {
    /// No link.
    Down,
    /// A link, and no address yet.
    Initializing,
    /// An address, and not yet opened by the network's management.
    Armed,
    /// It carries packets.
    Active,
    /// A number that is not known here.
    Other(u32),
}

impl PortState {
    fn from_raw(raw: u32) -> Self {
        match raw {
            1 => Self::Down,
            2 => Self::Initializing,
            3 => Self::Armed,
            // 5 is a port that was active and has lost its link for a moment.
            4 | 5 => Self::Active,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Down => f.write_str("down"),
            Self::Initializing => f.write_str("initializing"),
            Self::Armed => f.write_str("armed"),
            Self::Active => f.write_str("active"),
            Self::Other(raw) => write!(f, "in state {raw}"),
        }
    }
}

/// One port of a device, as it was when asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its number, from 1.
    pub number: u8,
    /// Whether it carries packets.
    pub state: PortState,
    /// The kind of network.
    pub link: LinkLayer,
    /// Longest packet payload in bytes now: 256 to 4096.
    pub mtu: Mtu,
    /// The local address that InfiniBand's management gave it; 0 over Ethernet.
    pub lid: u16,
    /// Longest message, read or write in bytes.
    pub message_len_max: u32,
}

/// The longest payload of a packet, in the steps that the standard knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mtu(u8);

impl Mtu {
    /// By its number in verbs, 1 to 5.
    pub(super) fn from_raw(raw: u32) -> Option<Self> {
        match raw {
            1..=5 => Some(Self(raw as u8)),
            _ => None,
        }
    }

    pub(super) fn raw(self) -> u8 {
        self.0
    }

    /// In bytes.
    #[must_use]
    pub fn bytes(self) -> u32 {
        // 1 is 256, 5 is 4096.
        128 << self.0
    }
}

/// What a device can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Longest memory region in bytes.
    pub region_len_max: u64,
    /// Memory regions.
    pub region_count_max: u64,
    /// Queue pairs.
    pub queue_pair_count_max: u64,
    /// Work requests in a queue.
    pub queue_depth_max: u32,
    /// Completions in a completion queue.
    pub completion_depth_max: u32,
    /// Pieces of memory in a work request.
    pub slice_count_max: u32,
    /// Reads that a queue pair may have under way, as the end that asks.
    pub reads_out_max: u8,
    /// Reads that a queue pair answers at a time.
    pub reads_in_max: u8,
    /// Ports.
    pub port_count: u8,
}

impl DeviceLimits {
    fn from_raw(raw: &abi::DeviceAttr) -> Self {
        let count = |value: i32| u32::try_from(value).unwrap_or(0);
        let byte = |value: i32| u8::try_from(value.max(0)).unwrap_or(u8::MAX);
        Self {
            region_len_max: raw.max_mr_size,
            region_count_max: u64::from(count(raw.max_mr)),
            queue_pair_count_max: u64::from(count(raw.max_qp)),
            queue_depth_max: count(raw.max_qp_wr),
            completion_depth_max: count(raw.max_cqe),
            slice_count_max: count(raw.max_sge),
            reads_out_max: byte(raw.max_qp_init_rd_atom),
            reads_in_max: byte(raw.max_qp_rd_atom),
            port_count: raw.phys_port_cnt,
        }
    }
}

/// The names of the devices that there are, sorted.
///
/// # Errors
/// [`VerbsError::NoLibrary`] without libibverbs, [`VerbsError::NoDevice`] without a device.
pub fn device_names() -> Result<Vec<String>, VerbsError> {
    let list = DeviceList::get()?;
    let mut names: Vec<String> = list.iter().map(|(name, _)| name).collect();
    names.sort();
    match names.is_empty() {
        true => Err(VerbsError::NoDevice),
        false => Ok(names),
    }
}

/// The library's list of devices, given back on drop.
struct DeviceList {
    library: &'static Library,
    first: NonNull<*mut abi::Device>,
}

impl DeviceList {
    fn get() -> Result<Self, VerbsError> {
        let library = Library::get()?;
        // SAFETY: the count may be null.
        let first = unsafe { (library.get_device_list)(std::ptr::null_mut()) };
        // No list: the kernel has no RDMA, or hides it from this process.
        let first = NonNull::new(first).ok_or(VerbsError::NoDevice)?;
        Ok(Self { library, first })
    }

    fn iter(&self) -> impl Iterator<Item = (String, NonNull<abi::Device>)> {
        (0..).map_while(|index| {
            // SAFETY: the list goes on until a null pointer, and the iteration ends there.
            let place = unsafe { self.first.add(index) };
            // SAFETY: as above.
            let device = NonNull::new(unsafe { place.read() })?;
            // SAFETY: a device of the list.
            let name = unsafe { (self.library.get_device_name)(device.as_ptr()) };
            // SAFETY: a C string inside the device, which lives as long as the list.
            let name = unsafe { CStr::from_ptr(name) };
            Some((name.to_string_lossy().into_owned(), device))
        })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the list of `get`, given back once. Opened devices stay valid.
        unsafe { (self.library.free_device_list)(self.first.as_ptr()) };
    }
}

/// An opened device. Clones are the same device.
#[derive(Clone)]
pub struct Device(Arc<OpenDevice>);

struct OpenDevice {
    library: &'static Library,
    context: NonNull<abi::Context>,
    name: String,
    limits: DeviceLimits,
    /// Regions that this process registered on it.
    region_count: AtomicU64,
}

// SAFETY: the library's calls on a device may come from any thread.
unsafe impl Send for OpenDevice {}
// SAFETY: as above; they may also come at the same time.
unsafe impl Sync for OpenDevice {}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        // SAFETY: opened by `open`; whatever was made on the device held this, so is gone.
        unsafe { (self.library.close_device)(self.context.as_ptr()) };
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.0.name).finish()
    }
}

impl Device {
    /// Opens a device by its name, such as `mlx5_0`.
    ///
    /// # Errors
    /// [`VerbsError`] when there is no RDMA, no such device, or it does not open.
    pub fn open(name: &str) -> Result<Self, VerbsError> {
        let list = DeviceList::get()?;
        let found = list.iter().find(|(known, _)| known == name);
        let Some((_, device)) = found else {
            let known: Vec<String> = list.iter().map(|(known, _)| known).collect();
            if known.is_empty() {
                return Err(VerbsError::NoDevice);
            }
            return Err(VerbsError::UnknownDevice {
                name: name.to_owned(),
                known: known.join(", "),
            });
        };
        let library = list.library;
        // SAFETY: a device of the list, which is still there.
        let context = unsafe { (library.open_device)(device.as_ptr()) };
        let context = NonNull::new(context).ok_or_else(|| VerbsError::last_os("opening", name))?;
        let mut open = OpenDevice {
            library,
            context,
            name: name.to_owned(),
            limits: DeviceLimits::default(),
            region_count: AtomicU64::new(0),
        };
        let mut attr = zeroed_attr();
        // SAFETY: the device is open, and the record is the library's.
        let code = unsafe { (library.query_device)(context.as_ptr(), &raw mut attr) };
        if code != 0 {
            return Err(VerbsError::os("asking for the limits", name, code));
        }
        open.limits = DeviceLimits::from_raw(&attr);
        Ok(Self(Arc::new(open)))
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// What it can do.
    #[must_use]
    pub fn limits(&self) -> &DeviceLimits {
        &self.0.limits
    }

    /// How a port is now.
    ///
    /// # Errors
    /// [`VerbsError::UnknownPort`]; or the device does not answer.
    pub fn port(&self, number: u8) -> Result<Port, VerbsError> {
        let device = || self.name().to_owned();
        let count = self.limits().port_count;
        if number == 0 || number > count {
            return Err(VerbsError::UnknownPort {
                device: device(),
                port: number,
                count,
            });
        }
        let mut attr = zeroed_port();
        // SAFETY: the device is open, and the record is the library's.
        let code = unsafe { (self.library().query_port)(self.raw(), number, &raw mut attr) };
        if code != 0 {
            return Err(VerbsError::os("asking for a port", self.name(), code));
        }
        Ok(Port {
            number,
            state: PortState::from_raw(attr.state),
            link: LinkLayer::from_raw(attr.link_layer),
            // A port that is down may tell none: the least works everywhere.
            mtu: Mtu::from_raw(attr.active_mtu).unwrap_or(Mtu(1)),
            lid: attr.lid,
            message_len_max: attr.max_msg_sz,
        })
    }

    /// How a port is now, when it carries packets.
    ///
    /// # Errors
    /// [`VerbsError::PortDown`], else as [`Device::port`].
    pub fn active_port(&self, number: u8) -> Result<Port, VerbsError> {
        let port = self.port(number)?;
        match port.state {
            PortState::Active => Ok(port),
            state => Err(VerbsError::PortDown {
                device: self.name().to_owned(),
                port: number,
                state,
            }),
        }
    }

    /// The GIDs of a port.
    ///
    /// # Errors
    /// As [`Device::port`]; or the kernel's table cannot be read.
    pub fn gids(&self, port: u8) -> Result<Vec<GidRecord>, VerbsError> {
        let link = self.port(port)?.link;
        gid::read_table(&self.folder().join("ports").join(port.to_string()), link)
    }

    /// The GID of a port that is wanted.
    ///
    /// # Errors
    /// [`VerbsError::NoGid`] when there is none, else as [`Device::gids`].
    pub fn gid(&self, port: u8, wanted: GidChoice) -> Result<GidRecord, VerbsError> {
        let table = self.gids(port)?;
        wanted.pick(&table).cloned().ok_or_else(|| {
            let known: Vec<String> = table.iter().map(ToString::to_string).collect();
            VerbsError::NoGid {
                device: self.name().to_owned(),
                port,
                wanted: wanted.to_string(),
                known: match known.is_empty() {
                    true => "none".to_owned(),
                    false => known.join(", "),
                },
            }
        })
    }

    /// The kernel's folder about the device.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        PathBuf::from("/sys/class/infiniband").join(self.name())
    }

    /// Whether two are the same opened device.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(super) fn region_count(&self) -> &AtomicU64 {
        &self.0.region_count
    }

    pub(super) fn library(&self) -> &'static Library {
        self.0.library
    }

    pub(super) fn raw(&self) -> *mut abi::Context {
        self.0.context.as_ptr()
    }

    /// The device's table of what the library's header calls inline.
    pub(super) fn ops(&self) -> &abi::ContextOps {
        // SAFETY: the device is open as long as this borrow; the library fills the table when
        // it opens a device and does not change it.
        unsafe { &(*self.0.context.as_ptr()).ops }
    }
}

fn zeroed_attr() -> abi::DeviceAttr {
    // SAFETY: the record has only numbers.
    unsafe { std::mem::zeroed() }
}

fn zeroed_port() -> abi::PortAttr {
    // SAFETY: the record has only numbers.
    unsafe { std::mem::zeroed() }
}

/// What regions and queue pairs have to share to work together. Keys of one domain mean nothing
/// in another, so peers of different tenants belong to different domains.
#[derive(Clone)]
pub struct ProtectionDomain(Arc<OpenDomain>);

struct OpenDomain {
    domain: NonNull<abi::Pd>,
    // Dropped last: the domain is of it.
    device: Device,
}

// SAFETY: the library's calls on a domain may come from any thread.
unsafe impl Send for OpenDomain {}
// SAFETY: as above; they may also come at the same time.
unsafe impl Sync for OpenDomain {}

impl Drop for OpenDomain {
    fn drop(&mut self) {
        // SAFETY: made by `new`; regions and queue pairs of it held this, so are gone.
        unsafe { (self.device.library().dealloc_pd)(self.domain.as_ptr()) };
    }
}

impl ProtectionDomain {
    /// A new domain on a device.
    ///
    /// # Errors
    /// The device has no room for another.
    pub fn new(device: &Device) -> Result<Self, VerbsError> {
        // SAFETY: the device is open.
        let domain = unsafe { (device.library().alloc_pd)(device.raw()) };
        let domain = NonNull::new(domain)
            .ok_or_else(|| VerbsError::last_os("making a protection domain", device.name()))?;
        let device = device.clone();
        Ok(Self(Arc::new(OpenDomain { domain, device })))
    }

    /// The device it is on.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Whether two are the same domain.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(super) fn raw(&self) -> *mut abi::Pd {
        self.0.domain.as_ptr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtu_numbers_are_powers_of_two() {
        let bytes = |raw| Mtu::from_raw(raw).map(Mtu::bytes);
        assert_eq!(bytes(1), Some(256));
        assert_eq!(bytes(5), Some(4096));
        assert_eq!((bytes(0), bytes(6)), (None, None));
    }

    #[test]
    fn states_and_links_have_words() {
        assert_eq!(PortState::from_raw(1).to_string(), "down");
        assert_eq!(PortState::from_raw(4), PortState::Active);
        assert_eq!(PortState::from_raw(9).to_string(), "in state 9");
        assert_eq!(LinkLayer::from_raw(2), LinkLayer::Ethernet);
        assert_eq!(LinkLayer::from_raw(7).to_string(), "of kind 7");
    }

    #[test]
    fn open_unknown_device_is_named_or_rdma_is_absent() {
        match Device::open("no-such-device") {
            Err(VerbsError::UnknownDevice { name, .. }) => assert_eq!(name, "no-such-device"),
            Err(error) => assert!(error.is_absent(), "{error}"),
            Ok(_) => panic!("opened"),
        }
    }
}
