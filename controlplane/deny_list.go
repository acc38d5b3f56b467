package controlplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/grpc"

	"github.com/pilotfish-mesh/pilotfish/controlplane/ca"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
	"github.com/pilotfish-mesh/pilotfish/internal/atomicfile"
)

const (
	// denyListInterval is the polling interval of the deny list's file. A change takes effect within a second.
	denyListInterval = 250 * time.Millisecond
	maxDenyList      = 16 << 20
	// revocationName is the name of the only resource of type xds.RevocationType.
	revocationName = "deny-list"
	// revocationFile, in the state directory, stores the signed certificate revocation lists with the denied serial
	// numbers.
	revocationFile = "ca-crl.pem"
)

// denyList watches the file with denied service accounts and certificates. If the file becomes invalid, its last valid
// content remains in effect.
type denyList struct {
	path, revocationPath string
	authority            *ca.Authority
	streams              *openStreams
	revocations          *revocations
	log                  *slog.Logger

	text    []byte
	problem string

	writing sync.Mutex // locked while the revocation lists are written
}

// openDenyList reads the file path and puts it into effect. It fails if the file is missing or malformed, because there
// is no earlier valid list.
func openDenyList(path, stateDir string, authority *ca.Authority, streams *openStreams, revocations *revocations, log *slog.Logger) (*denyList, error) {
	d := &denyList{
		path: path, revocationPath: filepath.Join(stateDir, revocationFile), authority: authority, streams: streams, revocations: revocations, log: log,
	}
	text, list, err := d.read()
	if err != nil {
		return nil, err
	}
	d.apply(text, list)
	return d, nil
}

func (d *denyList) read() ([]byte, *ca.DenyList, error) {
	info, err := os.Stat(d.path)
	if err == nil && info.Size() > maxDenyList {
		err = fmt.Errorf("the file has %d bytes; at most %d are allowed", info.Size(), maxDenyList)
	}
	var text []byte
	if err == nil {
		text, err = os.ReadFile(d.path)
	}
	var list *ca.DenyList
	if err == nil {
		list, err = ca.ParseDenyList(text, d.authority.TrustDomain())
	}
	if err != nil {
		return nil, nil, fmt.Errorf("reading the deny list %s: %w", d.path, err)
	}
	return text, list, nil
}

func (d *denyList) run(ctx context.Context) {
	ticker := time.NewTicker(denyListInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			d.reload()
		}
	}
}

func (d *denyList) reload() {
	text, list, err := d.read()
	if err != nil {
		if d.problem != err.Error() {
			d.log.Error("reading the deny list failed; the last valid list stays in effect", "error", err)
		}
		d.problem = err.Error()
		return
	}
	if d.problem == "" && bytes.Equal(text, d.text) {
		return
	}
	d.problem = ""
	d.apply(text, list)
}

// apply puts a new deny list into effect: it refuses new calls of denied clients, ends their open streams, and writes
// the revocation lists.
func (d *denyList) apply(text []byte, list *ca.DenyList) {
	d.text = text
	d.authority.Deny(list)
	ended := d.streams.endDenied()
	accounts, serials := list.Len()
	d.log.Info("applied the deny list", "file", d.path, "accounts", accounts, "serials", serials, "streamsEnded", ended)
	d.writeLists()
}

// writeLists signs the certificate revocation lists with the current CAs, writes them to the file revocationFile, and
// sends them to agents.
func (d *denyList) writeLists() {
	d.writing.Lock()
	defer d.writing.Unlock()
	previous, err := os.ReadFile(d.revocationPath)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.log.Warn("reading the revocation lists failed; the control plane signs them again", "error", err)
	}
	lists, err := d.authority.RevocationLists(previous)
	if err != nil {
		d.log.Error("signing the revocation lists failed, so proxies still accept denied certificates of other proxies: "+
			"use an authority whose certificate has a subject key identifier and the key usage cRLSign", "error", err)
	} else if !bytes.Equal(lists, previous) {
		if err := atomicfile.Write(d.revocationPath, lists); err != nil {
			d.log.Error("writing the revocation lists to the state directory failed", "error", err)
		}
	}
	if _, serials := d.authority.Denied().Len(); serials == 0 {
		lists = nil
	}
	if err := d.revocations.set(lists, d.authority.RootPEM()); err != nil {
		d.log.Error("preparing the revocation lists for agents failed", "error", err)
	}
}

