package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
)

// RemoveTaints removes all taints with the key name from a node, and reports whether the node had any. If another
// client changes the node's taints at the same time, the API server rejects the patch. The caller may then retry.
func (c *Client) RemoveTaints(ctx context.Context, node, name string) (removed bool, err error) {
	var read struct {
		Spec struct {
			Taints []json.RawMessage `json:"taints"`
		} `json:"spec"`
	}
	path := "/api/v1/nodes/" + url.PathEscape(node)
	if err := c.call(ctx, http.MethodGet, path, "", nil, &read, agentapi.MaxBody); err != nil {
		return false, fmt.Errorf("reading node %s: %w", node, err)
	}
	patch := taintPatch(read.Spec.Taints, name)
	if len(patch) == 0 {
		return false, nil
	}
	if err := c.call(ctx, http.MethodPatch, path, "application/json-patch+json", patch, nil, 0); err != nil {
		return false, fmt.Errorf("removing taint %s from node %s: %w", name, node, err)
	}
	return true, nil
}

// taintPatch returns a JSON patch that removes the taints with the key name. It removes the last one first, so that the
// indexes of the others remain valid. Each removal is preceded by a test that the taint is unchanged.
func taintPatch(taints []json.RawMessage, name string) (patch []map[string]any) {
	for i := len(taints) - 1; i >= 0; i-- {
		var taint struct {
			Key string `json:"key"`
		}
		if json.Unmarshal(taints[i], &taint) != nil || taint.Key != name {
			continue
		}
		path := "/spec/taints/" + strconv.Itoa(i)
		patch = append(patch, map[string]any{"op": "test", "path": path, "value": taints[i]}, map[string]any{"op": "remove", "path": path})
	}
	return patch
}
