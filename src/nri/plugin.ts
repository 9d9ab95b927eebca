// Connects to one NRI plugin: its registration, subscribed events, calls and their statistics.
import type { Duplex } from "node:stream";
import { activity } from "../base/activity.ts";
import { version } from "../base/build.ts";
import { encodeMessage } from "../base/protobuf.ts";
import { CriError, messageOf } from "../base/errors.ts";
import { toLong } from "../base/int64.ts";
import { clip, quoted } from "../base/text.ts";
import { nri } from "../proto/nri.js";
import type {
  Container as NriContainer,
  FailurePolicy,
  PodSandbox as NriPod,
  UpdateContainersRequest,
  UpdateContainersResponse,
} from "../proto/nri_types.ts";
import { TtrpcConnection } from "../sys/ttrpc.ts";
import { NoAnswer } from "../sys/ttrpc_calls.ts";

const api = nri.pkg.api.v1alpha1;
const packageName = "nri.pkg.api.v1alpha1";
/** Version of proto/nri.proto. */
const nriVersion = "v0.12.5";
/** Longest last error that the list of plugins shows. */
const errorBytesMax = 500;

/** Events by name; an event's bit in the subscription mask is its number minus one. */
const events = {
  RunPodSandbox: api.Event.RUN_POD_SANDBOX,
  StopPodSandbox: api.Event.STOP_POD_SANDBOX,
  RemovePodSandbox: api.Event.REMOVE_POD_SANDBOX,
  CreateContainer: api.Event.CREATE_CONTAINER,
  PostCreateContainer: api.Event.POST_CREATE_CONTAINER,
  StartContainer: api.Event.START_CONTAINER,
  PostStartContainer: api.Event.POST_START_CONTAINER,
  UpdateContainer: api.Event.UPDATE_CONTAINER,
  PostUpdateContainer: api.Event.POST_UPDATE_CONTAINER,
  StopContainer: api.Event.STOP_CONTAINER,
  RemoveContainer: api.Event.REMOVE_CONTAINER,
  UpdatePodSandbox: api.Event.UPDATE_POD_SANDBOX,
  PostUpdatePodSandbox: api.Event.POST_UPDATE_POD_SANDBOX,
  ValidateContainerAdjustment: api.Event.VALIDATE_CONTAINER_ADJUSTMENT,
} as const;
export type EventName = keyof typeof events;

const allEvents = (1 << Object.keys(events).length) - 1;

/** Events that plugins of NRI before 0.12 receive as StateChange. */
const stateChanges: ReadonlySet<EventName> = new Set([
  "RunPodSandbox",
  "StopPodSandbox",
  "RemovePodSandbox",
  "PostCreateContainer",
  "StartContainer",
  "PostStartContainer",
  "PostUpdateContainer",
  "RemoveContainer",
  "PostUpdatePodSandbox",
]);

export type Subject = { pod?: NriPod; container?: NriContainer };

/** An event for several plugins, encoded once when the first plugin needs it. */
export class EventMessage {
  readonly name: EventName;
  readonly subject: Subject;
  readonly #encode: () => Uint8Array;
  #request: Uint8Array | undefined;
  #stateChange: Uint8Array | undefined;

  /** encode: request of the event's own method; by default it has only the subject. */
  constructor(name: EventName, subject: Subject, encode?: () => Uint8Array) {
    this.name = name;
    this.subject = subject;
    // All requests without further fields have these two, with the same numbers.
    this.#encode = encode ?? (() => encodeMessage(api.PostCreateContainerRequest, subject));
  }

  get request(): Uint8Array {
    return (this.#request ??= this.#encode());
  }

  /** The same for a plugin of NRI before 0.12. */
  get stateChange(): Uint8Array {
    return (this.#stateChange ??= encodeMessage(api.StateChangeEvent, {
      event: events[this.name],
      ...this.subject,
    }));
  }
}

/** Statistics of the calls of one method. */
export type Calls = { count: number; failed: number; totalMs: number; maxMs: number };

type Timeouts = {
  registrationTimeoutMs: number;
  requestTimeoutMs: number;
  synchronizeTimeoutMs: number;
};

type PluginOptions = {
  /** File of a launched plugin, which gives its index and name: "10-logger". */
  file?: { index: string; name: string };
  timeouts: Timeouts;
  /** Handles the plugin's unsolicited updates. */
  onUpdate: (plugin: Plugin, request: UpdateContainersRequest) => Promise<UpdateContainersResponse>;
  onClose: (plugin: Plugin, reason: string) => void;
};

