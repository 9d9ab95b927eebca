// Speaks SPDY/3.1 as Kubernetes does: streams over one connection, without the protocol's flow control for
// each stream, which Kubernetes' library never implemented. A stream that nobody reads therefore blocks the
// whole connection when its queue is full, as at the other end.
import { PeerTurn } from "../base/time_slices.ts";
import type { Wire } from "./byte_stream.ts";
import { ChunkQueue, QueueBudget } from "./chunk_queue.ts";
import { FramePace } from "./frame_pace.ts";
import * as f from "./spdy_frames.ts";
import { HeaderReader, HeaderWriter, type Headers } from "./spdy_headers.ts";
import { pingWhileStalled } from "./stall_ping.ts";

const PROTOCOL_ERROR = 1;
const REFUSED_STREAM = 3;
const CANCEL = 5;
/** Open streams of a connection. */
const streamsMax = 1000;
/** Bytes of the headers of open streams, after decompression; those of Kubernetes have about 100 each. */
const headerBytesMax = 256 << 10;
/** Bytes that the queues of all streams hold: as much as eight streams that nobody reads. */
const queuedBytesMax = 2 << 20;
/** A header block takes the time of this many frames that carry nothing, and one more for each of these bytes. */
const blockFrames = 3;
const frameOfBytes = 256;

export class SpdyStream {
  readonly id: number;
  readonly headers: Headers;
  readonly inbox: ChunkQueue;
  readonly headerBytes: number;
  readonly #session: SpdySession;
  /** The peer has half-closed the stream. */
  peerEnded = false;
  readonly #broken = new AbortController();
  #ended = false;

  constructor(id: number, headers: Headers, session: SpdySession) {
    this.id = id;
    this.headers = headers;
    this.headerBytes = bytesOf(headers);
    this.inbox = new ChunkQueue(session.budget);
    this.#session = session;
  }

  /** Aborts when the stream is reset or the connection is lost. */
  get gone(): AbortSignal {
    return this.#broken.signal;
  }

  /** Yields the peer's data to its end. For one reader. */
  chunks(): AsyncGenerator<Buffer> {
    return this.inbox.chunks();
  }

