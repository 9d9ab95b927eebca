// Makes images for tests from this machine's busybox: tar streams (hostile entries included), OCI images and
// their archives. Pushes them to a registry.
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { spawnSync } from "node:child_process";
import { gunzipSync, gzipSync } from "node:zlib";

export type TarEntry = {
  name: string;
  /** ustar type flag: "0" file, "1" hard link, "2" symlink, "3" char, "4" block, "5" folder, "6" FIFO. */
  type?: string;
  mode?: number;
  uid?: number;
  gid?: number;
  data?: string | Uint8Array;
  link?: string;
  major?: number;
  minor?: number;
  /** Seconds since the epoch. */
  mtime?: number;
  /** Extended header records, for example "SCHILY.xattr.user.a". */
  pax?: Record<string, string | Uint8Array>;
  /** Changes the header before its checksum is computed. */
  patch?: (header: Buffer) => void;
};

export type Blob = {
  mediaType: string;
  digest: string;
  size: number;
  bytes: Uint8Array;
  annotations?: Record<string, string>;
};
export type Layer = Blob & { diffId: string };
export type Platform = { os: string; architecture: string; variant?: string };

export type ImageSettings = {
  Env?: string[];
  Entrypoint?: string[];
  Cmd?: string[];
  User?: string;
  WorkingDir?: string;
  StopSignal?: string;
  Volumes?: Record<string, object>;
  Labels?: Record<string, string>;
  ExposedPorts?: Record<string, object>;
};

export type TestImage = { config: Blob; layers: Layer[]; manifest: Blob; platform: Platform };

export type Compression = "gzip" | "none";

export const mediaTypes = {
  index: "application/vnd.oci.image.index.v1+json",
  manifest: "application/vnd.oci.image.manifest.v1+json",
  config: "application/vnd.oci.image.config.v1+json",
  layer: "application/vnd.oci.image.layer.v1.tar",
} as const;

export function sha256(bytes: Uint8Array | string): string {
  return `sha256:${createHash("sha256").update(bytes).digest("hex")}`;
}

export function blob(mediaType: string, data: Uint8Array | string): Blob {
  const bytes = typeof data === "string" ? Buffer.from(data) : data;
  return { mediaType, bytes, size: bytes.length, digest: sha256(bytes) };
}

/** This machine's platform, as in image configs. */
export function hostPlatform(): Platform {
  return { os: "linux", architecture: process.arch === "arm64" ? "arm64" : "amd64" };
}

// -- tar ------------------------------------------------------------------------------------------

/** Makes a complete tar stream. Long names and pax records get an extended header. */
export function tar(entries: TarEntry[]): Buffer {
  const parts: Buffer[] = [];
  for (const entry of entries) {
    const pax = { ...entry.pax };
    if (Buffer.byteLength(entry.name) > 100) pax["path"] ??= entry.name;
    if (Buffer.byteLength(entry.link ?? "") > 100) pax["linkpath"] ??= entry.link!;
    if (Object.keys(pax).length > 0) {
      const records = Object.entries(pax).map(([key, value]) => paxRecord(key, value));
      parts.push(tarEntry({ name: "pax", type: "x", data: Buffer.concat(records) }));
    }
    parts.push(tarEntry(entry));
  }
  parts.push(Buffer.alloc(1024));
  return Buffer.concat(parts);
}

/** Makes "LEN key=value\n", where LEN includes itself. */
function paxRecord(key: string, value: string | Uint8Array): Buffer {
  const rest = Buffer.concat([Buffer.from(` ${key}=`), Buffer.from(value), Buffer.from("\n")]);
  let length = rest.length + 1;
  while (String(length).length + rest.length !== length) {
    length = String(length).length + rest.length;
  }
  return Buffer.concat([Buffer.from(String(length)), rest]);
}

function tarEntry(entry: TarEntry): Buffer {
  const type = entry.type ?? "0";
  const data = Buffer.from(entry.data ?? "");
  const header = Buffer.alloc(512);
  const octal = (value: number, at: number, width: number) =>
    header.write(value.toString(8).padStart(width - 1, "0"), at, width - 1, "latin1");
  header.write(entry.name, 0, 100);
  octal(entry.mode ?? (type === "5" ? 0o755 : 0o644), 100, 8);
  octal(entry.uid ?? 0, 108, 8);
  octal(entry.gid ?? 0, 116, 8);
  octal(data.length, 124, 12);
  octal(entry.mtime ?? 1_700_000_000, 136, 12);
  header.write(type, 156, 1, "latin1");
  header.write(entry.link ?? "", 157, 100);
  header.write("ustar\x0000", 257, 8, "latin1");
  octal(entry.major ?? 0, 329, 8);
  octal(entry.minor ?? 0, 337, 8);
  entry.patch?.(header);
  header.fill(" ", 148, 156);
  let sum = 0;
  for (const byte of header) sum += byte;
  header.write(`${sum.toString(8).padStart(6, "0")}\0 `, 148, 8, "latin1");
  return Buffer.concat([header, data, Buffer.alloc((512 - (data.length % 512)) % 512)]);
}

