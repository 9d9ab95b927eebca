package main

import (
	"context"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"google.golang.org/protobuf/encoding/protojson"
)

func extraOptions(p *plugin) []stub.Option {
	if len(p.do.Policy) == 0 {
		return nil
	}
	policy := &api.FailurePolicy{}
	if err := protojson.Unmarshal(p.do.Policy, policy); err != nil {
		panic(err)
	}
	return []stub.Option{stub.WithFailurePolicy(policy)}
}

func (p *plugin) UpdatePodSandbox(_ context.Context, pod *api.PodSandbox, _, _ *api.LinuxResources) error {
	return p.pod("UpdatePodSandbox", pod)
}

func (p *plugin) PostUpdatePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.pod("PostUpdatePodSandbox", pod)
}

func (p *plugin) ValidateContainerAdjustment(_ context.Context, req *api.ValidateContainerAdjustmentRequest) error {
	if p.do.Quiet {
		return nil
	}
	owners := map[string]any{}
	for id, fields := range req.GetOwners().GetOwners() {
		simple := map[string]string{}
		for field, owner := range fields.GetSimple() {
			simple[api.Field(field).String()] = owner
		}
		owners[id] = simple
	}
	plugins := []string{}
	for _, one := range req.GetPlugins() {
		plugins = append(plugins, one.GetIndex()+"-"+one.GetName())
	}
	p.say("ValidateContainerAdjustment", map[string]any{"owners": owners, "plugins": plugins})
	if err := p.act("ValidateContainerAdjustment"); err != nil {
		return err
	}
	if p.do.Reject != "" {
		return rejection(p.do.Reject)
	}
	return nil
}

type rejection string

func (r rejection) Error() string { return string(r) }
