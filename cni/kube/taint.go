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

// RemoveTaints removes the taints with one key from a node and reports whether there was one. If another client has
// changed the node's taints meanwhile, the API server refuses the patch, and the caller may retry.
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

// taintPatch removes from the end, so that the indexes of earlier taints stay valid.
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
