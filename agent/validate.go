package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/envoy"
)

// validatedFile, beside the bootstrap, has the mark of the last bootstrap that Envoy was asked about and took.
const validatedFile = "envoy-rev.validated"

// validate asks an Envoy whether it takes the bootstrap and the flags that it is to be started with. That it does not is
// the fault of who configured it, and told with Envoy's reason.
func (c *Config) validate(ctx context.Context, binary envoy.Binary, o envoy.Options) error {
	err := envoy.Validate(ctx, binary.Path, o)
	var refused *envoy.InvalidError
	if !errors.As(err, &refused) {
		return err
	}
	what := fmt.Sprintf("Envoy %s (%s) does not take this bootstrap: %s", binary.Version, binary.Path, refused.Reason)
	if author := c.Bootstrap.author(); author != "" {
		what = fmt.Sprintf("%s: Envoy %s (%s) does not take the bootstrap that comes of it: %s", author, binary.Version, binary.Path, refused.Reason)
	}
	return usageError{errors.New(what)}
}

// validateOnce asks only about a bootstrap that somebody else had a hand in, so that it is refused with its file and
// Envoy's reason instead of by an Envoy that ends as soon as it starts; and about each only once, since asking takes as
// long as Envoy's own start.
func (c *Config) validateOnce(ctx context.Context, binary envoy.Binary, o envoy.Options) error {
	if c.Bootstrap.author() == "" {
		return nil
	}
	file := filepath.Join(c.Proxy.GetConfigPath(), validatedFile)
	mark, markErr := validationMark(binary, o)
	if seen, err := os.ReadFile(file); markErr == nil && err == nil && string(seen) == mark {
		return nil
	}
	if err := c.validate(ctx, binary, o); err != nil {
		if ctx.Err() != nil {
			return nil // the agent is ending, and no Envoy will start
		}
		return err
	}
	if markErr == nil {
		_ = writeWhole(file, []byte(mark), 0o600) // it would only be asked again
	}
	return nil
}

// validationMark differs whenever Envoy's answer might: with the binary, the bootstrap, and the flags.
func validationMark(binary envoy.Binary, o envoy.Options) (string, error) {
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
	h.Write(text)
	return hex.EncodeToString(h.Sum(nil)) + "\n", nil
}