  /** @throws when the connection or this stream has ended. */
  async write(bytes: Uint8Array): Promise<void> {
    if (this.#ended) throw new Error(`SPDY stream ${this.id} has ended`);
    await this.#session.wire.send(f.dataHead(this.id, bytes.length, false), bytes);
  }

  /** Half-closes the stream. */
  async end(): Promise<void> {
    if (this.#ended) return;
    this.#ended = true;
    await this.#session.wire.send(f.dataHead(this.id, 0, true));
    this.settle();
  }

  /** Ends the stream in both directions, and discards what the peer has sent. */
  async reset(): Promise<void> {
    const over = this.#ended && this.peerEnded;
    this.inbox.discard();
    this.close();
    if (!over) await this.#session.wire.send(f.controlFrame(f.RST_STREAM, [this.id, CANCEL]));
  }

  /** Ends the stream without notifying the peer, which has reset it, or has disconnected. */
  close(): void {
    this.#ended = true;
    this.peerEnded = true;
    this.inbox.end();
    this.settle();
    this.#broken.abort();
  }

  /** Leaves the session once both sides have ended the stream. */
  settle(): void {
    if (this.#ended && this.peerEnded) this.#session.forget(this.id);
  }
}

export class SpdySession {
  readonly wire: Wire;
  readonly budget = new QueueBudget(queuedBytesMax);
  #headerBytes = 0;
  readonly #streams = new Map<number, SpdyStream>();
  readonly #replies = new Map<number, PromiseWithResolvers<void>>();
  readonly #writer = new HeaderWriter();
  readonly #onStream: (stream: SpdyStream) => void;
  readonly #pace = new FramePace();
  /** run() has returned. */
  #hasEnded = false;
  #lastOpened = -1;
  #lastPeerId = 0;
  #pings = 0;

  /** onStream: called for each stream that the peer opens. */
  constructor(wire: Wire, onStream: (stream: SpdyStream) => void) {
    this.wire = wire;
    this.#onStream = onStream;
  }

  /** Serves the connection to its end. @throws for a protocol violation. */
  async run(): Promise<void> {
    using headers = new HeaderReader();
    const reader = new f.FrameReader();
    const turn = new PeerTurn();
    try {
      for await (const chunk of this.wire.chunks()) {
        for (const frame of reader.push(chunk)) {
          if (turn.isOver) await turn.next();
          await this.#take(frame, headers);
        }
      }
    } catch (error) {
      await this.goAway(PROTOCOL_ERROR).catch(() => {});
      throw error;
    } finally {
      this.#hasEnded = true;
      for (const stream of this.#streams.values()) stream.close();
      for (const reply of this.#replies.values()) reply.reject(connectionEnded());
    }
  }

  /** As the client: opens a stream and waits until the peer accepts it. */
  async open(headers: Headers): Promise<SpdyStream> {
    if (this.#hasEnded) throw connectionEnded();
    this.#lastOpened += 2;
    const stream = new SpdyStream(this.#lastOpened, headers, this);
    this.#add(stream);
    const reply = Promise.withResolvers<void>();
    this.#replies.set(stream.id, reply);
    try {
      await this.wire.send(f.openingFrame(stream.id, this.#writer.block(headers)));
      await reply.promise;
    } finally {
      this.#replies.delete(stream.id);
    }
    return stream;
  }

  /** Refuses further streams; open ones go on. */
  async goAway(status = 0): Promise<void> {
    await this.wire.send(f.controlFrame(f.GOAWAY, [this.#lastPeerId, status]));
  }

  get #isClient(): boolean {
    return this.#lastOpened > 0;
  }

  /** The client's ids are odd. */
  #nextPing(): number {
    this.#pings += 2;
    return this.#pings - (this.#isClient ? 1 : 0);
  }

  #add(stream: SpdyStream): void {
    this.#streams.set(stream.id, stream);
    this.#headerBytes += stream.headerBytes;
  }

  forget(id: number): void {
    const stream = this.#streams.get(id);
    if (stream === undefined) return;
    this.#streams.delete(id);
    this.#headerBytes -= stream.headerBytes;
  }

  async #take(frame: f.Frame, headers: HeaderReader): Promise<void> {
    const stream = frame.type === "data" ? this.#streams.get(frame.stream) : undefined;
    if (stream?.inbox.takes !== true && this.#pace.isSpent()) await this.#pace.rest();
    if (frame.type === "control") return this.#control(frame, headers);
    if (stream === undefined) return; // it was closed while this frame was under way
    if (frame.bytes.length > 0) {
      using _ = pingWhileStalled(() => this.wire.send(f.controlFrame(f.PING, [this.#nextPing()])));
      await stream.inbox.put(frame.bytes);
    }
    if (frame.fin) onPeerEnd(stream);
  }

  async #control(
    { kind, flags, payload }: Extract<f.Frame, { type: "control" }>,
    headers: HeaderReader,
  ): Promise<void> {
    switch (kind) {
      case f.SYN_STREAM: {
        const id = idOf(payload);
        await this.#opened(id, await this.#headers(payload.subarray(10), headers));
        const stream = this.#streams.get(id);
        if (stream !== undefined && (flags & f.FLAG_FIN) !== 0) onPeerEnd(stream);
        return;
      }
      case f.SYN_REPLY:
      case f.HEADERS: {
        await this.#headers(payload.subarray(4), headers); // all blocks are one compressed stream: none may be skipped
        if (kind === f.SYN_REPLY) this.#replies.get(idOf(payload))?.resolve();
        return;
      }
      case f.RST_STREAM: {
        const id = idOf(payload);
        this.#replies.get(id)?.reject(new Error(`the peer refused SPDY stream ${id}`));
        this.#streams.get(id)?.close();
        return;
      }
      case f.PING:
        if (idOf(payload) % 2 !== (this.#isClient ? 1 : 0)) {
          await this.wire.send(f.controlFrame(f.PING, [payload.readUInt32BE(0)]));
        }
    }
  }

  async #headers(block: Buffer, reader: HeaderReader): Promise<Headers> {
    const headers = await reader.read(block);
    const frames = blockFrames + Math.ceil(reader.blockBytes / frameOfBytes);
    if (this.#pace.isSpent(frames)) await this.#pace.rest();
    return headers;
  }

  async #opened(id: number, headers: Headers): Promise<void> {
    if (id <= this.#lastPeerId) throw new Error(`SPDY stream ${id} after ${this.#lastPeerId}`);
    this.#lastPeerId = id;
    const isFull = this.#headerBytes + bytesOf(headers) > headerBytesMax;
    if (this.#streams.size >= streamsMax || isFull) {
      return this.wire.send(f.controlFrame(f.RST_STREAM, [id, REFUSED_STREAM]));
    }
    const stream = new SpdyStream(id, headers, this);
    this.#add(stream);
    await this.wire.send(f.controlFrame(f.SYN_REPLY, [id], this.#writer.block({})));
    this.#onStream(stream);
  }
}

function bytesOf(headers: Headers): number {
  return Object.entries(headers).reduce(
    (sum, [name, value]) => sum + name.length + value.length,
    0,
  );
}

function connectionEnded(): Error {
  return new Error("the connection has ended");
}

function onPeerEnd(stream: SpdyStream): void {
  stream.peerEnded = true;
  stream.inbox.end();
  stream.settle();
}

function idOf(payload: Buffer): number {
  return payload.readUInt32BE(0) & 0x7fffffff;
}