// -- images ---------------------------------------------------------------------------------------

export function makeLayer(content: TarEntry[] | Uint8Array, compression: Compression = "gzip") {
  const bytes = Array.isArray(content) ? tar(content) : content;
  const packed = compression === "gzip" ? gzipSync(bytes, { level: 1 }) : bytes;
  const mediaType = compression === "gzip" ? `${mediaTypes.layer}+gzip` : mediaTypes.layer;
  const layer: Layer = { ...blob(mediaType, packed), diffId: sha256(bytes) };
  return layer;
}

export function makeImage(
  layers: Layer[],
  settings: ImageSettings = {},
  platform: Platform = hostPlatform(),
): TestImage {
  const config = blob(
    mediaTypes.config,
    JSON.stringify({
      ...platform,
      created: "2024-01-01T00:00:00Z",
      config: settings,
      rootfs: { type: "layers", diff_ids: layers.map((layer) => layer.diffId) },
    }),
  );
  const manifest = blob(
    mediaTypes.manifest,
    JSON.stringify({
      schemaVersion: 2,
      mediaType: mediaTypes.manifest,
      config: descriptor(config),
      layers: layers.map(descriptor),
    }),
  );
  return { config, layers, manifest, platform };
}

export function descriptor({ mediaType, digest, size, annotations }: Blob): object {
  return { mediaType, digest, size, annotations };
}

/** Makes an index of images for several platforms. */
export function makeIndex(images: TestImage[]): Blob {
  return blob(
    mediaTypes.index,
    JSON.stringify({
      schemaVersion: 2,
      mediaType: mediaTypes.index,
      manifests: images.map((image) => ({
        ...descriptor(image.manifest),
        platform: image.platform,
      })),
    }),
  );
}

const passwd = `root:x:0:0:root:/root:/bin/sh
daemon:x:1:1:daemon:/usr/sbin:/bin/false
www-data:x:33:33:www-data:/var/www:/bin/false
user:x:1000:1000:user:/home/user:/bin/sh
nobody:x:65534:65534:nobody:/home:/bin/false
`;
const group = `root:x:0:
daemon:x:1:
www-data:x:33:
users:x:100:user
user:x:1000:
extra:x:50000:user
nogroup:x:65534:
`;

/** Makes a root file system of this machine's static busybox; each applet is a hard link in /bin. */
export function busyboxEntries(busybox = "/bin/busybox"): TarEntry[] {
  const listed = spawnSync(busybox, ["--list"], { encoding: "utf8" });
  if (listed.status !== 0) throw new Error(`${busybox} --list failed: install busybox-static`);
  const applets = listed.stdout.split("\n").filter((name) => name !== "" && name !== "busybox");
  const folders = ["bin", "dev", "etc", "home", "proc", "sys", "usr", "usr/bin", "var", "run"];
  return [
    ...folders.map((name) => ({ name: `${name}/`, type: "5" })),
    { name: "root/", type: "5", mode: 0o700 },
    { name: "tmp/", type: "5", mode: 0o1777 },
    { name: "home/user/", type: "5", uid: 1000, gid: 1000 },
    { name: "etc/passwd", data: passwd },
    { name: "etc/group", data: group },
    { name: "bin/busybox", mode: 0o755, data: readFileSync(busybox) },
    ...applets.map((name) => ({
      name: `bin/${name}`,
      type: "1",
      mode: 0o755,
      link: "bin/busybox",
    })),
  ];
}

