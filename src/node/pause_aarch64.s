// pause_x86_64.s for aarch64, with its system call numbers.
//
//   aarch64-linux-gnu-as -o pause.o pause_aarch64.s
//   aarch64-linux-gnu-objcopy -O binary -j .text pause.o pause
	.set	base, 0x400000
	.text

// ELF header, elf(5).
file:	.byte	0x7f, 'E', 'L', 'F', 2, 1, 1, 0
	.quad	0
	.short	2, 183			// ET_EXEC, EM_AARCH64
	.long	1
	.quad	base + start - file
	.quad	segments - file
	.quad	0
	.long	0
	.short	64, 56, 2, 64, 0, 0

segments:
	.long	1, 5			// PT_LOAD, readable and executable; pages may be of 64 KiB
	.quad	0, base, base, end - file, end - file, 0x10000
	.long	0x6474e551, 6		// PT_GNU_STACK
	.quad	0, 0, 0, 0, 0, 16

signals:				// SIGINT, SIGTERM, SIGCHLD
	.quad	1 << (2 - 1) | 1 << (15 - 1) | 1 << (17 - 1)

start:	mov	x0, #0			// rt_sigprocmask(SIG_BLOCK, &signals, NULL, 8)
	adr	x1, signals
	mov	x2, #0
	mov	x3, #8
	mov	x8, #135
	svc	#0
	cbnz	x0, fail

reap:	mov	x0, #-1			// wait4(-1, NULL, WNOHANG | __WALL, NULL)
	mov	x1, #0
	mov	w2, #0x40000000
	orr	w2, w2, #1
	mov	x3, #0
	mov	x8, #260
	svc	#0
	cmp	x0, #0
	b.gt	reap

wait:	adr	x0, signals		// rt_sigtimedwait(&signals, NULL, NULL, 8)
	mov	x1, #0
	mov	x2, #0
	mov	x3, #8
	mov	x8, #137
	svc	#0
	cmp	x0, #17			// SIGCHLD
	b.eq	reap
	cmn	x0, #4			// EINTR
	b.eq	wait
	cmp	x0, #0
	mov	x0, #0
	b.ge	leave

fail:	mov	x0, #1
leave:	mov	x8, #94			// exit_group
	svc	#0
end:
