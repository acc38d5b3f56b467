package xdsproxy

import (
	"context"
	"fmt"
	"sync"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilotfish-mesh/pilotfish/xdsproxy/lastgood"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy/wire"
)

// maxRewrites limits the number of responses of a type that wait for their Rewriter. At the limit, the relay stops
// reading from the control plane.
const maxRewrites = 8

// Rewriter changes the resources of a response before Envoy receives them. It returns the new resources and may change
// values in place. It may block. Meanwhile the relay forwards responses of other types, and queues those of the same
// type. If the Rewriter returns an error, the relay sends a NACK to the control plane, and Envoy does not receive the
// response. ctx ends with the upstream stream.
type Rewriter func(ctx context.Context, resources []Resource) ([]Resource, error)

// Resource is a resource of a response.
type Resource struct {
	// Name is empty for a SotW resource whose content is not readable.
	Name string
	// Type is the type URL of the Any, and Value its content.
	Type  string
	Value []byte
	// Retry is set by a Rewriter whose result is provisional. Retry blocks until another attempt may have a better
	// result. It returns an error if no attempt can. The relay then rewrites the original resource again and sends the
	// result to Envoy, unless the control plane has sent the resource again.
	Retry func(context.Context) error
}

// rewriteQueues contains the responses of one upstream stream that wait for a Rewriter, by type URL.
type rewriteQueues struct {
	queues  map[string]chan rewriteJob
	workers sync.WaitGroup
}

type rewriteJob struct {
	wire.Response
	message *wire.Message
}

// enqueue queues a response and takes ownership of the message. It blocks while the queue is full.
func (w *rewriteQueues) enqueue(a *upstreamStream, rewrite Rewriter, r wire.Response, f *wire.Message) error {
	queue := w.queues[r.TypeURL]
	if queue == nil {
		if w.queues == nil {
			w.queues = make(map[string]chan rewriteJob)
		}
		queue = make(chan rewriteJob, maxRewrites)
		w.queues[r.TypeURL] = queue
		w.workers.Go(func() { a.rewriteAll(rewrite, queue) })
	}
	select {
	case queue <- rewriteJob{r, f}:
	case <-a.ctx.Done():
		f.Free()
	}
	return nil
}

// wait waits for the worker goroutines, which end with the upstream stream, and frees the queued messages.
func (w *rewriteQueues) wait() {
	w.workers.Wait()
	for _, queue := range w.queues {
		for len(queue) > 0 {
			(<-queue).message.Free()
		}
	}
}

// rewriteAll rewrites the responses of a queue and sends them to Envoy. It returns when the upstream stream ends.
func (a *upstreamStream) rewriteAll(rewrite Rewriter, queue <-chan rewriteJob) {
	for {
		select {
		case <-a.ctx.Done():
			return
		case job := <-queue:
			err := a.rewrite(rewrite, job)
			job.message.Free()
			if err != nil {
				a.cancel(fmt.Errorf("sending to Envoy: %w", err))
				return
			}
		}
	}
}

func (a *upstreamStream) rewrite(rewrite Rewriter, job rewriteJob) error {
	f, retries, err := rewriteResponse(a.ctx, a.proto, rewrite, job)
	switch {
	case a.ctx.Err() != nil:
		return nil
	case err != nil:
		a.relay.log.Warn("the agent rejected a response of the control plane and did not forward it to Envoy", "type", job.TypeURL, "reason", err)
		a.rejectResponse(job, err)
		return nil
	}
	stored := job.message
	hasSecret := lastgood.HasSecret(job.TypeURL, stored.Data.Materialize())
	if hasSecret {
		stored = f // store the rewritten message, because the Rewriter removed the secret from it
	}
	a.retries.mu.Lock()
	defer a.retries.mu.Unlock()
	a.retries.supersede(job.Response)
	a.retries.receivedTypes[job.TypeURL] = true
	if err := a.sendToEnvoy(a.epoch, job.Response, f, stored); err != nil {
		return err
	}
	a.scheduleRetries(rewrite, job, retries, hasSecret)
	return nil
}

