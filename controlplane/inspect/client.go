// Package inspect queries a control plane or an Envoy for the state of proxies and formats it for users.
package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/describe"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// maxResponseSize limits a response, in bytes.
const maxResponseSize = 512 << 20

// Client is a client of a control plane's debug endpoints.
type Client struct {
	// HTTP sends the requests, and Base is the base URL, such as "http://127.0.0.1:15014".
	HTTP *http.Client
	Base string
}

func (c *Client) call(ctx context.Context, method, path string, body, into any) error {
	var payload io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return err
		}
		payload = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.Base+path, payload)
	if err != nil {
		return fmt.Errorf("the address of the control plane, %s, is not valid: %w", c.Base, unwrapURLError(err))
	}
	answer, err := c.HTTP.Do(req)
	if err != nil {
		return fmt.Errorf("querying the control plane: %w; set --control-plane to the address of its monitoring port", unwrapURLError(err))
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(io.LimitReader(answer.Body, maxResponseSize))
	if err != nil {
		return fmt.Errorf("reading the control plane's response: %w", err)
	}
	if answer.StatusCode == http.StatusUnauthorized {
		return fmt.Errorf("the control plane refuses this client: %s; authenticate with --token-file or --cert", strings.TrimSpace(string(data)))
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("the control plane reports: %s", strings.TrimSpace(string(data)))
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("reading the control plane's response: %w; check that %s is the monitoring port of a pilotfish control plane", err, c.Base)
	}
	return nil
}

// unwrapURLError returns the cause of a *url.Error, without the method and the URL, because the caller already reports
// these. It returns other errors unchanged.
func unwrapURLError(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}

// Clients returns the connected clients.
func (c *Client) Clients(ctx context.Context) ([]xds.ClientStatus, error) {
	var clients []xds.ClientStatus
	return clients, c.call(ctx, http.MethodGet, "/debug/syncz", nil, &clients)
}

// Resource is one resource of a proxy, as JSON with camelCase field names.
type Resource struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Body    any    `json:"resource"`
}

// Resources returns the resources that the control plane generates for a client, by type URL.
func (c *Client) Resources(ctx context.Context, id string) (map[string][]Resource, error) {
	var all map[string][]Resource
	return all, c.call(ctx, http.MethodGet, "/debug/config_dump?proxyID="+url.QueryEscape(id), nil, &all)
}

// Describe returns a description of the documents that apply to a client.
func (c *Client) Describe(ctx context.Context, id string) (describe.Description, error) {
	var d describe.Description
	return d, c.call(ctx, http.MethodGet, "/debug/describe?proxyID="+url.QueryEscape(id), nil, &d)
}

// DescribeWithoutSidecar returns a description of a workload without a sidecar.
func (c *Client) DescribeWithoutSidecar(ctx context.Context, namespace, name string) (describe.Description, error) {
	var d describe.Description
	return d, c.call(ctx, http.MethodGet, "/debug/describe?workload="+url.QueryEscape(namespace+"/"+name), nil, &d)
}

// Diff returns the changes that the files would cause. The request contains no private keys.
func (c *Client) Diff(ctx context.Context, files []controlplane.DiffFile) (controlplane.DiffAnswer, error) {
	var answer controlplane.DiffAnswer
	return answer, c.call(ctx, http.MethodPost, "/debug/diff", newDiffRequest(files), &answer)
}

// Name returns the name of a client's workload with its namespace, for example "reviews-v1.shop".
func Name(client xds.ClientStatus) string {
	if parts := strings.Split(client.Node, "~"); len(parts) == 4 {
		return parts[2]
	}
	return client.Node
}

// Find returns the client that query identifies: by client ID, node ID, the workload's name with or without the
// namespace, or a unique prefix of such a name.
func Find(clients []xds.ClientStatus, query string) (xds.ClientStatus, error) {
	for _, fits := range []func(xds.ClientStatus) bool{
		func(c xds.ClientStatus) bool { return c.ID == query || c.Node == query || Name(c) == query },
		func(c xds.ClientStatus) bool { name, _, _ := strings.Cut(Name(c), "."); return name == query },
		func(c xds.ClientStatus) bool { return strings.HasPrefix(Name(c), query) },
	} {
		found := slices.DeleteFunc(slices.Clone(clients), func(c xds.ClientStatus) bool { return !fits(c) })
		newest := slices.MaxFunc(append(found, xds.ClientStatus{}), func(a, b xds.ClientStatus) int { return a.Connected.Compare(b.Connected) })
		same := slices.IndexFunc(found, func(c xds.ClientStatus) bool { return c.Node != newest.Node }) < 0
		switch {
		case len(found) > 0 && same: // one node has two connections, so return the newer one
			return newest, nil
		case len(found) > 1:
			return xds.ClientStatus{}, fmt.Errorf("%q matches several proxies: %s; use the full name of one of them", query, clientNames(found))
		}
	}
	if len(clients) == 0 {
		return xds.ClientStatus{}, fmt.Errorf("proxy %q is not connected, and no other proxy is connected to the control plane", query)
	}
	return xds.ClientStatus{}, fmt.Errorf("proxy %q is not connected; connected proxies: %s", query, clientNames(clients))
}

func clientNames(clients []xds.ClientStatus) string {
	var list []string
	for _, c := range clients {
		list = append(list, Name(c))
	}
	slices.Sort(list)
	const most = 20
	if len(list) > most {
		list = append(list[:most], "…")
	}
	return strings.Join(slices.Compact(list), ", ")
}
