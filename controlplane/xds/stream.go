package xds

import (
	"context"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// stream is a gRPC stream of either xDS variant.
type stream interface {
	Context() context.Context
	protocol() string
	// recv reads the next request. It charges the request's memory to the connection's quota.
	recv(c *connection) (*request, error)
	send(*response) error
}

const (
	deltaProtocol = "delta"
	sotwProtocol  = "sotw"
)

// request is a request of either xDS variant.
type request struct {
	node        *corev3.Node
	typeURL     string
	nonce       string
	errorDetail *rpcstatus.Status // set on a NACK

	// resumes: the client reports resources of the type that it received on an earlier stream.
	resumes bool

	// Delta only.
	subscribe, unsubscribe []string
	initial                map[string]string
	// subscribePage and initialPage are cached pages with the same content as subscribe and initial, or nil. With a
	// page, other clients share the list, so it must not be modified.
	subscribePage, initialPage *versionPage
	// names lists all names to which the client subscribes; SotW only.
	names []string

	// release releases the request's share of the request budget. It is nil if the request has no share.
	release func()
}

// releaseBudget releases the request's share of the request budget. It is called when the request has been handled.
func (r *request) releaseBudget() {
	if r.release != nil {
		r.release()
	}
}

// response is a response of either xDS variant. A SotW response does not contain removed and notFound.
type response struct {
	typeURL, version, nonce string
	resources               []*Resource
	removed                 []string
	// notFound contains requested names of virtual hosts that do not resolve to a resource; delta only.
	notFound []string
}

func (r *response) size() int {
	n := 0
	for _, res := range r.resources {
		n += len(res.Body.GetValue())
	}
	return n
}

type deltaStream struct {
	discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer
	pages    *pageCache
	messages messageReader
}

func (deltaStream) protocol() string { return deltaProtocol }

func (w deltaStream) recv(c *connection) (*request, error) {
	m, err := c.readMessage(w.messages)
	if err != nil {
		return nil, err
	}
	r := deltaRequest{pages: w.pages}
	err = r.unmarshal(*m.data)
	m.recycle()
	if err != nil {
		m.release()
		return nil, malformedError(err)
	}
	out := r.toRequest()
	out.release = m.release
	return out, nil
}

func malformedError(err error) error {
	return status.Errorf(codes.Internal, "decoding the request failed: %v", err)
}

func (w deltaStream) send(r *response) error { return w.SendMsg(&deltaResponse{r}) }

type sotwStream struct {
	discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer
	messages messageReader
}

func (sotwStream) protocol() string { return sotwProtocol }

func (w sotwStream) recv(c *connection) (*request, error) {
	m, err := c.readMessage(w.messages)
	if err != nil {
		return nil, err
	}
	r := &discoveryv3.DiscoveryRequest{}
	err = proto.Unmarshal(*m.data, r)
	m.recycle()
	if err != nil {
		m.release()
		return nil, malformedError(err)
	}
	return &request{
		release: m.release,
		node:    r.GetNode(), typeURL: r.GetTypeUrl(), nonce: r.GetResponseNonce(), errorDetail: r.GetErrorDetail(),
		names: r.GetResourceNames(), resumes: r.GetResponseNonce() == "" && r.GetVersionInfo() != "",
	}, nil
}

func (w sotwStream) send(r *response) error {
	out := &discoveryv3.DiscoveryResponse{
		TypeUrl: r.typeURL, VersionInfo: r.version, Nonce: r.nonce,
		Resources: make([]*anypb.Any, 0, len(r.resources)),
	}
	for _, res := range r.resources {
		out.Resources = append(out.Resources, res.Body)
	}
	return w.Send(out)
}
