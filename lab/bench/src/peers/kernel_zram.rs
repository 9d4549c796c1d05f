// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The running kernel's zram: a device of its own, gone afterwards.
use std::fs;
use std::path::{Path, PathBuf};

const CONTROL: &str = "/sys/class/zram-control";

/// A device.
#[derive(Debug)]
pub struct KernelZram {
    number: String,
}

fn at(path: &Path, e: &std::io::Error) -> String {
    format!("{}: {e}", path.display())
}

impl KernelZram {
    /// Makes one of `bytes` with this algorithm.
    ///
    /// # Errors
    /// What the kernel said: there is no zram, this is not root, the algorithm is not known.
    pub fn new(algorithm: &str, bytes: u64) -> Result<KernelZram, String> {
        let add = Path::new(CONTROL).join("hot_add");
        let number = fs::read_to_string(&add).map_err(|e| at(&add, &e))?.trim().to_owned();
        let zram = KernelZram { number };
        for (name, value) in
            [("comp_algorithm", algorithm.to_owned()), ("disksize", bytes.to_string())]
        {
            let file = zram.attribute(name);
            fs::write(&file, &value).map_err(|e| format!("{value}: {}", at(&file, &e)))?;
        }
        Ok(zram)
    }

    fn attribute(&self, name: &str) -> PathBuf {
        Path::new("/sys/block").join(format!("zram{}", self.number)).join(name)
    }

    /// The device.
    pub fn device(&self) -> PathBuf {
        Path::new("/dev").join(format!("zram{}", self.number))
    }

    /// Bytes of memory that it uses, `mem_used_total`; 0 when the kernel does not say.
    pub fn used_bytes(&self) -> u64 {
        let text = fs::read_to_string(self.attribute("mm_stat")).unwrap_or_default();
        text.split_whitespace().nth(2).and_then(|n| n.parse().ok()).unwrap_or(0)
    }
}

impl Drop for KernelZram {
    fn drop(&mut self) {
        // Busy for a moment yet when udev looks at it; a device too many does no harm.
        let _ = fs::write(self.attribute("reset"), "1");
        let _ = fs::write(Path::new(CONTROL).join("hot_remove"), &self.number);
    }
}
