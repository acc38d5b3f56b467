package kube

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
)

// pages starts an API server that lists total pods in pages. The pods have large fields that the client discards.
func pages(t *testing.T, total int) (server *httptest.Server, asked *int) {
	asked = new(int)
	server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*asked++
		from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
		limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
		to := min(from+limit, total)
		next := ""
		if to < total {
			next = strconv.Itoa(to)
		}
		fmt.Fprintf(w, `{"metadata":{"resourceVersion":"7","continue":%q},"items":[`, next)
		for i := from; i < to; i++ {
			if i > from {
				fmt.Fprint(w, ",")
			}
			fmt.Fprintf(w, `{"metadata":{"name":"p%d","namespace":"shop","uid":"u%d"},"spec":{"volumes":[%q]}}`, i, i, strings.Repeat("v", 20<<10))
		}
		fmt.Fprint(w, "]}")
	}))
	t.Cleanup(server.Close)
	return server, asked
}

func TestPodsOfAFullNodeAreListedInPages(t *testing.T) {
	const total = 5000 // 100 MB of JSON, more than the limit of one response
	server, asked := pages(t, total)
	c, err := New(Config{Server: server.URL, Token: "t"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	pods, version, err := c.Pods(t.Context(), "n1")
	if err != nil || len(pods) != total || version != "7" || *asked != total/pageOfPods {
		t.Fatalf("%d pods, version %q, in %d answers: %v", len(pods), version, *asked, err)
	}
	if last := pods[total-1].Metadata.Name; last != "p4999" {
		t.Error(last)
	}
}

func TestEndlessListIsAborted(t *testing.T) {
	for _, items := range []string{"", strings.Repeat(`{},`, 999) + `{}`} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"metadata":{"continue":"x"},"items":[`+items+`]}`)
		}))
		defer server.Close()
		c, err := New(Config{Server: server.URL, Token: "t"})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, _, err := c.Pods(t.Context(), "n1"); err == nil || !strings.Contains(err.Error(), "too many pages") {
			t.Errorf("%v", err)
		}
	}
}
