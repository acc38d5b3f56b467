package sds

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// service implements Envoy's secret discovery service in both xDS variants.
type service struct {
	secretv3.UnimplementedSecretDiscoveryServiceServer
	server *Server
}

// StreamSecrets serves SotW xDS.
func (s *service) StreamSecrets(stream secretv3.SecretDiscoveryService_StreamSecretsServer) error {
	c := newClient(s.server)
	defer c.close()
	return serve(stream, c, c.sotwRequest, func() *discoveryv3.DiscoveryResponse { return c.sotwResponse() })
}

// DeltaSecrets serves delta xDS.
func (s *service) DeltaSecrets(stream secretv3.SecretDiscoveryService_DeltaSecretsServer) error {
	c := newClient(s.server)
	defer c.close()
	return serve(stream, c, c.deltaRequest, func() *discoveryv3.DeltaDiscoveryResponse { return c.deltaResponse() })
}

// fetchTimeout is how long FetchSecrets waits for the first secret.
const fetchTimeout = 5 * time.Second

// FetchSecrets returns the requested secrets that are available.
func (s *service) FetchSecrets(ctx context.Context, r *discoveryv3.DiscoveryRequest) (*discoveryv3.DiscoveryResponse, error) {
	c := newClient(s.server)
	defer c.close()
	if err := c.sotwRequest(r); err != nil {
		return nil, err
	}
	if len(c.names) == 0 {
		return nil, status.Errorf(codes.NotFound, "the secrets %q do not exist", r.ResourceNames)
	}
	timeout := time.NewTimer(fetchTimeout)
	defer timeout.Stop()
	for {
		if response := c.sotwResponse(); response != nil {
			return response, nil
		}
		select {
		case <-c.changes:
		case <-timeout.C:
			return nil, status.Errorf(codes.Unavailable, "the secrets %q are not available yet", r.ResourceNames)
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
}

// bidiStream is a stream of either xDS variant.
type bidiStream[Req, Resp any] interface {
	Recv() (*Req, error)
	Send(*Resp) error
}

// serve handles a stream. It calls request for each received message, and response after each request or change, and
// sends what response returns.
func serve[Req, Resp any](stream bidiStream[Req, Resp], c *client, request func(*Req) error, response func() *Resp) error {
	requests, stop := receive(stream)
	defer close(stop)
	for {
		select {
		case r := <-requests:
			if r.err != nil {
				return streamError(r.err)
			}
			if err := request(r.message); err != nil {
				return err
			}
		case <-c.changes:
		}
		if message := response(); message != nil {
			if err := stream.Send(message); err != nil {
				return err
			}
		}
	}
}

type received[Req any] struct {
	message *Req
	err     error
}

// receive reads requests in the background until the stream ends. The caller closes the returned stop channel when its
// handler returns, which ends the stream.
func receive[Req, Resp any](stream bidiStream[Req, Resp]) (<-chan received[Req], chan<- struct{}) {
	requests := make(chan received[Req])
	stop := make(chan struct{})
	go func() {
		for {
			message, err := stream.Recv()
			select {
			case requests <- received[Req]{message, err}:
			case <-stop:
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return requests, stop
}

func streamError(err error) error {
	if errors.Is(err, io.EOF) || status.Code(err) == codes.Canceled {
		return nil
	}
	return err
}

// client contains the state of one stream.
type client struct {
	secrets *store
	metrics *metrics
	log     *slog.Logger
	changes chan struct{}
	// names are the subscribed names. The value is the version that was sent last, or empty.
	names map[string]string
	// unservable are subscribed names that can never be served. With delta xDS, the value is true once a response has
	// listed the name as removed.
	unservable map[string]bool
	nonce      uint64
}

func newClient(s *Server) *client {
	return &client{
		secrets: s.secrets, metrics: s.metrics, log: s.config.Logger, changes: s.secrets.addStream(),
		names: make(map[string]string), unservable: make(map[string]bool),
	}
}

func (c *client) close() {
	c.secrets.removeStream(c.changes)
	for name := range c.names {
		c.secrets.release(name)
	}
}

// subscribe adds a subscription to a secret. If the secret can never be served, it records the name in unservable and
// does not return an error, so that the stream's other secrets are served.
func (c *client) subscribe(name string) {
	if _, ok := c.names[name]; ok {
		return
	}
	if err := c.secrets.acquire(name); err != nil {
		if _, reported := c.unservable[name]; !reported {
			c.log.Warn("Envoy requested a secret that cannot be served", "name", name, "error", err)
			c.metrics.secretFailures.Inc()
			c.unservable[name] = false
		}
		return
	}
	c.names[name] = ""
}

func (c *client) unsubscribe(name string) {
	delete(c.unservable, name)
	if _, ok := c.names[name]; ok {
		delete(c.names, name)
		c.secrets.release(name)
	}
}

// collectChanged returns the subscribed secrets that are available and were not sent in their current version. It
// records them as sent.
func (c *client) collectChanged() []*secret {
	var due []*secret
	for name, version := range c.names {
		if s := c.secrets.lookup(name); s != nil && s.version != version {
			c.names[name] = s.version
			due = append(due, s)
		}
	}
	slices.SortFunc(due, func(a, b *secret) int { return strings.Compare(a.name, b.name) })
	return due
}

func (c *client) currentNonce() string { return strconv.FormatUint(c.nonce, 10) }

func (c *client) nextNonce() string {
	c.nonce++
	return c.currentNonce()
}

// recordNACK logs and counts a NACK. The secret is not sent again until it changes.
func (c *client) recordNACK(detail *rpcstatus.Status) {
	c.metrics.nacks.Inc()
	c.log.Warn("Envoy rejected a secret", "reason", detail.GetMessage())
	c.secrets.disableProvider(detail.GetMessage())
}

func checkType(typeURL string) error {
	if typeURL != "" && typeURL != secretType {
		return status.Errorf(codes.InvalidArgument, "this server serves only resources of the type %s, not %s", secretType, typeURL)
	}
	return nil
}

func (c *client) sotwRequest(r *discoveryv3.DiscoveryRequest) error {
	if err := checkType(r.TypeUrl); err != nil {
		return err
	}
	if r.ErrorDetail != nil {
		c.recordNACK(r.ErrorDetail)
	}
	if r.ResponseNonce != "" && r.ResponseNonce != c.currentNonce() {
		return nil // this is the ACK of an earlier response; wait for the ACK of the last one
	}
	for name := range c.names {
		if !slices.Contains(r.ResourceNames, name) {
			c.unsubscribe(name)
		}
	}
	for _, name := range r.ResourceNames {
		c.subscribe(name)
	}
	return nil
}

func (c *client) sotwResponse() *discoveryv3.DiscoveryResponse {
	due := c.collectChanged()
	if len(due) == 0 {
		return nil
	}
	r := &discoveryv3.DiscoveryResponse{TypeUrl: secretType, Nonce: c.nextNonce()}
	versions := make([]string, len(due))
	for i, s := range due {
		r.Resources = append(r.Resources, s.body)
		versions[i] = s.version
	}
	r.VersionInfo = strings.Join(versions, "+")
	return r
}

func (c *client) deltaRequest(r *discoveryv3.DeltaDiscoveryRequest) error {
	if err := checkType(r.TypeUrl); err != nil {
		return err
	}
	if r.ErrorDetail != nil {
		c.recordNACK(r.ErrorDetail)
	}
	for _, name := range r.ResourceNamesUnsubscribe {
		c.unsubscribe(name)
	}
	for _, name := range r.ResourceNamesSubscribe {
		c.unsubscribe(name) // a second subscription requests the resource again
		c.subscribe(name)
		if _, ok := c.names[name]; ok {
			c.names[name] = r.InitialResourceVersions[name]
		}
	}
	return nil
}

func (c *client) deltaResponse() *discoveryv3.DeltaDiscoveryResponse {
	r := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: secretType}
	for _, s := range c.collectChanged() {
		r.Resources = append(r.Resources, &discoveryv3.Resource{Name: s.name, Version: s.version, Resource: s.body})
	}
	for name, reported := range c.unservable {
		if !reported {
			c.unservable[name] = true
			r.RemovedResources = append(r.RemovedResources, name)
		}
	}
	if len(r.Resources)+len(r.RemovedResources) == 0 {
		return nil
	}
	slices.Sort(r.RemovedResources)
	r.Nonce = c.nextNonce()
	r.SystemVersionInfo = r.Nonce
	return r
}
