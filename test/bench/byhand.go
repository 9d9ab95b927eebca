package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// byHand starts pods as a person with a shell would, every step after the one before: unshare(1),
// the plugins of the daemon's own CNI list, an overlay, runc create and runc start.
type byHand struct {
	network struct {
		CNIVersion string           `json:"cniVersion"`
		Name       string           `json:"name"`
		Plugins    []map[string]any `json:"plugins"`
	}
	spec map[string]any
	seq  int
}

type handPod struct {
	id, dir string
	pid     int
	result  json.RawMessage
}

func newByHand() *byHand {
	h := &byHand{}
	check(json.Unmarshal(must(os.ReadFile(*conflist)), &h.network))
	check(json.Unmarshal(must(os.ReadFile(*template)), &h.spec))
	// Whoever started a container sees its end: as the daemon does.
	check(unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	return h
}

func run(stdin []byte, env []string, argv ...string) []byte {
	c := exec.Command(argv[0], argv[1:]...)
	c.Env = append(os.Environ(), env...)
	var out, errs bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(stdin), &out, &errs
	if err := c.Run(); err != nil {
		check(fmt.Errorf("%s: %w: %s%s", strings.Join(argv, " "), err, out.String(), errs.String()))
	}
	return out.Bytes()
}

func (h *byHand) plugin(command string, conf map[string]any, p *handPod, ifname string) []byte {
	conf = copied(conf)
	conf["cniVersion"], conf["name"] = h.network.CNIVersion, h.network.Name
	delete(conf, "capabilities")
	if p.result != nil {
		conf["prevResult"] = p.result
	}
	env := []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + p.id, "CNI_NETNS=" + p.file("net"),
		"CNI_IFNAME=" + ifname, "CNI_PATH=" + *plugins}
	return run(must(json.Marshal(conf)), env, filepath.Join(*plugins, conf["type"].(string)))
}

func copied(m map[string]any) map[string]any {
	c := map[string]any{}
	for k, v := range m {
		c[k] = v
	}
	return c
}

func (p *handPod) file(name string) string { return filepath.Join(p.dir, name) }

func (h *byHand) start(cmd ...string) *handPod {
	h.seq++
	p := &handPod{id: fmt.Sprintf("byhand-%d-%d", os.Getpid(), h.seq)}
	p.dir = filepath.Join(*scratch, p.id)
	for _, name := range []string{"upper", "work", "rootfs"} {
		check(os.MkdirAll(p.file(name), 0o755))
	}
	for _, name := range []string{"net", "ipc", "uts"} {
		check(os.WriteFile(p.file(name), nil, 0o600))
	}
	run(nil, nil, "unshare", "--net="+p.file("net"), "--ipc="+p.file("ipc"), "--uts="+p.file("uts"), "hostname", p.id)
	h.plugin("ADD", map[string]any{"type": "loopback"}, p, "lo")
	for _, conf := range h.network.Plugins {
		p.result = h.plugin("ADD", conf, p, "eth0")
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", *lower, p.file("upper"), p.file("work"))
	check(unix.Mount("overlay", p.file("rootfs"), "overlay", 0, options))
	check(os.WriteFile(p.file("config.json"), must(json.Marshal(h.specFor(p, cmd))), 0o600))
	out := must(os.Create(p.file("out")))
	defer out.Close()
	c := exec.Command("runc", "create", "--bundle", p.dir, "--pid-file", p.file("pid"), p.id)
	c.Stdout, c.Stderr = out, out
	if err := c.Run(); err != nil {
		check(fmt.Errorf("runc create: %w: %s", err, must(os.ReadFile(p.file("out")))))
	}
	p.pid = must(strconv.Atoi(string(must(os.ReadFile(p.file("pid"))))))
	run(nil, nil, "runc", "start", p.id)
	return p
}

// specFor is the daemon's own spec with other paths: the same mounts, filter and limits.
func (h *byHand) specFor(p *handPod, cmd []string) map[string]any {
	spec := copied(h.spec)
	process := copied(spec["process"].(map[string]any))
	process["args"], process["terminal"] = cmd, false
	spec["process"] = process
	spec["root"] = map[string]any{"path": p.file("rootfs")}
	linux := copied(spec["linux"].(map[string]any))
	linux["cgroupsPath"] = *parent + "/" + p.id
	var namespaces []any
	for _, one := range linux["namespaces"].([]any) {
		namespace := copied(one.(map[string]any))
		if _, joined := namespace["path"]; joined {
			short := map[string]string{"network": "net", "ipc": "ipc", "uts": "uts"}
			namespace["path"] = p.file(short[namespace["type"].(string)])
		}
		namespaces = append(namespaces, namespace)
	}
	linux["namespaces"] = namespaces
	spec["linux"] = linux
	delete(spec, "hooks")
	return spec
}

func (h *byHand) stop(p *handPod) {
	run(nil, nil, "runc", "kill", p.id, "KILL")
	var status syscall.WaitStatus
	must(syscall.Wait4(p.pid, &status, 0, nil))
	run(nil, nil, "runc", "delete", p.id)
	for i := len(h.network.Plugins) - 1; i >= 0; i-- {
		h.plugin("DEL", h.network.Plugins[i], p, "eth0")
	}
	p.result = nil
	h.plugin("DEL", map[string]any{"type": "loopback"}, p, "lo")
	check(unix.Unmount(p.file("rootfs"), 0))
	for _, name := range []string{"net", "ipc", "uts"} {
		check(unix.Unmount(p.file(name), 0))
	}
	check(os.RemoveAll(p.dir))
}

func (h *byHand) pods() (ready, gone []float64) {
	for range *pods {
		t := time.Now()
		p := h.start("sleep", "3600")
		t1 := time.Now()
		h.stop(p)
		ready, gone = append(ready, ms(t1.Sub(t))), append(gone, ms(time.Since(t1)))
	}
	return
}

func (h *byHand) exec(p *handPod) float64 {
	t := time.Now()
	run(nil, nil, "runc", "exec", p.id, "true")
	return ms(time.Since(t))
}

// log is what cat moves from the same writer to a file.
func (h *byHand) log() float64 {
	file := filepath.Join(*scratch, "cat.log")
	shell := filepath.Join(*lower, "bin/busybox")
	writer := strings.NewReplacer("yes ", shell+" yes ", "head ", shell+" head ").Replace(writer())
	t := time.Now()
	run(nil, nil, shell, "sh", "-c", writer+" | cat > "+file)
	perSecond := float64(*lines) / time.Since(t).Seconds()
	check(os.Remove(file))
	return perSecond
}
