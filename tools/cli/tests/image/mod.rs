//! Sets on files, made by the format's own encoders, for tests to damage.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use terrace_nvme::AlignedBuffer;
use terrace_nvme::format::{
    DeviceId, EntryKind, EntryRef, FooterBuilder, FrameBuilder, Origin, SEGMENTS_START,
    SegmentHead, Sequence, units,
};
use terrace_nvme::set::{DeviceSet, MediumError, MissingDevices, SetMedium, SetOptions, os_random};
use terrace_types::{Checksum, Hint};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const SEGMENT_LEN: u64 = 8 * MIB;
pub(crate) const SEGMENT_UNITS: u32 = (SEGMENT_LEN / 4096) as u32;
pub(crate) const SEGMENTS: u64 = 5;
pub(crate) const DEVICE_LEN: u64 = SEGMENTS_START + SEGMENTS * SEGMENT_LEN;
pub(crate) const SALT: u64 = 0x5a17_5a17_5a17_5a17;

/// A folder that is gone with the test.
pub(crate) struct Folder(pub PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("terrace-cli-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

/// A device file that tests write.
pub(crate) struct Image {
    pub(crate) path: PathBuf,
    pub(crate) id: DeviceId,
    name: String,
    file: File,
}

impl Image {
    pub(crate) fn new(path: &Path) -> Self {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).open(path);
        let file = file.unwrap();
        file.set_len(DEVICE_LEN).unwrap();
        Self {
            path: path.to_owned(),
            id: DeviceId::default(),
            name: path.display().to_string(),
            file,
        }
    }

    pub(crate) fn put(&self, offset: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, offset).unwrap();
    }

    pub(crate) fn get(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, offset).unwrap();
        bytes
    }

    pub(crate) fn flip(&self, offset: u64) {
        let byte = self.get(offset, 1)[0];
        self.put(offset, &[byte ^ 1]);
    }

    pub(crate) fn set_len(&self, len: u64) {
        self.file.set_len(len).unwrap();
    }

    pub(crate) fn arg(&self) -> &str {
        &self.name
    }
}

struct Opened(Image);

impl SetMedium for Opened {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn len(&self) -> u64 {
        self.0.file.metadata().unwrap().len()
    }

    fn sector(&self) -> u32 {
        512
    }

    fn read(&self, offset: u64, buffer: &mut AlignedBuffer) -> Result<(), MediumError> {
        self.0.file.read_exact_at(buffer.bytes_mut(), offset)
    }

    fn write(&self, offset: u64, buffer: &AlignedBuffer) -> Result<(), MediumError> {
        self.0.file.write_all_at(buffer.bytes(), offset)
    }

    fn sync(&self) -> Result<(), MediumError> {
        Ok(())
    }
}

/// Opens a set once, new devices included, and closes it when that is asked for.
pub(crate) fn open_set(images: &mut [Image], is_closed: bool) {
    let mediums = images.iter().map(|image| {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).open(&image.path).unwrap();
        let (path, name) = (image.path.clone(), image.name.clone());
        let id = image.id;
        Box::new(Opened(Image {
            path,
            id,
            name,
            file,
        })) as Box<dyn SetMedium>
    });
    let options = SetOptions {
        shards: 1,
        block_len_max: 64 << 10,
        missing: MissingDevices::Refuse,
        drain: Vec::new(),
        read_only: false,
        random: Box::new(os_random),
    };
    let mut set = DeviceSet::open(mediums.collect(), &options).unwrap();
    for (image, device) in images.iter_mut().zip(&set.devices) {
        assert_eq!(device.segment_len, SEGMENT_LEN);
        image.id = device.id;
    }
    if is_closed {
        set.close().unwrap();
    }
}

/// A record to be written.
#[derive(Clone)]
pub(crate) struct Record {
    pub(crate) kind: EntryKind,
    pub(crate) namespace: &'static str,
    pub(crate) key: Vec<u8>,
    pub(crate) counter: u64,
    pub(crate) payload: Vec<u8>,
}

pub(crate) fn block(namespace: &'static str, key: &str, counter: u64, len: usize) -> Record {
    let byte = |at: usize| (at as u64 * 7 + counter) as u8;
    Record {
        kind: EntryKind::Block,
        namespace,
        key: key.as_bytes().to_vec(),
        counter,
        payload: (0..len).map(byte).collect(),
    }
}

pub(crate) fn tombstone(namespace: &'static str, key: &str, counter: u64) -> Record {
    let kind = match key {
        "" => EntryKind::NamespaceTombstone,
        _ => EntryKind::Tombstone,
    };
    let mut record = Record {
        kind,
        ..block(namespace, key, counter, 0)
    };
    if kind == EntryKind::NamespaceTombstone {
        let origin = Origin {
            shard: 0,
            shards: 1,
        };
        record.key = origin.encode().to_vec();
    }
    record
}

