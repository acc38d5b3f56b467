package kube

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path"
	"strconv"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// fakeObjects is an API server that stores objects by path and compares resource versions. It supports GET, POST, PUT
// and DELETE.
type fakeObjects struct {
	mu      sync.Mutex
	version int
	objects map[string]map[string]any
	writes  int
	// before, if set, is called once before the next write.
	before func()
}

func newFakeObjects(t testing.TB) (*fakeObjects, func(schema.GroupVersion) rest.Interface) {
	t.Helper()
	f := &fakeObjects{objects: map[string]map[string]any{}}
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	client, err := newClient(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	return f, func(group schema.GroupVersion) rest.Interface {
		t.Helper()
		r, err := client.rest(group, contentJSON, contentJSON)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
}

// ServeHTTP implements http.Handler.
func (f *fakeObjects) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		f.mu.Lock()
		before := f.before
		f.before = nil
		f.mu.Unlock()
		if before != nil {
			before()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	key := r.URL.Path
	var body map[string]any
	if r.Method == http.MethodPost || r.Method == http.MethodPut {
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			writeFakeStatus(w, http.StatusBadRequest, "BadRequest")
			return
		}
	}
	if r.Method == http.MethodPost {
		key = path.Join(key, body["metadata"].(map[string]any)["name"].(string))
	}
	stored, exists := f.objects[key]
	switch {
	case r.Method == http.MethodPost && exists:
		writeFakeStatus(w, http.StatusConflict, "AlreadyExists")
		return
	case r.Method != http.MethodPost && !exists:
		writeFakeStatus(w, http.StatusNotFound, "NotFound")
		return
	case r.Method == http.MethodPut && body["metadata"].(map[string]any)["resourceVersion"] != stored["metadata"].(map[string]any)["resourceVersion"]:
		writeFakeStatus(w, http.StatusConflict, "Conflict")
		return
	case r.Method == http.MethodDelete:
		delete(f.objects, key)
	case r.Method != http.MethodGet:
		f.version++
		f.writes++
		body["metadata"].(map[string]any)["resourceVersion"] = strconv.Itoa(f.version)
		f.objects[key], stored = body, body
	}
	w.Header().Set("Content-Type", contentJSON)
	_ = json.NewEncoder(w).Encode(stored)
}

func writeFakeStatus(w http.ResponseWriter, code int, reason string) {
	w.Header().Set("Content-Type", contentJSON)
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code, "message": reason})
}
