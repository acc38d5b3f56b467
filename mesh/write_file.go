package mesh

import (
	"fmt"
	"os"

	"github.com/pilotfish-mesh/pilotfish/internal/atomicfile"
)

// writeFile replaces a file atomically. If the disk is full, the old content remains. It does not sync to disk,
// because a mesh does not continue after a reboot.
func writeFile(path string, data []byte, mode os.FileMode) error {
	d, err := atomicfile.NewDraft(path, data, mode)
	if err == nil {
		err = d.Commit()
		d.Discard()
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, withRemedy(err))
	}
	return nil
}
