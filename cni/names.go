package cni

import (
	"fmt"
	"strings"
)

// podArgs are what a container runtime of Kubernetes says of a pod in CNI_ARGS.
type podArgs struct {
	Namespace, Name, UID string
	All                  map[string]string
}

// isKubernetes tells whether the sandbox is a pod's at all.
func (a *podArgs) isKubernetes() bool { return a.Namespace != "" && a.Name != "" }

func (a *podArgs) String() string {
	if !a.isKubernetes() {
		return "the sandbox"
	}
	return "pod " + a.Namespace + "/" + a.Name
}

// parseArgs reads CNI_ARGS: KEY=value pairs with semicolons between. Keys that say nothing to us are kept, for policies.
func parseArgs(args string) (*podArgs, error) {
	a := &podArgs{All: map[string]string{}}
	for pair := range strings.SplitSeq(args, ";") {
		if pair == "" {
			continue
		}
		key, value, found := strings.Cut(pair, "=")
		if !found {
			return nil, fmt.Errorf("CNI_ARGS: %q is no KEY=value", pair)
		}
		a.All[key] = value
	}
	a.Namespace, a.Name, a.UID = a.All["K8S_POD_NAMESPACE"], a.All["K8S_POD_NAME"], a.All["K8S_POD_UID"]
	return a, nil
}

// name is for logs.
func (a *podArgs) name() string {
	if a == nil || !a.isKubernetes() {
		return ""
	}
	return a.Namespace + "/" + a.Name
}
