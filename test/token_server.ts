// Runs a token service for docker-registry in tests, on a free port of loopback: it issues JSON Web Tokens
// that its certificate signs (distribution's docs/spec/auth/token.md and oauth.md).
import { createPrivateKey, randomUUID, sign, X509Certificate } from "node:crypto";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { Signed } from "./certificates.ts";

type Account = { user: string; password: string; refreshToken: string };

export const service = "test-registry";
export const issuer = "test-issuer";

export class TokenServer implements AsyncDisposable {
  readonly #server: Server;
  readonly #signed: Signed;
  readonly #account: Account;
  /** "GET" or "POST grant_type=…", in order. */
  readonly requests: string[] = [];

  private constructor(signed: Signed, account: Account) {
    this.#signed = signed;
    this.#account = account;
    this.#server = createServer((request, response) => void this.#answer(request, response));
  }

  static async start(signed: Signed, account: Account): Promise<TokenServer> {
    const server = new TokenServer(signed, account);
    await new Promise<void>((resolve) => server.#server.listen(0, "127.0.0.1", resolve));
    return server;
  }

  get host(): string {
    return `127.0.0.1:${(this.#server.address() as { port: number }).port}`;
  }

  /** For the registry's configuration; bundle: the file of the certificate's authority. */
  auth(bundle: string): object {
    const realm = `http://${this.host}/token`;
    return { token: { realm, service, issuer, rootcertbundle: bundle } };
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const url = new URL(request.url!, `http://${this.host}`);
    let form = url.searchParams;
    if (request.method === "POST") {
      let body = "";
      for await (const chunk of request) body += String(chunk);
      form = new URLSearchParams(body);
    }
    const grant = form.get("grant_type");
    this.requests.push(grant === null ? request.method! : `POST ${grant}`);
    const { user, password, refreshToken } = this.#account;
    const wanted = `Basic ${Buffer.from(`${user}:${password}`).toString("base64")}`;
    const isKnown =
      grant === "refresh_token"
        ? form.get("refresh_token") === refreshToken
        : request.headers.authorization === wanted;
    if (!isKnown || form.get("service") !== service) {
      response.writeHead(401, { "content-type": "application/json" });
      response.end('{"errors":[{"code":"UNAUTHORIZED","message":"who are you"}]}');
      return;
    }
    const [, name, actions] = /^repository:(.*):(.*)$/.exec(form.get("scope") ?? "") ?? [];
    const token = this.token(name ?? "", (actions ?? "").split(","));
    response.end(JSON.stringify(grant === null ? { token } : { access_token: token }));
  }

  token(name: string, actions: string[]): string {
    const nowS = Math.floor(Date.now() / 1000);
    const certificate = new X509Certificate(this.#signed.cert);
    const head = { typ: "JWT", alg: "ES256", x5c: [certificate.raw.toString("base64")] };
    const claims = {
      iss: issuer,
      sub: this.#account.user,
      aud: service,
      jti: randomUUID(),
      nbf: nowS - 60,
      iat: nowS - 60,
      exp: nowS + 600,
      access: [{ type: "repository", name, actions }],
    };
    const encode = (part: object) => Buffer.from(JSON.stringify(part)).toString("base64url");
    const text = `${encode(head)}.${encode(claims)}`;
    const key = createPrivateKey(this.#signed.key);
    const options = { key, dsaEncoding: "ieee-p1363" } as const;
    return `${text}.${sign("sha256", Buffer.from(text), options).toString("base64url")}`;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}
