// Builds the default seccomp profile: allows the system calls that programs in containers commonly need;
// others fail with EPERM. Runtimes skip names that the installed libseccomp does not know.
import type { OciSeccomp, OciSeccompArg, OciSeccompRule } from "./oci_types.ts";

const allow = "SCMP_ACT_ALLOW";
const errno = "SCMP_ACT_ERRNO";
const ENOSYS = 38;
const EPERM = 1;

/** Flags of clone(2) that make a namespace: NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET. */
const cloneNewNamespaces = 0x7e020000n;
/**
 * Allows the address families 0 to 47 except 38 (AF_ALG), whose flaws (CVE-2026-31431) let a container write to files
 * that containers share, and 40 (AF_VSOCK), which reaches the hypervisor. Each pair is a mask and the value of the bits
 * under it. A rule has one condition: runc treats several on one argument as alternatives. The masks have 32 bits: a
 * filter compares 64 bits of a register, of which the kernel uses the lower 32, so that 38 + 2**32 is AF_ALG, too.
 */
const socketFamilies: readonly [mask: bigint, value: bigint][] = [
  [0xffffffe0n, 0n],
  [0xfffffffcn, 32n],
  [0xfffffffen, 36n],
  [0xffffffffn, 39n],
  [0xffffffffn, 41n],
  [0xfffffffen, 42n],
  [0xfffffffcn, 44n],
];
/** personality(2): Linux, 32-bit uname, their UNAME26 variants, and the query 0xffffffff. */
const personalities = [0x0n, 0x0008n, 0x20000n, 0x20008n, 0xffffffffn];

const files = `
access chdir chmod chown chown32 close close_range copy_file_range creat dup dup2 dup3 faccessat
faccessat2 fadvise64 fadvise64_64 fallocate fchdir fchmod fchmodat fchmodat2 fchown fchown32
fchownat fcntl fcntl64 fdatasync fgetxattr flistxattr flock fremovexattr fsetxattr fstat fstat64
fstatat64 fstatfs fstatfs64 fsync ftruncate ftruncate64 futimesat getcwd getdents getdents64
getxattr getxattrat ioctl lchown lchown32 lgetxattr link linkat listxattr listxattrat llistxattr
_llseek lremovexattr lseek lsetxattr lstat lstat64 mkdir mkdirat mknod mknodat name_to_handle_at
newfstatat open openat openat2 pread64 preadv preadv2 pwrite64 pwritev pwritev2 read readahead
readlink readlinkat readv removexattr removexattrat rename renameat renameat2 rmdir sendfile
sendfile64 setxattr setxattrat splice stat stat64 statfs statfs64 statmount statx symlink symlinkat
sync sync_file_range sync_file_range2 syncfs tee truncate truncate64 umask unlink unlinkat utime
utimensat utimensat_time64 utimes vmsplice write writev listmount cachestat
`;
const waiting = `
_newselect epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait
epoll_wait_old eventfd eventfd2 fanotify_mark inotify_add_watch inotify_init inotify_init1
inotify_rm_watch io_cancel io_destroy io_getevents io_pgetevents io_pgetevents_time64 io_setup
io_submit pipe pipe2 poll ppoll ppoll_time64 pselect6 pselect6_time64 select signalfd signalfd4
timerfd_create timerfd_gettime timerfd_gettime64 timerfd_settime timerfd_settime64
`;
const network = `
accept accept4 bind connect getpeername getsockname getsockopt listen recv recvfrom recvmmsg
recvmmsg_time64 recvmsg send sendmmsg sendmsg sendto setsockopt shutdown socketcall socketpair
`;
const memory = `
brk get_mempolicy madvise map_shadow_stack membarrier memfd_create memfd_secret mincore mlock
mlock2 mlockall mmap mmap2 mprotect mremap mseal msync munlock munlockall munmap pkey_alloc
pkey_free pkey_mprotect process_mrelease remap_file_pages
`;
const processes = `
alarm capget capset execve execveat exit exit_group fork futex futex_requeue futex_time64
futex_wait futex_waitv futex_wake get_robust_list get_thread_area getcpu getegid getegid32 geteuid
geteuid32 getgid getgid32 getgroups getgroups32 getitimer getpgid getpgrp getpid getppid
getpriority getrandom getresgid getresgid32 getresuid getresuid32 getrlimit getrusage getsid gettid
getuid getuid32 ioprio_get ioprio_set kill landlock_add_rule landlock_create_ruleset
landlock_restrict_self lsm_get_self_attr lsm_list_modules lsm_set_self_attr pause pidfd_open
pidfd_send_signal prctl prlimit64 process_madvise restart_syscall rseq rt_sigaction rt_sigpending
rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_sigtimedwait_time64
rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr
sched_getparam sched_getscheduler sched_rr_get_interval sched_rr_get_interval_time64
sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield seccomp
set_robust_list set_thread_area set_tid_address setfsgid setfsgid32 setfsuid setfsuid32 setgid
setgid32 setgroups setgroups32 setitimer setpgid setpriority setregid setregid32 setresgid
setresgid32 setresuid setresuid32 setreuid setreuid32 setrlimit setsid setuid setuid32 sigaltstack
signal sigaction sigpending sigprocmask sigreturn sigsuspend sysinfo tgkill tkill ugetrlimit uname
uretprobe vfork wait4 waitid waitpid
`;
const ipcAndTime = `
adjtimex clock_adjtime clock_adjtime64 clock_getres clock_getres_time64 clock_gettime
clock_gettime64 clock_nanosleep clock_nanosleep_time64 gettimeofday ipc mq_getsetattr mq_notify
mq_open mq_timedreceive mq_timedreceive_time64 mq_timedsend mq_timedsend_time64 mq_unlink msgctl
msgget msgrcv msgsnd nanosleep semctl semget semop semtimedop semtimedop_time64 shmat shmctl shmdt
shmget time timer_create timer_delete timer_getoverrun timer_gettime timer_gettime64 timer_settime
timer_settime64 times
`;

