package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/pilotfish-mesh/pilotfish/agent/config"
	"github.com/pilotfish-mesh/pilotfish/bootstrap"
	"github.com/pilotfish-mesh/pilotfish/internal/owner"
)

// writeBootstrap writes Envoy's bootstrap and the bootstrap of proxyless gRPC clients. It returns the path of Envoy's
// bootstrap.
func writeBootstrap(c *config.Config, from bootstrap.Config) (string, error) {
	text, err := bootstrap.Encode(from)
	if err != nil {
		return "", ConfigError{err}
	}
	file := filepath.Join(c.Proxy.GetConfigPath(), config.BootstrapFile)
	if err := writeFileAtomicAs(c.Envoy.User, file, text, 0o600); err != nil {
		return "", fmt.Errorf("writing Envoy's bootstrap: %w; run the agent in a writable directory, or set configPath", err)
	}
	return file, writeGRPCBootstrap(c, from)
}

// writeGRPCBootstrap writes the bootstrap of proxyless gRPC clients. The file is readable by all users, because gRPC
// applications run as other users than the agent. The file contains no keys, only data that the control plane receives
// too.
func writeGRPCBootstrap(c *config.Config, from bootstrap.Config) error {
	text, err := bootstrap.GRPC(from)
	if err != nil {
		return ConfigError{err}
	}
	if err := writeFileAtomic(c.Bootstrap.GRPCFile, text, 0o644); err != nil {
		return fmt.Errorf("writing the bootstrap of proxyless gRPC clients: %w; run the agent in a writable directory, or set GRPC_XDS_BOOTSTRAP", err)
	}
	return nil
}

// writeFileAtomic replaces a file atomically: a reader sees the old or the new content.
func writeFileAtomic(file string, text []byte, mode os.FileMode) error {
	return writeFileAtomicAs(nil, file, text, mode)
}

// writeFileAtomicAs is like writeFileAtomic, but the file belongs to o, or to the agent's user if o is nil.
func writeFileAtomicAs(o *owner.Owner, file string, text []byte, mode os.FileMode) error {
	// Mode 0711: other users can open files by name, but cannot list the directory.
	if err := o.MkdirAll(filepath.Dir(file), 0o711); err != nil {
		return err
	}
	// Remove the temporary file of an earlier run, because writing to it would not change its mode.
	temporary := file + ".new"
	if err := os.Remove(temporary); err != nil && !os.IsNotExist(err) {
		return err
	}
	err := createFile(o, temporary, text, mode)
	if err == nil {
		err = os.Rename(temporary, file)
	}
	if err != nil {
		_ = os.Remove(temporary) // frees space if the disk is full
	}
	return err
}

// createFile creates and writes a file. It fails if a file or link of that name exists: another user who can write to
// the directory may have created it.
func createFile(o *owner.Owner, file string, text []byte, mode os.FileMode) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	err = o.ChownOpen(f)
	if err == nil {
		_, err = f.Write(text)
	}
	return errors.Join(err, f.Close())
}
