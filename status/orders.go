package status

import (
	"encoding/json"
	"net/http"
	"strconv"
)

// order makes the handler that has something done. answerFirst is for what ends the server: its caller would get no
// answer afterwards.
func order(name string, do func(), answerFirst bool) http.Handler {
	// A page in a browser on the same machine must not be able to post here.
	sameOrigin := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method != http.MethodPost:
			w.Header().Set("Allow", http.MethodPost)
			http.Error(w, name+" wants POST", http.StatusMethodNotAllowed)
			return
		case sameOrigin.Check(r) != nil:
			http.Error(w, "not from a web page", http.StatusForbidden)
			return
		case do == nil:
			http.Error(w, "this agent has nothing to "+name, http.StatusNotFound)
			return
		}
		if !answerFirst {
			do()
		}
		writeOK(w)
		if answerFirst {
			do()
		}
	})
}

// writeOK writes a whole answer and sends it off, though the handler is not done.
func writeOK(w http.ResponseWriter) {
	const answer = "OK\n"
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
	_, _ = w.Write([]byte(answer))
	_ = http.NewResponseController(w).Flush()
}

// asJSON makes the handler that shows what a function gives.
func asJSON(get func() any) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if get == nil {
			http.Error(w, "this agent has nothing to show here", http.StatusNotFound)
			return
		}
		writeJSON(w, http.StatusOK, get())
	})
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		http.Error(w, "turning the answer into JSON: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(data, '\n'))
}
