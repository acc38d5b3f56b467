package bookshop

import (
	"encoding/json"
	"net/http"
	"strings"
)

// Answer is what a service says of itself and of what it saw; every JSON answer of the shop is one.
type Answer struct {
	Service  string `json:"service"`
	Version  string `json:"version"`
	Instance string `json:"instance"`
	// Caller is the SPIFFE ID that the sidecar proved for whoever called; empty when nobody was proved.
	Caller string `json:"caller,omitempty"`
	// User is the x-user header as it came through the services before.
	User string `json:"user,omitempty"`

	Book    *Book          `json:"book,omitempty"`
	Reviews []Review       `json:"reviews,omitempty"`
	Stars   string         `json:"stars,omitempty"` // colour of this version's stars; empty when it shows none
	Ratings map[string]int `json:"ratings,omitempty"`

	// Method and Headers are set by /echo.
	Method  string              `json:"method,omitempty"`
	Headers map[string][]string `json:"headers,omitempty"`
	// Counters is set by /counters.
	Counters map[string]int64 `json:"counters,omitempty"`

	Upstreams []Call `json:"upstreams,omitempty"`
}

// Call is one request to an upstream, and how it ended.
type Call struct {
	Name   string  `json:"name"`
	URL    string  `json:"url"`
	Status int     `json:"status,omitempty"` // 0: no answer came
	Error  string  `json:"error,omitempty"`
	Millis float64 `json:"ms"`
	Answer *Answer `json:"answer,omitempty"`
}

// OK says whether the upstream did its work.
func (c Call) OK() bool { return c.Status == http.StatusOK && c.Answer != nil }

// Upstream gives the call to the upstream of that name, or nil.
func (a *Answer) Upstream(name string) *Call {
	if a == nil {
		return nil
	}
	for i := range a.Upstreams {
		if a.Upstreams[i].Name == name {
			return &a.Upstreams[i]
		}
	}
	return nil
}

// Book is what details knows.
type Book struct {
	Title     string `json:"title"`
	Author    string `json:"author"`
	Year      int    `json:"year"`
	Publisher string `json:"publisher"`
	Blurb     string `json:"blurb"`
}

// Review is what reviews knows, with the stars of ratings where the version asks for them.
type Review struct {
	Reviewer string `json:"reviewer"`
	Text     string `json:"text"`
	Stars    int    `json:"stars,omitempty"`
}

// Caller reads the SPIFFE ID of the direct caller from the header that the sidecar sets, x-forwarded-client-cert. The
// last element is the one that our own sidecar added.
func Caller(h http.Header) string {
	elements := strings.Split(h.Get("X-Forwarded-Client-Cert"), ",")
	for _, pair := range strings.Split(elements[len(elements)-1], ";") {
		if uri, ok := strings.CutPrefix(strings.TrimSpace(pair), "URI="); ok {
			return strings.Trim(uri, `"`)
		}
	}
	return ""
}

// shortCaller is the service account of a SPIFFE ID of the mesh, for people.
func shortCaller(id string) string {
	if id == "" {
		return "unknown"
	}
	return id[strings.LastIndex(id, "/")+1:]
}

// answer begins an answer with what every service says.
func (s *Server) answer(r *http.Request) *Answer {
	return &Answer{
		Service: s.config.Service, Version: s.config.Version, Instance: s.config.Instance,
		Caller: Caller(r.Header), User: r.Header.Get("X-User"),
	}
}

// write sends an answer. An upstream that failed is shown, not fatal, unless the request says with `x-strict: yes` that
// half an answer is none: then the status is 502.
func (s *Server) write(w http.ResponseWriter, r *http.Request, a *Answer) {
	status := http.StatusOK
	for _, c := range a.Upstreams {
		if !c.OK() && r.Header.Get("X-Strict") == "yes" {
			status = http.StatusBadGateway
		}
	}
	if s.config.Service == "page" && wantsHTML(r) {
		writeHTML(w, status, a)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	_ = encoder.Encode(a) // whoever hung up does not want it
}

// wantsHTML tells a browser from a program: ?format= decides, and else the Accept header.
func wantsHTML(r *http.Request) bool {
	switch r.URL.Query().Get("format") {
	case "html":
		return true
	case "json":
		return false
	}
	return strings.Contains(r.Header.Get("Accept"), "text/html")
}
