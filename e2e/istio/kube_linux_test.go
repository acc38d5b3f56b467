package istio

import (
	"encoding/json"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// object is something of Kubernetes, as JSON has it.
type object = map[string]any

// kube is the part of the Kubernetes API that istiod needs to start: lists that never change, objects that istiod
// makes for itself, and the review of tokens.
type kube struct {
	lists  map[string][]object // by resource
	tokens map[string]string   // token → namespace:serviceaccount

	mu   sync.Mutex
	made map[string]object // by path: what istiod has created
}

// serve answers at the address until the test ends.
func (k *kube) serve(t testing.TB, listener net.Listener) {
	t.Helper()
	k.made = map[string]object{}
	server := &http.Server{Handler: k, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close(); <-ended })
}

// created is what istiod has made at the path, or nil.
func (k *kube) created(path string) object {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.made[path]
}

func (k *kube) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource, name := parsePath(r.URL.Path)
	switch {
	case r.URL.Path == "/version":
		reply(w, http.StatusOK, object{"major": "1", "minor": "34", "gitVersion": "v1.34.0"})
	case resource == "tokenreviews":
		k.review(w, r)
	case resource == "subjectaccessreviews": // whether a gateway may have certificates: in this cluster it may
		reply(w, http.StatusCreated, object{"kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "status": object{"allowed": true}})
	case r.Method == http.MethodPost || r.Method == http.MethodPut:
		k.create(w, r, name)
	case r.Method != http.MethodGet:
		fail(w, http.StatusMethodNotAllowed, "MethodNotAllowed")
	case r.URL.Query().Get("sendInitialEvents") != "":
		fail(w, http.StatusUnprocessableEntity, "Invalid") // clients list instead, and then watch
	case r.URL.Query().Get("watch") != "":
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-r.Context().Done() // nothing ever changes
	case name != "":
		k.get(w, r.URL.Path, resource, name)
	default:
		reply(w, http.StatusOK, k.list(r, resource))
	}
}

// parsePath parses /api/v1[/namespaces/N]/RESOURCE[/NAME] and /apis/GROUP/VERSION/….
func parsePath(path string) (resource, name string) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	skip := 2
	if parts[0] == "apis" {
		skip = 3
	}
	parts = parts[min(skip, len(parts)):]
	if len(parts) > 2 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	if len(parts) > 0 {
		resource = parts[0]
	}
	if len(parts) > 1 {
		name = parts[1]
	}
	return resource, name
}

func (k *kube) list(r *http.Request, resource string) object {
	list := object{"metadata": object{"resourceVersion": "1"}, "items": slices.Concat([]object{}, k.lists[resource])}
	if strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadataList") {
		list["kind"], list["apiVersion"] = "PartialObjectMetadataList", "meta.k8s.io/v1"
	}
	return list
}

func (k *kube) get(w http.ResponseWriter, path, resource, name string) {
	if o := k.created(path); o != nil {
		reply(w, http.StatusOK, o)
		return
	}
	for _, o := range k.lists[resource] {
		if o["metadata"].(object)["name"] == name {
			reply(w, http.StatusOK, o)
			return
		}
	}
	fail(w, http.StatusNotFound, "NotFound")
}

func (k *kube) create(w http.ResponseWriter, r *http.Request, name string) {
	var o object
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
		fail(w, http.StatusBadRequest, "BadRequest")
		return
	}
	path := r.URL.Path
	metadata, _ := o["metadata"].(object)
	if name == "" && metadata != nil {
		name, _ = metadata["name"].(string)
		path += "/" + name
	}
	k.mu.Lock()
	k.made[path] = o
	k.mu.Unlock()
	reply(w, http.StatusCreated, o)
}

// review returns the account of a token, as a cluster does for tokens that are mounted into its pods.
func (k *kube) review(w http.ResponseWriter, r *http.Request) {
	var review struct {
		Kind, APIVersion string
		Spec             struct {
			Token     string
			Audiences []string
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		fail(w, http.StatusBadRequest, "BadRequest")
		return
	}
	status := object{"authenticated": false}
	if account := k.tokens[review.Spec.Token]; account != "" && slices.Contains(review.Spec.Audiences, "istio-ca") {
		namespace, _, _ := strings.Cut(account, ":")
		status = object{"authenticated": true, "audiences": []string{"istio-ca"}, "user": object{
			"username": "system:serviceaccount:" + account,
			"groups":   []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace},
		}}
	}
	reply(w, http.StatusCreated, object{"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "status": status})
}

func reply(w http.ResponseWriter, code int, o object) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(o)
}

func fail(w http.ResponseWriter, code int, reason string) {
	reply(w, code, object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code})
}
