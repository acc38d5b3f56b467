package mcp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
	"github.com/pilotfish-mesh/pilotfish/internal/dial"
)

const (
	// connectTimeout limits the time to connect to the server.
	connectTimeout = 10 * time.Second
	// minRetry and maxRetry limit the backoff between streams. The end of a stream that lasted at least stableAfter
	// resets the backoff.
	minRetry, maxRetry = 100 * time.Millisecond, 15 * time.Second
	stableAfter        = 10 * time.Second
	// maxPause limits the pause after a response.
	maxPause = time.Second
	// startGrace is how long after New an unavailable source is not yet reported as a finding.
	startGrace = 2 * time.Second
	// minNACKPause is the first pause after a NACK. It doubles with each NACK, up to maxPause.
	minNACKPause = 20 * time.Millisecond
)

// Config configures a Source.
type Config struct {
	// Address is host:port of the server.
	Address string
	// Server describes how to connect and authenticate.
	Server dial.Server
	// Namespace is the namespace in the id of the client's node.
	Namespace string
	// Parser validates the documents.
	Parser  config.Parser
	Metrics *Metrics
	// Logger logs connects, disconnects and NACKs; nil discards them.
	Logger *slog.Logger
}

// Source is a store of the documents that another control plane sends. It answers a response with an invalid document
// with a NACK: the valid documents come into force, and of the invalid ones the last accepted versions stay in force.
// While the server is unreachable, the last accepted documents stay in force.
type Source struct {
	config.Store // the documents in force
	apply        func(put []*config.Resource, del []config.Key) (changed []config.Key)
	cfg          Config
	name         string // xds://host:port
	log          *slog.Logger
	synced       chan struct{} // closed when the first documents of all kinds were accepted
	sotw         bool          // use the SotW variant, because the server does not implement the delta variant

	mu          sync.Mutex
	collections map[string]*collection // by type URL
	order       []*collection
	connected   bool
	failure     string // why the last stream ended; the next response resets it to ""
	started     time.Time
}

// New returns a source without documents. Run connects to the server and receives them.
func New(cfg Config) *Source {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	store, apply := config.NewFileStore()
	name := "xds://" + cfg.Address
	s := &Source{
		Store: store, apply: apply, cfg: cfg, name: name, log: cfg.Logger.With("source", name), synced: make(chan struct{}),
		collections: map[string]*collection{}, started: time.Now(),
	}
	for _, kind := range config.IstioKinds() {
		c := newCollection(kind, name, cfg.Parser)
		s.collections[c.typeURL] = c
		s.order = append(s.order, c)
	}
	cfg.Metrics.connected.WithLabelValues(name).Set(0)
	return s
}

// Synced returns a channel that is closed when the source has accepted the documents of all kinds once.
func (s *Source) Synced() <-chan struct{} { return s.synced }

// Run receives documents until ctx ends.
func (s *Source) Run(ctx context.Context) error {
	retry := backoff.Backoff{Min: minRetry, Max: maxRetry}
	for {
		started := time.Now()
		err := s.runStream(ctx)
		if ctx.Err() != nil {
			return nil
		}
		s.setDisconnected(err)
		if time.Since(started) >= stableAfter {
			retry.Reset()
		}
		if !backoff.Sleep(ctx, retry.Next()) {
			return nil
		}
	}
}

// errResync ends a stream so that the server sends the documents of a response again that the client refused as a whole.
var errResync = errors.New("the client reconnects to receive the documents of refused responses again")

// runStream connects to the server and handles its responses until the stream ends. If the server does not implement
// the protocol variant of the stream, the next stream uses the other variant.
func (s *Source) runStream(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	header, err := s.cfg.Server.Header()
	if err != nil {
		return err
	}
	conn, err := s.cfg.Server.ConnectTo(ctx, s.cfg.Address, s.cfg.Address, connectTimeout,
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxResponse)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}))
	if err != nil {
		return err
	}
	defer conn.Close()
	open := openDelta
	if s.sotw {
		open = openSotW
	}
	stream, err := open(metadata.NewOutgoingContext(ctx, header), conn, s.node())
	if err != nil {
		return err
	}
	err = s.receive(ctx, stream)
	if status.Code(err) == codes.Unimplemented {
		s.sotw = !s.sotw
	}
	return err
}

// node returns the node of the client. Its id has the form that Istio's control plane requires.
func (s *Source) node() *corev3.Node {
	return &corev3.Node{
		Id:       fmt.Sprintf("sidecar~127.0.0.1~control-plane.%[1]s~%[1]s.svc.cluster.local", s.cfg.Namespace),
		Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{"GENERATOR": structpb.NewStringValue(Generator)}},
	}
}

