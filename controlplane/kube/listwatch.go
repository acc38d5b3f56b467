package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// encoding is the form in which the API server sends the objects of a resource.
type encoding int

const (
	complete     encoding = iota // complete objects of a registered type, in protobuf
	onlyMetadata                 // *metav1.PartialObjectMetadata, in protobuf
	rawJSON                      // *rawObject
)

// resource describes the objects that one reflector reads.
type resource struct {
	name          string // plural name in URLs
	namespace     string // "" for all namespaces
	fieldSelector string
	encoding      encoding
	newList       func() runtime.Object // for the encoding complete
	// convert returns the content of an object, or nil if the object has no effect. It does not retain the object.
	convert func(runtime.Object) any
}

const (
	metadataOf     = ";g=meta.k8s.io;v=v1"
	acceptMetadata = contentProtobuf + ";as=PartialObjectMetadata" + metadataOf + "," + contentJSON + ";as=PartialObjectMetadata" + metadataOf
	acceptList     = contentProtobuf + ";as=PartialObjectMetadataList" + metadataOf + "," + contentJSON + ";as=PartialObjectMetadataList" + metadataOf
)

// listWatch lists and watches one resource. It implements cache.ListerWatcherWithContext. Its results are objects and
// objectLists.
type listWatch struct {
	resource
	client *rest.RESTClient
	// report is called with the result of each list and watch request, and with each error event of a watch.
	report func(operation string, err error)
}

// List implements cache.Lister, which reflectors do not call.
func (l *listWatch) List(options metav1.ListOptions) (runtime.Object, error) {
	return l.ListWithContext(context.Background(), options)
}

// Watch implements cache.Watcher, which reflectors do not call.
func (l *listWatch) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return l.WatchWithContext(context.Background(), options)
}

// ListWithContext returns one page of the resource's objects.
func (l *listWatch) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	list, err := l.list(ctx, options)
	if err != nil {
		l.report("list", err)
		return nil, err
	}
	l.report("list", nil)
	return list, nil
}

func (l *listWatch) list(ctx context.Context, options metav1.ListOptions) (*objectList, error) {
	if options.ResourceVersion == "0" { // any version: the API server would answer from its cache, without pages
		options.ResourceVersion = ""
	}
	request := l.request(options)
	var list runtime.Object
	switch l.encoding {
	case complete:
		list = l.newList()
	case onlyMetadata:
		list = &metav1.PartialObjectMetadataList{}
		request.SetHeader("Accept", acceptList)
	case rawJSON:
		data, err := request.Do(ctx).Raw()
		if err != nil {
			return nil, err
		}
		return l.decodeList(data)
	}
	if err := request.Do(ctx).Into(list); err != nil {
		return nil, err
	}
	return l.convertList(list)
}

func (l *listWatch) request(options metav1.ListOptions) *rest.Request {
	options.FieldSelector = l.fieldSelector
	return l.client.Get().NamespaceIfScoped(l.namespace, l.namespace != "").Resource(l.name).SpecificallyVersionedParams(&options, parameterCodec, schema.GroupVersion{Version: "v1"})
}

func (l *listWatch) convertList(list runtime.Object) (*objectList, error) {
	header, err := meta.ListAccessor(list)
	if err != nil {
		return nil, err
	}
	out := &objectList{Items: make([]object, 0, meta.LenList(list))}
	out.ResourceVersion, out.Continue, out.RemainingItemCount = header.GetResourceVersion(), header.GetContinue(), header.GetRemainingItemCount()
	err = meta.EachListItem(list, func(item runtime.Object) error {
		converted, err := l.convertObject(item)
		if err == nil {
			out.Items = append(out.Items, *converted)
		}
		return err
	})
	return out, err
}

func (l *listWatch) decodeList(data []byte) (*objectList, error) {
	var list struct {
		Metadata metav1.ListMeta   `json:"metadata"`
		Items    []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("decoding the list of %s: %w", l.name, err)
	}
	out := &objectList{ListMeta: list.Metadata, Items: make([]object, 0, len(list.Items))}
	for _, text := range list.Items {
		raw, err := decodeRaw(text)
		if err != nil {
			return nil, fmt.Errorf("decoding the list of %s: %w", l.name, err)
		}
		converted, err := l.convertObject(raw)
		if err != nil {
			return nil, err
		}
		out.Items = append(out.Items, *converted)
	}
	return out, nil
}

