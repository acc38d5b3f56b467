package cni

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	"go.yaml.in/yaml/v3"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
	"github.com/pilotfish-mesh/pilotfish/cni/capture"
	"github.com/pilotfish-mesh/pilotfish/internal/regularfile"
)

// policy determines the action for sandboxes on nodes without Kubernetes. The first matching rule applies. Default
// applies to sandboxes that match no rule.
type policy struct {
	Default string       `yaml:"default"` // capture, skip, or refuse (also "")
	Rules   []policyRule `yaml:"rules"`
}

// policyRule is a rule of a policy file. The keys of Match are keys of CNI_ARGS, CNI_CONTAINERID and CNI_IFNAME. The
// values are patterns in the syntax of path.Match. A sandbox matches the rule if all patterns match.
type policyRule struct {
	Match       map[string]string `yaml:"match"`
	Action      string            `yaml:"action"` // capture (also ""), skip or refuse
	Annotations map[string]string `yaml:"annotations"`
	Env         map[string]string `yaml:"env"` // environment variables of the sidecar's container
	UID         *int64            `yaml:"uid"`
	GID         *int64            `yaml:"gid"`
}

const maxPolicy = 1 << 20

// loadPolicy reads the policy file. It returns an error if users other than root can write the file, because they could
// then exempt sandboxes from redirection. On an error the pod does not start.
func loadPolicy(file string) (*policy, error) {
	text, err := regularfile.ReadTrusted(file, maxPolicy)
	if err != nil {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, "cannot read the policy file "+file+", or its permissions are too wide", err.Error())
	}
	p, err := parsePolicy(text)
	if err != nil {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, "the policy file "+file+" is invalid", err.Error())
	}
	return p, nil
}

// parsePolicy parses a policy in YAML or JSON. An unknown key is an error, because a misspelled key could leave pods
// without redirection. A second YAML document is an error, because its rules would be ignored.
func parsePolicy(text []byte) (*policy, error) {
	p := &policy{}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(p); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.Join(errors.New("the file contains more than one YAML document: move all rules into the first one and remove the line ---"), err)
	}
	problems := []error{checkAction("default", p.Default)}
	for i, r := range p.Rules {
		problems = append(problems, checkAction(fmt.Sprintf("rule %d: action", i+1), r.Action))
		for _, key := range slices.Sorted(maps.Keys(r.Match)) {
			if _, err := path.Match(r.Match[key], ""); err != nil {
				problems = append(problems, fmt.Errorf("rule %d: the pattern %q for %s: %w", i+1, r.Match[key], key, err))
			}
		}
	}
	return p, errors.Join(problems...)
}

func checkAction(where, action string) error {
	switch action {
	case "", "capture", "skip", "refuse":
		return nil
	}
	return fmt.Errorf("%s %q: use capture, skip or refuse", where, action)
}

// decide applies the policy to a sandbox. If the sandbox must be redirected, it returns a pod with the rule's settings.
// If not, it returns a skip reason. If the sandbox must not start, it returns an error.
func (p *policy) decide(args *podArgs, containerID, ifName string) (*agentapi.Pod, *capture.Skip, error) {
	known := maps.Clone(args.All)
	known["CNI_CONTAINERID"], known["CNI_IFNAME"] = containerID, ifName
	rule := policyRule{Action: p.Default}
	if rule.Action == "" {
		rule.Action = "refuse"
	}
	if i := slices.IndexFunc(p.Rules, func(r policyRule) bool { return r.matches(known) }); i >= 0 {
		rule = p.Rules[i]
	}
	switch rule.Action {
	case "skip":
		return nil, &capture.Skip{Word: "policy", Reason: "a rule of the policy file matches"}, nil
	case "refuse":
		return nil, nil, types.NewError(types.ErrInvalidNetworkConfig, "the policy file does not allow this sandbox to start",
			fmt.Sprintf("the policy refuses the sandbox with the attributes %v: add a rule for it, or set default to capture or skip", known))
	}
	return rule.pod(args), nil, nil
}

func (r *policyRule) matches(known map[string]string) bool {
	for key, pattern := range r.Match {
		if ok, err := path.Match(pattern, known[key]); err != nil || !ok {
			return false
		}
	}
	return true
}

// pod converts the rule's settings to a Kubernetes pod, so that package capture can evaluate them.
func (r *policyRule) pod(args *podArgs) *agentapi.Pod {
	proxy := agentapi.Container{
		Name:            capture.ProxyContainer,
		SecurityContext: agentapi.SecurityContext{RunAsUser: r.UID, RunAsGroup: r.GID},
	}
	for _, name := range slices.Sorted(maps.Keys(r.Env)) {
		proxy.Env = append(proxy.Env, agentapi.EnvVar{Name: name, Value: r.Env[name]})
	}
	annotations := map[string]string{"sidecar.istio.io/status": "policy"}
	maps.Copy(annotations, r.Annotations)
	return &agentapi.Pod{
		Metadata: agentapi.Metadata{Name: args.Name, Namespace: args.Namespace, UID: args.UID, Annotations: annotations},
		Spec:     agentapi.PodSpec{Containers: []agentapi.Container{proxy}},
	}
}