// rejectResponse sends a NACK to the control plane for a response that the relay does not send to Envoy.
func (a *upstreamStream) rejectResponse(job rewriteJob, reason error) {
	a.tracker.recordResponse(job.Response, job.message.Data.Len())
	a.tracker.recordRequest(a.proto, wire.Request{TypeURL: job.TypeURL, Nonce: job.Nonce, Rejected: true, Reason: reason.Error()}, job.Response)
	a.mu.Lock()
	defer a.mu.Unlock()
	var version string
	var names []string
	if t := a.state.types[job.TypeURL]; t != nil {
		version, names = t.version, sortedKeys(t.names)
	}
	a.outbox.put(buildReply(a.proto, job.Response, version, names, reason))
}

// rewriteResponse returns the response with rewritten resources, and the original resources for which the Rewriter
// requested a retry.
func rewriteResponse(ctx context.Context, v wire.Variant, rewrite Rewriter, job rewriteJob) (*wire.Message, []Resource, error) {
	body := newResponseBody(v)
	if err := proto.Unmarshal(job.message.Data.Materialize(), body.message()); err != nil {
		return nil, nil, fmt.Errorf("reading the response: %w", err)
	}
	out, err := rewrite(ctx, body.resources(job.Response))
	if err != nil {
		return nil, nil, err
	}
	body.setResources(out)
	f, err := marshalFrame(body.message())
	if err != nil {
		return nil, nil, err
	}
	retries, err := originalsToRetry(v, job, out)
	return f, retries, err
}

// originalsToRetry returns the original resources whose rewritten form in out has Retry set.
func originalsToRetry(v wire.Variant, job rewriteJob, out []Resource) (retries []Resource, err error) {
	retryFuncs := make(map[string]func(context.Context) error)
	for _, r := range out {
		if r.Retry != nil && r.Name != "" {
			retryFuncs[r.Name] = r.Retry
		}
	}
	if len(retryFuncs) == 0 {
		return nil, nil
	}
	body := newResponseBody(v)
	if err := proto.Unmarshal(job.message.Data.Materialize(), body.message()); err != nil {
		return nil, fmt.Errorf("reading the response: %w", err)
	}
	for _, r := range body.resources(job.Response) {
		if r.Retry = retryFuncs[r.Name]; r.Retry != nil {
			retries = append(retries, r)
		}
	}
	return retries, nil
}

// responseBody is a decoded response of either protocol variant.
type responseBody interface {
	message() proto.Message
	resources(wire.Response) []Resource
	setResources([]Resource)
}

func newResponseBody(v wire.Variant) responseBody {
	if v == wire.SotW {
		return &sotwBody{}
	}
	return &deltaBody{}
}

type sotwBody struct{ m discoveryv3.DiscoveryResponse }

func (b *sotwBody) message() proto.Message { return &b.m }

func (b *sotwBody) resources(about wire.Response) []Resource {
	in := make([]Resource, len(b.m.Resources))
	for i, r := range b.m.Resources {
		in[i] = Resource{Type: r.GetTypeUrl(), Value: r.GetValue()}
		if i < len(about.Resources) {
			in[i].Name = about.Resources[i].Name
		}
	}
	return in
}

func (b *sotwBody) setResources(out []Resource) {
	b.m.Resources = b.m.Resources[:0]
	for _, r := range out {
		b.m.Resources = append(b.m.Resources, &anypb.Any{TypeUrl: r.Type, Value: r.Value})
	}
}

type deltaBody struct {
	m discoveryv3.DeltaDiscoveryResponse
}

func (b *deltaBody) message() proto.Message { return &b.m }

func (b *deltaBody) resources(wire.Response) []Resource {
	in := make([]Resource, len(b.m.Resources))
	for i, r := range b.m.Resources {
		in[i] = Resource{Name: r.Name, Type: r.GetResource().GetTypeUrl(), Value: r.GetResource().GetValue()}
	}
	return in
}

func (b *deltaBody) setResources(out []Resource) {
	byName := make(map[string]*discoveryv3.Resource, len(b.m.Resources))
	for _, r := range b.m.Resources {
		byName[r.Name] = r
	}
	b.m.Resources = b.m.Resources[:0]
	for _, r := range out {
		wrapper := byName[r.Name]
		if wrapper == nil {
			wrapper = &discoveryv3.Resource{Name: r.Name}
		}
		wrapper.Resource = &anypb.Any{TypeUrl: r.Type, Value: r.Value}
		b.m.Resources = append(b.m.Resources, wrapper)
	}
}

func marshalFrame(m proto.Message) (*wire.Message, error) {
	b, err := proto.Marshal(m)
	if err != nil {
		return nil, err
	}
	return wire.NewMessage(b), nil
}