// revocations contains the certificate revocation lists for agents. The zero value revokes no certificate.
type revocations struct {
	notify func() // called after changes; nil until the server is composed, when no agent is connected

	resource atomic.Pointer[xds.Resource]
}

// set replaces the revocation lists and the root certificates to whose certificates the lists apply. If lists is empty,
// agents do not check for revocations.
func (r *revocations) set(lists, roots []byte) error {
	context := &tlsv3.CertificateValidationContext{}
	if len(lists) > 0 {
		context.TrustedCa = &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: roots}}
		context.Crl = &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: lists}}
	}
	resource, err := xds.NewResource(revocationName, context)
	if err != nil {
		return err
	}
	if old := r.resource.Swap(resource); (old == nil || old.Version != resource.Version) && r.notify != nil {
		r.notify()
	}
	return nil
}

// resources returns the resource with the revocation lists. If no certificate is denied, the resource is empty, so that
// agents remove earlier lists.
func (r *revocations) resources() []*xds.Resource {
	if resource := r.resource.Load(); resource != nil {
		return []*xds.Resource{resource}
	}
	return []*xds.Resource{xds.NewRawResource(revocationName, xds.RevocationType, nil)}
}

// openStreams tracks all open streams and their authenticated callers, so that the streams of denied callers can be
// ended.
type openStreams struct {
	authority *ca.Authority

	mu      sync.Mutex
	streams map[*checkedStream]struct{}
}

func newOpenStreams(authority *ca.Authority) *openStreams {
	return &openStreams{authority: authority, streams: map[*checkedStream]struct{}{}}
}

// checkedStream is a stream that ends when its caller is denied.
type checkedStream struct {
	grpc.ServerStream
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu         sync.Mutex
	caller     ca.Identity
	identified bool
}

func (s *checkedStream) Context() context.Context { return s.ctx }

// RecvMsg receives a message. It returns an error if the caller was denied in the meantime.
func (s *checkedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return deniedStatus(s.ctx)
}

type checkedStreamKey struct{}

// setCaller records that the caller of the stream with the context ctx is id.
func (s *openStreams) setCaller(ctx context.Context, id ca.Identity) {
	if stream, ok := ctx.Value(checkedStreamKey{}).(*checkedStream); ok {
		stream.mu.Lock()
		stream.caller, stream.identified = id, true
		stream.mu.Unlock()
	}
}

// intercept is a gRPC interceptor that tracks the stream while its handler runs, and ends it when its caller is denied.
func (s *openStreams) intercept(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	checked := &checkedStream{ServerStream: stream}
	checked.ctx, checked.cancel = context.WithCancelCause(context.WithValue(stream.Context(), checkedStreamKey{}, checked))
	defer checked.cancel(nil)
	s.mu.Lock()
	s.streams[checked] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.streams, checked)
		s.mu.Unlock()
	}()
	err := handler(server, checked)
	if denied := deniedStatus(checked.ctx); denied != nil {
		return denied
	}
	return err
}

// deniedStatus returns the gRPC status if the stream with the context ctx ended because its caller is denied, and
// otherwise nil.
func deniedStatus(ctx context.Context) error {
	if denied := (deniedError{}); errors.As(context.Cause(ctx), &denied) {
		return denied.status
	}
	return nil
}

// deniedError is the cause with which endDenied cancels the context of a stream.
type deniedError struct{ status error }

func (e deniedError) Error() string { return e.status.Error() }

// endDenied ends the streams of denied callers and returns their number.
func (s *openStreams) endDenied() (ended int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for stream := range s.streams {
		stream.mu.Lock()
		caller, known := stream.caller, stream.identified
		stream.mu.Unlock()
		if !known {
			continue
		}
		if err := s.authority.CheckCaller(stream.ctx, caller); err != nil {
			stream.cancel(deniedError{err})
			ended++
		}
	}
	return ended
}
