// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that front ends of virtual machines make the daemon map: what a file states as its length
//! costs them nothing, and has a bound here.
use std::fs::File;
use std::os::fd::AsFd;

use e2e::test_bed::TestBed;
use e2e::virtual_machine::{VirtualMachine, message};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::vhost_user::{machine, pattern, read, socket, wait_until};

const MIB: u64 = 1 << 20;
const REGIONS: u64 = 8;

/// A number of bytes that a file of the kernel has in KiB.
fn kib_of(file: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(file).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_matches([':', ' ', '\t', 'k', 'B']).parse::<u64>().unwrap() << 10
}

/// Gives a table of sparse files, each of so many bytes; whether the daemon takes it.
fn give_sparse(machine: &VirtualMachine, len: u64) -> bool {
    let files = (0..REGIONS).map(|_| {
        let file = File::from(memfd_create(c"sparse", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(len).unwrap();
        file
    });
    let files: Vec<File> = files.collect();
    let fds: Vec<_> = files.iter().map(File::as_fd).collect();
    let region = |nth: u64| [nth * len, len, (1 << 50) + nth * len, 0];
    let table = [REGIONS].into_iter().chain((0..REGIONS).flat_map(region));
    let table: Vec<u8> = table.flat_map(u64::to_le_bytes).collect();
    machine.tell(message::SET_MEM_TABLE, &table, &fds).is_ok()
}

/// Each front end takes as much as it is given; then a client needs memory for a long request.
#[test]
fn sparse_memory_of_guests_leaves_room_for_other_clients() {
    let names: Vec<String> = (0..6).map(|nth| format!("d{nth}")).collect();
    let mut devices: Vec<(&str, &str)> = names.iter().map(|name| (&**name, "0 8 zero")).collect();
    devices.push(("good", "0 131072 linear ./disk.img 0"));
    let bed = TestBed::start_with("vhost_user = './vm'", &[("disk.img", 64 * MIB)], &devices);
    let mut greedy = Vec::new();
    for name in &names {
        let mut taken = 0;
        // A refused one ends its session; the next one asks for less.
        for shift in (20..44).rev() {
            let mut machine = VirtualMachine::new(1).unwrap();
            machine.greet(&socket(&bed, name)).unwrap();
            if give_sparse(&machine, 1 << shift) {
                taken = REGIONS << shift;
                greedy.push(machine);
                break;
            }
        }
        println!("{name}: {} MiB", taken / MIB);
    }
    // The daemon has stacks and buffers besides.
    let status = format!("/proc/{}/status", crate::upgrade::pid(&bed));
    let addresses = kib_of(&status, "VmSize");
    let most = 2 * kib_of("/proc/meminfo", "MemTotal") + (16 << 30);
    assert!(addresses < most, "{} MiB of addresses of {}", addresses / MIB, most / MIB);
    let mut client = bed.connect("good");
    let data = pattern(1, 32 << 20);
    client.write(0, &data).unwrap();
    let mut found = vec![0; data.len()];
    client.read(0, &mut found).unwrap();
    assert!(found == data);
    assert!(bed.daemon().is_running());
    drop(greedy);
}

/// The refusal names the option, and its way out works; memory that is given back can be given
/// again.
#[test]
fn memory_beyond_its_option_is_refused_with_the_option() {
    let devices = [("a", "0 32768 linear ./disk.img 0"), ("b", "0 8 zero")];
    let options = "vhost_user = './vm'\nvhost_memory = '4M'";
    let mut bed = TestBed::start_with(options, &[("disk.img", 16 * MIB)], &devices);
    // It has 2.3 MiB.
    let mut guest = VirtualMachine::new(1).unwrap();
    assert!(guest.connect(&socket(&bed, "a")).is_err());
    assert!(guest.is_cut_off());
    wait_until("the cause", || {
        let log = bed.daemon().log();
        let bytes = guest.memory().metadata().unwrap().len();
        log.contains(&format!("vhost1: memory of the guest: {bytes} bytes"))
            && log.contains("one front end may have mapped: half of --vhost-memory, which is 4 MiB")
    });
    bed.terminate();
    let file = bed.path("millpond.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("'4M'", "'6M'")).unwrap();
    bed.start_again();
    guest.connect(&socket(&bed, "a")).unwrap();
    guest.write(0, 0, &pattern(1, 4096)).unwrap();
    // Its memory is given anew while it is in use, and again.
    for _ in 0..20 {
        guest.give_memory().unwrap();
        assert!(read(&mut guest, 0, 0, 4096) == pattern(1, 4096));
    }
    let mut other = VirtualMachine::new(1).unwrap();
    other.connect(&socket(&bed, "b")).unwrap();
    assert!(other.give_memory().is_err(), "both have 4.6 MiB of 6");
    wait_until("the cause", || {
        let log = bed.daemon().log();
        log.contains("all front ends together have 4 MiB mapped, and --vhost-memory allows 6 MiB")
    });
    guest.disconnect();
    drop(machine(&bed, "b", 1));
    guest.connect(&socket(&bed, "a")).unwrap();
    assert!(read(&mut guest, 0, 0, 4096) == pattern(1, 4096));
}
