// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guards: ranges of writes that a server may still hold from a lost connection.

/// Number of a connection.
pub(crate) type LinkId = u64;

#[derive(Debug)]
struct Guard {
    link: LinkId,
    /// The request, while it is pending: it may pass its own guard.
    owner: Option<usize>,
    start: u64,
    end: u64,
}

/// All guards of a client.
#[derive(Debug, Default)]
pub(crate) struct Guards(Vec<Guard>);

impl Guards {
    /// Adds a guard for `owner`, which was in flight on `link` when that was lost.
    pub(crate) fn add(&mut self, link: LinkId, owner: usize, start: u64, end: u64) {
        self.0.push(Guard { link, owner: Some(owner), start, end });
    }

    /// Whether `request` must wait (NB-C4).
    pub(crate) fn blocks(&self, request: usize, start: u64, end: u64) -> bool {
        let other = |g: &&Guard| g.owner != Some(request);
        self.0.iter().filter(other).any(|g| start < g.end && g.start < end)
    }

    /// Ends the ownership of a completed request; its guards stay.
    pub(crate) fn orphan(&mut self, owner: usize) {
        for guard in self.0.iter_mut().filter(|g| g.owner == Some(owner)) {
            guard.owner = None;
        }
    }

    /// Removes the guards of `link`: its writes can no longer be performed.
    pub(crate) fn release(&mut self, link: LinkId) {
        self.0.retain(|g| g.link != link);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_passes_its_own_guard_and_no_other() {
        let mut guards = Guards::default();
        guards.add(1, 7, 100, 200);
        assert!(!guards.blocks(7, 100, 200));
        assert!(guards.blocks(8, 199, 300));
        assert!(!guards.blocks(8, 200, 300) && !guards.blocks(8, 0, 100));
        // A number that is used again is another request's.
        guards.orphan(7);
        assert!(guards.blocks(7, 150, 160));
        guards.add(2, 7, 150, 160);
        guards.release(1);
        assert!(!guards.blocks(7, 100, 200) && guards.blocks(8, 100, 200));
        guards.release(2);
        assert!(guards.is_empty());
    }
}
