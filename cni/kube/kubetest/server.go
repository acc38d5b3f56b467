// Package kubetest is a fake Kubernetes API server for tests of package kube's client. It stores pods in memory and
// supports list, watch, delete with preconditions, and patch. Tests with a real API server are in e2e/kubernetes.
package kubetest

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
	"github.com/pilotfish-mesh/pilotfish/cni/kube"
)

// Token is the pod's token that the server accepts. Its service account is pilotfish-system/pilotfish-cni.
const Token = "e30.eyJzdWIiOiJzeXN0ZW06c2VydmljZWFjY291bnQ6cGlsb3RmaXNoLXN5c3RlbTpwaWxvdGZpc2gtY25pIn0.signature"

// TokenPath is the URL path of token requests for the service account of Token.
const TokenPath = "/api/v1/namespaces/pilotfish-system/serviceaccounts/pilotfish-cni/token"

// Server is the fake API server.
type Server struct {
	*httptest.Server

	mu       sync.Mutex
	version  int
	pods     map[string]agentapi.Pod
	events   []event
	changed  chan struct{} // closed at each change
	broken   int           // status code of all responses; 0 for normal operation
	requests map[string]int
	objects  map[string]string        // JSON of other objects, such as DaemonSets, by URL path
	expiring bool                     // the server refuses watches until the next list
	tokens   []string                 // all issued tokens
	held     map[string]chan struct{} // by URL path: channels whose close releases the delayed responses
	life     time.Duration            // maximum lifetime of issued tokens
}

type event struct {
	version int
	kind    kube.EventType
	pod     agentapi.Pod
}

// New starts a server and stops it at the end of the test.
func New(t testing.TB) *Server {
	s := &Server{pods: map[string]agentapi.Pod{}, changed: make(chan struct{}), requests: map[string]int{}, objects: map[string]string{}, life: time.Hour}
	s.Server = httptest.NewTLSServer(http.HandlerFunc(s.serve))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// CA returns the server's certificate in PEM, which clients use as CA certificate.
func (s *Server) CA() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
}

// Config returns a client configuration for this server, with Token.
func (s *Server) Config() kube.Config {
	return kube.Config{Server: s.URL, CA: s.CA(), Token: Token}
}

// Client returns a client of this server and closes it at the end of the test.
func (s *Server) Client(t testing.TB) *kube.Client {
	t.Helper()
	c, err := kube.New(s.Config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// Put creates or replaces a pod.
func (s *Server) Put(p agentapi.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(p)
}

func (s *Server) put(p agentapi.Pod) agentapi.Pod {
	name := p.Metadata.Namespace + "/" + p.Metadata.Name
	kind := kube.Added
	if _, known := s.pods[name]; known {
		kind = kube.Modified
	}
	s.version++
	p.Metadata.ResourceVersion = strconv.Itoa(s.version)
	s.pods[name] = p
	s.addEvent(kind, p)
	return p
}

// addEvent records an event and notifies all watches.
func (s *Server) addEvent(kind kube.EventType, p agentapi.Pod) {
	s.events = append(s.events, event{s.version, kind, p})
	close(s.changed)
	s.changed = make(chan struct{})
}

// Remove removes a pod.
func (s *Server) Remove(namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(namespace + "/" + name)
}

func (s *Server) remove(name string) {
	p, known := s.pods[name]
	if !known {
		return
	}
	delete(s.pods, name)
	s.version++
	p.Metadata.ResourceVersion = strconv.Itoa(s.version)
	s.addEvent(kube.Deleted, p)
}

// Pod returns the current state of a pod.
func (s *Server) Pod(namespace, name string) (agentapi.Pod, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, known := s.pods[namespace+"/"+name]
	return p, known
}

// SetObject sets the JSON of the object at a URL path; "" removes the object.
func (s *Server) SetObject(path, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects[path] = text
}

// Break makes the server respond to all requests with an HTTP status and end all watches; 0 restores normal operation.
func (s *Server) Break(code int) {
	s.mu.Lock()
	s.broken = code
	s.mu.Unlock()
	s.CloseClientConnections()
}

// ExpireEvents discards all events, as compaction of the store does. Clients must list again.
func (s *Server) ExpireEvents() {
	s.mu.Lock()
	s.events, s.expiring = nil, true
	s.mu.Unlock()
	s.CloseClientConnections()
}

// Requests returns the number of requests with this method and URL path.
func (s *Server) Requests(method, path string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[method+" "+path]
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests[r.Method+" "+r.URL.Path]++
	broken, object, held := s.broken, s.objects[r.URL.Path], s.held[r.URL.Path]
	s.mu.Unlock()
	if held != nil {
		select {
		case <-held:
		case <-r.Context().Done():
			return
		}
	}
	switch {
	case broken != 0:
		refuse(w, broken, "Broken")
	case !s.isAuthorized(r.Header.Get("Authorization")):
		refuse(w, http.StatusUnauthorized, "Unauthorized")
	case r.Method == http.MethodPost && r.URL.Path == TokenPath:
		s.issueToken(w, r)
	case object != "":
		fmt.Fprint(w, object)
	case r.URL.Path == "/api/v1/pods" && r.URL.Query().Get("watch") == "true":
		s.watch(w, r)
	case r.URL.Path == "/api/v1/pods":
		s.list(w, r)
	default:
		s.one(w, r)
	}
}

// DelayResponses delays the responses for a URL path until release is called. release may be called several times.
func (s *Server) DelayResponses(path string) (release func()) {
	held := make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = map[string]chan struct{}{path: held}
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.held = nil
		close(held)
	})
}

