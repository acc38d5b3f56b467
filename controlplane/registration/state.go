package registration

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/atomicfile"
)

// maxFile is the maximum size of the file in bytes. It is sufficient for about 100,000 workloads.
const maxFile = 64 << 20

// savedMember is a workload as the file contains it.
type savedMember struct {
	Workload
	Healthy bool   `json:"healthy,omitempty"`
	Reason  string `json:"reason,omitempty"`
}

func (r *Registrar) load() error {
	if r.cfg.File == "" {
		return nil
	}
	file, err := os.Open(r.cfg.File)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("opening the file of registered workloads: %w", err)
	}
	defer func() { _ = file.Close() }()
	var all []savedMember
	if err := json.NewDecoder(io.LimitReader(file, maxFile)).Decode(&all); err != nil {
		return fmt.Errorf("decoding the registered workloads in %s: %w", r.cfg.File, err)
	}
	leaves := time.Now().Add(r.cfg.ReconnectTimeout)
	for _, k := range all {
		if !k.Address.IsValid() || k.Group == "" || k.Namespace == "" {
			return fmt.Errorf("decoding the registered workloads in %s: a workload has no address, group or namespace", r.cfg.File)
		}
		m := &member{Workload: k.Workload, key: k.key(), healthy: k.Healthy, reason: k.Reason, expires: leaves}
		r.members[m.key] = m
		r.rebuild(m)
	}
	return nil
}

// save replaces the file atomically if its content has changed.
func (r *Registrar) save() error {
	if r.cfg.File == "" {
		return nil
	}
	content, err := r.encodeMembers()
	if err != nil {
		return err
	}
	if old, err := os.ReadFile(r.cfg.File); err == nil && bytes.Equal(old, content) || err != nil && string(content) == "[]\n" {
		return nil
	}
	if err := atomicfile.Write(r.cfg.File, content); err != nil {
		return fmt.Errorf("writing the registered workloads to %s: %w", r.cfg.File, err)
	}
	return nil
}

func (r *Registrar) encodeMembers() ([]byte, error) {
	r.mu.Lock()
	all := make([]*member, 0, len(r.members))
	for _, m := range r.members {
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b *member) int { return strings.Compare(a.key.String(), b.key.String()) })
	out := make([]savedMember, 0, len(all))
	for _, m := range all {
		out = append(out, savedMember{Workload: m.Workload, Healthy: m.healthy, Reason: m.reason})
	}
	r.mu.Unlock()
	content, err := json.MarshalIndent(out, "", " ")
	return append(content, '\n'), err
}