export class Plugin {
  readonly kind: "launched" | "external";
  readonly calls = new Map<string, Calls>();
  readonly #connection: TtrpcConnection;
  readonly #options: PluginOptions;
  readonly #registered = Promise.withResolvers<void>();
  /** Methods that it answered with UNIMPLEMENTED. */
  readonly #unknown = new Set<string>();
  name: string;
  index: string;
  /** NRI version that it was built with; "" before 0.12, which does not report it. */
  version = "";
  #hasRegistered = false;
  #events = 0;
  policy: FailurePolicy = {};
  /** For the list of plugins. */
  lastError = "";
  inService = false;
  readonly #end = Promise.withResolvers<void>();

  constructor(socket: Duplex, options: PluginOptions) {
    this.#options = options;
    this.kind = options.file === undefined ? "external" : "launched";
    this.name = options.file?.name ?? "";
    this.index = options.file?.index ?? "";
    this.#registered.promise.catch(() => {}); // handled in begin()
    this.#connection = new TtrpcConnection(socket, {
      service: `${packageName}.Runtime`,
      serve: (method, payload) => this.#serve(method, payload),
      onClose: (reason) => {
        this.#registered.reject(new CriError("UNAVAILABLE", reason));
        this.#end.resolve();
        options.onClose(this, reason);
      },
    });
  }

  /** "10-logger", or a placeholder before an external plugin has registered. */
  get id(): string {
    return this.index === "" ? "(not registered)" : `${this.index}-${this.name}`;
  }

  get closed(): string | undefined {
    return this.#connection.closed;
  }

  /** Resolves when its connection has ended. */
  get whenClosed(): Promise<void> {
    return this.#end.promise;
  }

  wants(event: EventName): boolean {
    return (this.#events & (1 << (events[event] - 1))) !== 0;
  }

  eventNames(): EventName[] {
    return (Object.keys(events) as EventName[]).filter((event) => this.wants(event));
  }

  close(reason: string): void {
    this.failed(reason);
    this.#connection.close(reason);
  }

  failed(why: string): void {
    this.lastError = clip(why, errorBytesMax);
  }

  /**
   * Waits for the registration, then configures the plugin.
   * @throws CriError DEADLINE_EXCEEDED, UNAVAILABLE, INVALID_ARGUMENT for an invalid name, index or event
   * mask.
   */
  async begin(config: string): Promise<void> {
    const { registrationTimeoutMs, requestTimeoutMs } = this.#options.timeouts;
    const timer = setTimeout(() => {
      const text = `not registered within ${registrationTimeoutMs} ms`;
      this.#registered.reject(new CriError("DEADLINE_EXCEEDED", text));
    }, registrationTimeoutMs);
    await this.#registered.promise.finally(() => clearTimeout(timer));
    const request = encodeMessage(api.ConfigureRequest, {
      config,
      runtime_name: "isulad-ts",
      runtime_version: version,
      registration_timeout: toLong(registrationTimeoutMs),
      request_timeout: toLong(requestTimeoutMs),
      NRI_version: nriVersion,
    });
    const answer = await this.call("Configure", request);
    const { events: mask, failure_policy } = this.decoded(api.ConfigureResponse, answer);
    const unknown = (mask & ~allEvents) >>> 0;
    if (unknown !== 0) {
      const text = `subscribes to unknown events: 0x${unknown.toString(16)}`;
      throw new CriError("INVALID_ARGUMENT", text);
    }
    this.#events = mask || allEvents;
    this.policy = failure_policy ?? {};
  }

  /**
   * Sends all pods and containers; returns the plugin's updates.
   * messages: encoded SynchronizeRequests, all but the last with `more`.
   */
  async synchronize(messages: Uint8Array[]): Promise<nri.pkg.api.v1alpha1.SynchronizeResponse> {
    const { synchronizeTimeoutMs } = this.#options.timeouts;
    const end = performance.now() + synchronizeTimeoutMs;
    let response = new api.SynchronizeResponse();
    for (const [index, message] of messages.entries()) {
      const leftMs = Math.max(1, Math.round(end - performance.now()));
      const answer = await this.call("Synchronize", message, leftMs);
      response = this.decoded(api.SynchronizeResponse, answer);
      const isLast = index === messages.length - 1;
      if (!isLast && (!response.more || response.update.length > 0)) {
        throw new CriError(
          "FAILED_PRECONDITION",
          `the state needs ${messages.length} messages, but the plugin accepts only one (NRI before 0.7)`,
        );
      }
    }
    return response;
  }

  /**
   * Delivers an event by its own method, or as StateChange to old plugins. Returns the encoded response;
   * undefined: the plugin does not implement the event.
   */
  async event(message: EventMessage): Promise<Uint8Array | undefined> {
    const { name } = message;
    if (!this.#unknown.has(name)) {
      try {
        return await this.call(name, message.request);
      } catch (error) {
        unknownMethod(error);
        this.#unknown.add(name);
      }
    }
    if (stateChanges.has(name)) await this.call("StateChange", message.stateChange);
    return undefined;
  }

  /** @throws NoAnswer; CriError with the plugin's error. */
  async call(
    method: string,
    payload: Uint8Array,
    timeoutMs = this.#options.timeouts.requestTimeoutMs,
  ): Promise<Uint8Array> {
    const begin = performance.now();
    const calls = this.calls.get(method) ?? { count: 0, failed: 0, totalMs: 0, maxMs: 0 };
    this.calls.set(method, calls);
    calls.count++;
    let answer: Uint8Array | CriError;
    try {
      answer = await activity("nri", { plugin: this.id, method }, () =>
        this.#connection
          .call(`${packageName}.Plugin`, method, payload, timeoutMs)
          .catch(unknownMethod),
      );
    } catch (error) {
      calls.failed++;
      this.failed(messageOf(error));
      throw error;
    } finally {
      const ms = performance.now() - begin;
      calls.totalMs += ms;
      calls.maxMs = Math.max(calls.maxMs, ms);
    }
    if (answer instanceof CriError) throw answer;
    return answer;
  }

  /** @throws NoAnswer if the answer cannot be decoded: nothing from the plugin can be trusted then. */
  decoded<Message>(type: { decode(bytes: Uint8Array): Message }, bytes: Uint8Array): Message {
    try {
      return type.decode(bytes);
    } catch (cause) {
      throw new NoAnswer("UNAVAILABLE", `cannot decode the answer: ${messageOf(cause)}`, { cause });
    }
  }

  async #serve(method: string, payload: Uint8Array): Promise<Uint8Array> {
    switch (method) {
      case "RegisterPlugin":
        this.#register(api.RegisterPluginRequest.decode(payload));
        return new Uint8Array();
      case "UpdateContainers": {
        // From its registration on, as with containerd: it may ask for updates while it is synchronized, or right after
        // its answer.
        if (!this.#hasRegistered) {
          throw new CriError("FAILED_PRECONDITION", "the plugin is not registered yet");
        }
        const request = api.UpdateContainersRequest.decode(payload);
        const response = await this.#options.onUpdate(this, request);
        return encodeMessage(api.UpdateContainersResponse, response);
      }
      default:
        throw new CriError("UNIMPLEMENTED", `Runtime has no method ${method}`);
    }
  }

  #register(request: nri.pkg.api.v1alpha1.RegisterPluginRequest): void {
    if (this.#hasRegistered) {
      throw new CriError("FAILED_PRECONDITION", "the plugin is already registered");
    }
    if (this.kind === "external") {
      const { plugin_idx, plugin_name } = request;
      try {
        checkIdentity(plugin_idx, plugin_name);
      } catch (error) {
        this.#registered.reject(error);
        throw error;
      }
      [this.index, this.name] = [plugin_idx, plugin_name];
    }
    this.version = request.NRI_version;
    this.#hasRegistered = true;
    this.#registered.resolve();
  }
}

/**
 * Returns the error of a plugin that does not implement a method: no failure, since one of NRI before 0.12 is asked by
 * each method once, and an alert counts failures. @throws any other error.
 */
function unknownMethod(error: unknown): CriError {
  const isUnknown = error instanceof CriError && error.code === "UNIMPLEMENTED";
  if (isUnknown && !(error instanceof NoAnswer)) return error;
  throw error;
}

/** @throws CriError INVALID_ARGUMENT for an index that is not two digits, or an invalid name. */
export function checkIdentity(index: string, name: string): void {
  if (!/^\d\d$/.test(index)) {
    const text = `plugin index ${quoted(index, 40)} is not two digits`;
    throw new CriError("INVALID_ARGUMENT", text);
  }
  if (!/^[A-Za-z0-9_.+-]{1,128}$/.test(name)) {
    const text = `plugin name ${quoted(name)} must consist of 1 to 128 letters, digits, _ . + and -`;
    throw new CriError("INVALID_ARGUMENT", text);
  }
}