/** Makes a busybox image as on Docker Hub, which runs `sh`. Extra entries make a second layer. */
export function busyboxImage(settings: ImageSettings = {}, extra: TarEntry[] = []): TestImage {
  const layers = [makeLayer(busyboxEntries())];
  if (extra.length > 0) layers.push(makeLayer(extra));
  const defaults = { Env: ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"], Cmd: ["sh"] };
  return makeImage(layers, { ...defaults, ...settings });
}

// -- archives -------------------------------------------------------------------------------------

export type NamedImage = { image: TestImage; name?: string };

function ociFiles(images: NamedImage[]): Map<string, Uint8Array> {
  const files = new Map<string, Uint8Array>();
  const path = (digest: string) => `blobs/${digest.replace(":", "/")}`;
  files.set("oci-layout", Buffer.from('{"imageLayoutVersion":"1.0.0"}'));
  const manifests = images.map(({ image, name }) => {
    for (const part of [image.manifest, image.config, ...image.layers]) {
      files.set(path(part.digest), part.bytes);
    }
    const annotations = {
      "io.containerd.image.name": name,
      "org.opencontainers.image.ref.name": name?.split(":").at(-1),
    };
    return { ...descriptor(image.manifest), platform: image.platform, annotations };
  });
  const index = { schemaVersion: 2, mediaType: mediaTypes.index, manifests };
  files.set("index.json", Buffer.from(JSON.stringify(index)));
  return files;
}

function archive(files: Map<string, Uint8Array>): Buffer {
  return tar([...files].map(([name, data]) => ({ name, data })));
}

/** Makes an OCI archive (a tar of an OCI layout). */
export function ociArchive(images: NamedImage[]): Buffer {
  return archive(ociFiles(images));
}

export async function writeOciLayout(folder: string, images: NamedImage[]): Promise<void> {
  for (const [name, data] of ociFiles(images)) {
    await mkdir(join(folder, name, ".."), { recursive: true });
    await writeFile(join(folder, name), data);
  }
}

/** Makes an archive of the older form of `docker save`, with uncompressed layers. */
export function dockerArchive(images: NamedImage[]): Buffer {
  const files = new Map<string, Uint8Array>();
  const manifest = images.map(({ image, name }) => {
    const config = `${image.config.digest.slice(7)}.json`;
    files.set(config, image.config.bytes);
    const layers = image.layers.map((layer) => {
      const path = `${layer.diffId.slice(7)}/layer.tar`;
      files.set(path, layer.mediaType.endsWith("gzip") ? gunzipSync(layer.bytes) : layer.bytes);
      return path;
    });
    return { Config: config, RepoTags: name === undefined ? [] : [name], Layers: layers };
  });
  files.set("manifest.json", Buffer.from(JSON.stringify(manifest)));
  return archive(files);
}

// -- push -----------------------------------------------------------------------------------------

export type PushTarget = {
  /** For example "http://127.0.0.1:5000". */
  registry: string;
  /** For example "library/busybox". */
  repository: string;
  /** Value of the Authorization header. */
  authorization?: string;
  /** Certificate authority of an https registry, as PEM. */
  ca?: string;
};

/** Uploads config, layers, and the manifest under the tag. */
export async function pushImage(target: PushTarget, tag: string, image: TestImage): Promise<void> {
  for (const part of [image.config, ...image.layers]) await pushBlob(target, part);
  await pushManifest(target, tag, image.manifest);
}

/** Uploads the images, and their index under the tag; returns the index. */
export async function pushIndex(
  target: PushTarget,
  tag: string,
  images: TestImage[],
): Promise<Blob> {
  for (const image of images) await pushImage(target, image.manifest.digest, image);
  const index = makeIndex(images);
  await pushManifest(target, tag, index);
  return index;
}

export async function pushManifest(target: PushTarget, tag: string, manifest: Blob): Promise<void> {
  await request(target, `/v2/${target.repository}/manifests/${tag}`, {
    method: "PUT",
    headers: { "content-type": manifest.mediaType },
    body: manifest.bytes as Uint8Array<ArrayBuffer>,
  });
}

async function pushBlob(target: PushTarget, part: Blob): Promise<void> {
  const started = await request(target, `/v2/${target.repository}/blobs/uploads/`, {
    method: "POST",
  });
  const location = new URL(started.headers.get("location") ?? "", target.registry);
  location.searchParams.set("digest", part.digest);
  await request(target, location.href, {
    method: "PUT",
    headers: { "content-type": "application/octet-stream" },
    body: part.bytes as Uint8Array<ArrayBuffer>,
  });
}

async function request(target: PushTarget, path: string, init: RequestInit): Promise<Response> {
  const headers = new Headers(init.headers);
  if (target.authorization !== undefined) headers.set("authorization", target.authorization);
  const tls = target.ca === undefined ? {} : { tls: { ca: target.ca } };
  const response = await fetch(new URL(path, target.registry), { ...init, headers, ...tls });
  const body = await response.text();
  if (!response.ok) throw new Error(`${init.method} ${path}: ${response.status} ${body}`);
  return response;
}
