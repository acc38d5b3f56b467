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

// filtersFile is in the state directory, and like lastGoodFile has no ending.
const filtersFile = "filter-versions"

// maxFilters bounds what is read of it: thousands of documents.
const maxFilters = 64 << 20

// filterVersions are the versions of EnvoyFilters before those that are in force, which may stand in for these where an Envoy
// refuses them. They are kept over a restart: without one, a proxy that is new then would be without its listener, or
// without the filter. Its zero value keeps nothing.
type filterVersions struct {
	file stateFile

	mu sync.Mutex
	// before are those that no Envoy was seen to refuse; refusals are the versions that one did.
	before   map[config.Key]*snapshot.EnvoyFilter
	refusals map[*config.Resource]bool
	current  map[config.Key]*snapshot.EnvoyFilter
	// left is what an earlier process left, until the first snapshot.
	left map[config.Key]leftFilter
}

// leftFilter is what the file has of one EnvoyFilter.
type leftFilter struct {
	text    []byte // of current
	refused bool
	current *config.Resource // in force when it was written
	before  *config.Resource // nil without one
}

// keptFilter is the file's form of it.
type keptFilter struct {
	Current keptVersion  `json:"current"`
	Refused bool         `json:"refused,omitempty"`
	Before  *keptVersion `json:"before,omitempty"`
}

type keptVersion struct {
	At       config.Position `json:"at"`
	Document json.RawMessage `json:"document"`
}

// open reads what an earlier process left; what cannot be read is told of and done without.
func (v *filterVersions) open(file string, log *slog.Logger) {
	v.file = newStateFile(file, "the versions of EnvoyFilters before the last edits are not kept for a restart", log)
	if err := v.read(); err != nil {
		log.Warn("the versions of EnvoyFilters before the last edits are not known: where an Envoy refuses what is in force, nothing stands in for it", "file", file, "error", err)
	}
}

func (v *filterVersions) read() error {
	file, err := os.Open(v.file.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var all []keptFilter
	if err == nil {
		defer func() { _ = file.Close() }()
		err = decodeFilters(file, &all)
	}
	v.left = map[config.Key]leftFilter{}
	for _, one := range all {
		current, problem := one.Current.resource()
		if problem != nil { // a check is stricter than it was
			err = errors.Join(err, problem)
			continue
		}
		left := leftFilter{text: one.Current.Document, refused: one.Refused, current: current}
		if one.Before != nil {
			left.before, problem = one.Before.resource()
			err = errors.Join(err, problem)
		}
		v.left[current.Key] = left
	}
	return err
}

func decodeFilters(file io.Reader, all *[]keptFilter) error {
	bounded := &io.LimitedReader{R: file, N: maxFilters}
	err := json.NewDecoder(bounded).Decode(all)
	if err != nil && bounded.N == 0 {
		return fmt.Errorf("it is larger than %d MiB", maxFilters>>20)
	}
	return err
}

func (k keptVersion) resource() (*config.Resource, error) {
	resources, problems := config.Parser{Check: envoyfilter.Check}.Parse(k.At.File, k.Document)
	if len(resources) != 1 || resources[0].Kind != config.EnvoyFilter {
		if len(problems) > 0 {
			return nil, fmt.Errorf("the document of %s is not taken: %s", k.At, problems[0])
		}
		return nil, fmt.Errorf("the document of %s is no EnvoyFilter", k.At)
	}
	resources[0].Origin, resources[0].Places = k.At, nil
	return resources[0], nil
}

// follow remembers what versions there were before a change.
func (v *filterVersions) follow(previous, next *snapshot.Snapshot) {
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
			before[key] = v.restored(filter, refusals)
		case was == nil: // it is new
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
	v.before, v.refusals, v.current, v.left = before, refusals, now, nil
	v.file.note()
}

// restored gives the version before one that is in force at the start, and books whether that was refused. The document may have
// been edited since.
func (v *filterVersions) restored(filter *snapshot.EnvoyFilter, refusals map[*config.Resource]bool) *snapshot.EnvoyFilter {
	left, there := v.left[filter.Key]
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

// inPlaceOf gives what may stand in the place of an EnvoyFilter that an Envoy does not take: the version of before, if one is
// known, and nothing, unless it may be what keeps callers out. In the place of one that is not in force any more, which a
// client may refuse late, nothing has to stand.
func (v *filterVersions) inPlaceOf(filter *snapshot.EnvoyFilter) (places []*snapshot.EnvoyFilter) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if now := v.current[filter.Key]; now == nil || now.Resource != filter.Resource {
		return nil
	}
	if before := v.before[filter.Key]; before != nil {
		places = append(places, before)
	}
	if !filter.Guards() {
		places = append(places, nil)
	}
	return places
}

// refused remembers that an Envoy refused what comes of a version of an EnvoyFilter.
func (v *filterVersions) refused(r *config.Resource) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.refusals == nil {
		v.refusals = map[*config.Resource]bool{}
	}
	if !v.refusals[r] {
		v.refusals[r] = true
		v.file.note()
	}
}

// run keeps the file, until the context ends.
func (v *filterVersions) run(ctx context.Context) { v.file.run(ctx, v.encode) }

// encode gives the text of the file; it is empty when there are no filters.
func (v *filterVersions) encode() ([]byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	var all []keptFilter
	for _, key := range slices.SortedFunc(maps.Keys(v.current), func(a, b config.Key) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	}) {
		filter := v.current[key]
		current, err := keep(filter.Resource)
		if err != nil {
			return nil, err
		}
		one := keptFilter{Current: current, Refused: v.refusals[filter.Resource]}
		if before := v.before[key]; before != nil {
			version, err := keep(before.Resource)
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

func keep(r *config.Resource) (keptVersion, error) {
	text, err := config.Encode(r)
	if err != nil {
		return keptVersion{}, fmt.Errorf("writing %s: %w", r.Key, err)
	}
	return keptVersion{At: r.Origin, Document: text}, nil
}
