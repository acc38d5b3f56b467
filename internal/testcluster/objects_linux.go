package testcluster

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"path"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// ParseManifest returns the objects of a YAML file with one or more documents.
func ParseManifest(t testing.TB, manifest string) (objects []Object) {
	t.Helper()
	decoder := yaml.NewDecoder(strings.NewReader(manifest))
	for {
		var o map[string]any // with Object, inner maps would be Objects, too
		err := decoder.Decode(&o)
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatalf("manifest: %v\n%s", err, manifest)
		}
		if o != nil {
			objects = append(objects, o)
		}
	}
}

// Apply applies the objects of a YAML manifest by server-side apply, and returns them as stored. An object without a
// namespace belongs to "default". It takes over fields from other managers.
func (c *client) Apply(t testing.TB, manifest string) (stored []Object) {
	t.Helper()
	for _, o := range ParseManifest(t, manifest) {
		collection, err := c.collectionPath(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		stored = append(stored, c.mustDo(t, http.MethodPatch, collection+"/"+o.Name()+"?fieldManager=test&force=true", applyPatch, o))
	}
	return stored
}

// Create creates an object and returns it as stored. Its name can be a generateName.
func (c *client) Create(ctx context.Context, o Object) (Object, error) {
	collection, err := c.collectionPath(ctx, o)
	if err != nil {
		return nil, err
	}
	return c.Do(ctx, http.MethodPost, collection, "", o)
}

// Get returns the object at a path, such as /api/v1/namespaces/a/pods/b.
func (c *client) Get(t testing.TB, path string) Object {
	t.Helper()
	return c.mustDo(t, http.MethodGet, path, "", nil)
}

// List returns the objects of a collection, such as /api/v1/pods or /api/v1/pods?labelSelector=a%3Db.
func (c *client) List(t testing.TB, collection string) []Object {
	t.Helper()
	objects, _, err := c.list(t.Context(), collection)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// Patch changes the object at a path, or its subresource, by a JSON merge patch. It returns the changed object.
func (c *client) Patch(t testing.TB, path string, patch Object) Object {
	t.Helper()
	return c.mustDo(t, http.MethodPatch, path, mergePatch, patch)
}

// Delete deletes the object or the collection at a path, without a grace period. It returns nil if the object does not
// exist.
func (c *client) Delete(ctx context.Context, path string) error {
	_, err := c.Do(ctx, http.MethodDelete, path, "", Object{"gracePeriodSeconds": 0})
	if IsNotFound(err) {
		return nil
	}
	return err
}

func (c *client) mustDo(t testing.TB, method, path, contentType string, body any) Object {
	t.Helper()
	o, err := c.Do(t.Context(), method, path, contentType, body)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// WaitForObject watches the object at a path until check returns nil, and returns the object. check receives nil while the
// object does not exist. what describes the expected state.
func (c *client) WaitForObject(t testing.TB, what, object string, check func(Object) error) Object {
	t.Helper()
	collection, name := path.Split(object)
	var found Object
	c.WaitForList(t, what, strings.TrimSuffix(collection, "/")+"?fieldSelector=metadata.name%3D"+name, func(objects []Object) error {
		found = nil
		if len(objects) > 0 {
			found = objects[0]
		}
		return check(found)
	})
	return found
}

// WaitForList watches the objects of a collection until check returns nil, and returns them. what describes the expected
// state.
func (c *client) WaitForList(t testing.TB, what, collection string, check func([]Object) error) []Object {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), readyTimeout)
	defer cancel()
	for {
		objects, version, err := c.list(ctx, collection)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if err = check(objects); err == nil {
			return objects
		}
		if failed := c.waitForEvent(ctx, collection, version); failed != nil {
			t.Fatalf("%s: not fulfilled within %s: %v (%v)", what, readyTimeout, err, failed)
		}
	}
}

// list returns the objects of a collection and its resource version.
func (c *client) list(ctx context.Context, collection string) (objects []Object, version string, err error) {
	list, err := c.Do(ctx, http.MethodGet, collection, "", nil)
	if err != nil {
		return nil, "", err
	}
	items, _ := list["items"].([]any)
	for _, item := range items {
		objects = append(objects, item.(map[string]any))
	}
	return objects, list.Text("metadata", "resourceVersion"), nil
}

// waitForEvent waits until a collection changes after a resource version. It may return early.
func (c *client) waitForEvent(ctx context.Context, collection, version string) error {
	separator := "?"
	if strings.Contains(collection, "?") {
		separator = "&"
	}
	resp, err := c.send(ctx, http.MethodGet, collection+separator+"watch=true&timeoutSeconds=60&resourceVersion="+version, "", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var event Object
	_ = json.NewDecoder(resp.Body).Decode(&event) // the caller lists again in any case
	return ctx.Err()
}

// Namespace creates a namespace in which pods can be created, and returns its name. It is deleted, with its pods, when
// the test ends. labels are pairs of names and values.
func (c *Cluster) Namespace(t testing.TB, labels ...string) string {
	t.Helper()
	values := Object{}
	for i := 0; i+1 < len(labels); i += 2 {
		values[labels[i]] = labels[i+1]
	}
	created, err := c.Create(t.Context(), Object{"apiVersion": "v1", "kind": "Namespace", "metadata": Object{"generateName": "test-", "labels": values}})
	if err != nil {
		t.Fatal(err)
	}
	name := created.Name()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		// Without a kubelet, a pod is only deleted at once.
		if err := errors.Join(c.Delete(ctx, "/api/v1/namespaces/"+name+"/pods"), c.Delete(ctx, "/api/v1/namespaces/"+name)); err != nil {
			t.Logf("deleting namespace %s: %v", name, err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), readyTimeout)
	defer cancel()
	for {
		err := c.checkNamespace(ctx, name)
		if err == nil {
			return name
		}
		if ctx.Err() != nil {
			t.Fatalf("namespace %s: %v", name, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
