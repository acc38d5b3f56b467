package controlplane

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/envoyfilter"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// filtersFile is in the state directory. It has no extension, for the same reason as lastGoodFile.
const filtersFile = "filter-versions"

// maxFilters limits the size of the file; it fits thousands of documents.
const maxFilters = 64 << 20

// filterVersions stores the previous versions of EnvoyFilters, which replace the current ones where an Envoy rejects
// them. They are persisted: otherwise a new proxy would lack its listener or the filter after a restart. The zero value
// stores nothing.
type filterVersions struct {
	file stateFile

	mu sync.Mutex
	// before are the previous versions that no Envoy rejected; refusals are the versions that one did.
	before   map[config.Key]*snapshot.EnvoyFilter
	refusals map[*config.Resource]bool
	current  map[config.Key]*snapshot.EnvoyFilter
	// stored is the content of the file, until the first snapshot.
	stored map[config.Key]restoredFilter
}

// restoredFilter is the stored state of one EnvoyFilter.
type restoredFilter struct {
	text    []byte // of current
	refused bool
	current *config.Resource // in force when it was written
	before  *config.Resource // nil if there is none
}

// storedFilter is the file format of restoredFilter.
type storedFilter struct {
	Current storedVersion  `json:"current"`
	Refused bool           `json:"refused,omitempty"`
	Before  *storedVersion `json:"before,omitempty"`
}

type storedVersion struct {
	At       config.Position `json:"at"`
	Document json.RawMessage `json:"document"`
}

// open reads the file. Unreadable entries are logged and ignored.
func (v *filterVersions) open(file string, log *slog.Logger) {
	v.file = newStateFile(file, "the previous versions of EnvoyFilters cannot be written for a restart", log)
	if err := v.read(); err != nil {
		log.Warn("the previous versions of EnvoyFilters cannot be read: where an Envoy rejects the current version, there is no replacement", "file", file, "error", err)
	}
}

func (v *filterVersions) read() error {
	file, err := os.Open(v.file.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var all []storedFilter
	if err == nil {
		defer func() { _ = file.Close() }()
		err = decodeFilters(file, &all)
	}
	v.stored = map[config.Key]restoredFilter{}
	for _, one := range all {
		current, problem := one.Current.resource()
		if problem != nil { // a check has become stricter
			err = errors.Join(err, problem)
			continue
		}
		left := restoredFilter{text: one.Current.Document, refused: one.Refused, current: current}
		if one.Before != nil {
			left.before, problem = one.Before.resource()
			err = errors.Join(err, problem)
		}
		v.stored[current.Key] = left
	}
	return err
}

func decodeFilters(file io.Reader, all *[]storedFilter) error {
	bounded := &io.LimitedReader{R: file, N: maxFilters}
	err := json.NewDecoder(bounded).Decode(all)
	if err != nil && bounded.N == 0 {
		return fmt.Errorf("the file is larger than %d MiB", maxFilters>>20)
	}
	return err
}

func (k storedVersion) resource() (*config.Resource, error) {
	resources, problems := config.Parser{Check: envoyfilter.Check}.Parse(k.At.File, k.Document)
	if len(resources) != 1 || resources[0].Kind != config.EnvoyFilter {
		if len(problems) > 0 {
			return nil, fmt.Errorf("the document of %s is refused: %s", k.At, problems[0])
		}
		return nil, fmt.Errorf("the document of %s is no EnvoyFilter", k.At)
	}
	resources[0].Origin, resources[0].Positions = k.At, nil
	return resources[0], nil
}

// update records the previous versions after a change.
func (v *filterVersions) update(previous, next *snapshot.Snapshot) {
	if snapshot.SameEnvoyFilters(previous, next) {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	before, refusals := map[config.Key]*snapshot.EnvoyFilter{}, map[*config.Resource]bool{}
	now := next.AllEnvoyFilters()
	for key, filter := range now {
		was := v.current[key]
		switch {
		case previous == nil:
			before[key] = v.restoreVersion(filter, refusals)
		case was == nil: // new filter
		case was.Resource == filter.Resource || v.refusals[was.Resource]:
			before[key] = v.before[key]
		default:
			before[key] = was
		}
		if v.refusals[filter.Resource] {
			refusals[filter.Resource] = true
		}
	}
	maps.DeleteFunc(before, func(_ config.Key, f *snapshot.EnvoyFilter) bool { return f == nil })
	v.before, v.refusals, v.current, v.stored = before, refusals, now, nil
	v.file.schedule()
}

// restoreVersion returns the previous version of a filter at the start, and records whether the current one was
// rejected. The document may have been edited meanwhile.
func (v *filterVersions) restoreVersion(filter *snapshot.EnvoyFilter, refusals map[*config.Resource]bool) *snapshot.EnvoyFilter {
	left, there := v.stored[filter.Key]
	if !there {
		return nil
	}
	text, err := config.Encode(filter.Resource)
	before := left.before
	if err == nil && bytes.Equal(text, left.text) {
		if left.refused {
			refusals[filter.Resource] = true
		}
	} else if !left.refused {
		before = left.current
	}
	if before == nil {
		return nil
	}
	return snapshot.NewEnvoyFilter(before)
}

// alternatives returns the alternatives to a rejected EnvoyFilter: the previous version, if known, and no filter (nil),
// unless the filter may reject callers. A filter that is no longer in force has none.
func (v *filterVersions) alternatives(filter *snapshot.EnvoyFilter) (places []*snapshot.EnvoyFilter) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if now := v.current[filter.Key]; now == nil || now.Resource != filter.Resource {
		return nil
	}
	if before := v.before[filter.Key]; before != nil {
		places = append(places, before)
	}
	if !filter.IsSecurityRelevant() {
		places = append(places, nil)
	}
	return places
}

// addRefusal records that an Envoy rejected the resources of a version of an EnvoyFilter.
func (v *filterVersions) addRefusal(r *config.Resource) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.refusals == nil {
		v.refusals = map[*config.Resource]bool{}
	}
	if !v.refusals[r] {
		v.refusals[r] = true
		v.file.schedule()
	}
}

// run writes the file until the context ends.
func (v *filterVersions) run(ctx context.Context) { v.file.run(ctx, v.encode) }

// encode returns the content of the file; empty without filters.
func (v *filterVersions) encode() ([]byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	var all []storedFilter
	for _, key := range slices.SortedFunc(maps.Keys(v.current), func(a, b config.Key) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	}) {
		filter := v.current[key]
		current, err := encodeVersion(filter.Resource)
		if err != nil {
			return nil, err
		}
		one := storedFilter{Current: current, Refused: v.refusals[filter.Resource]}
		if before := v.before[key]; before != nil {
			version, err := encodeVersion(before.Resource)
			if err != nil {
				return nil, err
			}
			one.Before = &version
		}
		all = append(all, one)
	}
	if len(all) == 0 {
		return nil, nil
	}
	return json.Marshal(all)
}

func encodeVersion(r *config.Resource) (storedVersion, error) {
	text, err := config.Encode(r)
	if err != nil {
		return storedVersion{}, fmt.Errorf("writing %s: %w", r.Key, err)
	}
	return storedVersion{At: r.Origin, Document: text}, nil
}
