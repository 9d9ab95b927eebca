// Exports the daemon's own metrics in Prometheus' text format: its counters, and gauges of its present state.
import { exposition, type Family, gauge } from "../stats/prometheus.ts";
import { residentBytes } from "../sys/process.ts";
import type { Context } from "./context.ts";
import { nriFamilies } from "./nri_plugins.ts";

export function metricsText(context: Context): string {
  return exposition([
    ...context.instruments.families(),
    ...stateFamilies(context),
    ...nriFamilies(context),
    monitorRestarts(context),
    memory(context),
  ]);
}

function stateFamilies(context: Context): Family[] {
  const { sandboxes, containers, images } = context;
  const podCounts = byPhase(sandboxes.list(), ["ready", "notready"]);
  const containerCounts = byPhase(containers.list(), ["created", "running", "exited"]);
  const imageCount = [{ labels: {}, value: images.list().length }];
  const imageBytes = [{ labels: {}, value: images.usage().bytes }];
  return [
    gauge("isulad_pods", "Pods by state", podCounts),
    gauge("isulad_containers", "Containers by state", containerCounts),
    gauge("isulad_images", "Images", imageCount),
    gauge("isulad_image_bytes", "Bytes of all layers, each counted once", imageBytes),
  ];
}

function byPhase(records: { phase: { phase: string } }[], phases: string[]): Family["samples"] {
  return phases.map((state) => ({
    labels: { state },
    value: records.filter(({ phase }) => phase.phase === state).length,
  }));
}

function monitorRestarts({ monitor }: Context): Family {
  const name = "isulad_monitor_restarts_total";
  const help = "Monitors lost and replaced";
  return { name, help, type: "counter", samples: [{ labels: {}, value: monitor.losses }] };
}

function memory({ monitor }: Context): Family {
  const processes = { daemon: process.pid, monitor: monitor.pid };
  const samples = Object.entries(processes).flatMap(([process, pid]) => {
    const value = pid === undefined ? undefined : residentBytes(pid);
    return value === undefined ? [] : [{ labels: { process }, value }];
  });
  const help = "Resident memory of the daemon and the monitor";
  return gauge("isulad_resident_memory_bytes", help, samples);
}
