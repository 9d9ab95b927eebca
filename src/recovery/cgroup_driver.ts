// Refuses a cgroup driver other than the one that made the pods and containers of this boot.
import { CriError } from "../base/errors.ts";
import { withoutSystemd } from "../node/systemd.ts";
import type { Container } from "../state/container.ts";
import type { Sandbox } from "../state/sandbox.ts";

type Driver = Sandbox["cgroup"]["driver"];
type Records = {
  sandboxes: Pick<Sandbox, "id" | "name" | "bootId" | "cgroup">[];
  containers: Pick<Container, "id" | "name" | "bootId" | "sandboxId" | "cgroupDriver">[];
};

/** How many pods and containers the refusal names. */
const listedMax = 20;

/**
 * Cgroups of an earlier boot do not matter, whichever driver made them; nor do those of systemd's driver where systemd
 * does not run, since it has made none: such pods could never start a container.
 * @throws CriError FAILED_PRECONDITION with what the other driver made.
 */
export function refuseOtherDriver(
  driver: Driver,
  bootId: string,
  { sandboxes, containers }: Records,
  hasSystemd: boolean,
): void {
  if (driver === "cgroupfs" && !hasSystemd) return;
  const pods = sandboxes.filter((sandbox) => sandbox.bootId === bootId);
  const driverOf = new Map(pods.map(({ id, cgroup }) => [id, cgroup.driver]));
  const left = [
    ...containers
      .filter((container) => container.bootId === bootId)
      .filter((one) => (one.cgroupDriver ?? driverOf.get(one.sandboxId) ?? driver) !== driver)
      .map(({ id, name }) => `container ${id.slice(0, 12)} (${name})`),
    ...pods
      .filter(({ cgroup }) => cgroup.driver !== driver)
      .map(({ id, name }) => `pod ${id.slice(0, 12)} (${name})`),
  ];
  if (left.length === 0) return;
  const other = driver === "systemd" ? "cgroupfs" : "systemd";
  const listed = left.slice(0, listedMax).join(", ");
  const more = left.length > listedMax ? ` and ${left.length - listedMax} more` : "";
  throw new CriError(
    "FAILED_PRECONDITION",
    `the cgroup driver is configured as ${driver}, but driver ${other} made these containers and pods: ${listed}${more}. Start with "systemd-cgroup": ${other === "systemd"}, drain the node, remove them (crictl rmp -fa), then change the driver; or reboot the node, which ends them`,
  );
}

/**
 * Refuses systemd's driver on a host without systemd, unless pods of this boot are there: they are served and can be
 * removed, and the health check says why no other pod starts. @throws CriError FAILED_PRECONDITION
 */
export function refuseUnusableDriver(
  driver: Driver,
  bootId: string,
  { sandboxes }: Pick<Records, "sandboxes">,
  hasSystemd: boolean,
): void {
  if (driver !== "systemd" || hasSystemd) return;
  if (sandboxes.some((sandbox) => sandbox.bootId === bootId)) return;
  throw new CriError("FAILED_PRECONDITION", withoutSystemd);
}
