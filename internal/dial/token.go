package dial

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/internal/disks"
)

// files are asked for tokens, roots and client certificates. Whoever connects waits for them, but not for ever.
var files disks.Disks

// ReadToken reads a bearer token from its file. The error says what is missing and what puts it there.
func ReadToken(file string) (string, error) {
	data, err := files.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("the token file %s does not exist: mount the projected service account token there, "+
			"or write a token of the control plane to it", file)
	}
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	token := strings.TrimSpace(string(data))
	if token == "" {
		return "", fmt.Errorf("the token file %s is empty", file)
	}
	return token, nil
}
