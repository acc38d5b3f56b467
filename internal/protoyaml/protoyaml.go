// Package protoyaml reads YAML strictly into protobuf messages, with errors that name the line.
package protoyaml

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// Unmarshal reads one YAML document into a message, by the rules of protojson, and refuses what the message has no place
// for. It also gives the document as it was written, since which fields are there matters where they are zero too.
func Unmarshal(text []byte, into proto.Message) (map[string]any, error) {
	var doc map[string]any
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, err
	}
	b, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	if err := protojson.Unmarshal(b, into); err != nil {
		return nil, locate(err, string(text))
	}
	return doc, nil
}

var (
	jsonPlace    = regexp.MustCompile(`^proto:\s*(\(line \d+:\d+\): )?`)
	unknownField = regexp.MustCompile(`unknown field "([^"]+)"`)
)

// locate replaces the place in the JSON, which nobody wrote, by the line of the YAML where it can be told.
func locate(err error, text string) error {
	message := strings.ReplaceAll(err.Error(), "\u00a0", " ")
	message = jsonPlace.ReplaceAllString(message, "")
	if m := unknownField.FindStringSubmatch(message); m != nil {
		key := regexp.MustCompile(`["']?\b` + regexp.QuoteMeta(m[1]) + `\b["']?\s*:`)
		n := 0
		for line := range strings.Lines(text) {
			n++
			if key.MatchString(line) {
				return fmt.Errorf("line %d: %s", n, message)
			}
		}
	}
	return errors.New(message)
}
