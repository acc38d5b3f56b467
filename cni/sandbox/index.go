package sandbox

import (
	"bytes"
	"errors"
	"regexp"
	"strings"
)

// ErrNone reports that the pod's network namespace was not found, because no process of the pod runs in a network
// namespace that matches the pod.
var ErrNone = errors.New("no network namespace of the pod was found")

// podInCgroup matches the name that the kubelet chooses for a pod's cgroup. It contains the pod's UID, whose dashes are
// underscores with the systemd cgroup driver. The UID of a static pod is a hash without dashes.
var podInCgroup = regexp.MustCompile(`pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})\b`)

// podUID returns the UID of the pod to which a process belongs, from the content of /proc/PID/cgroup. It returns "" if
// the process does not belong to a pod.
func podUID(cgroups []byte) string {
	for line := range bytes.Lines(cgroups) {
		if found := podInCgroup.FindSubmatch(line); found != nil {
			return strings.ReplaceAll(string(found[1]), "_", "-")
		}
	}
	return ""
}
