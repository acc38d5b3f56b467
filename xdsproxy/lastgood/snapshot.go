package lastgood

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"time"
)

// Snapshot is the state at a file's last mark. It is not safe for concurrent use. Close it.
type Snapshot struct {
	// UpToDate is when it was last known to be what the control plane has.
	UpToDate time.Time
	file     source
	types    map[string]*typeState
	// end is where the last mark ends.
	end int64
	// open are the responses without an answer by then.
	open []uint64
}

type typeState struct {
	version string
	// accepted says that a response of the type was.
	accepted bool
	entries  map[string]entry
	// behind are resources that are not kept as the version has them. Only SotW has one version for all of them.
	behind map[string]struct{}
}

func (t *typeState) fallBehind(names iter.Seq[string]) {
	for name := range names {
		t.behind[name] = struct{}{}
	}
}

type entry struct {
	version string
	content place
}

// stage is a response that Envoy was sent.
type stage struct {
	typeURL, version string
	whole            bool
	resources        map[string]entry
	removed          []string
}

// read replays a file: once to find its last mark, and once up to there. It takes over the file.
func read(f source, want Identity) (_ *Snapshot, err error) {
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	h, start, err := readHeader(io.NewSectionReader(f, 0, f.Size()))
	if err != nil {
		return nil, err
	}
	if h.Identity != want {
		return nil, fmt.Errorf("%w: of %s (%s)", ErrForeign, h.Node, h.Protocol)
	}
	end, damaged := lastMark(f, start)
	if end == 0 {
		return nil, errors.Join(ErrEmpty, damaged)
	}
	r := replay{s: &Snapshot{file: f, types: make(map[string]*typeState), end: end}, stages: make(map[uint64]*stage), oneVersion: want.Protocol == sotw}
	records := newReader(f, start)
	for records.offset < end {
		if err := r.record(records); err != nil {
			return nil, err
		}
	}
	r.s.open = slices.Sorted(maps.Keys(r.stages))
	return r.s, r.afterwards(records)
}

// afterwards reads what was seen after the last mark, as far as it is whole.
func (r *replay) afterwards(records *reader) error {
	for {
		k, err := records.next()
		if err != nil {
			return nil
		}
		if k == kindSeen {
			if err := r.seen(records); err != nil {
				return nil
			}
		}
		if _, err := records.end(); err != nil {
			return nil
		}
	}
}

// lastMark gives the end of the last mark before the file ends, or is damaged.
func lastMark(f source, start int64) (end int64, damaged error) {
	records := newReader(f, start)
	for {
		k, err := records.next()
		if err == nil {
			_, err = records.end()
		}
		switch {
		case errors.Is(err, io.EOF):
			return end, nil
		case err != nil:
			return end, err
		case k == kindMark:
			end = records.offset
		}
	}
}

// replay is the state while it is read.
type replay struct {
	s      *Snapshot
	stages map[uint64]*stage
	// oneVersion says that a type has one version for all its resources.
	oneVersion bool
}

// maxStages bounds the responses that are open at one time: a writer has few.
const maxStages = 4096

func (r *replay) record(in *reader) error {
	k, err := in.next()
	if err != nil {
		return ErrCorrupt
	}
	var last func(rest place)
	switch k {
	case kindBegin:
		clear(r.s.types)
		clear(r.stages)
	case kindResource:
		last, err = r.resource(in)
	case kindRemoved:
		err = r.removed(in)
	case kindResponse:
		err = r.response(in)
	case kindAccepted:
		err = r.accepted(in)
	case kindRejected:
		err = r.rejected(in)
	case kindDropped:
		err = r.dropped(in)
	case kindMark, kindSeen:
		err = r.seen(in)
	}
	if err != nil {
		return err
	}
	rest, err := in.end()
	if err == nil && last != nil {
		last(rest)
	}
	return err
}

func (r *replay) stage(in *reader) (*stage, error) {
	number, err := in.number()
	if err != nil {
		return nil, err
	}
	s := r.stages[number]
	if s == nil {
		if len(r.stages) >= maxStages {
			return nil, ErrCorrupt
		}
		s = &stage{resources: make(map[string]entry)}
		r.stages[number] = s
	}
	s.typeURL, err = in.text()
	return s, err
}

func (r *replay) resource(in *reader) (func(place), error) {
	s, err := r.stage(in)
	if err != nil {
		return nil, err
	}
	name, err := in.text()
	if err != nil {
		return nil, err
	}
	version, err := in.text()
	return func(rest place) { s.resources[name] = entry{version: version, content: rest} }, err
}

