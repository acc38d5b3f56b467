package cni

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
	"github.com/pilotfish-mesh/pilotfish/cni/capture"
	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// Error codes of the plugin. The CNI specification reserves 100 and above for plugins.
const (
	CodeBadPod     = 100 // the pod's settings are invalid
	CodeNotApplied = 101 // the rules could not be applied
	CodeNotInForce = 102 // CHECK: the kernel does not have the expected rules
)

// add implements ADD. It redirects the pod's traffic and prints the result of the previous plugins unchanged. For a pod
// that is not in the mesh, it only prints the result. On any error the pod does not start.
func (p *Plugin) add(ctx context.Context, c *call) error {
	plan, err := p.plan(ctx, c)
	if err != nil {
		return err
	}
	if plan != nil {
		defer func() { _ = plan.netns.Close() }()
		if err := c.attachments().note(c.attachment(), plan.netns); err != nil {
			c.Debug("cannot record the sandbox for CNI GC", "error", err)
		}
		p.step("before apply")
		if err := p.redirector.apply(ctx, plan); err != nil {
			return asCNI(CodeNotApplied, fmt.Sprintf("%s is not started, because its traffic cannot be redirected to its sidecar", c.args), err)
		}
		c.result.Outcome = agentapi.Captured
		p.step("after apply")
	}
	if _, err := p.Out.Write(append(c.config.result(), '\n')); err != nil {
		return types.NewError(types.ErrIOFailure, "the result could not be written", err.Error())
	}
	return nil
}

// check implements CHECK: it verifies that the kernel still has the rules that ADD installed.
func (p *Plugin) check(ctx context.Context, c *call) error {
	plan, err := p.plan(ctx, c)
	if err != nil || plan == nil {
		return err
	}
	defer func() { _ = plan.netns.Close() }()
	if err := p.redirector.check(ctx, plan); err != nil {
		return asCNI(CodeNotInForce, fmt.Sprintf("the traffic of %s is not redirected correctly", c.args), err)
	}
	c.result.Outcome = agentapi.Captured
	return nil
}

func (p *Plugin) step(name string) {
	if p.Step != nil {
		p.Step(name)
	}
}

// plan contains the redirection rules for one sandbox, and the open network namespace in which they are installed.
type plan struct {
	netns   *os.File
	options iptables.Options
	rules   *iptables.RuleSet
	config  *Config
	log     *slog.Logger
	inject  func(step string) error // lets tests fail a step; nil otherwise
}

// plan determines the rules that the sandbox needs. It returns nil for a sandbox that is not redirected, and logs the
// reason.
func (p *Plugin) plan(ctx context.Context, c *call) (*plan, error) {
	if err := c.config.validate(); err != nil {
		return nil, err
	}
	settings := c.config.settings()
	if skip := settings.SkipByName(c.args.Namespace, c.args.Name); skip != nil {
		return c.skip(skip), nil
	}
	netns, err := openNetNS(c.skel.Netns)
	if err != nil {
		return nil, err
	}
	plan, err := p.planFor(ctx, c, &settings, netns)
	if plan == nil {
		_ = netns.Close()
	}
	return plan, err
}

func (p *Plugin) planFor(ctx context.Context, c *call, settings *capture.Settings, netns *os.File) (*plan, error) {
	p.step("before the pod is read")
	pod, skip, err := p.findPod(ctx, c)
	if err != nil {
		return nil, err
	}
	if skip == nil {
		skip = settings.SkipPod(pod)
	}
	if skip != nil {
		return c.skip(skip), nil
	}
	addresses, err := addressesIn(netns)
	if err != nil {
		return nil, asCNI(types.ErrInvalidNetNS, "cannot read the addresses of the sandbox", err)
	}
	options, err := settings.Options(pod, addresses)
	if err != nil {
		return nil, types.NewError(CodeBadPod, fmt.Sprintf("%s is not started, because its mesh settings are invalid", c.args), err.Error())
	}
	for _, warning := range append(capture.Warnings(pod), options.Warnings()...) {
		c.Warn(warning, "pod", c.args.name())
	}
	rules, err := iptables.Compile(options)
	if err != nil {
		return nil, types.NewError(CodeBadPod, fmt.Sprintf("%s is not started, because its mesh settings are invalid", c.args), err.Error())
	}
	plan := &plan{netns: netns, options: options, rules: rules, config: c.config, log: c.Logger}
	if p.Step != nil {
		plan.inject = func(step string) error { p.Step(step); return nil }
	}
	return plan, nil
}

// findPod looks up the pod: in the policy file if one is configured, otherwise through the node agent or the API
// server. For a sandbox that is not redirected, it returns a skip reason instead.
func (p *Plugin) findPod(ctx context.Context, c *call) (pod *agentapi.Pod, skip *capture.Skip, err error) {
	if c.config.PolicyFile != "" {
		policy, err := loadPolicy(c.config.PolicyFile)
		if err != nil {
			return nil, nil, err
		}
		c.result.Source = fromPolicy
		return policy.decide(c.args, c.skel.ContainerID, c.skel.IfName)
	}
	if (c.args.Namespace == "") != (c.args.Name == "") {
		return nil, nil, types.NewError(types.ErrInvalidEnvironmentVariables, "CNI_ARGS contains only one of the pod's namespace and name; the pod is not started, because its traffic would not be redirected",
			fmt.Sprintf("K8S_POD_NAMESPACE is %q and K8S_POD_NAME is %q: set both, or set neither for a sandbox that does not belong to a pod", c.args.Namespace, c.args.Name))
	}
	if !c.args.isKubernetes() {
		return nil, &capture.Skip{Word: "no-kubernetes", Reason: "CNI_ARGS does not contain a Kubernetes pod"}, nil
	}
	source := &podSource{agent: c.agent, kubeconfig: c.config.kubeconfig(), timeout: p.PodTimeout, firstPause: firstPause}
	if source.timeout == 0 {
		source.timeout = defaultPodTimeout
	}
	pod, c.result.Source, err = source.pod(ctx, c.args)
	return pod, nil, err
}

func (c *call) skip(why *capture.Skip) *plan {
	c.result.Outcome, c.result.Reason = agentapi.Skipped, why.Word
	c.Debug("the sandbox is not redirected", "pod", c.args.name(), "reason", why.Reason)
	return nil
}
