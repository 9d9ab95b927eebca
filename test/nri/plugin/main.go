// A plugin on the stock NRI stub that does what it is told: JSON in $PROBE, or in Configure's config.
// It is built twice, against the oldest and the newest stub that must work; extra.go of v061 and v0125
// holds what only one of them has. Every call is one line of JSON in its log.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"google.golang.org/protobuf/encoding/protojson"
)

type behaviour struct {
	Log     string            `json:"log"`
	Events  []string          `json:"events"`  // none: all
	Mask    int32             `json:"mask"`    // instead of events
	Hang    []string          `json:"hang"`    // never answers these
	Fail    []string          `json:"fail"`    // answers these with an error
	Exit    []string          `json:"exit"`    // ends in these
	SleepMs map[string]int    `json:"sleepMs"` // answers these late
	Until   map[string]string `json:"until"`   // answers these once a file exists
	Only    string            `json:"only"`    // the container that Adjust, Update and Evict are for
	Adjust  json.RawMessage   `json:"adjust"`
	Update  []json.RawMessage `json:"update"`
	Own     []json.RawMessage `json:"own"`    // UpdateContainers by itself, after Synchronize
	Reject  string            `json:"reject"` // why it rejects adjustments
	Quiet   bool              `json:"quiet"`  // says nothing after Synchronize
	Stay    bool              `json:"stay"`   // goes on when its connection is gone
	Policy  json.RawMessage   `json:"policy"` // its failure policy
}

type plugin struct {
	stub stub.Stub
	do   behaviour
}

func (p *plugin) say(event string, more map[string]any) {
	line := map[string]any{"event": event, "pid": os.Getpid()}
	for key, value := range more {
		line[key] = value
	}
	text, _ := json.Marshal(line)
	file, err := os.OpenFile(p.do.Log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	defer file.Close()
	file.Write(append(text, '\n'))
}

func has(list []string, event string) bool {
	for _, one := range list {
		if one == event {
			return true
		}
	}
	return false
}

func (p *plugin) act(event string) error {
	if has(p.do.Hang, event) {
		select {}
	}
	if has(p.do.Exit, event) {
		os.Exit(7)
	}
	time.Sleep(time.Duration(p.do.SleepMs[event]) * time.Millisecond)
	if file, waits := p.do.Until[event]; waits {
		for _, err := os.Stat(file); err != nil; _, err = os.Stat(file) {
			time.Sleep(10 * time.Millisecond)
		}
	}
	if has(p.do.Fail, event) {
		return fmt.Errorf("told to fail %s", event)
	}
	return nil
}

func (p *plugin) Configure(_ context.Context, config, runtime, version string) (stub.EventMask, error) {
	if config != "" {
		if err := json.Unmarshal([]byte(config), &p.do); err != nil {
			return 0, err
		}
	}
	p.say("Configure", map[string]any{"runtime": runtime, "version": version})
	if err := p.act("Configure"); err != nil {
		return 0, err
	}
	if p.do.Mask != 0 {
		return stub.EventMask(p.do.Mask), nil
	}
	return api.ParseEventMask(p.do.Events...)
}

func (p *plugin) Synchronize(_ context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	names := []string{}
	for _, container := range containers {
		names = append(names, container.GetName())
	}
	p.say("Synchronize", map[string]any{"pods": len(pods), "containers": names})
	if err := p.act("Synchronize"); err != nil {
		return nil, err
	}
	if len(p.do.Own) > 0 {
		go p.updateByItself()
	}
	return nil, nil
}

func (p *plugin) updateByItself() {
	time.Sleep(50 * time.Millisecond)
	failed, err := p.stub.UpdateContainers(updates(p.do.Own))
	ids := []string{}
	for _, one := range failed {
		ids = append(ids, one.GetContainerId())
	}
	p.say("UpdateContainers", map[string]any{"failed": ids, "error": fmt.Sprint(err)})
}

func updates(texts []json.RawMessage) []*api.ContainerUpdate {
	list := []*api.ContainerUpdate{}
	for _, text := range texts {
		update := &api.ContainerUpdate{}
		if err := protojson.Unmarshal(text, update); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		list = append(list, update)
	}
	return list
}

func (p *plugin) pod(event string, pod *api.PodSandbox) error {
	if p.do.Quiet {
		return nil
	}
	text, _ := protojson.Marshal(pod)
	p.say(event, map[string]any{"pod": json.RawMessage(text)})
	return p.act(event)
}

func (p *plugin) container(event string, pod *api.PodSandbox, container *api.Container) error {
	if p.do.Quiet {
		return nil
	}
	text, _ := protojson.Marshal(container)
	p.say(event, map[string]any{"podName": pod.GetName(), "container": json.RawMessage(text)})
	return p.act(event)
}

func (p *plugin) isFor(container *api.Container) bool {
	return p.do.Only == "" || p.do.Only == container.GetName()
}

func (p *plugin) RunPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.pod("RunPodSandbox", pod)
}

