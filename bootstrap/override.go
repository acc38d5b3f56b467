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

// largest is more than any bootstrap that people write, and little enough to be read at every start.
const largest = 4 << 20

// changed says that somebody has a say in the bootstrap besides this package.
func (c Config) changed() bool { return len(c.Override) > 0 || len(c.Custom) > 0 }

// tree is a JSON document with Envoy's own names of fields. What an override brings is worked on as JSON and never as
// messages, because it may hold extensions of Envoy whose types this program does not know.
type tree = map[string]any

// changedTree is the bootstrap with the custom one in its place, and the override over it. The result is checked field
// by field, and what the agent lives by is as it was.
func changedTree(c Config) (tree, error) {
	own, err := ownTree(c)
	if err != nil {
		return nil, err
	}
	result, author := own, ""
	if len(c.Custom) > 0 {
		if result, err = customTree(c, own); err != nil {
			return nil, err
		}
		author = orText(c.CustomFile, "the custom bootstrap")
	}
	if len(c.Override) > 0 {
		author = orText(c.OverrideFile, "the override")
		if result, err = override(c, result, author); err != nil {
			return nil, err
		}
	}
	if err := check(result, own, author); err != nil {
		return nil, blame(c, err, own)
	}
	return result, nil
}

// blame finds the file that is at fault, where there are two.
func blame(c Config, err error, own tree) error {
	if len(c.Custom) == 0 || len(c.Override) == 0 {
		return err
	}
	alone, customErr := customTree(c, own)
	if customErr == nil {
		customErr = check(alone, own, orText(c.CustomFile, "the custom bootstrap"))
	}
	if customErr != nil {
		return customErr
	}
	return err
}

// ownTree is the bootstrap that this package makes.
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

func customTree(c Config, own tree) (tree, error) {
	name := orText(c.CustomFile, "the custom bootstrap")
	text, err := filledIn(c, own, name)
	if err != nil {
		return nil, err
	}
	document, err := c.read(text, name)
	if err != nil {
		return nil, err
	}
	t, ok := document.(tree)
	if !ok {
		return nil, fmt.Errorf("%s is not a bootstrap; write an object with the fields of Envoy's Bootstrap", name)
	}
	if t, err = canonical(t, bootstrapDescriptor(), name); err != nil {
		return nil, err
	}
	addProtected(t, own)
	return t, nil
}

func override(c Config, t tree, name string) (tree, error) {
	if gotemplate.HasOptions(string(c.Override)) {
		return nil, fmt.Errorf("%s is a template; only whole bootstraps are filled in (ISTIO_BOOTSTRAP, customConfigFile, --templateFile)", name)
	}
	document, err := c.read(c.Override, name)
	if err != nil {
		return nil, err
	}
	switch o := document.(type) {
	case tree:
		if o, err = canonical(o, bootstrapDescriptor(), name); err != nil {
			return nil, err
		}
		// The result shares nothing with what it is compared with later.
		return merge(clone(t).(tree), o, bootstrapDescriptor()), nil
	case []any:
		return patch(t, o, name)
	}
	return nil, fmt.Errorf("%s is neither an object, to be merged into the bootstrap, nor a list, as a JSON patch is", name)
}

// patch applies a JSON patch, operation by operation, so that the one that fails can be named.
func patch(t tree, operations []any, name string) (tree, error) {
	document, err := json.Marshal(t)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: encoding it as JSON: %w", err)
	}
	options := jsonpatch.NewApplyOptions()
	options.AccumulatedCopySizeLimit = largest
	for i, operation := range operations {
		text, _ := json.Marshal([]any{operation})
		p, err := jsonpatch.DecodePatch(text)
		if err == nil {
			document, err = p.ApplyWithOptions(document, options)
		}
		if err == nil && len(document) > 2*largest {
			err = errors.New("the bootstrap becomes too large")
		}
		if err != nil {
			return nil, fmt.Errorf("%s: operation %d, %s: %w; paths are those of the bootstrap that `pilotfish-agent bootstrap` prints",
				name, i+1, bytes.TrimSpace(text), err)
		}
	}
	patched, err := decodeObject(document)
	if err != nil {
		return nil, fmt.Errorf("%s leaves no bootstrap: %w", name, err)
	}
	return canonical(patched, bootstrapDescriptor(), name)
}

// read takes JSON or YAML.
func (c Config) read(text []byte, name string) (any, error) {
	if len(text) > largest {
		return nil, fmt.Errorf("%s has %d bytes; more than %d are not read", name, len(text), largest)
	}
	if bytes.Contains(text, []byte(hostIPVariable)) {
		if c.HostIP == "" {
			return nil, fmt.Errorf("%s has %s in it; set HOST_IP, which it stands for", name, hostIPVariable)
		}
		text = bytes.ReplaceAll(text, []byte(hostIPVariable), []byte(c.HostIP))
	}
	document, err := decodeJSON(text)
	if err != nil {
		document, err = decodeYAML(text)
	}
	if err != nil {
		return nil, fmt.Errorf("%s is neither JSON nor YAML: %w", name, err)
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
		return nil, errors.New("there is more after the document's end")
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
		return nil, errors.New("it is not an object")
	}
	return t, nil
}

// decodeYAML goes by way of JSON, so that both have the same kinds of values.
func decodeYAML(text []byte) (any, error) {
	d := yaml.NewDecoder(bytes.NewReader(text))
	var document, more any
	if err := d.Decode(&document); err != nil {
		return nil, errors.New(strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := d.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more than one document in it")
	}
	asJSON, err := json.Marshal(document)
	if err != nil {
		return nil, fmt.Errorf("a key is not a text: %w", err)
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
