//! Memory, devices and connected queue pairs for the tests.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use terrace_fabric::verbs::{
    Access, Completion, CompletionQueue, Device, LocalSlice, MemoryRegion, Operation,
    ProtectionDomain, QueuePair, QueuePairAddress, QueuePairSettings, RegionOptions, RemoteSlice,
    VerbsError, WorkRequest, device_names,
};

/// Longest time for one completion: far above what an emulated machine under load takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// The first device of this machine, unless there is none and it need not have one.
pub(crate) fn device() -> Option<Device> {
    let names = match device_names() {
        Ok(names) => names,
        Err(error) if error.is_absent() && std::env::var_os("VM_RUN").is_none() => {
            eprintln!("skipped: no RDMA device");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    Some(Device::open(&names[0]).unwrap())
}

/// A mapping of the test's own.
pub(crate) struct Memory {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: reached through raw pointers only.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length.
        let code = unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
        assert_eq!(code, 0);
    }
}

impl Memory {
    /// Fresh memory; on hugepages by a memfd, as a slab has them.
    pub(crate) fn new(len: usize, on_hugepages: bool) -> Arc<Self> {
        let page_len = if on_hugepages { 2 << 20 } else { 4096 };
        let len = len.next_multiple_of(page_len);
        let flags = if on_hugepages { libc::MFD_HUGETLB } else { 0 };
        // SAFETY: the name is a C string.
        let memfd = unsafe { libc::memfd_create(c"terrace-rdma-test".as_ptr(), flags) };
        assert!(memfd >= 0, "memfd: {}", std::io::Error::last_os_error());
        // SAFETY: the descriptor is open.
        let code = unsafe { libc::ftruncate(memfd, len as i64) };
        assert_eq!(code, 0, "length: {}", std::io::Error::last_os_error());
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                memfd,
                0,
            )
        };
        assert_ne!(
            base,
            libc::MAP_FAILED,
            "{}",
            std::io::Error::last_os_error()
        );
        // SAFETY: open, and the mapping does not need it.
        unsafe { libc::close(memfd) };
        let base = NonNull::new(base.cast()).unwrap();
        Arc::new(Self { base, len })
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Fills the first bytes with what follows from `seed`.
    pub(crate) fn fill(&self, len: usize, seed: u64) {
        assert!(len <= self.len);
        let bytes = pattern(len, seed);
        // SAFETY: that many bytes are mapped, and no request is under way.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.as_ptr(), len) };
    }

    /// Whether the first bytes are what follows from `seed`.
    pub(crate) fn is_filled(&self, len: usize, seed: u64) -> bool {
        self.bytes(len) == pattern(len, seed)
    }

    /// A copy of the first bytes.
    pub(crate) fn bytes(&self, len: usize) -> Vec<u8> {
        assert!(len <= self.len);
        let mut bytes = vec![0; len];
        // SAFETY: that many bytes are mapped, and no request is under way.
        unsafe { std::ptr::copy_nonoverlapping(self.base.as_ptr(), bytes.as_mut_ptr(), len) };
        bytes
    }
}

