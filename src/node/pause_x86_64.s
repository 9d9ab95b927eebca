# The pause program: first process of a pod's shared pid namespace. It reaps orphans and exits on SIGINT and
# SIGTERM. The assembler's output is the whole executable, headers and all, so that any binutils give the
# same bytes:
#
#   as -o pause.o pause_x86_64.s && objcopy -O binary -j .text pause.o pause
#
# pause_rootfs.ts contains the result; test/unit/node/pause.test.ts compares them.
	.set	base, 0x400000
	.text

# ELF header, elf(5).
file:	.byte	0x7f, 'E', 'L', 'F', 2, 1, 1, 0
	.quad	0
	.short	2, 62			# ET_EXEC, EM_X86_64
	.long	1
	.quad	base + start - file
	.quad	segments - file
	.quad	0
	.long	0
	.short	64, 56, 2, 64, 0, 0

segments:
	.long	1, 5			# PT_LOAD, readable and executable: all of it
	.quad	0, base, base, end - file, end - file, 0x1000
	.long	0x6474e551, 6		# PT_GNU_STACK: data is not executable
	.quad	0, 0, 0, 0, 0, 16

# SIGINT, SIGTERM, SIGCHLD. The kernel drops a signal to a namespace's init that has no handler for
# it, but keeps one that is blocked.
signals:
	.quad	1 << (2 - 1) | 1 << (15 - 1) | 1 << (17 - 1)

start:	mov	$14, %eax		# rt_sigprocmask(SIG_BLOCK, &signals, NULL, 8)
	xor	%edi, %edi
	lea	signals(%rip), %rsi
	xor	%edx, %edx
	mov	$8, %r10d
	syscall
	test	%eax, %eax
	jnz	fail

reap:	mov	$61, %eax		# wait4(-1, NULL, WNOHANG | __WALL, NULL)
	mov	$-1, %rdi
	xor	%esi, %esi
	mov	$0x40000001, %edx
	xor	%r10d, %r10d
	syscall
	test	%eax, %eax
	jg	reap			# one SIGCHLD may stand for many children

wait:	mov	$128, %eax		# rt_sigtimedwait(&signals, NULL, NULL, 8)
	lea	signals(%rip), %rdi
	xor	%esi, %esi
	xor	%edx, %edx
	mov	$8, %r10d
	syscall
	cmp	$17, %eax		# SIGCHLD
	je	reap
	cmp	$-4, %eax		# EINTR: it was stopped and continued
	je	wait
	xor	%edi, %edi
	test	%eax, %eax
	jns	leave

fail:	mov	$1, %edi		# a seccomp profile forbids it
leave:	mov	$231, %eax		# exit_group
	syscall
end:
