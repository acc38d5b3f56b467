package xdsproxy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilotfish-mesh/pilotfish/internal/redact"
)

const (
	// mostNames bounds the names that a line lists.
	mostNames = 100
	// mostContent bounds a resource that is shown, in bytes: decoded, it takes several times as much.
	mostContent = 8 << 20
)

// show makes lines of a message. It decodes one resource after the other, so that a large response takes no more memory
// than its largest resource.
func (o TapOptions) show(m tapped, lost int, emit func(TapLine) error) error {
	line := TapLine{
		Time: m.at, From: m.from, To: m.to, Process: int(m.process), Protocol: m.proto.String(), Bytes: m.frame.data.Len(), Lost: lost,
	}
	var err error
	if m.request {
		err = line.readRequest(m.proto, m.frame)
	} else {
		err = line.readResponse(m.proto, m.frame)
	}
	if err != nil {
		line.Reason = fmt.Sprintf("this message could not be read: %v", err)
		return emit(line)
	}
	if !o.wants(line.TypeURL) || !o.names(m, line) {
		if lost == 0 {
			return nil
		}
		return emit(TapLine{Time: m.at, Lost: lost})
	}
	if err := emit(line); err != nil || m.request || (!o.Contents && o.Name == "") {
		return err
	}
	return o.resources(m, line.TypeURL, emit)
}

// names says whether a message has to do with the name that is looked for.
func (o TapOptions) names(m tapped, line TapLine) bool {
	if o.Name == "" || strings.Contains(line.Reason, o.Name) {
		return true
	}
	var all []string
	if m.request {
		r, _ := peekRequest(m.proto, m.frame.data)
		all = append(append(append(all, r.names...), r.subscribe...), r.unsubscribe...)
	} else {
		r, _ := peekResponse(m.proto, m.frame.data)
		all = append(all, r.removed...)
		for _, one := range r.resources {
			all = append(all, one.name)
		}
	}
	for _, name := range all {
		if strings.Contains(name, o.Name) {
			return true
		}
	}
	return false
}

func (l *TapLine) readRequest(v variant, f *frame) error {
	r, err := peekRequest(v, f.data)
	if err != nil {
		return err
	}
	l.TypeURL, l.Version, l.Nonce, l.Reason = r.typeURL, r.version, r.nonce, redact.Text(r.reason)
	l.Names, l.Unsubscribed, l.Known = first(append(r.names, r.subscribe...)), first(r.unsubscribe), len(r.known)
	switch {
	case r.rejected:
		l.Kind = TapNack
	case r.nonce != "":
		l.Kind = TapAck
	default:
		l.Kind = TapRequest
	}
	return nil
}

func (l *TapLine) readResponse(v variant, f *frame) error {
	r, err := peekResponse(v, f.data)
	if err != nil {
		return err
	}
	l.Kind, l.TypeURL, l.Version, l.Nonce = TapResponse, r.typeURL, r.version, r.nonce
	l.Resources, l.Removed = len(r.resources), first(r.removed)
	return nil
}

func first(names []string) []string { return names[:min(len(names), mostNames)] }

// resources makes a line of each resource of a response that is of interest.
func (o TapOptions) resources(m tapped, typeURL string, emit func(TapLine) error) error {
	return walk(m.frame.data, func(number protowire.Number, c *cursor, length int) error {
		if number != 2 {
			return c.skip(length)
		}
		end := c.remaining() - length
		head, err := peekAhead(m, c, length)
		if err != nil {
			return err
		}
		line := TapLine{Time: m.at, Kind: TapResource, TypeURL: typeURL, Name: head.name, Version: head.version, Bytes: length}
		if o.Name != "" && !strings.Contains(head.name, o.Name) {
			return c.skip(c.remaining() - end)
		}
		if o.Contents {
			if line.Content, err = o.content(m, typeURL, head.bytes, length); err != nil {
				return err
			}
		}
		return emit(line)
	})
}

// resourceHead is a resource as it is found in a response.
type resourceHead struct {
	resource
	bytes []byte // nil when it is too large to be shown
}

// peekAhead reads a resource whole, unless it is too large, and takes its name and version out of it.
func peekAhead(m tapped, c *cursor, length int) (resourceHead, error) {
	if length > mostContent {
		r, err := peekResource(m.proto, c, length)
		return resourceHead{resource: r}, err
	}
	h := resourceHead{bytes: make([]byte, length)}
	if _, err := io.ReadFull(c.reader, h.bytes); err != nil {
		return h, errMalformed
	}
	reader := message(h.bytes).data.Reader()
	defer func() { _ = reader.Close() }()
	var err error
	h.resource, err = peekResource(m.proto, &cursor{reader: reader}, length)
	return h, err
}

// content is a resource as JSON without its secrets. What cannot be decoded is told by type and size.
func (o TapOptions) content(m tapped, typeURL string, data []byte, size int) (json.RawMessage, error) {
	if data == nil {
		return opaqueJSON(typeURL, nil, size), nil
	}
	var body anypb.Any
	if m.proto == sotw {
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
	text, err := readable(&body)
	if err != nil {
		return opaqueJSON(body.TypeUrl, body.Value, size), nil
	}
	var clean bytes.Buffer
	if err := redact.JSON(&clean, bytes.NewReader(text)); err != nil {
		return opaqueJSON(body.TypeUrl, nil, size), nil
	}
	return bytes.TrimSpace(clean.Bytes()), nil
}
