package sds

import (
	"errors"
	"fmt"

	"github.com/pilotfish-mesh/pilotfish/internal/regularfile"
)

// maxFile exceeds the size of every certificate bundle.
const maxFile = 4 << 20

// readBounded reads a regular file of limited size. It rejects other files: reading a pipe, for example, would block
// the caller.
func readBounded(path string) ([]byte, error) {
	text, err := regularfile.Read(path, maxFile)
	if err != nil {
		return nil, err
	}
	if len(text) == 0 {
		return nil, fmt.Errorf("%s: %w", path, errEmpty)
	}
	return text, nil
}

var errEmpty = errors.New("the file is empty")
