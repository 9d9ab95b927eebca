// Tests the choice of stream processors for a layer.
import { describe, expect, test } from "bun:test";
import { chooseDecoding, type LayerDescriptor } from "../../../src/layer/processor_choice.ts";

const processor = (accepts: string[], returns: string) => ({
  accepts,
  returns,
  path: `/bin/${returns}`,
  args: ["-x"],
  env: ["A=b"],
});
const options = {
  processors: {
    decrypt: processor(["tar+encrypted", "tar+enc"], "tar.lz"),
    unlz: processor(["tar.lz"], "tar"),
    ring: processor(["ring"], "ring"),
    half: processor(["x"], "x+encrypted"),
  },
  timeoutMs: 5,
};

function layer(mediaType: string, more: Partial<LayerDescriptor> = {}): LayerDescriptor {
  return { mediaType, digest: "sha256:d", size: 7, ...more };
}

describe("chooseDecoding()", () => {
  test("needs no program for a plain layer", () => {
    expect(chooseDecoding(layer("tar"), options)).toBeUndefined();
    expect(chooseDecoding(layer(""), { ...options, processors: {} })).toBeUndefined();
  });

  test.each(["tar+encrypted", "tar+enc"])("chains programs for %s by their media types", (type) => {
    const { steps, timeoutMs } = chooseDecoding(layer(type), options)!;
    expect(steps.map(({ name, mediaType, path }) => [name, mediaType, path])).toEqual([
      ["decrypt", type, "/bin/tar.lz"],
      ["unlz", "tar.lz", "/bin/tar"],
    ]);
    expect(timeoutMs).toBe(5);
  });

  test.each([
    ["an encrypted layer that no program accepts", "other+encrypted"],
    ["an old form of encryption", "other+enc"],
    ["a chain that ends encrypted", "x"],
  ])("refuses %s", (_, type) => {
    expect(() => chooseDecoding(layer(type), options)).toThrow("is encrypted");
  });

  test("refuses a cycle of programs", () => {
    expect(() => chooseDecoding(layer("ring"), options)).toThrow("more than 8 stream processors");
  });

  test("accepts a media type that merely contains +enc", () => {
    expect(chooseDecoding(layer("tar+encoded"), options)).toBeUndefined();
  });

  test.each([1, 500])(
    "passes the descriptor as a protobuf Any (annotation of %d bytes)",
    (size) => {
      const annotations = { key: "k".repeat(size) };
      const payload = chooseDecoding(layer("tar.lz", { annotations }), options)!.payload;
      const bytes = Buffer.from(payload, "base64");
      const url = "io.containerd.ocicrypt.v1.Payload";
      expect([bytes[0], bytes[1], bytes.toString("utf8", 2, 2 + url.length)]).toEqual([
        10,
        url.length,
        url,
      ]);
      let at = 2 + url.length;
      expect(bytes[at++]).toBe(18);
      let length = 0;
      for (let shift = 0; ; shift += 7) {
        const byte = bytes[at++]!;
        length |= (byte & 0x7f) << shift;
        if (byte < 0x80) break;
      }
      expect(length).toBe(bytes.length - at);
      expect(JSON.parse(bytes.toString("utf8", at))).toEqual({
        DecryptConfig: { Parameters: null },
        Descriptor: { mediaType: "tar.lz", digest: "sha256:d", size: 7, annotations },
      });
    },
  );
});
