package kube

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
)

func TestEventReferencesThePodAndIsTruncated(t *testing.T) {
	type reference struct{ Kind, Namespace, Name, UID string }
	var path string
	var event struct {
		Kind, Type, Reason, Message, LastTimestamp string
		Metadata                                   struct{ GenerateName, Namespace string }
		InvolvedObject                             reference
		Source                                     struct{ Component, Host string }
		Count                                      int
	}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path = r.Method + " " + r.URL.Path
		_ = json.NewDecoder(r.Body).Decode(&event)
		w.WriteHeader(http.StatusCreated)
	}))
	defer server.Close()
	pod := &agentapi.Pod{Metadata: agentapi.Metadata{Name: "web", Namespace: "shop", UID: "u"}}
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	e := PodEvent{Pod: pod, Warning: true, Reason: "RedirectionDrifted", Message: strings.Repeat("ä", 5000)}
	if err := clientOf(t, server, "token: x").Report(t.Context(), "pilotfish-cni", "n1", at, e); err != nil {
		t.Fatal(err)
	}
	if path != "POST /api/v1/namespaces/shop/events" || event.InvolvedObject != (reference{"Pod", "shop", "web", "u"}) || event.Metadata.Namespace != "shop" ||
		event.Metadata.GenerateName != "web." || event.Kind != "Event" || event.Count != 1 {
		t.Errorf("%s: %+v", path, event)
	}
	if event.Type != "Warning" || event.Reason != e.Reason || event.LastTimestamp != "2026-01-02T03:04:05Z" || event.Source.Host != "n1" {
		t.Errorf("%+v", event)
	}
	if len(event.Message) > 1024 || !utf8.ValidString(event.Message) || !strings.HasSuffix(event.Message, "…") {
		t.Errorf("%d bytes", len(event.Message))
	}
}

func TestTaintIsRemovedOnlyIfUnchanged(t *testing.T) {
	var sent string
	code := http.StatusOK
	node := `{"spec":{"taints":[{"key":"gpu","effect":"NoSchedule"},{"key":"cni.istio.io/not-ready","effect":"NoSchedule"},{"key":"cni.istio.io/not-ready","value":"x","effect":"NoExecute"}]}}`
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/nodes/n1" {
			t.Errorf("asked %s", r.URL)
		}
		if r.Method == http.MethodGet {
			_, _ = w.Write([]byte(node))
			return
		}
		var patch any
		_ = json.NewDecoder(r.Body).Decode(&patch)
		text, _ := json.Marshal(patch)
		sent = r.Method + " " + r.Header.Get("Content-Type") + " " + string(text)
		w.WriteHeader(code)
	}))
	defer server.Close()
	client := clientOf(t, server, "token: x")
	removed, err := client.RemoveTaints(t.Context(), "n1", "cni.istio.io/not-ready")
	want := `PATCH application/json-patch+json [` +
		`{"op":"test","path":"/spec/taints/2","value":{"effect":"NoExecute","key":"cni.istio.io/not-ready","value":"x"}},{"op":"remove","path":"/spec/taints/2"},` +
		`{"op":"test","path":"/spec/taints/1","value":{"effect":"NoSchedule","key":"cni.istio.io/not-ready"}},{"op":"remove","path":"/spec/taints/1"}]`
	if err != nil || !removed || sent != want {
		t.Errorf("%v %v: sent %s", removed, err, sent)
	}
	code = http.StatusUnprocessableEntity
	if removed, err := client.RemoveTaints(t.Context(), "n1", "cni.istio.io/not-ready"); err == nil || removed {
		t.Errorf("a node that changed meanwhile: %v %v", removed, err)
	}
	sent, node = "", `{"spec":{}}`
	if removed, err := client.RemoveTaints(t.Context(), "n1", "cni.istio.io/not-ready"); err != nil || removed || sent != "" {
		t.Errorf("a node without it: %v %v, sent %q", removed, err, sent)
	}
}
