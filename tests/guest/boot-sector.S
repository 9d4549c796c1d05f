# SPDX-License-Identifier: Apache-2.0 OR MIT
# A boot sector that writes and reads its disk through the firmware, without an end: a pass writes
# 32 KiB of its own, reads them again, and reads those of the pass before. The serial line gets
# "boots", a dot for each pass, and an X when a request fails or other data are read.
    .code16
    .globl _start
_start:
    cli
    xor %ax, %ax
    mov %ax, %ds
    mov %ax, %ss
    mov $0x7c00, %sp
    mov $0x1000, %ax
    mov %ax, %es
    sti
    cld
    mov %dl, drive
    mov $text, %si
1:  lodsb
    test %al, %al
    jz 2f
    call print
    jmp 1b
2:  call fill
    mov $0x43, %ah
    call transfer
pass:
    incl number
    call fill
    mov $0x43, %ah
    call transfer
    call read
    decl number
    call read
    incl number
    mov $'.', %al
    call print
    jmp pass

# The first number of a pass, from which its data count.
first:
    mov number, %eax
    imul $0x9e3779b1, %eax, %eax
    xor %di, %di
    mov $8192, %cx
    ret
fill:
    call first
1:  stosl
    inc %eax
    loop 1b
    ret
read:
    xor %eax, %eax
    xor %di, %di
    mov $8192, %cx
    rep stosl
    mov $0x42, %ah
    call transfer
    call first
1:  scasl
    jne wrong
    inc %eax
    loop 1b
    ret
# 64 sectors, at one of 64 places behind the first MiB.
transfer:
    mov number, %ecx
    and $63, %ecx
    shl $6, %ecx
    add $2048, %ecx
    mov %ecx, packet + 8
    mov drive, %dl
    mov $packet, %si
    xor %al, %al
    push %es
    int $0x13
    pop %es
    jc wrong
    cld
    ret
wrong:
    mov $'X', %al
    call print
1:  hlt
    jmp 1b
print:
    push %ax
    mov $0x3fd, %dx
1:  in %dx, %al
    test $0x20, %al
    jz 1b
    pop %ax
    mov $0x3f8, %dx
    out %al, %dx
    ret

text:   .asciz "boots"
drive:  .byte 0
    .balign 4
number: .long 0
packet: .byte 16, 0
    .word 64, 0, 0x1000
    .quad 0
    .org 510
    .word 0xaa55
