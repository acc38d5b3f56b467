package kubernetes

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"testing"
)

// audit reads what the API server noted of the node agents and the plugin: the rights that they used, and what was refused
// for want of one.
func (c *cluster) audit(t *testing.T) (used map[string]bool, refused []string) {
	t.Helper()
	text, err := os.ReadFile(c.pki.path("audit.log"))
	if err != nil {
		t.Fatal(err)
	}
	used = map[string]bool{}
	for line := range bytes.Lines(text) {
		var event struct {
			Verb      string
			ObjectRef struct{ Resource, Subresource, Name string }
			// Of the answer.
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
