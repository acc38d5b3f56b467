package bootstrap

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"go.yaml.in/yaml/v3"

	"github.com/pilotfish-mesh/pilotfish/bootstrap/gotemplate"
)

// maxInputSize limits the size of Override and Custom. It exceeds the size of any bootstrap written by hand.
const maxInputSize = 4 << 20

// isCustomized reports whether the user overrides or replaces the bootstrap.
func (c Config) isCustomized() bool { return len(c.Override) > 0 || len(c.Custom) > 0 }

// tree is a JSON object with Envoy's field names. Overrides are processed as JSON, because they may contain Envoy
// extensions whose Go types this program does not contain.
type tree = map[string]any

// customizedTree returns the generated or custom bootstrap with the override applied. It checks every value of the
// result, and that the fields that the agent requires are unchanged. As with Istio's agent, unknown fields and an
// override that cannot be parsed have no effect. warnings describes them.
func customizedTree(c Config) (result tree, warnings []string, err error) {
	own, err := ownTree(c)
	if err != nil {
		return nil, nil, err
	}
	var unknown unknownFields
	result, author := own, ""
	if len(c.Custom) > 0 {
		if result, err = customTree(c, own, &unknown); err != nil {
			return nil, nil, err
		}
		author = textOrDefault(c.CustomFile, "the custom bootstrap")
	}
	if len(c.Override) > 0 {
		name := textOrDefault(c.OverrideFile, "the override")
		changed, err := override(c, result, name, &unknown)
		switch {
		case errors.As(err, new(notParsedError)):
			unknown = append(unknown, err.Error()+"; the override has no effect")
		case err != nil:
			return nil, nil, err
		default:
			result, author = changed, name
		}
	}
	if err := validateResult(result, own, author); err != nil {
		return nil, nil, attributeError(c, err, own)
	}
	if sinks, _ := result["stats_sinks"].([]any); len(sinks) > 0 {
		forbidPackedLabels(result)
	}
	return result, unknown, nil
}

// forbidPackedLabels deletes unpackMetadata from the node, because not all readers of the statistics can unpack labels.
func forbidPackedLabels(t tree) {
	if node, ok := t["node"].(tree); ok {
		if metadata, ok := node["metadata"].(tree); ok && metadata[unpackMetadata] == "true" {
			delete(metadata, unpackMetadata)
		}
	}
}

// notParsedError reports a document that is neither JSON nor YAML, or a template where templates are not supported.
type notParsedError struct{ error }

// attributeError returns the error of the custom bootstrap, if it is invalid even without the override. Otherwise it
// returns err.
func attributeError(c Config, err error, own tree) error {
	if len(c.Custom) == 0 || len(c.Override) == 0 {
		return err
	}
	alone, customErr := customTree(c, own, new(unknownFields))
	if customErr == nil {
		customErr = validateResult(alone, own, textOrDefault(c.CustomFile, "the custom bootstrap"))
	}
	if customErr != nil {
		return customErr
	}
	return err
}

// ownTree returns the bootstrap that Build generates, as a JSON object.
func ownTree(c Config) (tree, error) {
	b, err := Build(c)
	if err != nil {
		return nil, err
	}
	text, err := JSON(b)
	if err != nil {
		return nil, err
	}
	return decodeObject(text)
}

func customTree(c Config, own tree, unknown *unknownFields) (tree, error) {
	name := textOrDefault(c.CustomFile, "the custom bootstrap")
	text, err := executeTemplate(c, own, name)
	if err != nil {
		return nil, err
	}
	document, err := c.parse(text, name)
	if err != nil {
		return nil, err
	}
	t, ok := document.(tree)
	if !ok {
		return nil, fmt.Errorf("%s is not a bootstrap; write an object with the fields of Envoy's Bootstrap", name)
	}
	if t, err = unknown.canonical(t, bootstrapDescriptor(), name); err != nil {
		return nil, err
	}
	c.moveAdmin(t, own)
	addProtected(t, own)
	return t, nil
}

