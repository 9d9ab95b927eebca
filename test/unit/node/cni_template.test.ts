// Tests the rendering of CNI templates with the pod CIDR, as containerd does it.
import { describe, expect, test } from "bun:test";
import { renderCniTemplate } from "../../../src/node/cni_template.ts";
import { codeAndMessage } from "../../spec/inputs.ts";

const ranges = `"ranges": [{{range $i, $range := .PodCIDRRanges}}{{if $i}}, {{end}}[{"subnet": "{{$range}}"}]{{end}}]`;
const routes = `"routes": [{{ range $i, $route := .Routes }}{{ if $i }}, {{ end }}{"dst": "{{ $route }}"}{{ end }}]`;

describe("renderCniTemplate()", () => {
  test("renders the CIDR, ranges and routes as containerd does", () => {
    const both = ["10.1.0.0/24", "fd00::/64"];
    expect(renderCniTemplate('"subnet": "{{.PodCIDR}}"', both)).toBe('"subnet": "10.1.0.0/24"');
    expect(JSON.parse(`{${renderCniTemplate(`${ranges}, ${routes}`, both)}}`)).toEqual({
      ranges: [[{ subnet: "10.1.0.0/24" }], [{ subnet: "fd00::/64" }]],
      routes: [{ dst: "0.0.0.0/0" }, { dst: "::/0" }],
    });
    const two = ["10.1.0.0/24", "10.2.0.0/24"];
    expect(renderCniTemplate(routes, two)).toBe('"routes": [{"dst": "0.0.0.0/0"}]');
  });

  test("trims with {{- and -}}, and ranges without an index", () => {
    const text = "a\n  {{- range $x := .Routes -}}\n {{$x}} {{- end}}";
    expect(renderCniTemplate(text, ["::/0"])).toBe("a::/0");
  });

  test.each([
    ["{{.Nothing}}", "{{.Nothing}}"],
    ["{{range $i, $x := .PodCIDR}}{{end}}", ".PodCIDR"],
    ["{{if .PodCIDR}}", "{{end}} is missing"],
    ["{{end}}", "closes nothing"],
    ['{{template "x"}}', "template"],
    ["{{__proto__}}", "__proto__"],
  ])("%s is FAILED_PRECONDITION", (text, said) => {
    const message = codeAndMessage(() => renderCniTemplate(text, ["::/0"]));
    expect(message).toContain("FAILED_PRECONDITION");
    expect(message).toContain(said);
  });
});