func (r *replay) removed(in *reader) error {
	s, err := r.stage(in)
	if err != nil {
		return err
	}
	name, err := in.text()
	s.removed = append(s.removed, name)
	return err
}

func (r *replay) response(in *reader) error {
	s, err := r.stage(in)
	if err != nil {
		return err
	}
	if s.version, err = in.text(); err != nil {
		return err
	}
	whole, err := in.number()
	s.whole = whole == 1
	return err
}

func (r *replay) accepted(in *reader) error {
	number, err := in.number()
	if err != nil {
		return err
	}
	s := r.stages[number]
	if s == nil {
		return nil
	}
	delete(r.stages, number)
	for in.left > 0 {
		name, err := in.text()
		if err != nil {
			return err
		}
		delete(s.resources, name)
	}
	t := r.s.of(s.typeURL)
	t.version, t.accepted = s.version, true
	if s.whole {
		clear(t.entries)
		clear(t.behind)
	}
	for name, e := range s.resources {
		t.entries[name] = e
		delete(t.behind, name)
	}
	for _, name := range s.removed {
		delete(t.entries, name)
	}
	if r.oneVersion { // of which nothing is removed by name: it was withheld
		t.fallBehind(slices.Values(s.removed))
	}
	return nil
}

func (r *replay) rejected(in *reader) error {
	number, err := in.number()
	if s := r.stages[number]; s != nil && r.oneVersion {
		t := r.s.of(s.typeURL)
		t.fallBehind(maps.Keys(s.resources))
		t.fallBehind(slices.Values(s.removed))
	}
	delete(r.stages, number)
	return err
}

func (r *replay) dropped(in *reader) error {
	if _, err := in.number(); err != nil {
		return err
	}
	typeURL, err := in.text()
	if err != nil {
		return err
	}
	name, err := in.text()
	if t := r.s.types[typeURL]; t != nil {
		delete(t.entries, name)
		delete(t.behind, name)
	}
	return err
}

func (r *replay) seen(in *reader) error {
	milliseconds, err := in.number()
	r.s.UpToDate = time.UnixMilli(int64(milliseconds))
	return err
}

func (s *Snapshot) of(typeURL string) *typeState {
	t := s.types[typeURL]
	if t == nil {
		t = &typeState{entries: make(map[string]entry), behind: make(map[string]struct{})}
		s.types[typeURL] = t
	}
	return t
}

// Types are the types there are.
func (s *Snapshot) Types() []string {
	var types []string
	for t := range s.types {
		types = append(types, t)
	}
	slices.Sort(types)
	return types
}

// Version is of the last response of a type that was accepted; ok tells whether there was one. It is empty where that does not
// say what there is: a control plane that keeps versions then sends everything.
func (s *Snapshot) Version(typeURL string) (version string, ok bool) {
	t := s.types[typeURL]
	switch {
	case t == nil || !t.accepted:
		return "", false
	case len(t.behind) > 0:
		return "", true
	}
	return t.version, true
}

// Names are those of a type's resources, in order.
func (s *Snapshot) Names(typeURL string) []string {
	t := s.types[typeURL]
	if t == nil {
		return nil
	}
	names := make([]string, 0, len(t.entries))
	for name := range t.entries {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Has says whether there is a resource.
func (s *Snapshot) Has(typeURL, name string) bool {
	t := s.types[typeURL]
	if t == nil {
		return false
	}
	_, ok := t.entries[name]
	return ok
}

// Resource gives a resource as it stood in the response; ok is false when there is none.
func (s *Snapshot) Resource(typeURL, name string) (version string, content []byte, ok bool, err error) {
	t := s.types[typeURL]
	if t == nil {
		return "", nil, false, nil
	}
	e, ok := t.entries[name]
	if !ok {
		return "", nil, false, nil
	}
	content = make([]byte, e.content.length)
	if _, err := s.file.ReadAt(content, e.content.offset); err != nil {
		return "", nil, false, fmt.Errorf("reading the last good configuration: %w", err)
	}
	return e.version, content, true, nil
}

// Size is of all resources together.
func (s *Snapshot) Size() (resources int, bytes int64) {
	for _, t := range s.types {
		for _, e := range t.entries {
			resources++
			bytes += e.content.length
		}
	}
	return resources, bytes
}

// Close ends the use of the file.
func (s *Snapshot) Close() error { return s.file.Close() }
