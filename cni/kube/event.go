package kube

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
)

// PodEvent describes a Kubernetes event about a pod.
type PodEvent struct {
	Pod     *agentapi.Pod
	Warning bool   // the event's type is Warning; false: Normal
	Reason  string // one word in CamelCase for programs
	Message string // sentence for users; truncated to maxMessage
}

// maxMessage is the maximum length of an event's message, in bytes.
const maxMessage = 1024

// Report creates a Kubernetes event about a pod. The event's source is the component on the node.
func (c *Client) Report(ctx context.Context, component, node string, now time.Time, e PodEvent) error {
	m := e.Pod.Metadata
	kind := "Normal"
	if e.Warning {
		kind = "Warning"
	}
	at := now.UTC().Format(time.RFC3339)
	event := map[string]any{
		"apiVersion": "v1", "kind": "Event",
		"metadata":       map[string]any{"generateName": m.Name + ".", "namespace": m.Namespace},
		"involvedObject": map[string]any{"apiVersion": "v1", "kind": "Pod", "namespace": m.Namespace, "name": m.Name, "uid": m.UID, "resourceVersion": m.ResourceVersion},
		"type":           kind, "reason": e.Reason, "message": shorten(e.Message),
		"source":             map[string]any{"component": component, "host": node},
		"reportingComponent": component, "reportingInstance": node,
		"firstTimestamp": at, "lastTimestamp": at, "count": 1,
	}
	path := "/api/v1/namespaces/" + url.PathEscape(m.Namespace) + "/events"
	if err := c.call(ctx, http.MethodPost, path, "application/json", event, nil, 0); err != nil {
		return fmt.Errorf("creating an event about pod %s/%s: %w", m.Namespace, m.Name, err)
	}
	return nil
}

func shorten(text string) string {
	const end = "…"
	if len(text) <= maxMessage {
		return text
	}
	return strings.ToValidUTF8(text[:maxMessage-len(end)], "") + end
}
