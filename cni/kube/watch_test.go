package kube

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
)

func TestWatchResumesAtTheLastVersion(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if q.Get("fieldSelector") != "spec.nodeName=n1" || q.Get("resourceVersion") != "7" || q.Get("allowWatchBookmarks") != "true" {
			t.Errorf("asked %s", r.URL)
		}
		fmt.Fprintln(w, `{"type":"ADDED","object":{"metadata":{"name":"a","uid":"1","resourceVersion":"8"}}}`)
		fmt.Fprintln(w, `{"type":"DELETED","object":{"metadata":{"name":"a","uid":"1","resourceVersion":"9"}}}`)
		fmt.Fprintln(w, `{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"12"}}}`)
	}))
	defer server.Close()
	var events []string
	version, err := clientOf(t, server, "token: x").Watch(t.Context(), "n1", "7", time.Minute, func(e Event) {
		events = append(events, string(e.Type)+" "+e.Pod.Metadata.Name)
	})
	if err != nil || version != "12" || strings.Join(events, ",") != "ADDED a,DELETED a" {
		t.Errorf("%v, version %s, %v", events, version, err)
	}
}

func TestEveryFormOfExpiredWatchIsDetected(t *testing.T) {
	for name, answer := range map[string]func(http.ResponseWriter){
		"as an answer": func(w http.ResponseWriter) { w.WriteHeader(http.StatusGone) },
		"as an event": func(w http.ResponseWriter) {
			fmt.Fprintln(w, `{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}`)
		},
	} {
		server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { answer(w) }))
		version, err := clientOf(t, server, "token: x").Watch(t.Context(), "n1", "7", time.Minute, func(Event) {})
		if !IsExpired(err) || version != "7" {
			t.Errorf("%s: %v", name, err)
		}
		server.Close()
	}
}

func TestEndlessEventEndsTheWatch(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"type":"ADDED","object":{"metadata":{"name":"`)
		for chunk := strings.Repeat("a", 1<<16); ; {
			if _, err := io.WriteString(w, chunk); err != nil {
				return
			}
		}
	}))
	defer server.Close()
	_, err := clientOf(t, server, "token: x").Watch(t.Context(), "n1", "7", time.Minute, func(Event) {})
	if err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Error(err)
	}
}

func TestOnlyTheUnchangedPodIsDeletedOrLabelled(t *testing.T) {
	var bodies []string
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body map[string]any
		_ = json.NewDecoder(r.Body).Decode(&body)
		text, _ := json.Marshal(body)
		bodies = append(bodies, r.Method+" "+string(text))
		w.WriteHeader(http.StatusConflict)
	}))
	defer server.Close()
	client := clientOf(t, server, "token: x")
	p := &agentapi.Pod{Metadata: agentapi.Metadata{Name: "a", Namespace: "b", UID: "u", ResourceVersion: "5"}}
	if err := client.Delete(t.Context(), p); !IsConflict(err) {
		t.Error(err)
	}
	if err := client.Label(t.Context(), p, "k", "v"); !IsConflict(err) {
		t.Error(err)
	}
	want := []string{
		`DELETE {"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"resourceVersion":"5","uid":"u"}}`,
		`PATCH {"metadata":{"labels":{"k":"v"},"resourceVersion":"5","uid":"u"}}`,
	}
	if strings.Join(bodies, "\n") != strings.Join(want, "\n") {
		t.Errorf("sent\n%s", strings.Join(bodies, "\n"))
	}
}

func FuzzWatch(f *testing.F) {
	f.Add(`{"type":"ADDED","object":{"metadata":{"name":"a"}}}`)
	f.Add(`{"type":"ERROR","object":{"code":410}}{"type":"BOOKMARK","object":{}}`)
	f.Fuzz(func(t *testing.T, text string) {
		decoder := json.NewDecoder(strings.NewReader(text))
		for {
			_, event, err := nextEvent(decoder)
			if err != nil {
				return
			}
			if event.Pod == nil && event.Type != "" {
				t.Error("an event without a pod")
			}
		}
	})
}
