// What of /proc and /sys a container does not get to see or to write. The kubelet sends such lists
// with every container; here they are for callers that say nothing, and for our own command line.

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

/** As fields of a security context. */
export function procMasks(): { masked_paths: string[]; readonly_paths: string[] } {
  return { masked_paths: [...maskedPaths], readonly_paths: [...readonlyPaths] };
}
