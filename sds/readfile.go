package sds

import (
	"errors"
	"fmt"

	"github.com/pilotfish-mesh/pilotfish/internal/plainfile"
)

// mostFile is more than any bundle of certificates has.
const mostFile = 4 << 20

// readBounded reads a plain file of a tolerable size. Anything else, a pipe for instance, would keep the reader, and all
// who wait for it.
func readBounded(path string) ([]byte, error) {
	text, err := plainfile.Read(path, mostFile)
	if err != nil {
		return nil, err
	}
	if len(text) == 0 {
		return nil, fmt.Errorf("%s: %w", path, errEmpty)
	}
	return text, nil
}

var errEmpty = errors.New("the file is empty")
