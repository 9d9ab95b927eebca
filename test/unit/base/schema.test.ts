// Tests that the check of a hostile value ends at its first issue, in every kind of schema.
import { expect, test } from "bun:test";
import * as v from "valibot";
import {
  check,
  checked,
  mapOf,
  objectOf,
  parseAs,
  parseDocument,
} from "../../../src/base/schema.ts";
import { failure } from "../../expect.ts";

const count = 1_000;
const many = Array.from({ length: count }, (_, index) => index);
const map = Object.fromEntries(many.map((index) => [`k${index}`, index]));
let asked = 0;
const Refused = v.custom<string>(() => {
  asked++;
  return false;
}, "is refused");

test.each<[string, v.GenericSchema, unknown]>([
  ["a list", v.array(Refused), many],
  ["a map", mapOf(v.string(), Refused), map],
  ["a map by its keys", mapOf(v.pipe(v.string(), Refused), v.unknown()), map],
  ["an object", v.object(Object.fromEntries(many.map((index) => [`k${index}`, Refused]))), map],
  ["objects in a list", v.array(objectOf({ a: v.array(Refused) })), many.map(() => ({ a: many }))],
  ["a list behind a pipe", v.pipe(v.nullish(v.array(Refused), []), v.maxLength(127)), many],
  [
    "a list behind a transform",
    v.pipe(
      v.unknown(),
      v.transform((a) => a),
      v.array(Refused),
    ),
    many,
  ],
  ["a loose object", v.looseObject({ a: v.array(Refused) }), { a: many, ...map }],
  [
    "a variant",
    v.array(v.variant("k", [v.object({ k: v.literal(1), a: Refused })])),
    many.map(() => ({ k: 1, a: 1 })),
  ],
])("the check of %s stops at the first issue", (_, schema, value) => {
  asked = 0;
  expect(check(schema, value).issues).toHaveLength(1);
  expect(asked).toBe(1);
  expect(() => checked(schema, value)).toThrow("is refused");
  expect(() => parseAs(schema, value, "it")).toThrow("it is not valid");
  expect(asked).toBe(3);
});

test("each way of a union is tried up to its first issue", () => {
  asked = 0;
  expect(check(v.union([v.array(Refused), v.array(Refused)]), many).success).toBeFalse();
  expect(asked).toBeLessThanOrEqual(2);
});

test.each([
  ["[".repeat(100), "the config is nested deeper than 64 levels"],
  [`[${"0,".repeat(20_000)}0]`, "the config has more than 16384 items"],
  [" ".repeat((4 << 20) + 1), "the config is longer than 4194304 bytes"],
  ["{", "the config is not JSON"],
])("parseDocument() says which document exceeds which bound", async (text, message) => {
  const error = await failure(parseDocument(Buffer.from(text), "the config"));
  expect({ code: error.code, message: error.message }).toEqual({
    code: "INVALID_ARGUMENT",
    message,
  });
});
