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

// policy selects the action for sandboxes on nodes without Kubernetes. The first matching rule applies. Default applies
// to sandboxes that match no rule.
type policy struct {
	Default string       `yaml:"default"` // capture, skip, or refuse (also "")
	Rules   []policyRule `yaml:"rules"`
}

// policyRule matches sandboxes by CNI_ARGS, CNI_CONTAINERID and CNI_IFNAME. Patterns have the syntax of path.Match; all
// of them must match.
type policyRule struct {
	Match       map[string]string `yaml:"match"`
	Action      string            `yaml:"action"` // capture (also ""), skip or refuse
	Annotations map[string]string `yaml:"annotations"`
	Env         map[string]string `yaml:"env"` // environment variables of the proxy
	UID         *int64            `yaml:"uid"`
	GID         *int64            `yaml:"gid"`
}

const maxPolicy = 1 << 20

// loadPolicy reads the policy file. It refuses a file that users other than root can change, since they could exempt
// sandboxes from the mesh. The pod then does not start.
func loadPolicy(file string) (*policy, error) {
	text, err := regularfile.ReadTrusted(file, maxPolicy)
	if err != nil {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, "the policy file "+file+" cannot be read or is not trusted", err.Error())
	}
	p, err := parsePolicy(text)
	if err != nil {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, "the policy file "+file+" is invalid", err.Error())
	}
	return p, nil
}

// parsePolicy parses YAML or JSON. An unknown key is an error, because a misspelled key would leave pods unprotected. A
// second document is an error too, because its rules would be ignored.
func parsePolicy(text []byte) (*policy, error) {
	p := &policy{}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(p); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.Join(errors.New("the file contains more than one document: put all rules into the first, and remove the line ---"), err)
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

// decide returns the pod that corresponds to a sandbox, a reason to skip it, or an error that prevents its start.
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
			fmt.Sprintf("no rule for %v; add one, or set default to capture or skip", known))
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

// pod returns a pod with the rule's settings, in the form of a pod from Kubernetes.
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
