// Command bench measures a CRI endpoint and, in the same run, the least that its work can cost: the
// same CNI plugins, the same runc and the same container, started by hand one after another. It prints
// one JSON object; bench.ts starts the daemon, calls this and judges.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pb "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var (
	endpoint = flag.String("endpoint", "", "CRI endpoint")
	image    = flag.String("image", "", "image with sh, sleep, yes, head and true")
	rounds   = flag.Int("rounds", 5, "ratios taken; the median counts")
	pods     = flag.Int("pods", 8, "pods a round, one after another")
	execs    = flag.Int("execs", 20, "execs a round")
	lines    = flag.Int("lines", 2_000_000, "log lines a round")
	template = flag.String("template", "", "config.json of a container that the daemon made")
	lower    = flag.String("lower", "", "unpacked image for the containers made by hand")
	conflist = flag.String("conflist", "", "the daemon's CNI list")
	plugins  = flag.String("plugins", "/usr/lib/cni", "folder of CNI plugins")
	scratch  = flag.String("scratch", "", "folder for logs and bundles")
	listed   = flag.String("listed", "", "only measure lists; id of one of the containers that run")
	running  = flag.Int("running", 0, "with -listed: how many run")
	parent   = flag.String("cgroup-parent", "", "parent of the pods' cgroups")
)

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func ctx() context.Context {
	c, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	time.AfterFunc(2*time.Minute, cancel)
	return c
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func median(v []float64) float64 {
	s := append([]float64{}, v...)
	sort.Float64s(s)
	return s[len(s)/2]
}

// daemon does through CRI what byHand does without.
type daemon struct {
	r     pb.RuntimeServiceClient
	seq   int
	steps map[string][]float64
}

func (d *daemon) config() *pb.PodSandboxConfig {
	d.seq++
	name := fmt.Sprintf("bench-%d", d.seq)
	return &pb.PodSandboxConfig{
		Metadata:     &pb.PodSandboxMetadata{Name: name, Uid: name, Namespace: "bench"},
		Hostname:     name,
		LogDirectory: filepath.Join(*scratch, name),
		Linux: &pb.LinuxPodSandboxConfig{CgroupParent: *parent, SecurityContext: &pb.LinuxSandboxSecurityContext{
			NamespaceOptions: &pb.NamespaceOption{Network: pb.NamespaceMode_POD, Pid: pb.NamespaceMode_CONTAINER}}},
	}
}

func (d *daemon) start(cmd ...string) (pod, ctr string, cfg *pb.PodSandboxConfig) {
	pod, ctr, cfg = d.create(cmd...)
	t := time.Now()
	must(d.r.StartContainer(ctx(), &pb.StartContainerRequest{ContainerId: ctr}))
	d.step("StartContainer", t)
	return
}

func (d *daemon) create(cmd ...string) (pod, ctr string, cfg *pb.PodSandboxConfig) {
	cfg = d.config()
	t := time.Now()
	pod = must(d.r.RunPodSandbox(ctx(), &pb.RunPodSandboxRequest{Config: cfg})).PodSandboxId
	d.step("RunPodSandbox", t)
	t = time.Now()
	ctr = must(d.r.CreateContainer(ctx(), &pb.CreateContainerRequest{PodSandboxId: pod, SandboxConfig: cfg, Config: &pb.ContainerConfig{
		Metadata: &pb.ContainerMetadata{Name: "c"}, Image: &pb.ImageSpec{Image: *image}, Command: cmd, LogPath: "c.log",
		Linux: &pb.LinuxContainerConfig{SecurityContext: &pb.LinuxContainerSecurityContext{NamespaceOptions: cfg.Linux.SecurityContext.NamespaceOptions}},
	}})).ContainerId
	d.step("CreateContainer", t)
	return
}

func (d *daemon) step(name string, since time.Time) {
	d.steps[name] = append(d.steps[name], ms(time.Since(since)))
}

// stop does what a kubelet does: the container first, then the pod.
func (d *daemon) stop(pod, ctr string) {
	t := time.Now()
	must(d.r.StopContainer(ctx(), &pb.StopContainerRequest{ContainerId: ctr}))
	d.step("StopContainer", t)
	t = time.Now()
	must(d.r.StopPodSandbox(ctx(), &pb.StopPodSandboxRequest{PodSandboxId: pod}))
	d.step("StopPodSandbox", t)
	t = time.Now()
	must(d.r.RemovePodSandbox(ctx(), &pb.RemovePodSandboxRequest{PodSandboxId: pod}))
	d.step("RemovePodSandbox", t)
}

func (d *daemon) pods() (ready, gone []float64) {
	for range *pods {
		t := time.Now()
		pod, ctr, _ := d.start("sleep", "3600")
		t1 := time.Now()
		d.stop(pod, ctr)
		ready, gone = append(ready, ms(t1.Sub(t))), append(gone, ms(time.Since(t1)))
	}
	return
}

func (d *daemon) exec(ctr string) float64 {
	t := time.Now()
	r := must(d.r.ExecSync(ctx(), &pb.ExecSyncRequest{ContainerId: ctr, Cmd: []string{"true"}, Timeout: 10}))
	if r.ExitCode != 0 {
		check(fmt.Errorf("exec: exit code %d", r.ExitCode))
	}
	return ms(time.Since(t))
}

const logLine = "the quick brown fox jumps over the lazy dog, as dogs go, 0123456"

func writer() string { return fmt.Sprintf("yes '%s' | head -n %d", logLine, *lines) }

// log returns lines per second from start to exit, and how many are missing.
func (d *daemon) log() (perSecond float64, lost int) {
	pod, ctr, cfg := d.create("sh", "-c", writer())
	t := time.Now()
	must(d.r.StartContainer(ctx(), &pb.StartContainerRequest{ContainerId: ctr}))
	for must(d.r.ContainerStatus(ctx(), &pb.ContainerStatusRequest{ContainerId: ctr})).Status.State != pb.ContainerState_CONTAINER_EXITED {
		time.Sleep(5 * time.Millisecond)
	}
	perSecond = float64(*lines) / time.Since(t).Seconds()
	file := filepath.Join(cfg.LogDirectory, "c.log")
	lost = *lines - strings.Count(string(must(os.ReadFile(file))), "stdout F "+logLine+"\n")
	check(os.Remove(file))
	d.stop(pod, ctr)
	return
}

type figure struct {
	Ours   []float64 `json:"ours"`
	ByHand []float64 `json:"by_hand"`
}

func (f *figure) add(ours, hand float64) {
	f.Ours, f.ByHand = append(f.Ours, ours), append(f.ByHand, hand)
}

func main() {
	flag.Parse()
	conn := must(grpc.NewClient(*endpoint, grpc.WithTransportCredentials(insecure.NewCredentials())))
	if *listed != "" {
		lists := map[string]any{"list_ms": listTimes(conn)}
		if *running > 0 {
			lists["stats_ms"], lists["stats_kept_ms"] = statsTimes(conn, *listed, *running)
		}
		check(json.NewEncoder(os.Stdout).Encode(lists))
		return
	}
	d := &daemon{r: pb.NewRuntimeServiceClient(conn), steps: map[string][]float64{}}
	h := newByHand()
	var ready, gone, exec, logs figure
	lost := 0
	pod, ctr, _ := d.start("sleep", "3600")
	hand := h.start("sleep", "3600")
	for range *rounds {
		ourReady, ourGone := d.pods()
		handReady, handGone := h.pods()
		ready.add(median(ourReady), median(handReady))
		gone.add(median(ourGone), median(handGone))
		var ours, theirs []float64
		for range *execs {
			ours, theirs = append(ours, d.exec(ctr)), append(theirs, h.exec(hand))
		}
		exec.add(median(ours), median(theirs))
		perSecond, missing := d.log()
		logs.add(perSecond, h.log())
		lost += missing
	}
	d.stop(pod, ctr)
	h.stop(hand)
	steps := map[string]float64{}
	for name, v := range d.steps {
		steps[name] = median(v)
	}
	e := json.NewEncoder(os.Stdout)
	check(e.Encode(map[string]any{"steps_ms": steps, "ready_ms": ready, "gone_ms": gone, "exec_ms": exec, "log_lines_per_s": logs, "log_lines_lost": lost}))
}