// receive requests all kinds and handles the responses until the stream ends.
func (s *Source) receive(ctx context.Context, stream stream) error {
	s.mu.Lock()
	known := map[string]map[string]string{}
	for _, c := range s.order {
		clear(c.rejected) // the server sends the rejected documents again
		c.incomplete = false
		known[c.typeURL] = c.versions()
	}
	s.mu.Unlock()
	for _, c := range s.order {
		if err := stream.subscribe(c.typeURL, known[c.typeURL]); err != nil {
			_, err = stream.recv() // returns the cause
			return err
		}
	}
	nackPause := backoff.Backoff{Min: minNACKPause, Max: maxPause}
	for {
		u, err := stream.recv()
		if err != nil {
			return err
		}
		start := time.Now()
		reason, resync := s.handle(u)
		if err := stream.answer(u, reason); err != nil {
			_, err = stream.recv()
			return err
		}
		if resync {
			return errResync
		}
		// The pause is as long as the handling of the response, but at most maxPause. A server that sends responses
		// without end therefore occupies about half of one processor.
		rest := min(time.Since(start), maxPause)
		if reason == "" {
			nackPause.Reset()
		} else {
			rest = max(rest, nackPause.Next())
		}
		if !backoff.Sleep(ctx, rest) {
			return ctx.Err()
		}
	}
}

// handle applies a response. If a document is invalid, handle records its problems, and returns the reason of the NACK.
// resync reports that the client must open a new stream.
func (s *Source) handle(u *update) (reason string, resync bool) {
	s.setConnected()
	c := s.collections[u.typeURL] // the map does not change after New
	if c == nil {
		return fmt.Sprintf("the type %.200q was not requested", u.typeURL), false
	}
	next, problems := c.validate(u, time.Now(), maxTotal-s.sizeWithout(c))
	s.mu.Lock()
	if next == nil {
		c.refuseResponse(u, problems)
	} else {
		resync, problems = c.accept(u, next), next.rejected
	}
	s.mu.Unlock()
	if next != nil {
		s.apply(slices.Collect(maps.Values(next.put)), next.del)
		s.cfg.Metrics.documents.WithLabelValues(s.name).Set(float64(s.countDocuments()))
		s.checkSynced()
	}
	if len(problems) == 0 {
		s.cfg.Metrics.responses.WithLabelValues(s.name, "accepted").Inc()
		return "", resync
	}
	reason = describeProblems(problems)
	s.cfg.Metrics.responses.WithLabelValues(s.name, "rejected").Inc()
	s.log.Warn("the control plane rejected documents of a configuration source; their last accepted versions stay in force", "kind", c.kind, "reason", reason)
	return reason, resync
}

// sizeWithout returns the size of the accepted documents of all kinds except excluded.
func (s *Source) sizeWithout(excluded *collection) int {
	size := 0
	for _, c := range s.order {
		if c != excluded {
			size += c.size
		}
	}
	return size
}

func (s *Source) countDocuments() int {
	n := 0
	for _, c := range s.order {
		n += len(c.documents)
	}
	return n
}

// checkSynced closes the channel synced when all kinds are synced.
func (s *Source) checkSynced() {
	for _, c := range s.order {
		if !c.synced {
			return
		}
	}
	select {
	case <-s.synced:
	default:
		close(s.synced)
		s.log.Info("received all documents of a configuration source", "documents", s.countDocuments())
	}
}

func (s *Source) setConnected() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.connected {
		s.connected, s.failure = true, ""
		s.cfg.Metrics.connected.WithLabelValues(s.name).Set(1)
		s.log.Info("connected to a configuration source")
	}
}

func (s *Source) setDisconnected(err error) {
	if errors.Is(err, errResync) {
		return
	}
	failure := status.Convert(err).Message()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.connected || failure != s.failure {
		s.log.Warn("the connection to a configuration source failed; documents that the source has already sent stay in force", "error", failure)
	}
	s.connected, s.failure = false, failure
	s.cfg.Metrics.connected.WithLabelValues(s.name).Set(0)
}

// Health reports whether the source is connected and has sent valid documents of all kinds, and the reason if not.
func (s *Source) Health() (ok bool, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var missing []string
	for _, c := range s.order {
		if !c.synced {
			missing = append(missing, c.typeURL)
		}
	}
	switch {
	case s.failure != "" && len(missing) > 0:
		return false, fmt.Sprintf("configuration source %s: %s; its documents are not known yet, so proxies receive no configuration", s.name, s.failure)
	case s.failure != "":
		return false, fmt.Sprintf("configuration source %s: %s; its last accepted documents stay in force", s.name, s.failure)
	case len(missing) > 0:
		return false, fmt.Sprintf("configuration source %s: no valid response for %s yet, so proxies receive no configuration", s.name, strings.Join(missing, ", "))
	}
	return true, ""
}

// Problems returns the problems of the documents, and of the connection.
func (s *Source) Problems() []config.Problem {
	var problems []config.Problem
	if ok, reason := s.Health(); !ok && time.Since(s.started) >= startGrace {
		problems = append(problems, config.Problem{
			Code: config.SourceUnavailable, Severity: config.Warning, At: config.Position{File: s.name}, Message: reason,
			Remedy: "check the address, tlsSettings and credentials of the source, and its log",
		})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.order {
		problems = append(problems, c.problems()...)
	}
	return problems
}

// Documents returns the state of each document.
func (s *Source) Documents() []config.Document {
	s.mu.Lock()
	defer s.mu.Unlock()
	var documents []config.Document
	for _, c := range s.order {
		documents = append(documents, c.states()...)
	}
	return documents
}
