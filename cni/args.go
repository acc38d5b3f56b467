package cni

import (
	"fmt"
	"strings"
)

// podArgs are the pod's attributes that a Kubernetes container runtime passes in CNI_ARGS.
type podArgs struct {
	Namespace, Name, UID string
	All                  map[string]string
}

// isKubernetes reports whether the sandbox belongs to a pod.
func (a *podArgs) isKubernetes() bool { return a.Namespace != "" && a.Name != "" }

func (a *podArgs) String() string {
	if !a.isKubernetes() {
		return "the sandbox"
	}
	return "pod " + a.Namespace + "/" + a.Name
}

// parseArgs parses CNI_ARGS: KEY=value pairs separated by semicolons. It retains unknown keys, because the rules of a
// policy file may match them.
func parseArgs(args string) (*podArgs, error) {
	a := &podArgs{All: map[string]string{}}
	for pair := range strings.SplitSeq(args, ";") {
		if pair == "" {
			continue
		}
		key, value, found := strings.Cut(pair, "=")
		if !found {
			return nil, fmt.Errorf("CNI_ARGS: %q is not of the form KEY=value", pair)
		}
		a.All[key] = value
	}
	a.Namespace, a.Name, a.UID = a.All["K8S_POD_NAMESPACE"], a.All["K8S_POD_NAME"], a.All["K8S_POD_UID"]
	return a, nil
}

// name returns the pod's namespace and name for logs, or "" for a sandbox that does not belong to a pod.
func (a *podArgs) name() string {
	if a == nil || !a.isKubernetes() {
		return ""
	}
	return a.Namespace + "/" + a.Name
}
