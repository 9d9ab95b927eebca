// Formats byte counts for people.

/** Formats bytes in decimal units with three significant digits: 4.26MB. */
export function byteText(bytes: number | bigint): string {
  let value = Number(bytes);
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  for (; value >= 1000 && unit < units.length - 1; unit++) value /= 1000;
  return `${Number(value.toPrecision(3))}${units[unit]}`;
}
