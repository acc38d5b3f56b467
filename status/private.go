package status

import (
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/httpguard"
	"github.com/pilotfish-mesh/pilotfish/internal/loglimit"
)

// privatePages returns the handlers of admin requests and debug pages by pattern. They are for operators on this
// machine. The caller must restrict them with private, or serve them on a socket that only operators can open.
func (s *Server) privatePages() map[string]http.Handler {
	pages := map[string]http.Handler{
		"/drain":                  actionHandler("drain", s.Drain, false),
		"/quitquitquit":           actionHandler("quit", s.Quit, true),
		"GET /debug/certz":        jsonHandler(s.Certificates),
		"GET /debug/xdsz":         jsonHandler(s.XDS),
		"GET /debug/xdsz/history": jsonHandler(s.XDSHistory),
		"GET /debug/envoyz":       jsonHandler(s.Envoy),
		"GET /debug/ndsz":         s.names(),
		"GET /debug/config":       jsonHandler(s.Config.Config),
	}
	if !s.NoProfiles {
		pages[profilesPath] = pprofHandler()
	}
	return pages
}

// PrivateHandler returns a handler of admin requests and debug pages for a socket that only the agent's operators can
// open.
func (s *Server) PrivateHandler() http.Handler {
	mux := http.NewServeMux()
	for pattern, page := range s.privatePages() {
		mux.Handle(pattern, page)
	}
	return mux
}

// private restricts a page to clients on this machine. It rejects requests that a web page caused, and processes that
// CheckCaller rejects.
func (s *Server) private(next http.Handler) http.Handler {
	return onlyLoopback(httpguard.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := s.checkCaller(r); err != nil {
			s.refusals.log(s.Logger, r, err)
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})))
}

func (s *Server) checkCaller(r *http.Request) error {
	if s.CheckCaller == nil {
		return nil
	}
	client, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return err
	}
	local, _ := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return s.CheckCaller(client, local.AddrPort())
}

// onlyLoopback rejects clients on other machines and in other pods.
func onlyLoopback(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil || !from.Addr().Unmap().IsLoopback() {
			http.Error(w, "this page is available only to clients on loopback, in the same pod or machine", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// refusalInterval is the minimum time between two log lines about rejected requests.
const refusalInterval = time.Minute

// refusalLog logs rejected requests, at most one line per refusalInterval.
type refusalLog struct{ limit loglimit.Limiter }

func (l *refusalLog) log(logger *slog.Logger, r *http.Request, err error) {
	if unlogged, ok := l.limit.Allow(time.Now(), refusalInterval); ok {
		logger.Warn("request rejected", "method", r.Method, "path", r.URL.Path, "client", r.RemoteAddr, "error", err, "suppressedLines", unlogged)
	}
}
