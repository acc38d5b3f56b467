package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/agent/config"
	"github.com/pilotfish-mesh/pilotfish/bootstrap"
	"github.com/pilotfish-mesh/pilotfish/envoy"
)

// validationMarkFile stores the validation mark (a hash) of the last bootstrap that Envoy has accepted.
const validationMarkFile = "envoy-rev.validated"

// checkBootstrap runs Envoy to check the bootstrap and the flags. If Envoy rejects them, it returns a ConfigError with
// Envoy's reason.
func checkBootstrap(ctx context.Context, c *config.Config, binary envoy.Binary, o envoy.Options) error {
	err := envoy.Validate(ctx, binary.Path, o)
	var refused *envoy.InvalidError
	if !errors.As(err, &refused) {
		return err
	}
	what := fmt.Sprintf("Envoy %s (%s) rejects this bootstrap: %s", binary.Version, binary.Path, refused.Reason)
	if author := c.Bootstrap.CustomFiles(); author != "" {
		what = fmt.Sprintf("%s: Envoy %s (%s) rejects the resulting bootstrap: %s", author, binary.Version, binary.Path, refused.Reason)
	}
	return ConfigError{errors.New(what)}
}

// checkBootstrapOnce validates a bootstrap that contains a user's changes, so that errors name the user's file. It does
// not validate an unchanged bootstrap again, because a validation lasts as long as a start of Envoy. It ignores the
// value of secret when it compares bootstraps, because the secret differs in each run.
func checkBootstrapOnce(ctx context.Context, c *config.Config, binary envoy.Binary, o envoy.Options, secret string) error {
	if c.Bootstrap.CustomFiles() == "" {
		return nil
	}
	file := filepath.Join(c.Proxy.GetConfigPath(), validationMarkFile)
	mark, markErr := validationMark(binary, o, secret)
	if seen, err := os.ReadFile(file); markErr == nil && err == nil && string(seen) == mark {
		return nil
	}
	if err := checkBootstrap(ctx, c, binary, o); err != nil {
		if ctx.Err() != nil {
			return nil // the agent is stopping, and no Envoy will start
		}
		return err
	}
	if markErr == nil {
		_ = writeFileAtomic(file, []byte(mark), 0o600) // after a failed write, the next start only validates again
	}
	return nil
}

// validationMark returns a hash of everything on which the result of a validation depends: binary, bootstrap and flags.
func validationMark(binary envoy.Binary, o envoy.Options, secret string) (string, error) {
	text, err := os.ReadFile(o.ConfigPath)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(binary.Path)
	if err != nil {
		return "", err
	}
	o.HotRestart = nil
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s\n%d\n%d\n%s\n", binary.Path, binary.Version, info.Size(), info.ModTime().UnixNano(), strings.Join(o.Args(), "\x00"))
	h.Write(bytes.ReplaceAll(text, []byte(secret), nil))
	return hex.EncodeToString(h.Sum(nil)) + "\n", nil
}

// ValidateBootstrap runs the configured Envoy binary to check the bootstrap. verdict is a message for users.
func ValidateBootstrap(ctx context.Context, c *config.Config) (verdict string, err error) {
	binary, err := envoy.Find(ctx, c.Envoy.FindOptions())
	if err != nil {
		return "", err
	}
	from := c.BootstrapConfig()
	from.Envoy = versionNumbers(binary)
	text, err := bootstrap.Encode(from)
	if err != nil {
		return "", ConfigError{err}
	}
	dir, err := os.MkdirTemp("", "pilotfish-bootstrap-")
	if err != nil {
		return "", fmt.Errorf("creating a directory for the bootstrap: %w", err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, config.BootstrapFile)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return "", fmt.Errorf("writing the bootstrap for Envoy to check: %w", err)
	}
	err = checkBootstrap(ctx, c, binary, envoy.Options{
		Version: binary.Version, ConfigPath: file, Concurrency: c.Envoy.Concurrency,
		LogLevel: c.Envoy.LogLevel, ComponentLogLevel: c.Envoy.ComponentLogLevel,
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("Envoy %s (%s) accepts this bootstrap.", binary.Version, binary.Path), nil
}
