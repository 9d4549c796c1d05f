// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Devices in the kernel that the last daemon has left, until devices of ours come for them.
use std::collections::BTreeMap;
use std::path::PathBuf;

use block::Error;
use ublk::{Identity, KernelDevice, disk_path};

/// What waits, and the links by which names had numbers.
#[derive(Debug, Default)]
pub(super) struct WaitingDevices {
    devices: Vec<KernelDevice>,
    links: BTreeMap<String, u32>,
}

impl WaitingDevices {
    pub(super) fn new(devices: Vec<KernelDevice>, links: Vec<(String, u32)>) -> WaitingDevices {
        WaitingDevices { devices, links: links.into_iter().collect() }
    }

    pub(super) fn paths(&self) -> Vec<PathBuf> {
        self.devices.iter().map(|device| disk_path(device.number)).collect()
    }

    /// It was not taken over after all.
    pub(super) fn put_back(&mut self, device: KernelDevice) {
        self.devices.push(device);
    }

    /// The one for the device of this name: that to which its link leads; without a link the one
    /// that was made with this name, unless another name's link leads there: then it was renamed.
    ///
    /// # Errors
    /// When there are several.
    pub(super) fn take(
        &mut self,
        name: &str,
        identity: Identity,
    ) -> Result<Option<KernelDevice>, Error> {
        let linked = self.links.remove(name);
        let by_link = |device: &KernelDevice| linked == Some(device.number);
        if let Some(at) = self.devices.iter().position(by_link) {
            return Ok(Some(self.devices.swap_remove(at)));
        }
        let has_link = |number: u32| self.links.values().any(|other| *other == number);
        let by_name = |at: &usize| {
            let device = &self.devices[*at];
            device.identity == Some(identity) && !has_link(device.number)
        };
        let found: Vec<usize> = (0..self.devices.len()).filter(by_name).collect();
        match found.as_slice() {
            [] => Ok(None),
            [at] => Ok(Some(self.devices.swap_remove(*at))),
            several => {
                let numbers = several.iter().map(|at| self.devices[*at].number.to_string());
                let numbers: Vec<String> = numbers.collect();
                Err(Error::busy(format!(
                    "several block devices wait for one of this name: give up all but one of {} \
                     with `millpond ublk --give-up NUMBER`",
                    numbers.join(", ")
                )))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ublk::{Features, State};

    use super::*;

    fn identity(name: &str) -> Identity {
        Identity::new(Path::new("/run/millpond"), name)
    }

    fn device(number: u32, name: &str) -> KernelDevice {
        KernelDevice {
            number,
            state: State::Quiesced,
            pid: 1,
            identity: Some(identity(name)),
            features: Features::RECOVERY,
            queues: 1,
            depth: 128,
            max_io_bytes: 1 << 20,
        }
    }

    /// The numbers that the names get, in this order.
    fn taken(devices: &[KernelDevice], links: &[(&str, u32)], names: &[&str]) -> Vec<Option<u32>> {
        let links = links.iter().map(|(name, number)| ((*name).to_owned(), *number)).collect();
        let mut waiting = WaitingDevices::new(devices.to_vec(), links);
        let take = |name: &&str| waiting.take(name, identity(name)).unwrap().map(|d| d.number);
        names.iter().map(take).collect()
    }

    #[test]
    fn names_find_their_devices_by_link_or_hash() {
        let two = [device(0, "a"), device(1, "b")];
        let both = [("a", 0), ("b", 1)];
        assert_eq!(taken(&two, &both, &["b", "a", "c", "a"]), [Some(1), Some(0), None, None]);
        assert_eq!(taken(&two, &[], &["b", "a"]), [Some(1), Some(0)], "the directory was wiped");
    }

    #[test]
    fn a_renamed_device_keeps_its_block_device() {
        // `a` was renamed to `b`, and another `a` was made since.
        let two = [device(0, "a"), device(1, "a")];
        let links = [("b", 0), ("a", 1)];
        assert_eq!(taken(&two, &links, &["a", "b"]), [Some(1), Some(0)]);
        assert_eq!(taken(&two, &links, &["b", "a"]), [Some(0), Some(1)]);
        assert_eq!(taken(&two[..1], &links[..1], &["a", "b"]), [None, Some(0)]);
    }

    #[test]
    fn a_choice_between_two_is_refused() {
        let two = vec![device(3, "a"), device(5, "a")];
        let mut waiting = WaitingDevices::new(two, Vec::new());
        let e = waiting.take("a", identity("a")).unwrap_err();
        assert!(e.to_string().contains("one of 3, 5"), "{e}");
        assert_eq!(waiting.paths().len(), 2);
    }
}
