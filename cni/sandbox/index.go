package sandbox

import (
	"bytes"
	"errors"
	"regexp"
	"strings"
)

// ErrNone says that no process of a pod, or none with a network of its own, was found.
var ErrNone = errors.New("no network namespace of the pod was found")

// podInCgroup is how kubelets name the control group of a pod: with dashes, or for systemd with underscores; the UID of a
// static pod is a hash.
var podInCgroup = regexp.MustCompile(`pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})\b`)

// podUID is the UID of the pod that a process belongs to, by its control groups as /proc tells them; "" for none.
func podUID(cgroups []byte) string {
	for line := range bytes.Lines(cgroups) {
		if found := podInCgroup.FindSubmatch(line); found != nil {
			return strings.ReplaceAll(string(found[1]), "_", "-")
		}
	}
	return ""
}
