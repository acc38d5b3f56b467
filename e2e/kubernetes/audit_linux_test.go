package kubernetes

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"testing"
)

// auditCount returns the current length of the API server's audit log.
func (c *cluster) auditCount(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile(c.pki.path("audit.log"))
	if err != nil {
		t.Fatal(err)
	}
	return len(text)
}

// audit reads the requests of the node agents and the plugin from the audit log: the rights that they used, and what was
// refused for want of one.
func (c *cluster) audit(t *testing.T, since int) (used map[string]bool, refused []string) {
	t.Helper()
	text, err := os.ReadFile(c.pki.path("audit.log"))
	if err != nil {
		t.Fatal(err)
	}
	text = text[since:]
	used = map[string]bool{}
	for line := range bytes.Lines(text) {
		var event struct {
			Verb           string
			ObjectRef      struct{ Resource, Subresource, Name string }
			ResponseStatus struct{ Code int }
		}
		if json.Unmarshal(line, &event) != nil {
			continue // it is being written
		}
		right := event.Verb + " " + event.ObjectRef.Resource
		if event.ObjectRef.Subresource != "" {
			right += "/" + event.ObjectRef.Subresource
		}
		if event.ResponseStatus.Code == 403 {
			if what := right + " " + event.ObjectRef.Name; !slices.Contains(refused, what) {
				refused = append(refused, what)
			}
			continue
		}
		used[right] = true
	}
	return used, refused
}
