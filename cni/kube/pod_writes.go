package kube

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
)

// Delete deletes a pod with its grace period. If the pod was changed or replaced since it was read, Delete does not
// delete it and returns an error for which IsConflict is true.
func (c *Client) Delete(ctx context.Context, p *agentapi.Pod) error {
	options := map[string]any{
		"apiVersion": "v1", "kind": "DeleteOptions",
		"preconditions": map[string]string{"uid": p.Metadata.UID, "resourceVersion": p.Metadata.ResourceVersion},
	}
	path := podPath(p.Metadata.Namespace, p.Metadata.Name)
	if err := c.call(ctx, http.MethodDelete, path, "application/json", options, nil, 0); err != nil {
		return fmt.Errorf("deleting pod %s/%s: %w", p.Metadata.Namespace, p.Metadata.Name, err)
	}
	return nil
}

// DaemonSetGone reports whether a DaemonSet does not exist or is being deleted, so that its pods are not replaced.
func (c *Client) DaemonSetGone(ctx context.Context, namespace, name string) (bool, error) {
	var set struct {
		Metadata agentapi.Metadata `json:"metadata"`
	}
	path := "/apis/apps/v1/namespaces/" + url.PathEscape(namespace) + "/daemonsets/" + url.PathEscape(name)
	err := c.call(ctx, http.MethodGet, path, "", nil, &set, agentapi.MaxBody)
	if IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading DaemonSet %s/%s: %w", namespace, name, err)
	}
	return set.Metadata.DeletionTimestamp != nil, nil
}

// Label sets one label of a pod. If the pod was changed or replaced since it was read, Label does not change it and
// returns an error for which IsConflict is true.
func (c *Client) Label(ctx context.Context, p *agentapi.Pod, key, value string) error {
	patch := map[string]any{"metadata": map[string]any{
		"uid": p.Metadata.UID, "resourceVersion": p.Metadata.ResourceVersion,
		"labels": map[string]string{key: value},
	}}
	path := podPath(p.Metadata.Namespace, p.Metadata.Name)
	if err := c.call(ctx, http.MethodPatch, path, "application/merge-patch+json", patch, nil, 0); err != nil {
		return fmt.Errorf("labelling pod %s/%s: %w", p.Metadata.Namespace, p.Metadata.Name, err)
	}
	return nil
}
