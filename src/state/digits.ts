// Defines the schema of 64-bit numbers in records: decimal text, since JSON's readers keep only 53 bits.
import * as v from "valibot";

export const Digits = v.pipe(v.string(), v.regex(/^\d{1,20}$/));