/// A segment to be written.
pub(crate) struct Segment {
    pub(crate) number: u32,
    pub(crate) epoch: u32,
    pub(crate) counter: u64,
    pub(crate) is_sealed: bool,
}

/// Where each frame head of a segment was written, in units.
pub(crate) type Places = Vec<u32>;

pub(crate) fn offset(segment: u32, unit: u32) -> u64 {
    SEGMENTS_START + u64::from(segment) * SEGMENT_LEN + u64::from(unit) * 4096
}

pub(crate) fn write_segment(image: &Image, segment: &Segment, frames: &[Vec<Record>]) -> Places {
    let head = SegmentHead {
        device: image.id,
        number: segment.number,
        shard: 0,
        shards: 1,
        sequence: Sequence::new(segment.epoch, segment.counter),
        salt: SALT,
        len: SEGMENT_LEN,
    };
    let mut unit = vec![0; 4096];
    head.encode(&mut unit);
    image.put(offset(segment.number, 0), &unit);
    let (mut footer, mut places, mut end) = (FooterBuilder::new(), Vec::new(), 1);
    for (frame, number) in frames.iter().zip(0..) {
        places.push(end);
        let start = end;
        let mut builder = FrameBuilder::new(4096, &head.identity(), start, number);
        end += 1;
        for record in frame {
            let len = record.payload.len() as u32;
            let entry = EntryRef {
                kind: record.kind,
                namespace: record.namespace,
                key: &record.key,
                sequence: Sequence::new(segment.epoch, record.counter),
                checksum: Checksum::of_named(record.namespace, &record.key, &record.payload),
                len,
                place: if len == 0 { 0 } else { end },
                hint: Hint::default(),
            };
            builder.push(&entry);
            footer.push(&entry);
            image.put(offset(segment.number, end), &record.payload);
            end += units(len);
        }
        builder.finish(end - start, &mut unit);
        image.put(offset(segment.number, start), &unit);
    }
    if segment.is_sealed {
        let mut bytes = vec![0; footer.len_bytes() as usize];
        footer.finish(end, &head.identity(), &mut bytes);
        let at = offset(segment.number + 1, 0) - bytes.len() as u64;
        image.put(at, &bytes);
    }
    places
}

/// Two devices: a sealed segment of two frames on the first, an unsealed one of three on
/// the second, with blocks that were replaced and removed.
pub(crate) struct Pair {
    pub(crate) folder: Folder,
    pub(crate) a: Image,
    pub(crate) b: Image,
    /// Frame heads of the segment on `a`, which is its number 1.
    pub(crate) sealed: Places,
    /// Frame heads of the segment on `b`, which is its number 2.
    pub(crate) unsealed: Places,
}

/// What was written in a first open; `is_closed` tells of that and of a second, empty one.
pub(crate) fn pair(is_closed: bool) -> Pair {
    pair_of(1 + u32::from(is_closed), is_closed)
}

/// What was written in the first of so many opens.
pub(crate) fn pair_of(opens: u32, is_closed: bool) -> Pair {
    let folder = Folder::new();
    let mut images = [
        Image::new(&folder.path("a.terrace")),
        Image::new(&folder.path("b.terrace")),
    ];
    (0..opens).for_each(|_| open_set(&mut images, is_closed));
    let [a, b] = images;
    let checkpoint = Record {
        kind: EntryKind::Checkpoint,
        ..block("terrace", "0", 7, 100)
    };
    let (mut sealed, mut unsealed) = (segment(1, 1), segment(2, 10));
    (sealed.is_sealed, unsealed.is_sealed) = (true, false);
    let frames = [
        vec![
            block("m1", "replaced", 2, 5000),
            block("m1", "kept", 3, 70_000),
        ],
        vec![
            block("m2", "removed", 4, 4096),
            block("gone", "x", 5, 10),
            checkpoint,
        ],
    ];
    let sealed = write_segment(&a, &sealed, &frames);
    let frames = [
        vec![
            block("m1", "replaced", 11, 9000),
            tombstone("m2", "removed", 12),
        ],
        vec![block("m2", "short", 13, 1), block("m2", "mid", 14, 4097)],
        vec![tombstone("gone", "", 15), block("m2", "last", 16, 300)],
    ];
    let unsealed = write_segment(&b, &unsealed, &frames);
    Pair {
        folder,
        a,
        b,
        sealed,
        unsealed,
    }
}

pub(crate) const fn segment(number: u32, counter: u64) -> Segment {
    Segment {
        number,
        epoch: 1,
        counter,
        is_sealed: true,
    }
}
