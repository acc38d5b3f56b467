package bookshop

import (
	_ "embed"
	"html/template"
	"net/http"
	"strings"
)

//go:embed page.html
var pageSource string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"stars": func(n int) string { return strings.Repeat("★", n) + strings.Repeat("☆", max(0, 5-n)) },
}).Parse(pageSource))

// hop is one call between two services, as a row in the page's table of calls.
type hop struct {
	From, To, Identity string
	Call
}

func writeHTML(w http.ResponseWriter, status int, a *Answer) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = pageTemplate.Execute(w, map[string]any{ // fails only if the client closed the connection
		"Page": a, "Details": a.Upstream("details"), "Reviews": a.Upstream("reviews"), "Hops": hops(a),
	})
}

// hops returns all calls that contributed to an answer. The call to a service precedes the calls by that service.
func hops(a *Answer) []hop {
	var all []hop
	for _, c := range a.Upstreams {
		h := hop{From: a.Service + " " + a.Version, To: c.Name, Call: c}
		if c.Answer != nil {
			h.To, h.Identity = c.Answer.Service+" "+c.Answer.Version, c.Answer.Caller
		}
		all = append(all, h)
		if c.Answer != nil {
			all = append(all, hops(c.Answer)...)
		}
	}
	return all
}
