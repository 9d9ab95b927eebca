// Defines 64-bit numbers in JSON records, as decimal text: JSON's own numbers are too small.
import * as v from "valibot";

export const Digits = v.pipe(v.string(), v.regex(/^\d{1,20}$/));
