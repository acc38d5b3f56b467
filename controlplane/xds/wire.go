package xds

import (
	"context"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/types/known/anypb"
)

// wire is one stream in one of the two protocols.
type wire interface {
	Context() context.Context
	protocol() string
	recv() (*request, error)
	send(*response) error
}

const (
	deltaProtocol = "delta"
	sotwProtocol  = "sotw"
)

// request is a request of either protocol.
type request struct {
	node    *corev3.Node
	typeURL string
	nonce   string
	refusal *rpcstatus.Status // set on a NACK

	// resumes: the client has something of the type from an earlier stream.
	resumes bool

	// Delta only.
	subscribe, unsubscribe []string
	initial                map[string]string
	// asks and has are the pages that hold these, where others have listed the same; nobody may change them then.
	asks, has *page
	// State of the world only: all that the client is subscribed to.
	names []string
}

// response is a response of either protocol. State of the world has no removals: they show by absence.
type response struct {
	typeURL, version, nonce string
	resources               []*Resource
	removed                 []string
	// nowhere are names of virtual hosts that the client asked for and that lead nowhere. Delta only.
	nowhere []string
}

func (r *response) size() int {
	n := 0
	for _, res := range r.resources {
		n += len(res.Body.GetValue())
	}
	return n
}

type deltaWire struct {
	discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer
	pages *pages
}

func (deltaWire) protocol() string { return deltaProtocol }

func (w deltaWire) recv() (*request, error) {
	r := deltaRequest{pages: w.pages}
	if err := w.RecvMsg(&r); err != nil {
		return nil, err
	}
	return r.request(), nil
}

func (w deltaWire) send(r *response) error { return w.SendMsg(&deltaResponse{r}) }

type sotwWire struct {
	discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer
}

func (sotwWire) protocol() string { return sotwProtocol }

func (w sotwWire) recv() (*request, error) {
	r, err := w.Recv()
	if err != nil {
		return nil, err
	}
	return &request{
		node: r.GetNode(), typeURL: r.GetTypeUrl(), nonce: r.GetResponseNonce(), refusal: r.GetErrorDetail(),
		names: r.GetResourceNames(), resumes: r.GetResponseNonce() == "" && r.GetVersionInfo() != "",
	}, nil
}

func (w sotwWire) send(r *response) error {
	out := &discoveryv3.DiscoveryResponse{
		TypeUrl: r.typeURL, VersionInfo: r.version, Nonce: r.nonce,
		Resources: make([]*anypb.Any, 0, len(r.resources)),
	}
	for _, res := range r.resources {
		out.Resources = append(out.Resources, res.Body)
	}
	return w.Send(out)
}
