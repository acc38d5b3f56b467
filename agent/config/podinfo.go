package config

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/internal/regularfile"
)

// readPodInfo reads labels or annotations from a file of Kubernetes' downward API. It returns nil if the file does not
// exist, as outside a pod.
func readPodInfo(file string) (map[string]string, error) {
	b, err := regularfile.Read(file, maxConfiguration)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the pod's %s: %w", file, err)
	}
	values, err := parsePodInfo(string(b))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return values, nil
}

// parsePodInfo parses lines of key="escaped value".
func parsePodInfo(text string) (map[string]string, error) {
	values := map[string]string{}
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		key, quoted, ok := strings.Cut(line, "=")
		if !ok {
			return nil, fmt.Errorf("line %d: %q is not key=\"value\"", n, line)
		}
		value, err := strconv.Unquote(quoted)
		if err != nil {
			return nil, fmt.Errorf("line %d: the value of %s is not a quoted string: %s", n, key, quoted)
		}
		values[key] = value
	}
	return values, nil
}