/// Bytes that differ at every place and with every seed.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 8);
    let mut word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while bytes.len() < len {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Registers memory that lives as long as the region.
pub(crate) fn register(
    domain: &ProtectionDomain,
    memory: &Arc<Memory>,
    options: &RegionOptions,
) -> Result<Arc<MemoryRegion>, VerbsError> {
    let owner = Box::new(Arc::clone(memory));
    // SAFETY: the mapping lives as long as the owner, and is looked at through copies only.
    unsafe {
        MemoryRegion::register(
            domain,
            memory.base(),
            memory.len as u64,
            options,
            owner,
            &|_| (),
        )
    }
}

/// One end: a queue pair with its completion queue, and memory.
pub(crate) struct End {
    pub(crate) queue_pair: QueuePair,
    pub(crate) completions: CompletionQueue,
    pub(crate) domain: ProtectionDomain,
    pub(crate) memory: Arc<Memory>,
    pub(crate) region: Arc<MemoryRegion>,
    /// Longest request of a transfer in bytes, and requests in one batch of it.
    pub(crate) part_len_max: u64,
    pub(crate) batch_len: usize,
}

impl End {
    pub(crate) fn new(device: &Device, len: usize, access: Access, on_hugepages: bool) -> Self {
        let settings = QueuePairSettings {
            peer_access: access,
            ..QueuePairSettings::default()
        };
        let domain = ProtectionDomain::new(device).unwrap();
        let completions = CompletionQueue::new(device, settings.completion_count()).unwrap();
        let queue_pair = QueuePair::new(&domain, &completions, settings).unwrap();
        let memory = Memory::new(len, on_hugepages);
        let options = RegionOptions {
            access,
            ..RegionOptions::default()
        };
        let region = register(&domain, &memory, &options).unwrap();
        Self {
            queue_pair,
            completions,
            domain,
            memory,
            region,
            part_len_max: 1 << 20,
            batch_len: 16,
        }
    }

    /// The ends of `count` requests, each in bounded time.
    pub(crate) fn ended(&mut self, count: usize) -> Vec<Completion> {
        let mut ended = Vec::new();
        while ended.len() < count {
            let has_any = self.completions.wait(100, PATIENCE).unwrap();
            assert!(has_any, "{} of {count} requests ended in time", ended.len());
            self.resolve(&mut ended);
        }
        ended
    }

    /// Resolves what is there.
    pub(crate) fn resolve(&mut self, ended: &mut Vec<Completion>) {
        let mut found = Vec::new();
        self.completions.poll(&mut found).unwrap();
        for completion in &found {
            self.queue_pair.resolve(completion, ended);
        }
    }

    /// Posts requests, waits for all, and expects that each succeeds.
    pub(crate) fn run(&mut self, requests: Vec<WorkRequest<'_>>) -> Vec<Completion> {
        let count = requests.len();
        self.queue_pair.post(requests).unwrap();
        let ended = self.ended(count);
        assert!(ended.iter().all(|one| one.status.is_success()), "{ended:?}");
        ended
    }

    pub(crate) fn slice(&self, offset: u64, len: u32) -> Vec<LocalSlice> {
        vec![self.region.slice(offset, len).unwrap()]
    }

    /// A read of `len` bytes from the start of the peer's memory to the start of one's own.
    pub(crate) fn read_one(&self, from: RemoteSlice, len: u32) -> Vec<WorkRequest<'static>> {
        vec![WorkRequest {
            token: 0,
            operation: Operation::Read {
                into: self.slice(0, len),
                from,
            },
        }]
    }

    /// Offsets and lengths of the parts of a range that fit a request each.
    pub(crate) fn parts(&self, len: u64) -> Vec<(u64, u32)> {
        let most = u64::from(self.queue_pair.message_len_max()).min(self.part_len_max);
        (0..len)
            .step_by(most as usize)
            .map(|offset| (offset, most.min(len - offset) as u32))
            .collect()
    }

    /// Reads or writes the first `len` bytes of both ends' memory, in batches.
    pub(crate) fn transfer(&mut self, peer: RemoteSlice, len: u64, is_read: bool) {
        for batch in self.parts(len).chunks(self.batch_len) {
            let requests = batch.iter().map(|(offset, len)| {
                let ours = self.slice(*offset, *len);
                let theirs = RemoteSlice {
                    address: peer.address + offset,
                    ..peer
                };
                let operation = match is_read {
                    true => Operation::Read {
                        into: ours,
                        from: theirs,
                    },
                    false => Operation::Write {
                        from: ours,
                        into: theirs,
                        immediate: None,
                    },
                };
                WorkRequest {
                    token: *offset,
                    operation,
                }
            });
            let requests = requests.collect();
            self.run(requests);
        }
    }
}

/// Two ends of one device, connected to each other.
pub(crate) fn connected(
    device: &Device,
    len: usize,
    access: Access,
    on_hugepages: bool,
) -> (End, End) {
    let mut ours = End::new(device, len, Access::Local, on_hugepages);
    let mut theirs = End::new(device, len, access, on_hugepages);
    connect(&mut ours, &mut theirs);
    (ours, theirs)
}

/// Connects two ends, by addresses that went through bytes.
pub(crate) fn connect(ours: &mut End, theirs: &mut End) {
    let through_bytes =
        |end: &End| QueuePairAddress::decode(&end.queue_pair.address().encode()).unwrap();
    let (a, b) = (through_bytes(ours), through_bytes(theirs));
    ours.queue_pair.connect(&b).unwrap();
    theirs.queue_pair.connect(&a).unwrap();
}
