package testcluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
)

// Object is an object of the API in JSON.
type Object map[string]any

// Get returns the field at a path of keys, or nil.
func (o Object) Get(path ...string) any {
	var value any = o
	for _, key := range path {
		switch fields := value.(type) {
		case Object:
			value = fields[key]
		case map[string]any:
			value = fields[key]
		default:
			return nil
		}
	}
	return value
}

// Text returns the field at a path of keys as text, or "".
func (o Object) Text(path ...string) string {
	text, _ := o.Get(path...).(string)
	return text
}

// Name returns the object's name.
func (o Object) Name() string { return o.Text("metadata", "name") }

// Namespace returns the object's namespace, or "".
func (o Object) Namespace() string { return o.Text("metadata", "namespace") }

// UID returns the object's UID.
func (o Object) UID() string { return o.Text("metadata", "uid") }

// StatusError is an unsuccessful response of the API server.
type StatusError struct {
	Request string
	Code    int    // HTTP status
	Reason  string // such as AlreadyExists
	Message string
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("%s: %d %s: %s", e.Request, e.Code, e.Reason, e.Message)
}

// Content types of patches.
const (
	applyPatch = "application/apply-patch+yaml" // server-side apply
	mergePatch = "application/merge-patch+json"
)

// client sends requests to the API server.
type client struct {
	url   string
	token string
	http  *http.Client

	mu        sync.Mutex
	resources map[string]map[string]resource // by apiVersion and kind
}

// Do sends a request with a body in JSON, or without one if body is nil. The default content type is JSON. It returns a
// *StatusError if the response is unsuccessful. The result is the response's body, which is empty for /readyz.
func (c *client) Do(ctx context.Context, method, path, contentType string, body any) (Object, error) {
	resp, err := c.send(ctx, method, path, contentType, body)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") {
		return nil, err
	}
	object := Object{}
	return object, json.Unmarshal(text, &object)
}

// send returns a successful response. The caller must close its body.
func (c *client) send(ctx context.Context, method, path, contentType string, body any) (*http.Response, error) {
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, content)
	if err != nil {
		return nil, err
	}
	if contentType == "" {
		contentType = "application/json"
	}
	req.Header.Set("Content-Type", contentType)
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		return nil, errors.Join(readStatus(method+" "+path, resp), resp.Body.Close())
	}
	return resp, nil
}

func readStatus(request string, resp *http.Response) error {
	status := &StatusError{Request: request, Code: resp.StatusCode}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if json.Unmarshal(text, status) != nil {
		status.Message = string(text)
	}
	return status
}

// resource is the REST resource of a kind.
type resource struct {
	Name, Kind string
	Namespaced bool
}

// collectionPath returns the path of an object's collection. The default namespace is "default".
func (c *client) collectionPath(ctx context.Context, o Object) (string, error) {
	version, kind := o.Text("apiVersion"), o.Text("kind")
	root := "/apis/" + version
	if !strings.Contains(version, "/") {
		root = "/api/" + version
	}
	r, err := c.findResource(ctx, root, kind)
	if err != nil {
		return "", fmt.Errorf("%s of %s: %w", kind, version, err)
	}
	if !r.Namespaced {
		return root + "/" + r.Name, nil
	}
	namespace := o.Namespace()
	if namespace == "" {
		namespace = "default"
	}
	return root + "/namespaces/" + namespace + "/" + r.Name, nil
}

func (c *client) findResource(ctx context.Context, root, kind string) (resource, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r, ok := c.resources[root][kind]; ok {
		return r, nil
	}
	list, err := c.listResources(ctx, root)
	if err != nil {
		return resource{}, err
	}
	if c.resources == nil {
		c.resources = map[string]map[string]resource{}
	}
	c.resources[root] = list
	if r, ok := list[kind]; ok {
		return r, nil
	}
	return resource{}, errors.New("the API server does not serve this kind")
}

// listResources returns the resources of an API version, by kind.
func (c *client) listResources(ctx context.Context, root string) (map[string]resource, error) {
	resp, err := c.send(ctx, http.MethodGet, root, "", nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var list struct{ Resources []resource }
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		return nil, err
	}
	byKind := map[string]resource{}
	for _, r := range list.Resources {
		if !strings.Contains(r.Name, "/") { // not a subresource
			byKind[r.Kind] = r
		}
	}
	return byKind, nil
}
