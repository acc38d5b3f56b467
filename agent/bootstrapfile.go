package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/pilotfish-mesh/pilotfish/bootstrap"
	"github.com/pilotfish-mesh/pilotfish/internal/owner"
)

// writeBootstrap puts the bootstrap where Envoy is told to find it, and that of proxyless clients where they are.
func writeBootstrap(c *Config, from bootstrap.Config) (string, error) {
	text, err := bootstrap.Encode(from)
	if err != nil {
		return "", usageError{err}
	}
	file := filepath.Join(c.Proxy.GetConfigPath(), bootstrapFile)
	if err := writeWholeFor(c.Envoy.User, file, text, 0o600); err != nil {
		return "", fmt.Errorf("writing Envoy's bootstrap: %w; run the agent where it may write, or set configPath", err)
	}
	return file, writeGRPCBootstrap(c, from)
}

// writeGRPCBootstrap is for applications that are no children of the agent and run as another user, so that all may read
// it. It has no keys, and no more than the control plane is told.
func writeGRPCBootstrap(c *Config, from bootstrap.Config) error {
	text, err := bootstrap.GRPC(from)
	if err != nil {
		return usageError{err}
	}
	if err := writeWhole(c.Bootstrap.GRPCFile, text, 0o644); err != nil {
		return fmt.Errorf("writing the bootstrap of proxyless gRPC clients: %w; run the agent where it may write, or set GRPC_XDS_BOOTSTRAP", err)
	}
	return nil
}

// writeWhole writes a file of which a reader never sees half.
func writeWhole(file string, text []byte, mode os.FileMode) error {
	return writeWholeFor(nil, file, text, mode)
}

// writeWholeFor is writeWhole for a file that is to be another user's.
func writeWholeFor(o *owner.Owner, file string, text []byte, mode os.FileMode) error {
	// Others may find what is for them, and see nothing else.
	if err := o.MkdirAll(filepath.Dir(file), 0o711); err != nil {
		return err
	}
	// A file that was left behind keeps its mode, whatever the one of a new one would be.
	temporary := file + ".new"
	if err := os.Remove(temporary); err != nil && !os.IsNotExist(err) {
		return err
	}
	err := writeNew(o, temporary, text, mode)
	if err == nil {
		err = os.Rename(temporary, file)
	}
	if err != nil {
		_ = os.Remove(temporary) // half a file on a full disk only makes it fuller
	}
	return err
}

// writeNew writes a file that is not there, nor a link: others may be able to make some in the same directory.
func writeNew(o *owner.Owner, file string, text []byte, mode os.FileMode) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	err = o.GiveOpen(f)
	if err == nil {
		_, err = f.Write(text)
	}
	return errors.Join(err, f.Close())
}
