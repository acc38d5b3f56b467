package status

import (
	"encoding/json"
	"net/http"
	"strconv"
)

// actionHandler returns a handler that runs do for POST requests. With respondFirst, the handler responds before it
// runs do, because an action that stops the server leaves no time for a response.
func actionHandler(name string, do func(), respondFirst bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method != http.MethodPost:
			w.Header().Set("Allow", http.MethodPost)
			http.Error(w, name+" requires POST", http.StatusMethodNotAllowed)
			return
		case do == nil:
			http.Error(w, "this agent does not support "+name, http.StatusNotFound)
			return
		}
		if !respondFirst {
			do()
		}
		writeOK(w)
		if respondFirst {
			do()
		}
	})
}

// writeOK writes the response and flushes it, so that the client receives it before the handler returns.
func writeOK(w http.ResponseWriter) {
	const answer = "OK\n"
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
	_, _ = w.Write([]byte(answer))
	_ = http.NewResponseController(w).Flush()
}

// jsonHandler returns a handler that prints a function's result as JSON.
func jsonHandler(get func() any) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if get == nil {
			http.Error(w, "this agent does not provide this page", http.StatusNotFound)
			return
		}
		writeJSON(w, http.StatusOK, get())
	})
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		http.Error(w, "encoding the response as JSON: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(data, '\n'))
}
