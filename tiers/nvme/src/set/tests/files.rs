//! A set on a file: what is in memory elsewhere holds for the devices that are opened by path.

use super::*;
use crate::file::{Content, DeviceSpec, open_device};

#[test]
fn set_on_a_file_is_found_again() {
    let build = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    let roots = [std::env::temp_dir(), build];
    let len = SEGMENTS_START + 4 * SEGMENT_LEN;
    let name = format!("terrace-set-{}", std::process::id());
    let made = roots.iter().find_map(|root| {
        let mut spec = DeviceSpec::file(root.join(&name), len);
        spec.preparation = crate::file::Preparation::Lazy;
        Some((open_device(&spec).ok()?, spec))
    });
    let (device, spec) = made.expect("a folder with direct I/O");
    let mut options = options(1);
    options.random = Box::new(os_random);
    let mut set = DeviceSet::open(vec![Box::new(device)], &options).unwrap();
    assert_eq!((set.formatted, set.devices[0].segment_count), (1, 4));
    let id = set.devices[0].id;
    set.close().unwrap();
    drop(set);
    let device = open_device(&spec).unwrap();
    assert_eq!(device.content, Content::Ours);
    let set = DeviceSet::open(vec![Box::new(device)], &options).unwrap();
    assert_eq!((set.devices[0].id, set.open_epoch), (id, 2));
    assert!(set.previous_clean);
    std::fs::remove_file(&spec.path).unwrap();
}