// LimitTokenLife sets the maximum lifetime of new tokens. With 0, the server refuses token requests.
func (s *Server) LimitTokenLife(life time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.life = life
}

// isAuthorized reports whether the Authorization header contains Token or an issued token.
func (s *Server) isAuthorized(authorization string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	token, is := strings.CutPrefix(authorization, "Bearer ")
	return is && (token == Token || slices.Contains(s.tokens, token))
}

func (s *Server) issueToken(w http.ResponseWriter, r *http.Request) {
	var request struct {
		Spec struct{ ExpirationSeconds int64 }
	}
	_ = json.NewDecoder(r.Body).Decode(&request)
	s.mu.Lock()
	defer s.mu.Unlock()
	life := min(time.Duration(request.Spec.ExpirationSeconds)*time.Second, s.life)
	if life <= 0 {
		refuse(w, http.StatusForbidden, "Forbidden")
		return
	}
	s.tokens = append(s.tokens, fmt.Sprintf("lasting-%d", len(s.tokens)+1))
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "TokenRequest", "spec": map[string]any{"expirationSeconds": int64(life / time.Second)}, "status": map[string]any{
		"token": s.tokens[len(s.tokens)-1], "expirationTimestamp": time.Now().Add(life).UTC().Format(time.RFC3339)}})
}

func refuse(w http.ResponseWriter, code int, reason string) {
	w.WriteHeader(code)
	fmt.Fprintf(w, `{"kind":"Status","code":%d,"reason":%q,"message":"refused by the test"}`, code, reason)
}

func selected(r *http.Request, p *agentapi.Pod) bool {
	node, only := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "spec.nodeName=")
	return !only || p.Spec.NodeName == node
}

func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expiring = false
	items := []agentapi.Pod{}
	for _, p := range s.pods {
		if selected(r, &p) {
			items = append(items, p)
		}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "PodList", "metadata": map[string]string{"resourceVersion": strconv.Itoa(s.version)}, "items": items})
}

func (s *Server) watch(w http.ResponseWriter, r *http.Request) {
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	seconds, _ := strconv.Atoi(r.URL.Query().Get("timeoutSeconds"))
	timeout := time.After(time.Duration(seconds) * time.Second)
	for {
		s.mu.Lock()
		changed, expiring := s.changed, s.expiring
		var news []event
		for _, e := range s.events {
			if e.version > from && selected(r, &e.pod) {
				news = append(news, e)
			}
		}
		s.mu.Unlock()
		if expiring {
			refuse(w, http.StatusGone, "Expired")
			return
		}
		for _, e := range news {
			from = e.version
			_ = json.NewEncoder(w).Encode(map[string]any{"type": e.kind, "object": e.pod})
		}
		if http.NewResponseController(w).Flush() != nil {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// one handles requests about one pod.
func (s *Server) one(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(r.URL.Path, "/") // "", api, v1, namespaces, NS, pods, NAME
	if len(parts) != 7 || parts[5] != "pods" {
		refuse(w, http.StatusNotFound, "NotFound")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	name := parts[4] + "/" + parts[6]
	p, known := s.pods[name]
	if !known {
		refuse(w, http.StatusNotFound, "NotFound")
		return
	}
	switch r.Method {
	case http.MethodDelete:
		s.deleteOne(w, r, name, p)
	case http.MethodPatch:
		s.patchOne(w, r, p)
	default:
		_ = json.NewEncoder(w).Encode(p)
	}
}

func (s *Server) deleteOne(w http.ResponseWriter, r *http.Request, name string, p agentapi.Pod) {
	var options struct {
		Preconditions struct{ UID, ResourceVersion string }
	}
	_ = json.NewDecoder(r.Body).Decode(&options)
	c := options.Preconditions
	if c.UID != "" && c.UID != p.Metadata.UID || c.ResourceVersion != "" && c.ResourceVersion != p.Metadata.ResourceVersion {
		refuse(w, http.StatusConflict, "Conflict")
		return
	}
	s.remove(name)
	fmt.Fprint(w, `{}`)
}

func (s *Server) patchOne(w http.ResponseWriter, r *http.Request, p agentapi.Pod) {
	var patch agentapi.Pod
	_ = json.NewDecoder(r.Body).Decode(&patch)
	m := patch.Metadata
	if m.UID != "" && m.UID != p.Metadata.UID || m.ResourceVersion != "" && m.ResourceVersion != p.Metadata.ResourceVersion {
		refuse(w, http.StatusConflict, "Conflict")
		return
	}
	labels := map[string]string{}
	for _, from := range []map[string]string{p.Metadata.Labels, m.Labels} {
		for k, v := range from {
			labels[k] = v
		}
	}
	p.Metadata.Labels = labels
	_ = json.NewEncoder(w).Encode(s.put(p))
}
