package dial

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/internal/fstimeout"
)

// files reads tokens, roots and client certificates with a timeout, so that a hung file system does not block
// connections.
var files fstimeout.TimeoutFS

// ReadToken reads a bearer token from file. An error about a missing file contains a remedy.
func ReadToken(file string) (string, error) {
	data, err := files.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("the token file %s does not exist: mount the projected service account token there, "+
			"or write a token of the control plane to it", file)
	}
	if err != nil {
		return "", fmt.Errorf("reading the token file: %w", err)
	}
	token := strings.TrimSpace(string(data))
	if token == "" {
		return "", fmt.Errorf("the token file %s is empty", file)
	}
	return token, nil
}
