// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A live table that is replaced by one that was made from it.

use block::ErrorKind;

use crate::common::Bench;

const A: &str = "/ram/a/1024";

#[test]
fn a_table_made_of_one_that_is_live_no_more_is_refused() {
    Bench::new(1).run(|dm, _| async move {
        dm.create("d", None, Some("0 64 zero")).await.unwrap();
        let from = dm.live_table("d").unwrap();
        dm.load("d", &format!("0 64 linear {A} 8")).await.unwrap();
        dm.resume("d").await.unwrap();
        let late = dm.replace_table("d", &from, "0 128 zero").await.unwrap_err();
        assert_eq!(late.kind(), ErrorKind::Busy);
        assert_eq!(
            late.to_string(),
            "d: another table has become live meanwhile: nothing was changed, try again"
        );
        assert_eq!(dm.table("d").unwrap()[0].params, format!("{A} 8"));
        let from = dm.live_table("d").unwrap();
        dm.replace_table("d", &from, "0 128 zero").await.unwrap();
        assert_eq!(dm.table("d").unwrap()[0].kind, "zero");
    });
}
