// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of epochs in the map.
use super::super::rebuild::Rebuild;
use super::*;

/// A version that was kept for its epoch and never logged leaves with its epoch: nothing is left to
/// log.
#[test]
fn an_unlogged_version_kept_for_an_epoch_is_dropped_with_it() {
    for rots in [false, true] {
        let Ok(mut slots) = Rebuild::new(16).finish(8) else { panic!("an empty map") };
        slots.set_ordered(true);
        let install = |slots: &mut Slots| {
            let slot = slots.allocate(1).expect("there is room").start;
            slots.install(1, slot, 7);
        };
        install(&mut slots);
        slots.begin_phase(MergeRule::Never);
        let slot_ref = slots.find(1).expect("installed").slot_ref;
        match rots {
            true => assert!(slots.quarantine(1, slot_ref)),
            false => slots.retire(1, slot_ref),
        }
        slots.close_epoch();
        install(&mut slots);
        assert_eq!(slots.phase_state(), PhaseState::Written);
        slots.retire_phase();
        slots.begin_commit();
        let batch = slots.take_batch(4);
        slots.complete_batch(batch);
        assert!(slots.is_commit_complete());
        assert_eq!(slots.counts().unlogged, 0, "all is said (rots: {rots})");
        assert!(!slots.has_unlogged());
    }
}
