package sandbox

import (
	"bytes"
	"errors"
	"regexp"
	"strings"
)

// ErrNone reports that no process of the pod was found, or none with a separate network namespace.
var ErrNone = errors.New("no network namespace of the pod was found")

// podInCgroup matches the kubelet's name of a pod's cgroup: with dashes, or for systemd with underscores. The UID of a
// static pod is a hash.
var podInCgroup = regexp.MustCompile(`pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})\b`)

// podUID returns the UID of the pod that a process belongs to, from the content of /proc/PID/cgroup; "" for none.
func podUID(cgroups []byte) string {
	for line := range bytes.Lines(cgroups) {
		if found := podInCgroup.FindSubmatch(line); found != nil {
			return strings.ReplaceAll(string(found[1]), "_", "-")
		}
	}
	return ""
}
