// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tokens on one core, taken and given back at random.
use proptest::prelude::*;

use super::tokens::{Load, Tokens};

proptest! {
    /// QU-W1, of the tokens by themselves.
    #[test]
    fn tokens_keep_to_the_limit_they_are_given(
        steps in prop::collection::vec((0_u32..6, 0_u64..100, 1_u64..64, any::<bool>()), 1..200),
    ) {
        let tokens = Tokens::new(true);
        let mut held = Vec::new();
        for (ios, limit_sectors, sectors, takes) in steps {
            let limit = Load { ios, sectors: limit_sectors };
            let before = tokens.load(0);
            if !takes {
                if let Some(sectors) = held.pop() {
                    let (left, waiting) = tokens.give(0, sectors);
                    prop_assert_eq!((left.ios as usize, waiting), (held.len(), 0));
                }
            } else if tokens.take(0, sectors, limit).is_some() {
                held.push(sectors);
                let now = tokens.load(0);
                prop_assert!(now.ios <= ios);
                prop_assert!(now.sectors <= limit_sectors || now.ios == 1);
            } else {
                let full = before.ios >= ios || before.sectors + sectors > limit_sectors;
                prop_assert!(full, "{before:?} {limit:?} refuses {sectors}");
            }
            prop_assert_eq!(tokens.load(0).sectors, held.iter().sum::<u64>());
        }
        for sectors in held {
            tokens.give(0, sectors);
        }
        prop_assert_eq!(tokens.load(0), Load::default());
    }
}