/** Keyed by node:os arch(). */
const byArch: Record<string, { architectures: string[]; calls: string }> = {
  x64: {
    architectures: ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
    calls: "arch_prctl modify_ldt",
  },
  arm64: {
    architectures: ["SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"],
    calls: "arm_fadvise64_64 arm_sync_file_range breakpoint cacheflush set_tls",
  },
  riscv64: { architectures: ["SCMP_ARCH_RISCV64"], calls: "riscv_flush_icache" },
};

/** System calls that are allowed only with a capability, because they are useless without. */
const byCapability: Record<string, string> = {
  CAP_DAC_READ_SEARCH: "open_by_handle_at",
  CAP_SYS_ADMIN:
    "bpf clone clone3 fanotify_init fsconfig fsmount fsopen fspick lookup_dcookie mount " +
    "mount_setattr move_mount open_tree perf_event_open quotactl quotactl_fd setdomainname " +
    "sethostname setns syslog umount umount2 unshare",
  CAP_SYS_BOOT: "reboot",
  CAP_SYS_CHROOT: "chroot",
  CAP_SYS_MODULE: "delete_module finit_module init_module",
  CAP_SYS_PACCT: "acct",
  CAP_SYS_PTRACE: "kcmp pidfd_getfd process_vm_readv process_vm_writev ptrace",
  CAP_SYS_RAWIO: "ioperm iopl",
  CAP_SYS_TIME: "clock_settime clock_settime64 settimeofday stime",
  CAP_SYS_TTY_CONFIG: "vhangup",
  CAP_SYS_NICE: "get_mempolicy mbind set_mempolicy set_mempolicy_home_node",
  CAP_SYSLOG: "syslog",
  CAP_BPF: "bpf",
  CAP_PERFMON: "perf_event_open",
};

export function defaultSeccomp(bounding: string[], arch: string): OciSeccomp {
  const own = byArch[arch];
  const names = namesIn([files, waiting, network, memory, processes, ipcAndTime].join(" "));
  names.push(...namesIn(own?.calls ?? ""));
  for (const capability of bounding) names.push(...namesIn(byCapability[capability] ?? ""));
  const syscalls: OciSeccompRule[] = [
    { names: [...new Set(names)].sort(), action: allow },
    ...personalities.map((value) => rule("personality", { index: 0, value, op: "SCMP_CMP_EQ" })),
    // ptrace cannot bypass the filter since Linux 4.8: seccomp runs after it.
    { names: ["ptrace", "process_vm_readv", "process_vm_writev"], action: allow },
    ...socketFamilies.map(([value, valueTwo]) =>
      rule("socket", { index: 0, value, valueTwo, op: "SCMP_CMP_MASKED_EQ" }),
    ),
  ];
  if (!bounding.includes("CAP_SYS_ADMIN")) {
    const masked = { value: cloneNewNamespaces, valueTwo: 0n, op: "SCMP_CMP_MASKED_EQ" };
    syscalls.push(rule("clone", { index: 0, ...masked }));
    // A filter cannot read clone3's flags, which are in memory; ENOSYS makes libc fall back to clone.
    syscalls.push({ names: ["clone3"], action: errno, errnoRet: ENOSYS });
  }
  return {
    defaultAction: errno,
    defaultErrnoRet: EPERM,
    ...(own === undefined ? {} : { architectures: own.architectures }),
    syscalls,
  };
}

function rule(name: string, arg: OciSeccompArg): OciSeccompRule {
  return { names: [name], action: allow, args: [arg] };
}

function namesIn(text: string): string[] {
  return text.split(/\s+/).filter((name) => name !== "");
}
