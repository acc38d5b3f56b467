package kube

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
)

// fakeAPIServer is an API server with the failures that a real one does not produce on demand. It serves only Services,
// and it has no streaming lists.
type fakeAPIServer struct {
	*httptest.Server
	client *Client

	mu       sync.Mutex
	version  int
	services []map[string]any
	watches  map[chan string]bool
	refuse   int // HTTP status of all responses; 0 for none
	pages    []string
	lists    int
}

func newFakeAPIServer(t *testing.T) *fakeAPIServer {
	t.Helper()
	f := &fakeAPIServer{version: 1, watches: map[chan string]bool{}}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	t.Cleanup(f.endWatches)
	var err error
	if f.client, err = newClient(&rest.Config{Host: f.URL}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.client.http.CloseIdleConnections)
	return f
}

// put adds a Service or replaces the one of the same name, without an event.
func (f *fakeAPIServer) put(name string, port int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version++
	service := map[string]any{
		"metadata": map[string]any{"namespace": "shop", "name": name, "resourceVersion": strconv.Itoa(f.version)},
		"spec":     map[string]any{"type": "ClusterIP", "clusterIP": "10.0.0.1", "ports": []any{map[string]any{"port": port, "protocol": "TCP"}}},
	}
	f.services = append(slices.DeleteFunc(f.services, hasName(name)), service)
}

func hasName(name string) func(map[string]any) bool {
	return func(o map[string]any) bool { return o["metadata"].(map[string]any)["name"] == name }
}

// remove removes a Service without an event.
func (f *fakeAPIServer) remove(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version++
	f.services = slices.DeleteFunc(f.services, hasName(name))
}

// expire sends an error event to all watches: their resource version is too old.
func (f *fakeAPIServer) expire() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for w := range f.watches {
		w <- `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410,"message":"too old resource version"}}`
	}
}

// endWatches ends all watches.
func (f *fakeAPIServer) endWatches() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for w := range f.watches {
		close(w)
		delete(f.watches, w)
	}
}

// setRefusal sets the HTTP status of all further responses. It ends the watches if the status is not 0.
func (f *fakeAPIServer) setRefusal(status int) {
	f.mu.Lock()
	f.refuse = status
	f.mu.Unlock()
	if status != 0 {
		f.endWatches()
	}
}

func (f *fakeAPIServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	refuse := f.refuse
	f.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	query := r.URL.Query()
	switch {
	case refuse != 0:
		writeStatus(w, refuse, "InternalError", "refused by the test")
	case !strings.HasSuffix(r.URL.Path, "/services"):
		writeStatus(w, http.StatusNotFound, "NotFound", "the test has only Services")
	case query.Get("sendInitialEvents") != "":
		writeStatus(w, http.StatusUnprocessableEntity, "Invalid", "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled")
	case query.Get("watch") != "":
		f.watch(w, r)
	default:
		f.list(w, query.Get("limit"), query.Get("continue"))
	}
}

func writeStatus(w http.ResponseWriter, code int, reason, message string) {
	w.WriteHeader(code)
	fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d,"message":%q}`, reason, code, message)
}

// list returns one page. The continuation token is the index of the next object.
func (f *fakeAPIServer) list(w http.ResponseWriter, limit, next string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pages = append(f.pages, limit)
	begin, _ := strconv.Atoi(next)
	end := len(f.services)
	if n, _ := strconv.Atoi(limit); n > 0 {
		end = min(end, begin+n)
	}
	metadata := map[string]any{"resourceVersion": strconv.Itoa(f.version)}
	if end < len(f.services) {
		metadata["continue"] = strconv.Itoa(end)
	} else {
		f.lists++
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "ServiceList", "apiVersion": "v1", "metadata": metadata, "items": f.services[begin:end]})
}

func (f *fakeAPIServer) watch(w http.ResponseWriter, r *http.Request) {
	events := make(chan string, 1)
	f.mu.Lock()
	f.watches[events] = true
	f.mu.Unlock()
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	for {
		select {
		case event, ok := <-events:
			if !ok {
				return
			}
			fmt.Fprintln(w, event)
			w.(http.Flusher).Flush()
		case <-r.Context().Done():
			f.mu.Lock()
			delete(f.watches, events)
			f.mu.Unlock()
			return
		}
	}
}
