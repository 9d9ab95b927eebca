// Makes certificates for tests with openssl: an authority and certificates signed by it.
import { execFileSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

export type Signed = { cert: string; key: string };

const newKey = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];

function openssl(...args: (string | string[])[]): void {
  execFileSync("openssl", args.flat(), { stdio: ["ignore", "ignore", "ignore"] });
}

/** Writes NAME.pem and NAME.key of the authority and of each signed certificate to a folder. */
export class Authority {
  readonly #dir: string;
  readonly #name: string;
  readonly pem: string;

  constructor(dir: string, name = "ca") {
    this.#dir = dir;
    this.#name = name;
    const [cert, key] = this.#files(name);
    const extension = "basicConstraints=critical,CA:TRUE";
    openssl(
      ["req", "-x509", ...newKey, "-days", "2", "-subj", `/CN=${name}`],
      ["-keyout", key, "-out", cert, "-addext", extension],
    );
    this.pem = readFileSync(cert, "utf8");
  }

  /** names: as in a subjectAltName, "IP:127.0.0.1,DNS:registry.test". subject: as openssl takes it. */
  sign(name: string, names: string, subject = `/CN=${name}`): Signed {
    const [cert, key] = this.#files(name);
    const [request, extensions] = [join(this.#dir, `${name}.csr`), join(this.#dir, `${name}.ext`)];
    writeFileSync(extensions, `subjectAltName=${names}\n`);
    openssl("req", newKey, "-subj", subject, "-keyout", key, "-out", request);
    const [caCert, caKey] = this.#files(this.#name);
    openssl(
      ["x509", "-req", "-in", request, "-CA", caCert, "-CAkey", caKey, "-CAcreateserial"],
      ["-days", "2", "-extfile", extensions, "-out", cert],
    );
    return { cert: readFileSync(cert, "utf8"), key: readFileSync(key, "utf8") };
  }

  #files(name: string): [string, string] {
    return [join(this.#dir, `${name}.pem`), join(this.#dir, `${name}.key`)];
  }
}
