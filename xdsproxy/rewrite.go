package xdsproxy

import (
	"context"
	"fmt"
	"sync"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilotfish-mesh/pilotfish/xdsproxy/lastgood"
)

// maxRewrites bounds the responses of one type that wait for their rewriting; then the control plane is held back.
const maxRewrites = 8

// Rewriter changes the resources of a response before Envoy gets them: Envoy gets what it returns, which may change the
// values in place. It may take its time: responses of other types pass meanwhile, those of the same type wait, in order. An
// error rejects the response towards the control plane, as if Envoy had done it, and Envoy does not get it. The context ends
// with the stream upstream.
type Rewriter func(ctx context.Context, resources []Resource) ([]Resource, error)

// Resource is one resource of a response.
type Resource struct {
	// Name is empty for a resource of the SotW protocol whose content is not readable.
	Name string
	// Type is the type URL of the Any, and Value its content.
	Type  string
	Value []byte
	// Again, of a resource that a Rewriter returns, waits until rewriting the resource once more may give something better;
	// an error says that it never will. Envoy gets what comes of it, unless the control plane has sent the resource anew.
	Again func(context.Context) error
}

// rewrites are the rewriters at work on one stream upstream.
type rewrites struct {
	queues  map[string]chan rewriteJob
	running sync.WaitGroup
}

type rewriteJob struct {
	response
	frame *frame
}

// put queues a response; it takes over the frame.
func (w *rewrites) put(a *ascent, rewrite Rewriter, r response, f *frame) error {
	queue := w.queues[r.typeURL]
	if queue == nil {
		if w.queues == nil {
			w.queues = make(map[string]chan rewriteJob)
		}
		queue = make(chan rewriteJob, maxRewrites)
		w.queues[r.typeURL] = queue
		w.running.Go(func() { a.rewriteAll(rewrite, queue) })
	}
	select {
	case queue <- rewriteJob{r, f}:
	case <-a.ctx.Done():
		f.free()
	}
	return nil
}

// wait waits for the rewriters to end, which they do with the stream upstream.
func (w *rewrites) wait() {
	w.running.Wait()
	for _, queue := range w.queues {
		for len(queue) > 0 {
			(<-queue).frame.free()
		}
	}
}

func (a *ascent) rewriteAll(rewrite Rewriter, queue <-chan rewriteJob) {
	for {
		select {
		case <-a.ctx.Done():
			return
		case job := <-queue:
			err := a.rewrite(rewrite, job)
			job.frame.free()
			if err != nil {
				a.cancel(fmt.Errorf("sending to Envoy: %w", err))
				return
			}
		}
	}
}

func (a *ascent) rewrite(rewrite Rewriter, job rewriteJob) error {
	f, again, err := rewritten(a.ctx, a.proto, rewrite, job)
	switch {
	case a.ctx.Err() != nil:
		return nil
	case err != nil:
		a.relay.log.Warn("a response was rejected before Envoy got it", "type", job.typeURL, "reason", err)
		a.refuse(job, err)
		return nil
	}
	kept := job.frame
	secret := lastgood.HasSecret(job.typeURL, kept.data.Materialize())
	if secret {
		kept = f // without what was meant for the rewriter only
	}
	a.again.mu.Lock()
	defer a.again.mu.Unlock()
	a.again.supersede(job.response)
	a.again.answered[job.typeURL] = true
	if err := a.deliver(a.epoch, job.response, f, kept); err != nil {
		return err
	}
	a.rewriteAgain(rewrite, job, again, secret)
	return nil
}

// refuse answers a response in Envoy's place.
func (a *ascent) refuse(job rewriteJob, reason error) {
	a.book.response(job.response, job.frame.data.Len())
	a.book.request(a.proto, request{typeURL: job.typeURL, nonce: job.nonce, rejected: true, reason: reason.Error()}, job.response)
	a.mu.Lock()
	defer a.mu.Unlock()
	var version string
	var names []string
	if t := a.state.types[job.typeURL]; t != nil {
		version, names = t.version, sorted(t.names)
	}
	a.own.put(reply(a.proto, job.response, version, names, reason))
}

// rewritten is the response with other resources, and those of the former ones that are to be rewritten again.
func rewritten(ctx context.Context, v variant, rewrite Rewriter, job rewriteJob) (*frame, []Resource, error) {
	body := bodyOf(v)
	if err := proto.Unmarshal(job.frame.data.Materialize(), body.message()); err != nil {
		return nil, nil, fmt.Errorf("reading the response: %w", err)
	}
	out, err := rewrite(ctx, body.take(job.response))
	if err != nil {
		return nil, nil, err
	}
	body.put(out)
	f, err := marshalled(body.message())
	if err != nil {
		return nil, nil, err
	}
	again, err := former(v, job, out)
	return f, again, err
}

// former are the resources as they came of those that are to be rewritten again.
func former(v variant, job rewriteJob, out []Resource) (again []Resource, err error) {
	waits := make(map[string]func(context.Context) error)
	for _, r := range out {
		if r.Again != nil && r.Name != "" {
			waits[r.Name] = r.Again
		}
	}
	if len(waits) == 0 {
		return nil, nil
	}
	body := bodyOf(v)
	if err := proto.Unmarshal(job.frame.data.Materialize(), body.message()); err != nil {
		return nil, fmt.Errorf("reading the response: %w", err)
	}
	for _, r := range body.take(job.response) {
		if r.Again = waits[r.Name]; r.Again != nil {
			again = append(again, r)
		}
	}
	return again, nil
}

// responseBody is a response of either protocol variant.
type responseBody interface {
	message() proto.Message
	take(response) []Resource
	put([]Resource)
}

func bodyOf(v variant) responseBody {
	if v == sotw {
		return &sotwBody{}
	}
	return &deltaBody{}
}

type sotwBody struct{ m discoveryv3.DiscoveryResponse }

func (b *sotwBody) message() proto.Message { return &b.m }

func (b *sotwBody) take(about response) []Resource {
	in := make([]Resource, len(b.m.Resources))
	for i, r := range b.m.Resources {
		in[i] = Resource{Type: r.GetTypeUrl(), Value: r.GetValue()}
		if i < len(about.resources) {
			in[i].Name = about.resources[i].name
		}
	}
	return in
}

func (b *sotwBody) put(out []Resource) {
	b.m.Resources = b.m.Resources[:0]
	for _, r := range out {
		b.m.Resources = append(b.m.Resources, &anypb.Any{TypeUrl: r.Type, Value: r.Value})
	}
}

type deltaBody struct {
	m discoveryv3.DeltaDiscoveryResponse
}

func (b *deltaBody) message() proto.Message { return &b.m }

func (b *deltaBody) take(response) []Resource {
	in := make([]Resource, len(b.m.Resources))
	for i, r := range b.m.Resources {
		in[i] = Resource{Name: r.Name, Type: r.GetResource().GetTypeUrl(), Value: r.GetResource().GetValue()}
	}
	return in
}

func (b *deltaBody) put(out []Resource) {
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

func marshalled(m proto.Message) (*frame, error) {
	b, err := proto.Marshal(m)
	if err != nil {
		return nil, err
	}
	return message(b), nil
}
