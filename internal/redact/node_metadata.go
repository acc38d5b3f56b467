package redact

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// NodeMetadata copies JSON of Envoy's admin interface and removes the secrets from the metadata of nodes. It copies all
// other bytes unchanged, because programs may depend on Envoy's exact format. It has only one value in memory at a
// time.
func NodeMetadata(to io.Writer, from io.Reader) error {
	var raw bytes.Buffer
	out := bufio.NewWriter(to)
	c := &metadataCopier{in: json.NewDecoder(io.TeeReader(from, &raw)), raw: &raw, out: out}
	for {
		err := c.copyToken()
		if errors.Is(err, io.EOF) && len(c.open) == 0 {
			_, _ = out.Write(raw.Bytes()) // the final newline
			return out.Flush()
		}
		if err != nil {
			_ = out.Flush()
			return fmt.Errorf("removing secrets from node metadata: %w", unexpectedEOF(err))
		}
	}
}

// metadataCopier copies JSON tokens, each together with the white space and punctuation before it.
type metadataCopier struct {
	in *json.Decoder
	// raw contains the bytes that the decoder has read but that were not copied to out yet. copied is the number of
	// bytes that were copied.
	raw    *bytes.Buffer
	copied int64
	out    *bufio.Writer
	open   []jsonContainer
}

// jsonContainer is an object or array whose end was not read yet.
type jsonContainer struct {
	isObject, atName bool
	name             string // name of the last field
}

func (c *metadataCopier) copyToken() error {
	t, err := c.in.Token()
	if err != nil {
		return err
	}
	text := c.takeRaw()
	if _, err := c.out.Write(text); err != nil {
		return err
	}
	name, isText := t.(string)
	if top := c.container(1); top != nil && isText && top.atName {
		top.name, top.atName = name, false
		if parent := c.container(2); name == "metadata" && parent != nil && parent.isObject && parent.name == "node" {
			return c.copyRedacted(text)
		}
		return nil
	}
	switch t {
	case json.Delim('{'), json.Delim('['):
		isObject := t == json.Delim('{')
		c.open = append(c.open, jsonContainer{isObject: isObject, atName: isObject})
		return nil
	case json.Delim('}'), json.Delim(']'):
		c.open = c.open[:len(c.open)-1]
	}
	c.endValue()
	return nil
}

// container returns the innermost open container for depth 1, the container around it for depth 2, or nil.
func (c *metadataCopier) container(depth int) *jsonContainer {
	if len(c.open) < depth {
		return nil
	}
	return &c.open[len(c.open)-depth]
}

func (c *metadataCopier) endValue() {
	if top := c.container(1); top != nil {
		top.atName = top.isObject
	}
}

// takeRaw returns the text of the last token, preceded by the text between it and the previous token.
func (c *metadataCopier) takeRaw() []byte {
	end := c.in.InputOffset()
	text := c.raw.Next(int(end - c.copied))
	c.copied = end
	return text
}

// copyRedacted copies the value of a field and removes its secrets. text ends with the field's name. If the name is the
// first on its line, the value is indented.
func (c *metadataCopier) copyRedacted(text []byte) error {
	indentation, isIndented := indentationOf(text)
	var value json.RawMessage
	if err := c.in.Decode(&value); err != nil {
		return unexpectedEOF(err)
	}
	c.takeRaw()
	var clean, shown bytes.Buffer
	if err := JSON(&clean, bytes.NewReader(value)); err != nil {
		return err
	}
	line := bytes.TrimSpace(clean.Bytes())
	if isIndented {
		if err := json.Indent(&shown, line, indentation, " "); err != nil {
			return err
		}
		line = append([]byte(": "), shown.Bytes()...)
	} else {
		line = append([]byte(":"), line...)
	}
	c.endValue()
	_, err := c.out.Write(line)
	return err
}

// indentationOf returns the white space before the field name at the end of text. ok is false if text has one line.
func indentationOf(text []byte) (indentation string, ok bool) {
	n := bytes.LastIndexByte(text, '\n')
	quote := bytes.IndexByte(text[n+1:], '"')
	if n < 0 || quote < 0 {
		return "", false
	}
	return string(text[n+1 : n+1+quote]), true
}