func (l *listWatch) convertObject(o runtime.Object) (*object, error) {
	header, err := meta.Accessor(o)
	if err != nil {
		return nil, err
	}
	return &object{
		namespace: header.GetNamespace(), name: header.GetName(), version: header.GetResourceVersion(), uid: header.GetUID(), value: l.convert(o),
	}, nil
}

// WatchWithContext watches the resource. The objects of events are objects, except those of bookmarks and errors.
func (l *listWatch) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch = true
	w, err := l.watch(ctx, options)
	if options.SendInitialEvents != nil && apierrors.IsInvalid(err) { // the API server has no streaming lists; a list follows
		return nil, err
	}
	if err != nil {
		l.report("watch", err)
		return nil, err
	}
	l.report("watch", nil)
	return newConvertedWatch(w, l.convertEvent), nil
}

func (l *listWatch) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	request := l.request(options)
	if options.TimeoutSeconds != nil {
		request.Timeout(time.Duration(*options.TimeoutSeconds) * time.Second)
	}
	switch l.encoding {
	case onlyMetadata:
		request.SetHeader("Accept", acceptMetadata)
	case rawJSON:
		body, err := request.Stream(ctx)
		if err != nil {
			return nil, err
		}
		return watch.NewStreamWatcher(&rawEvents{body: body, decoder: json.NewDecoder(body)}, apierrors.NewClientErrorReporter(500, "GET", "ClientWatchDecoding")), nil
	}
	return request.Watch(ctx)
}

// convertEvent converts the object of a watch event.
func (l *listWatch) convertEvent(in watch.Event) (out watch.Event, keep bool) {
	switch in.Type {
	case watch.Bookmark:
		return in, true
	case watch.Error:
		l.report("watch", apierrors.FromObject(in.Object))
		return in, true
	}
	converted, err := l.convertObject(in.Object)
	if err != nil { // the server sent an object without metadata
		l.report("watch", err)
		return in, false
	}
	in.Object = converted
	return in, true
}

// convertedWatch is a watch whose events are converted.
type convertedWatch struct {
	source watch.Interface
	events chan watch.Event
	done   chan struct{} // closed by Stop
	stop   sync.Once
}

func newConvertedWatch(source watch.Interface, convert func(watch.Event) (watch.Event, bool)) *convertedWatch {
	w := &convertedWatch{source: source, events: make(chan watch.Event), done: make(chan struct{})}
	go func() {
		defer close(w.events)
		for in := range source.ResultChan() {
			out, keep := convert(in)
			if !keep {
				continue
			}
			select {
			case w.events <- out:
			case <-w.done:
				return
			}
		}
	}()
	return w
}

// Stop implements watch.Interface.
func (w *convertedWatch) Stop() {
	w.stop.Do(func() { close(w.done) })
	w.source.Stop()
}

// ResultChan implements watch.Interface.
func (w *convertedWatch) ResultChan() <-chan watch.Event { return w.events }

// rawObject is an API object in JSON encoding.
type rawObject struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	text              []byte
}

// DeepCopyObject implements runtime.Object. The copy shares the content, which is immutable.
func (r *rawObject) DeepCopyObject() runtime.Object {
	c := *r
	return &c
}

func decodeRaw(text []byte) (*rawObject, error) {
	r := &rawObject{text: text}
	return r, json.Unmarshal(text, r)
}

// rawEvents decodes the events of a watch in JSON encoding.
type rawEvents struct {
	body    io.ReadCloser
	decoder *json.Decoder
}

// Decode implements watch.Decoder.
func (e *rawEvents) Decode() (watch.EventType, runtime.Object, error) {
	var event struct {
		Type   watch.EventType `json:"type"`
		Object json.RawMessage `json:"object"`
	}
	if err := e.decoder.Decode(&event); err != nil {
		return "", nil, err
	}
	if event.Type == watch.Error {
		status := &metav1.Status{}
		return event.Type, status, json.Unmarshal(event.Object, status)
	}
	if len(event.Object) == 0 {
		return "", nil, errors.New("the event has no object")
	}
	o, err := decodeRaw(event.Object)
	return event.Type, o, err
}

// Close implements watch.Decoder.
func (e *rawEvents) Close() { _ = e.body.Close() }
