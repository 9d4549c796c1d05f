// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The text of `dmsetup help`.

/// The commands that are accepted; docs/dmsetup.md describes each with its options.
pub(crate) const USAGE: &str = "\
Usage: dmsetup [OPTIONS] COMMAND [ARGUMENTS]

millpond's dmsetup: its devices, in the daemon that MILLPOND_RUN_DIR names. DEVICE is a name, a
path that ends in mapper/NAME, dev/NAME or dm-N, or instead of it -u UUID or -j MAJOR -m MINOR.

  create NAME [-u UUID] [--table TABLE | FILE | --notable]    the table also on standard input
  create --concise [NAME,UUID,MINOR,FLAGS,TABLE[,TABLE...][;...]]
  load|reload DEVICE [--table TABLE | FILE]
  suspend|resume|clear DEVICE...
  remove [-f] [--retry] [--deferred] DEVICE...
  remove_all [-f]
  wipe_table [-f] DEVICE...
  rename DEVICE NAME
  rename DEVICE --setuuid UUID
  message DEVICE SECTOR WORDS...
  wait DEVICE [EVENT_NUMBER]
  status [--target TYPE] [DEVICE...]
  table [--target TYPE] [--concise] [--inactive] [DEVICE...]
  info [DEVICE...]
  info -c [-o FIELDS] [--sort FIELDS] [--noheadings] [--separator TEXT] [--rows]
          [--nameprefixes [--unquoted]] [DEVICE...]           `-o help` lists the fields
  ls [--target TYPE] [--exec COMMAND] [-o devno|devname|blkdevname]
  ls --tree [-o ascii,utf,vt100,inverted,blkdevname,nodevice,active,open,rw,uuid]
  deps [-o devno|devname|blkdevname] [DEVICE...]
  targets, target-version TYPE...
  splitname NAME [SUBSYSTEM]
  mknodes, mangle, setgeometry, udev...                       there is nothing to do for them
  version, help
  -v shows the device after what changed it.

Exit codes: 0 done, 1 failed.
";
