//! Opening real files, and every reason to refuse.

use super::*;

/// A folder on a file system with direct I/O: the temporary one, or else the build's.
fn folder(name: &str) -> PathBuf {
    let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    for root in [std::env::temp_dir(), build] {
        let folder = root.join(format!("terrace-file-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let probe = folder.join("probe");
        if open_device(&DeviceSpec::file(&probe, UNIT)).is_ok() {
            std::fs::remove_file(&probe).unwrap();
            return folder;
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
    panic!("no folder with direct I/O");
}

fn message(spec: &DeviceSpec) -> String {
    let text = open_device(spec).unwrap_err().to_string();
    assert!(text.contains(spec.path.to_str().unwrap()), "{text}");
    text
}

/// Aim: a file is made once, written throughout, found again, and locked meanwhile.
#[test]
fn open_device_makes_a_file_and_finds_it_again() {
    let folder = folder("make");
    let spec = DeviceSpec::file(folder.join("device"), 3 << 20);
    let mut told = Vec::new();
    let device = open_device_with(&spec, &mut |done, total| told.push((done, total))).unwrap();
    assert_eq!(told, [(0, 3 << 20), (3 << 20, 3 << 20)]);
    assert!(device.created);
    assert!(!device.lazy);
    assert_eq!(device.info.len, 3 << 20);
    assert_eq!(device.content, Content::Empty);
    let mode = device.file.metadata().unwrap().mode();
    assert_eq!(mode & 0o777, 0o600);

    let refused = message(&spec);
    let pid = std::process::id();
    assert!(
        refused.ends_with(&format!("in use by process {pid}")),
        "{refused}"
    );

    let mut unit = AlignedBuffer::zeroed(UNIT as usize);
    unit.bytes_mut()[..8].copy_from_slice(b"TERRACES");
    device.write_at(512 << 10, &unit).unwrap();
    device.sync().unwrap();
    drop(device);

    let device = open_device(&DeviceSpec::existing(&spec.path)).unwrap();
    assert!(!device.created);
    assert!(!device.lazy, "every block was written");
    assert_eq!(device.content, Content::Ours);
    let mut back = AlignedBuffer::zeroed(UNIT as usize);
    device.read_unit_at(512 << 10, &mut back).unwrap();
    assert_eq!(back.bytes(), unit.bytes());
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn open_device_lazy_file_says_so() {
    let folder = folder("lazy");
    let spec = DeviceSpec {
        preparation: Preparation::Lazy,
        ..DeviceSpec::file(folder.join("device"), 1 << 20)
    };
    let device = open_device(&spec).unwrap();
    assert!(device.lazy);
    assert_eq!(device.file.metadata().unwrap().len(), 1 << 20);
    std::fs::remove_dir_all(folder).unwrap();
}

/// Aim: each reason to refuse has its own message with the path, and a failed making leaves
/// nothing behind.
#[test]
fn open_device_refusals_name_path_and_reason() {
    let folder = folder("refuse");
    let path = folder.join("device");
    let missing = message(&DeviceSpec::existing(&path));
    assert!(missing.contains("there is nothing"), "{missing}");
    let no_len = DeviceSpec {
        len: None,
        ..DeviceSpec::file(&path, 1)
    };
    assert!(message(&no_len).contains("no length"));
    assert!(message(&DeviceSpec::file(&path, 5000)).contains("5000 bytes is not possible"));
    assert!(message(&DeviceSpec::existing(&folder)).contains("a directory"));
    assert!(message(&DeviceSpec::existing("/dev/null")).contains("a character device"));

    let vast = 1 << 60;
    let room = message(&DeviceSpec::file(&path, vast));
    assert!(room.contains(&format!("{vast} bytes are needed")), "{room}");
    assert!(!path.exists(), "a half-made file stays behind");
    let nowhere = folder.join("no/such/folder");
    assert!(message(&DeviceSpec::file(nowhere, UNIT)).starts_with("open "));

    drop(open_device(&DeviceSpec::file(&path, 2 * UNIT)).unwrap());
    let longer = message(&DeviceSpec::file(&path, 4 * UNIT));
    assert!(
        longer.contains("8192 bytes long, and 16384 were asked for"),
        "{longer}"
    );
    let odd = folder.join("odd");
    std::fs::write(&odd, b"12345").unwrap();
    assert!(message(&DeviceSpec::existing(&odd)).contains("5 bytes is not possible"));

    let mut mode = std::fs::metadata(&path).unwrap().permissions();
    mode.set_readonly(true);
    std::fs::set_permissions(&path, mode).unwrap();
    assert!(message(&DeviceSpec::existing(&path)).ends_with("read-only"));

    let foreign = folder.join("foreign");
    let mut bytes = vec![0; 128 << 10];
    bytes[1080..1082].copy_from_slice(b"\x53\xef");
    std::fs::write(&foreign, bytes).unwrap();
    let content = open_device(&DeviceSpec::existing(&foreign))
        .unwrap()
        .content;
    assert!(matches!(content, Content::Foreign { what } if what.contains("ext4")));
    std::fs::remove_dir_all(folder).unwrap();
}

/// Aim: a file system without direct I/O is refused by name, and nothing stays behind. Method:
/// `/proc` takes no files at all, and hugetlbfs or an old tmpfs have no direct I/O; the message
/// is checked wherever the kernel at hand refuses.
#[test]
fn open_device_without_direct_io_is_refused() {
    let path = Path::new("/dev/shm").join(format!("terrace-file-{}", std::process::id()));
    match open_device(&DeviceSpec::file(&path, UNIT)) {
        Ok(device) => {
            drop(device);
            std::fs::remove_file(&path).unwrap();
        }
        Err(error) => {
            assert!(error.to_string().contains("no direct I/O"), "{error}");
            assert!(!path.exists());
        }
    }
}

/// Aim: units that do not fit ours are refused in words, whichever disks are at hand.
#[test]
fn device_with_unfit_units_is_refused() {
    let path = Path::new("/nowhere/device");
    let refused = |memory, offset| {
        let outcome = prepare::check_alignment(path, memory, offset);
        outcome.unwrap_err().to_string()
    };
    assert!(refused(0, 0).contains("no direct I/O"));
    for (memory, offset) in [(8192, 512), (4, 16_384), (4, 3000)] {
        let text = refused(memory, offset);
        let told = format!("multiples of {memory} and offsets at multiples of {offset}");
        assert!(text.contains(&told), "{text}");
    }
    for align in [1, 4, 512, 4096] {
        assert!(prepare::check_alignment(path, align, align).is_ok());
    }
    for sector in [0, 256, 1024, 2048, 8192] {
        let text = prepare::check_sector(path, sector).unwrap_err().to_string();
        assert!(
            text.contains(&format!("sectors of {sector} bytes")),
            "{text}"
        );
    }
    assert!(prepare::check_sector(path, 512).is_ok());
    assert!(prepare::check_sector(path, 4096).is_ok());
}
