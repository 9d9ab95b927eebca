// Lists the paths in /proc and /sys that are masked or read-only by default: the kubelet sends its own lists.

const maskedPaths = [
  "/proc/acpi",
  "/proc/asound",
  "/proc/interrupts",
  "/proc/kcore",
  "/proc/keys",
  "/proc/latency_stats",
  "/proc/sched_debug",
  "/proc/scsi",
  "/proc/timer_list",
  "/proc/timer_stats",
  "/sys/devices/virtual/powercap",
  "/sys/firmware",
];

const readonlyPaths = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/** Returns the lists as fields of a security context. */
export function procMasks(): { masked_paths: string[]; readonly_paths: string[] } {
  return { masked_paths: [...maskedPaths], readonly_paths: [...readonlyPaths] };
}
