package bookshop

import (
	"encoding/json"
	"net/http"
	"strings"
)

// Answer is the JSON response of every service of the shop. It contains the name of the service and data that the
// service observed.
type Answer struct {
	Service  string `json:"service"`
	Version  string `json:"version"`
	Instance string `json:"instance"`
	// Caller is the SPIFFE ID of the client, as authenticated by the sidecar. It is empty if the client is unknown.
	Caller string `json:"caller,omitempty"`
	// User is the x-user header, which the services propagate.
	User string `json:"user,omitempty"`

	Book    *Book          `json:"book,omitempty"`
	Reviews []Review       `json:"reviews,omitempty"`
	Stars   string         `json:"stars,omitempty"` // colour of the stars; empty if this version shows none
	Ratings map[string]int `json:"ratings,omitempty"`

	// Method and Headers are copied from the request. Only /echo sets them.
	Method  string              `json:"method,omitempty"`
	Headers map[string][]string `json:"headers,omitempty"`
	// Counters maps the names of counters to their values. Only /counters sets it.
	Counters map[string]int64 `json:"counters,omitempty"`

	Upstreams []Call `json:"upstreams,omitempty"`
}

// Call is the result of one request to an upstream.
type Call struct {
	Name   string  `json:"name"`
	URL    string  `json:"url"`
	Status int     `json:"status,omitempty"` // HTTP status; 0 if no response was received
	Error  string  `json:"error,omitempty"`
	Millis float64 `json:"ms"`
	Answer *Answer `json:"answer,omitempty"`
}

// OK reports whether the call was successful.
func (c Call) OK() bool { return c.Status == http.StatusOK && c.Answer != nil }

// Upstream returns the call to the upstream called name, or nil if there was none.
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

// Book is the response of the details service.
type Book struct {
	Title     string `json:"title"`
	Author    string `json:"author"`
	Year      int    `json:"year"`
	Publisher string `json:"publisher"`
	Blurb     string `json:"blurb"`
}

// Review is one review in the response of the reviews service. If this version of reviews calls ratings, the review
// contains the stars that ratings returned.
type Review struct {
	Reviewer string `json:"reviewer"`
	Text     string `json:"text"`
	Stars    int    `json:"stars,omitempty"`
}

// Caller returns the SPIFFE ID of the direct client from the x-forwarded-client-cert header. It reads the last element of
// the header, which the service's own sidecar added.
func Caller(h http.Header) string {
	elements := strings.Split(h.Get("X-Forwarded-Client-Cert"), ",")
	for _, pair := range strings.Split(elements[len(elements)-1], ";") {
		if uri, ok := strings.CutPrefix(strings.TrimSpace(pair), "URI="); ok {
			return strings.Trim(uri, `"`)
		}
	}
	return ""
}

// shortCaller returns the service account in a SPIFFE ID, for log messages.
func shortCaller(id string) string {
	if id == "" {
		return "unknown"
	}
	return id[strings.LastIndex(id, "/")+1:]
}

// newAnswer returns an Answer with the fields that every service sets.
func (s *Server) newAnswer(r *http.Request) *Answer {
	return &Answer{
		Service: s.config.Service, Version: s.config.Version, Instance: s.config.Instance,
		Caller: Caller(r.Header), User: r.Header.Get("X-User"),
	}
}

// writeAnswer sends an Answer with status 200. If an upstream call failed and the request has the header x-strict: yes, the
// status is 502.
func (s *Server) writeAnswer(w http.ResponseWriter, r *http.Request, a *Answer) {
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
	_ = encoder.Encode(a) // fails only if the client closed the connection
}

// wantsHTML reports whether the client requests a page instead of JSON, with ?format= or else the Accept header.
func wantsHTML(r *http.Request) bool {
	switch r.URL.Query().Get("format") {
	case "html":
		return true
	case "json":
		return false
	}
	return strings.Contains(r.Header.Get("Accept"), "text/html")
}
