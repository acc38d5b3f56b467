// Package inspect asks a control plane, or an Envoy, what proxies have and lack, and prints it for people.
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

// maxAnswer bounds what is read of one answer.
const maxAnswer = 512 << 20

// Client asks the debug pages of a control plane.
type Client struct {
	// HTTP makes the requests, and Base is what the paths are below, such as "http://127.0.0.1:15014".
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
		return err
	}
	answer, err := c.HTTP.Do(req)
	if err != nil {
		return fmt.Errorf("asking the control plane: %w; --control-plane says where its monitoring port is", inner(err))
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("reading the control plane's answer: %w", err)
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("the control plane says: %s", strings.TrimSpace(string(data)))
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("reading the control plane's answer: %w; is there a control plane of pilotfish at %s?", err, c.Base)
	}
	return nil
}

// inner leaves out the method and the address, which the caller knows.
func inner(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}

// Clients are the connected clients.
func (c *Client) Clients(ctx context.Context) ([]xds.ClientStatus, error) {
	var clients []xds.ClientStatus
	return clients, c.call(ctx, http.MethodGet, "/debug/syncz", nil, &clients)
}

// Resource is one resource of a proxy, as JSON with the names that its fields have there.
type Resource struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Body    any    `json:"resource"`
}

// Resources are what a client should have, by type URL.
func (c *Client) Resources(ctx context.Context, id string) (map[string][]Resource, error) {
	var all map[string][]Resource
	return all, c.call(ctx, http.MethodGet, "/debug/config_dump?proxyID="+url.QueryEscape(id), nil, &all)
}

// Describe says which documents apply to a client.
func (c *Client) Describe(ctx context.Context, id string) (describe.Description, error) {
	var d describe.Description
	return d, c.call(ctx, http.MethodGet, "/debug/describe?proxyID="+url.QueryEscape(id), nil, &d)
}

// Diff says what files would change. Private keys of Secrets are not sent.
func (c *Client) Diff(ctx context.Context, files []controlplane.DiffFile) (controlplane.DiffAnswer, error) {
	var answer controlplane.DiffAnswer
	return answer, c.call(ctx, http.MethodPost, "/debug/diff", asked(files), &answer)
}

// Name is the name of a client's workload: "reviews-v1.shop".
func Name(client xds.ClientStatus) string {
	if parts := strings.Split(client.Node, "~"); len(parts) == 4 {
		return parts[2]
	}
	return client.Node
}

// Find gives the client that a person means: by its ID, its node's id, its name with or without the namespace, or the
// beginning of that, if there is one only.
func Find(clients []xds.ClientStatus, what string) (xds.ClientStatus, error) {
	for _, fits := range []func(xds.ClientStatus) bool{
		func(c xds.ClientStatus) bool { return c.ID == what || c.Node == what || Name(c) == what },
		func(c xds.ClientStatus) bool { name, _, _ := strings.Cut(Name(c), "."); return name == what },
		func(c xds.ClientStatus) bool { return strings.HasPrefix(Name(c), what) },
	} {
		found := slices.DeleteFunc(slices.Clone(clients), func(c xds.ClientStatus) bool { return !fits(c) })
		newest := slices.MaxFunc(append(found, xds.ClientStatus{}), func(a, b xds.ClientStatus) int { return a.Connected.Compare(b.Connected) })
		same := slices.IndexFunc(found, func(c xds.ClientStatus) bool { return c.Node != newest.Node }) < 0
		switch {
		case len(found) > 0 && same: // one that is connected twice is the newer one
			return newest, nil
		case len(found) > 1:
			return xds.ClientStatus{}, fmt.Errorf("%q may be any of %s: say which", what, names(found))
		}
	}
	if len(clients) == 0 {
		return xds.ClientStatus{}, fmt.Errorf("no proxy is connected, so that there is no %q", what)
	}
	return xds.ClientStatus{}, fmt.Errorf("no proxy %q is connected; these are: %s", what, names(clients))
}

func names(clients []xds.ClientStatus) string {
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
