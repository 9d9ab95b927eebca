// Lists the keys of daemon.json about NRI plugins.
import { key, secondMs } from "./config_key.ts";
import * as k from "./config_values.ts";

export const nriKeys = {
  support: key("nri-support", k.flag, false, { about: "NRI plugins" }),
  disableConnections: key("disable-connections", k.flag, true, {
    about: "only pre-installed NRI plugins; false opens the NRI socket",
  }),
  socketPath: key("nri-socket-path", k.absolutePath, "/var/run/nri/nri.sock", {
    about: "the NRI socket",
    also: ["socket-path"],
  }),
  pluginPath: key("plugin-path", k.absolutePath, "/opt/nri/plugins", {
    live: true,
    about: "pre-installed NRI plugins",
  }),
  pluginConfigPath: key("plugin-config-path", k.absolutePath, "/etc/nri/conf.d", {
    live: true,
    about: "configuration of NRI plugins",
  }),
  registrationTimeoutMs: key("plugin-registration-timeout", k.duration(1), 5 * secondMs, {
    live: true,
    about: "timeout of an NRI plugin's registration",
  }),
  requestTimeoutMs: key("plugin-request-timeout", k.duration(1), 2 * secondMs, {
    live: true,
    about: "timeout of a request to an NRI plugin",
    also: ["plugin-requst-timeout"],
  }),
  synchronizeTimeoutMs: key("plugin-synchronize-timeout", k.duration(1), 30 * secondMs, {
    live: true,
    about: "timeout of the synchronization of an NRI plugin with all pods and containers",
  }),
  requiredPlugins: key("nri-required-plugins", k.texts, [], {
    live: true,
    about: "NRI plugins (`10-name` or `name`) without which no pod or container is created",
  }),
} as const;
