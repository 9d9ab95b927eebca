// Converts measurements to CRI metrics, as the metric table defines them.
import { toLong } from "../base/int64.ts";
import { runtime } from "../proto/messages.js";
import type { Metric, MetricDescriptor } from "../proto/types.ts";
import { type MetricSources, metricTable } from "./metric_table.ts";

const { MetricType } = runtime.v1;

/**
 * Labels of every metric, as cAdvisor names them: name is the id of the container or sandbox; container and image
 * are empty for a pod's own metrics.
 */
const labelKeys = ["pod", "namespace", "container", "id", "name", "image"];

export function metricDescriptors(): MetricDescriptor[] {
  return metricTable.map(({ labels, ...metric }) => {
    return { name: metric.name, help: metric.help, label_keys: [...labelKeys, ...labels] };
  });
}

/** labels: the values of labelKeys. */
export function metricMessages(sources: MetricSources, labels: string[]): Metric[] {
  const timestamp = toLong(sources.sample?.atNs ?? sources.nowNs);
  return metricTable.flatMap(({ name, type, values }) =>
    values(sources).map(({ value, labels: own }) => ({
      name,
      timestamp,
      metric_type: MetricType[type],
      label_values: [...labels, ...own],
      value: { value: toLong(value) },
    })),
  );
}
