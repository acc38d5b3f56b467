package xdsproxy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilotfish-mesh/pilotfish/internal/redact"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy/wire"
)

const (
	// maxNames limits the names in one list of a TapLine.
	maxNames = 100
	// maxContent is the maximum size in bytes of a displayed resource. A decoded resource needs several times as much
	// memory.
	maxContent = 8 << 20
)

// emitMessage emits the lines of a message. It decodes one resource at a time to limit the memory that it uses.
func (o TapOptions) emitMessage(m tapMessage, lost int, emit func(TapLine) error) error {
	line := TapLine{
		Time: m.at, From: m.from, To: m.to, Process: int(m.process), Protocol: m.proto.String(), Bytes: m.message.Data.Len(), Lost: lost,
	}
	var err error
	if m.request {
		err = line.readRequest(m.proto, m.message)
	} else {
		err = line.readResponse(m.proto, m.message)
	}
	if err != nil {
		line.Reason = fmt.Sprintf("this message could not be parsed: %v", err)
		return emit(line)
	}
	if !o.matchesType(line.TypeURL) || !o.matchesName(m, line) {
		if lost == 0 {
			return nil
		}
		return emit(TapLine{Time: m.at, Lost: lost})
	}
	if err := emit(line); err != nil || m.request || (!o.Contents && o.Name == "") {
		return err
	}
	return o.emitResources(m, line.TypeURL, emit)
}

// matchesName reports whether the message matches the name in the options. It does if a resource name in it, or the
// reason of its NACK, contains the name.
func (o TapOptions) matchesName(m tapMessage, line TapLine) bool {
	if o.Name == "" || strings.Contains(line.Reason, o.Name) {
		return true
	}
	var all []string
	if m.request {
		r, _ := wire.ParseRequest(m.proto, m.message.Data)
		all = append(append(append(all, r.Names...), r.Subscribe...), r.Unsubscribe...)
	} else {
		r, _ := wire.ParseResponse(m.proto, m.message.Data)
		all = append(all, r.Removed...)
		for _, one := range r.Resources {
			all = append(all, one.Name)
		}
	}
	for _, name := range all {
		if strings.Contains(name, o.Name) {
			return true
		}
	}
	return false
}

func (l *TapLine) readRequest(v wire.Variant, f *wire.Message) error {
	r, err := wire.ParseRequest(v, f.Data)
	if err != nil {
		return err
	}
	l.TypeURL, l.Version, l.Nonce, l.Reason = r.TypeURL, r.Version, r.Nonce, redact.Text(r.Reason)
	l.Names, l.Unsubscribed, l.Known = limitNames(append(r.Names, r.Subscribe...)), limitNames(r.Unsubscribe), len(r.Known)
	switch {
	case r.Rejected:
		l.Kind = TapNack
	case r.Nonce != "":
		l.Kind = TapAck
	default:
		l.Kind = TapRequest
	}
	return nil
}

func (l *TapLine) readResponse(v wire.Variant, f *wire.Message) error {
	r, err := wire.ParseResponse(v, f.Data)
	if err != nil {
		return err
	}
	l.Kind, l.TypeURL, l.Version, l.Nonce = TapResponse, r.TypeURL, r.Version, r.Nonce
	l.Resources, l.Removed = len(r.Resources), limitNames(r.Removed)
	return nil
}

func limitNames(names []string) []string { return names[:min(len(names), maxNames)] }

// emitResources emits a line for each selected resource of a response.
func (o TapOptions) emitResources(m tapMessage, typeURL string, emit func(TapLine) error) error {
	return wire.Walk(m.message.Data, func(number protowire.Number, c *wire.Cursor, length int) error {
		if number != 2 {
			return c.Skip(length)
		}
		end := c.Remaining() - length
		head, err := readResource(m, c, length)
		if err != nil {
			return err
		}
		line := TapLine{Time: m.at, Kind: TapResource, TypeURL: typeURL, Name: head.Name, Version: head.Version, Bytes: length}
		if o.Name != "" && !strings.Contains(head.Name, o.Name) {
			return c.Skip(c.Remaining() - end)
		}
		if o.Contents {
			if line.Content, err = o.resourceJSON(m, typeURL, head.bytes, length); err != nil {
				return err
			}
		}
		return emit(line)
	})
}

// tapResource is a resource of a response.
type tapResource struct {
	wire.Resource
	bytes []byte // encoded; nil if the resource is larger than maxContent
}

// readResource reads one resource. It skips the content of a resource that is larger than maxContent.
func readResource(m tapMessage, c *wire.Cursor, length int) (tapResource, error) {
	if length > maxContent {
		r, err := wire.ParseResource(m.proto, c, length)
		return tapResource{Resource: r}, err
	}
	var h tapResource
	var err error
	if h.bytes, err = c.ReadInto(nil, length); err != nil {
		return h, err
	}
	h.Resource, err = wire.ParseResource(m.proto, wire.NewCursor(wire.NewMessage(h.bytes).Data), length)
	return h, err
}

// resourceJSON returns a resource as JSON without secrets. If the resource cannot be decoded, the JSON is an
// opaqueContent.
func (o TapOptions) resourceJSON(m tapMessage, typeURL string, data []byte, size int) (json.RawMessage, error) {
	if data == nil {
		return opaqueJSON(typeURL, nil, size), nil
	}
	var body anypb.Any
	if m.proto == wire.SotW {
		if err := proto.Unmarshal(data, &body); err != nil {
			return opaqueJSON(typeURL, data, size), nil
		}
	} else {
		var r discoveryv3.Resource
		if err := proto.Unmarshal(data, &r); err != nil || r.Resource == nil {
			return opaqueJSON(typeURL, data, size), nil
		}
		body = anypb.Any{TypeUrl: r.Resource.GetTypeUrl(), Value: r.Resource.GetValue()}
	}
	text, err := redactedJSON(&body)
	if err != nil {
		return opaqueJSON(body.TypeUrl, body.Value, size), nil
	}
	var clean bytes.Buffer
	if err := redact.JSON(&clean, bytes.NewReader(text)); err != nil {
		return opaqueJSON(body.TypeUrl, nil, size), nil
	}
	return bytes.TrimSpace(clean.Bytes()), nil
}
