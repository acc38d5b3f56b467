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

// privatePages returns the handlers of orders and debug pages by pattern. They are for this machine's operators: each is
// either restricted by private or served on a socket that only they can open.
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

// PrivateHandler returns a handler of orders and debug pages for a socket that only the agent's operators can open.
func (s *Server) PrivateHandler() http.Handler {
	mux := http.NewServeMux()
	for pattern, page := range s.privatePages() {
		mux.Handle(pattern, page)
	}
	return mux
}

// private restricts a page to clients of this machine, no web page and no process that CheckCaller refuses among them.
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

// onlyLoopback refuses clients on other machines and in other pods.
func onlyLoopback(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil || !from.Addr().Unmap().IsLoopback() {
			http.Error(w, "only from the same pod or machine (loopback)", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// refusalInterval is the shortest time between two log lines about refused requests.
const refusalInterval = time.Minute

// refusalLog logs refused requests, at most one line in refusalInterval.
type refusalLog struct{ limit loglimit.Limiter }

func (l *refusalLog) log(logger *slog.Logger, r *http.Request, err error) {
	if unlogged, ok := l.limit.Allow(time.Now(), refusalInterval); ok {
		logger.Warn("request refused", "method", r.Method, "path", r.URL.Path, "client", r.RemoteAddr, "error", err, "unlogged", unlogged)
	}
}
