package sds

import (
	"errors"
	"fmt"

	"github.com/pilotfish-mesh/pilotfish/internal/regularfile"
)

// maxFile limits the size of a file. It is larger than any certificate bundle.
const maxFile = 4 << 20

// readBounded reads a regular file of at most maxFile bytes. It returns errEmpty for an empty file. It rejects files
// that are not regular, because reading from a pipe, for example, would block.
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
