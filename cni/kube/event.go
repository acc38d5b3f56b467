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

// PodEvent is what people are told of a pod, in its events.
type PodEvent struct {
	Pod     *agentapi.Pod
	Warning bool   // else it is normal
	Reason  string // one word, for programs
	Message string // cut at what an event has room for
}

// mostMessage is the most that an event may say.
const mostMessage = 1024

// Report writes an event of a pod, as a component of a node.
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
		return fmt.Errorf("writing an event of pod %s/%s: %w", m.Namespace, m.Name, err)
	}
	return nil
}

func shorten(text string) string {
	const end = "…"
	if len(text) <= mostMessage {
		return text
	}
	return strings.ToValidUTF8(text[:mostMessage-len(end)], "") + end
}
