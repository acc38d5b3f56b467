package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/internal/httpguard"
	"github.com/pilotfish-mesh/pilotfish/internal/portowner"
)

// debugTimeout limits the time for reading the request of a debug page, and the time for the response.
const debugTimeout = 30 * time.Second

// debugCaller is the authenticated caller of a debug page. The platform (an account of the root namespace, or a local
// administrator) sees the whole mesh. A workload sees its own namespace.
type debugCaller struct {
	platform  bool
	namespace string
}

// canSee reports whether the caller may see objects of namespace. If namespace is "", only the platform may see them.
func (c debugCaller) canSee(namespace string) bool {
	return c.platform || namespace != "" && c.namespace == namespace
}

// filterVisible returns the elements of list that the caller may see. namespace returns the namespace of an element. It
// modifies list.
func filterVisible[T any](c debugCaller, list []T, namespace func(T) string) []T {
	if c.platform {
		return list
	}
	return slices.DeleteFunc(list, func(v T) bool { return !c.canSee(namespace(v)) })
}

// identifyCaller returns the caller of a request, or an error if the caller may not see anything.
type identifyCaller func(*http.Request) (debugCaller, error)

// platformCaller identifies every caller as the platform. Use it only for handlers that only the platform can reach.
func platformCaller(*http.Request) (debugCaller, error) { return debugCaller{platform: true}, nil }

type debugPage func(w http.ResponseWriter, r *http.Request, c debugCaller)

// restrictPage returns a handler that serves page to the callers that identify accepts.
func restrictPage(identify identifyCaller, page debugPage) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c, err := identify(r)
		if err != nil {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		control, deadline := http.NewResponseController(w), time.Now().Add(debugTimeout)
		_, _ = control.SetReadDeadline(deadline), control.SetWriteDeadline(deadline.Add(debugTimeout)) // net/http supports both
		page(w, r, c)
	}
}

// identifyDebugCaller accepts callers with a certificate or token of the mesh; accounts in the root namespace are the
// platform. Without these credentials, it accepts a process that connects over loopback as root or as this process's
// user, as the platform.
func (s *Server) identifyDebugCaller(r *http.Request) (debugCaller, error) {
	if r.Header.Get("Authorization") != "" || r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		id, err := s.authority.Authenticate(grpcContext(r))
		if err != nil {
			return debugCaller{}, errors.New(status.Convert(err).Message())
		}
		return debugCaller{platform: id.Namespace == s.rootNamespace(), namespace: id.Namespace}, nil
	}
	if err := s.checkLocalCaller(r); err != nil {
		return debugCaller{}, err
	}
	// Without this check, a web page could send requests from a browser of the platform's user.
	if err := httpguard.Check(r); err != nil {
		return debugCaller{}, err
	}
	return debugCaller{platform: true}, nil
}

func (s *Server) rootNamespace() string {
	return snapshot.WithDefaults(s.mesh()).GetRootNamespace()
}

// grpcContext returns a context that contains the credentials of r in the form of a gRPC call, which
// Authority.Authenticate expects.
func grpcContext(r *http.Request) context.Context {
	ctx := metadata.NewIncomingContext(r.Context(), metadata.MD{"authorization": r.Header.Values("Authorization")})
	if r.TLS != nil {
		ctx = peer.NewContext(ctx, &peer.Peer{AuthInfo: credentials.TLSInfo{State: *r.TLS}})
	}
	return ctx
}

// checkLocalCaller returns an error unless a process sent the request over loopback, as root or as this process's user.
// It does not accept other addresses of this machine: a gateway that runs as root on this machine connects to addresses
// that tenants specify in documents, but documents cannot specify this port on loopback. In a local mesh,
// checkLocalCaller always returns an error, because the proxies run as this process's user and forward requests of
// their clients.
func (s *Server) checkLocalCaller(r *http.Request) error {
	required := fmt.Errorf("debug pages require a token (Authorization: Bearer …) or a client certificate. Accounts of namespace %s see the whole mesh, "+
		"other accounts see their own namespace", s.rootNamespace())
	if s.cfg.StartsProxies {
		return fmt.Errorf("%w. Use the commands of pilotfish, which connect to the control socket of the mesh", required)
	}
	required = fmt.Errorf("%w. Over loopback, root and the user of the control plane need no credentials", required)
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return required
	}
	client, clientErr := netip.ParseAddrPort(r.RemoteAddr)
	server, serverErr := netip.ParseAddrPort(local.String())
	if clientErr != nil || serverErr != nil || !client.Addr().Unmap().IsLoopback() || !server.Addr().Unmap().IsLoopback() {
		return required
	}
	if runtime.GOOS != "linux" { // on other systems, the client's user cannot be determined
		return nil
	}
	s.callerLookup.Lock() // only one lookup runs at a time
	defer s.callerLookup.Unlock()
	connection, err := portowner.FindConnection(client, server)
	if err != nil || connection.UID != 0 && connection.UID != uint32(os.Geteuid()) {
		return required
	}
	return nil
}

// visibleClient returns the ID of the connected client whose ID or node id is id. It returns an error if the caller may
// not see the client. For the platform, it returns id unchanged.
func (s *Server) visibleClient(c debugCaller, id string) (string, error) {
	found := ""
	for client, p := range s.discovery.Proxies() {
		own, ok := p.(proxy)
		if !ok || client != id && own.ID != id || !c.canSee(own.Namespace) {
			continue
		}
		if found == "" || client == id {
			found = client
		}
	}
	if found == "" && !c.platform {
		return "", fmt.Errorf("no client %q is connected in namespace %s", id, c.namespace)
	}
	if c.platform {
		return id, nil
	}
	return found, nil
}

// clientNamespaces returns the namespace of each connected client, by client ID.
func (s *Server) clientNamespaces() map[string]string {
	namespaces := map[string]string{}
	for client, p := range s.discovery.Proxies() {
		if own, ok := p.(proxy); ok {
			namespaces[client] = own.Namespace
		}
	}
	return namespaces
}
