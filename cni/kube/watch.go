package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
)

// EventType is the type of a watch event.
type EventType string

// The values of EventType.
const (
	Added    EventType = "ADDED"
	Modified EventType = "MODIFIED"
	Deleted  EventType = "DELETED"
)

// Event is a watch event: one change of one pod.
type Event struct {
	Type EventType
	Pod  *agentapi.Pod
}

// Pods returns the pods on node in all namespaces, and the resource version of the list.
func (c *Client) Pods(ctx context.Context, node string) (pods []agentapi.Pod, version string, err error) {
	more := url.Values{"limit": {strconv.Itoa(pageOfPods)}}
	for pages := 1; ; pages++ {
		var list struct {
			Metadata struct {
				ResourceVersion string `json:"resourceVersion"`
				Continue        string `json:"continue"`
			} `json:"metadata"`
			Items []agentapi.Pod `json:"items"`
		}
		if err := c.call(ctx, http.MethodGet, podsPath(node, more), "", nil, &list, maxList); err != nil {
			return nil, "", fmt.Errorf("listing the pods of node %s: %w", node, err)
		}
		if pods = append(pods, list.Items...); len(pods) > maxPods || pages > maxPods/pageOfPods {
			return nil, "", fmt.Errorf("listing the pods of node %s: the list contains more than %d pods or too many pages", node, maxPods)
		}
		if list.Metadata.Continue == "" {
			return pods, list.Metadata.ResourceVersion, nil
		}
		more.Set("continue", list.Metadata.Continue)
	}
}

const (
	// pageOfPods is the number of pods per page of a list. Small pages limit the memory for undecoded responses.
	pageOfPods = 100
	// maxPods limits the number of pods in all pages of a list.
	maxPods = 20000
)

func podsPath(node string, more url.Values) string {
	query := url.Values{"fieldSelector": {"spec.nodeName=" + node}}
	for name, values := range more {
		query[name] = values
	}
	return "/api/v1/pods?" + query.Encode()
}

// errExpired is the error if the API server no longer has the events since the requested version. The client must list
// the pods again.
var errExpired = &StatusError{Code: http.StatusGone, Reason: "Expired"}

// IsExpired reports whether err means that the watch cannot be resumed, so that the client must list again.
func IsExpired(err error) bool { return hasCode(err, http.StatusGone) }

// Watch calls each for every change of the node's pods since the resource version version. It returns on an error, or
// when the API server ends the watch. The API server should do so after maxDuration. It returns the resource version
// at which the next watch resumes.
func (c *Client) Watch(ctx context.Context, node, version string, maxDuration time.Duration, each func(Event)) (string, error) {
	// The API server should end the watch after maxDuration. The timeout is for a server that does not.
	ctx, cancel := context.WithTimeout(ctx, maxDuration+requestTimeout)
	defer cancel()
	path := podsPath(node, url.Values{
		"watch":               {"true"},
		"allowWatchBookmarks": {"true"},
		"resourceVersion":     {version},
		"timeoutSeconds":      {strconv.Itoa(int(maxDuration / time.Second))},
	})
	response, err := c.do(ctx, http.MethodGet, path, "", nil)
	if err != nil {
		return version, fmt.Errorf("watching the pods of node %s: %w", node, err)
	}
	defer func() { _ = response.Body.Close() }()
	limited := &eventLimiter{from: response.Body}
	for decoder := json.NewDecoder(limited); ; limited.read = 0 {
		next, event, err := nextEvent(decoder)
		switch {
		case errors.Is(err, io.EOF):
			return version, nil
		case err != nil:
			return version, fmt.Errorf("watching the pods of node %s: %w", node, err)
		}
		if next != "" {
			version = next
		}
		if event.Pod != nil {
			each(event)
		}
	}
}

// nextEvent reads one event of a watch. For a bookmark it returns the resource version and an Event without a pod.
func nextEvent(decoder *json.Decoder) (version string, event Event, err error) {
	var line struct {
		Type   string          `json:"type"`
		Object json.RawMessage `json:"object"`
	}
	if err := decoder.Decode(&line); err != nil {
		return "", Event{}, err
	}
	switch line.Type {
	case "ERROR":
		status := &StatusError{}
		if json.Unmarshal(line.Object, status) != nil || status.Code == 0 {
			return "", Event{}, errExpired
		}
		return "", Event{}, status
	case "BOOKMARK", string(Added), string(Modified), string(Deleted):
	default:
		return "", Event{}, fmt.Errorf("unknown event type %q", line.Type)
	}
	pod := &agentapi.Pod{}
	if err := json.Unmarshal(line.Object, pod); err != nil {
		return "", Event{}, fmt.Errorf("decoding the pod of a watch event: %w", err)
	}
	if line.Type != "BOOKMARK" {
		event = Event{Type: EventType(line.Type), Pod: pod}
	}
	return pod.Metadata.ResourceVersion, event, nil
}

// eventLimiter is a reader that returns an error if one event is larger than agentapi.MaxBody.
type eventLimiter struct {
	from io.Reader
	read int // bytes of the current event
}

func (m *eventLimiter) Read(p []byte) (int, error) {
	if m.read > agentapi.MaxBody {
		return 0, fmt.Errorf("an event is larger than %d bytes", agentapi.MaxBody)
	}
	n, err := m.from.Read(p)
	m.read += n
	return n, err
}
