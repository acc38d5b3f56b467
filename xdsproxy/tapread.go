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
	// maxNames limits the names in a line.
	maxNames = 100
	// maxContent limits the size of a displayed resource, in bytes: decoded, it needs several times as much.
	maxContent = 8 << 20
)

// emitMessage emits the lines of a message. It decodes one resource at a time, so it needs memory only for the largest
// resource.
func (o TapOptions) emitMessage(m tapMessage, lost int, emit func(TapLine) error) error {
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

// matchesName reports whether a message contains the selected name.
func (o TapOptions) matchesName(m tapMessage, line TapLine) bool {
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
	l.Names, l.Unsubscribed, l.Known = limitNames(append(r.names, r.subscribe...)), limitNames(r.unsubscribe), len(r.known)
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
	l.Resources, l.Removed = len(r.resources), limitNames(r.removed)
	return nil
}

func limitNames(names []string) []string { return names[:min(len(names), maxNames)] }

// emitResources emits a line for each selected resource of a response.
func (o TapOptions) emitResources(m tapMessage, typeURL string, emit func(TapLine) error) error {
	return walk(m.frame.data, func(number protowire.Number, c *cursor, length int) error {
		if number != 2 {
			return c.skip(length)
		}
		end := c.remaining() - length
		head, err := readResource(m, c, length)
		if err != nil {
			return err
		}
		line := TapLine{Time: m.at, Kind: TapResource, TypeURL: typeURL, Name: head.name, Version: head.version, Bytes: length}
		if o.Name != "" && !strings.Contains(head.name, o.Name) {
			return c.skip(c.remaining() - end)
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
	resource
	bytes []byte // nil if it is too large to be displayed
}

// readResource reads a resource with its name and version. It skips the content if that is too large.
func readResource(m tapMessage, c *cursor, length int) (tapResource, error) {
	if length > maxContent {
		r, err := peekResource(m.proto, c, length)
		return tapResource{resource: r}, err
	}
	h := tapResource{bytes: make([]byte, length)}
	if _, err := io.ReadFull(c.reader, h.bytes); err != nil {
		return h, errMalformed
	}
	reader := newFrame(h.bytes).data.Reader()
	defer func() { _ = reader.Close() }()
	var err error
	h.resource, err = peekResource(m.proto, &cursor{reader: reader}, length)
	return h, err
}

// resourceJSON returns a resource as JSON without its secrets. It returns type and size if the resource cannot be
// decoded.
func (o TapOptions) resourceJSON(m tapMessage, typeURL string, data []byte, size int) (json.RawMessage, error) {
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