func override(c Config, t tree, name string, unknown *unknownFields) (tree, error) {
	if gotemplate.HasOptions(string(c.Override)) {
		return nil, notParsedError{fmt.Errorf("%s is a template; templates are supported only for whole bootstraps (ISTIO_BOOTSTRAP, customConfigFile, --templateFile)", name)}
	}
	document, err := c.parse(c.Override, name)
	if err != nil {
		return nil, err
	}
	switch o := document.(type) {
	case tree:
		if o, err = unknown.canonical(o, bootstrapDescriptor(), name); err != nil {
			return nil, err
		}
		// t is copied, because the caller later compares the result with it.
		return merge(clone(t).(tree), o, bootstrapDescriptor()), nil
	case []any:
		return patch(t, o, name, unknown)
	}
	return nil, fmt.Errorf("%s is neither an object, which is merged into the bootstrap, nor a list, which is a JSON patch", name)
}

// patch applies the operations of a JSON patch one by one, so that an error names the operation.
func patch(t tree, operations []any, name string, unknown *unknownFields) (tree, error) {
	document, err := json.Marshal(t)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: encoding the bootstrap as JSON: %w", err)
	}
	options := jsonpatch.NewApplyOptions()
	options.AccumulatedCopySizeLimit = maxInputSize
	for i, operation := range operations {
		text, _ := json.Marshal([]any{operation})
		p, err := jsonpatch.DecodePatch(text)
		if err == nil {
			document, err = p.ApplyWithOptions(document, options)
		}
		if err == nil && len(document) > 2*maxInputSize {
			err = errors.New("the resulting bootstrap is too large")
		}
		if err != nil {
			return nil, fmt.Errorf("%s: operation %d, %s: %w; paths are those of the bootstrap that `pilotfish-agent bootstrap` prints",
				name, i+1, bytes.TrimSpace(text), err)
		}
	}
	patched, err := decodeObject(document)
	if err != nil {
		return nil, fmt.Errorf("after %s, the result is not a bootstrap: %w", name, err)
	}
	return unknown.canonical(patched, bootstrapDescriptor(), name)
}

// parse parses JSON or YAML. Before that, it replaces $(HOST_IP).
func (c Config) parse(text []byte, name string) (any, error) {
	if len(text) > maxInputSize {
		return nil, fmt.Errorf("%s has %d bytes; the limit is %d", name, len(text), maxInputSize)
	}
	if bytes.Contains(text, []byte(hostIPVariable)) {
		if c.HostIP == "" {
			return nil, fmt.Errorf("%s contains %s; set HOST_IP, which replaces it", name, hostIPVariable)
		}
		text = bytes.ReplaceAll(text, []byte(hostIPVariable), []byte(c.HostIP))
	}
	document, err := decodeJSON(text)
	if err != nil {
		document, err = decodeYAML(text)
	}
	if err != nil {
		return nil, notParsedError{fmt.Errorf("%s is neither JSON nor YAML: %w", name, err)}
	}
	return document, nil
}

func decodeJSON(text []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var document any
	if err := d.Decode(&document); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is content after the end of the document")
	}
	return document, nil
}

func decodeObject(text []byte) (tree, error) {
	document, err := decodeJSON(text)
	if err != nil {
		return nil, err
	}
	t, ok := document.(tree)
	if !ok {
		return nil, errors.New("the content is not an object")
	}
	return t, nil
}

// decodeYAML converts YAML to JSON and decodes the JSON, so that both formats yield the same Go types.
func decodeYAML(text []byte) (any, error) {
	d := yaml.NewDecoder(bytes.NewReader(text))
	var document, more any
	if err := d.Decode(&document); err != nil {
		return nil, errors.New(strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := d.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, errors.New("the file contains more than one document")
	}
	asJSON, err := json.Marshal(document)
	if err != nil {
		return nil, fmt.Errorf("a key is not a string: %w", err)
	}
	return decodeJSON(asJSON)
}

func clone(v any) any {
	switch v := v.(type) {
	case tree:
		c := make(tree, len(v))
		for key, value := range v {
			c[key] = clone(value)
		}
		return c
	case []any:
		c := make([]any, len(v))
		for i, value := range v {
			c[i] = clone(value)
		}
		return c
	}
	return v
}
