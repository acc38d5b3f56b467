package mesh

import (
	"fmt"
	"os"

	"github.com/pilotfish-mesh/pilotfish/internal/atomicfile"
)

// writeFile replaces a file as a whole: a reader sees the old contents or the new, and a full disk leaves the old. It need
// not outlast the machine: no mesh does.
func writeFile(path string, data []byte, mode os.FileMode) error {
	d, err := atomicfile.NewDraft(path, data, mode)
	if err == nil {
		err = d.Keep()
		d.Discard()
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, withRemedy(err))
	}
	return nil
}