func (p *plugin) StopPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.pod("StopPodSandbox", pod)
}

func (p *plugin) RemovePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.pod("RemovePodSandbox", pod)
}

func (p *plugin) CreateContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	if err := p.container("CreateContainer", pod, container); err != nil {
		return nil, nil, err
	}
	if !p.isFor(container) {
		return nil, nil, nil
	}
	adjust := &api.ContainerAdjustment{}
	if len(p.do.Adjust) > 0 {
		if err := protojson.Unmarshal(p.do.Adjust, adjust); err != nil {
			return nil, nil, err
		}
	}
	return adjust, updates(p.do.Update), nil
}

func (p *plugin) PostCreateContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) error {
	return p.container("PostCreateContainer", pod, container)
}

func (p *plugin) StartContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) error {
	return p.container("StartContainer", pod, container)
}

func (p *plugin) PostStartContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) error {
	return p.container("PostStartContainer", pod, container)
}

func (p *plugin) UpdateContainer(_ context.Context, pod *api.PodSandbox, container *api.Container, resources *api.LinuxResources) ([]*api.ContainerUpdate, error) {
	text, _ := protojson.Marshal(resources)
	p.say("UpdateContainer", map[string]any{"resources": json.RawMessage(text)})
	if err := p.act("UpdateContainer"); err != nil || !p.isFor(container) {
		return nil, err
	}
	list := updates(p.do.Update)
	for _, update := range list {
		if update.ContainerId == "" {
			update.ContainerId = container.GetId()
		}
	}
	return list, nil
}

func (p *plugin) PostUpdateContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) error {
	return p.container("PostUpdateContainer", pod, container)
}

func (p *plugin) StopContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) ([]*api.ContainerUpdate, error) {
	return nil, p.container("StopContainer", pod, container)
}

func (p *plugin) RemoveContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) error {
	return p.container("RemoveContainer", pod, container)
}

func (p *plugin) Shutdown(_ context.Context) {
	p.say("Shutdown", nil)
}

func main() {
	name := flag.String("name", "", "plugin name")
	index := flag.String("idx", "", "plugin index")
	socket := flag.String("socket-path", "", "NRI socket")
	flag.Parse()
	p := &plugin{}
	if text := os.Getenv("PROBE"); text != "" {
		if err := json.Unmarshal([]byte(text), &p.do); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
	options := []stub.Option{stub.WithOnClose(func() { p.say("Close", nil) })}
	if *name != "" {
		options = append(options, stub.WithPluginName(*name), stub.WithPluginIdx(*index))
	}
	if *socket != "" {
		options = append(options, stub.WithSocketPath(*socket))
	}
	options = append(options, extraOptions(p)...)
	var err error
	if p.stub, err = stub.New(p, options...); err == nil {
		err = p.stub.Run(context.Background())
	}
	p.say("End", map[string]any{"error": fmt.Sprint(err)})
	if p.do.Stay {
		time.Sleep(time.Hour)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
