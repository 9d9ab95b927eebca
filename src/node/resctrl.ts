// Names the folder of the kernel's resctrl file system, where RDT classes are groups (resctrl.rst).
export const resctrlFolder = "/sys/fs/resctrl";
