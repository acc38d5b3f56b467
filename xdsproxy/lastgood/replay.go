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

// Snapshot is the state at the last checkpoint of a file. It is not safe for concurrent use. The caller must close it.
type Snapshot struct {
	// UpToDate is when the configuration was last known to be that of the control plane.
	UpToDate time.Time
	file     source
	types    map[string]*typeState
	// checkpointEnd is the position after the last checkpoint.
	checkpointEnd int64
	// pending are the stages without an ACK or NACK at that position.
	pending []uint64
}

type typeState struct {
	version string
	// accepted: Envoy accepted a response of the type.
	accepted bool
	entries  map[string]entry
	// outdated are resources that are missing or older than version. It is used only in SotW, which has one version for
	// all resources of a type.
	outdated map[string]struct{}
}

func (t *typeState) markOutdated(names iter.Seq[string]) {
	for name := range names {
		t.outdated[name] = struct{}{}
	}
}

type entry struct {
	version string
	content span
}

// stage is a response that was sent to Envoy.
type stage struct {
	typeURL, version string
	complete         bool
	resources        map[string]entry
	removed          []string
}

// replayFile reads f twice: to find its last checkpoint, and to restore the state at that position. It takes ownership
// of f.
func replayFile(f source, want Identity) (_ *Snapshot, err error) {
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
	end, damaged := findLastCheckpoint(f, start)
	if end == 0 {
		return nil, errors.Join(ErrEmpty, damaged)
	}
	r := replay{snapshot: &Snapshot{file: f, types: make(map[string]*typeState), checkpointEnd: end}, stages: make(map[uint64]*stage), sharedVersion: want.Protocol == sotw}
	records := newRecordReader(f, start)
	for records.offset < end {
		if err := r.applyRecord(records); err != nil {
			return nil, err
		}
	}
	r.snapshot.pending = slices.Sorted(maps.Keys(r.stages))
	return r.snapshot, r.readAfterCheckpoint(records)
}

// readAfterCheckpoint reads the confirmation times after the last checkpoint, up to the first damaged record.
func (r *replay) readAfterCheckpoint(records *recordReader) error {
	for {
		k, err := records.nextRecord()
		if err != nil {
			return nil
		}
		if k == kindUpToDate {
			if err := r.applyUpToDate(records); err != nil {
				return nil
			}
		}
		if _, err := records.finish(); err != nil {
			return nil
		}
	}
}

// findLastCheckpoint returns the position after the last checkpoint, or 0. If a record is damaged, it stops there and
// returns the error too.
func findLastCheckpoint(f source, start int64) (end int64, damaged error) {
	records := newRecordReader(f, start)
	for {
		k, err := records.nextRecord()
		if err == nil {
			_, err = records.finish()
		}
		switch {
		case errors.Is(err, io.EOF):
			return end, nil
		case err != nil:
			return end, err
		case k == kindCheckpoint:
			end = records.offset
		}
	}
}

// replay is the state while a file is read.
type replay struct {
	snapshot *Snapshot
	stages   map[uint64]*stage
	// sharedVersion: a type has one version for all its resources.
	sharedVersion bool
}

// maxStages limits the stages without an answer; a writer has only a few.
const maxStages = 4096

func (r *replay) applyRecord(in *recordReader) error {
	k, err := in.nextRecord()
	if err != nil {
		return ErrCorrupt
	}
	var last func(rest span)
	switch k {
	case kindReset:
		clear(r.snapshot.types)
		clear(r.stages)
	case kindResource:
		last, err = r.readResource(in)
	case kindRemoved:
		err = r.readRemoval(in)
	case kindResponse:
		err = r.readResponse(in)
	case kindAccepted:
		err = r.applyAccepted(in)
	case kindRejected:
		err = r.applyRejected(in)
	case kindUnsubscribed:
		err = r.applyUnsubscribed(in)
	case kindCheckpoint, kindUpToDate:
		err = r.applyUpToDate(in)
	}
	if err != nil {
		return err
	}
	rest, err := in.finish()
	if err == nil && last != nil {
		last(rest)
	}
	return err
}

func (r *replay) readStage(in *recordReader) (*stage, error) {
	number, err := in.readUvarint()
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
	s.typeURL, err = in.readString()
	return s, err
}

func (r *replay) readResource(in *recordReader) (func(span), error) {
	s, err := r.readStage(in)
	if err != nil {
		return nil, err
	}
	name, err := in.readString()
	if err != nil {
		return nil, err
	}
	version, err := in.readString()
	return func(rest span) { s.resources[name] = entry{version: version, content: rest} }, err
}

func (r *replay) readRemoval(in *recordReader) error {
	s, err := r.readStage(in)
	if err != nil {
		return err
	}
	name, err := in.readString()
	s.removed = append(s.removed, name)
	return err
}

func (r *replay) readResponse(in *recordReader) error {
	s, err := r.readStage(in)
	if err != nil {
		return err
	}
	if s.version, err = in.readString(); err != nil {
		return err
	}
	complete, err := in.readUvarint()
	s.complete = complete == 1
	return err
}

func (r *replay) applyAccepted(in *recordReader) error {
	number, err := in.readUvarint()
	if err != nil {
		return err
	}
	s := r.stages[number]
	if s == nil {
		return nil
	}
	delete(r.stages, number)
	for in.remaining > 0 {
		name, err := in.readString()
		if err != nil {
			return err
		}
		delete(s.resources, name)
	}
	t := r.snapshot.ensureType(s.typeURL)
	t.version, t.accepted = s.version, true
	if s.complete {
		clear(t.entries)
		clear(t.outdated)
	}
	for name, e := range s.resources {
		t.entries[name] = e
		delete(t.outdated, name)
	}
	for _, name := range s.removed {
		delete(t.entries, name)
	}
	if r.sharedVersion { // SotW removes no resource by name: these were withheld
		t.markOutdated(slices.Values(s.removed))
	}
	return nil
}

func (r *replay) applyRejected(in *recordReader) error {
	number, err := in.readUvarint()
	if s := r.stages[number]; s != nil && r.sharedVersion {
		t := r.snapshot.ensureType(s.typeURL)
		t.markOutdated(maps.Keys(s.resources))
		t.markOutdated(slices.Values(s.removed))
	}
	delete(r.stages, number)
	return err
}

func (r *replay) applyUnsubscribed(in *recordReader) error {
	if _, err := in.readUvarint(); err != nil {
		return err
	}
	typeURL, err := in.readString()
	if err != nil {
		return err
	}
	name, err := in.readString()
	if t := r.snapshot.types[typeURL]; t != nil {
		delete(t.entries, name)
		delete(t.outdated, name)
	}
	return err
}

func (r *replay) applyUpToDate(in *recordReader) error {
	milliseconds, err := in.readUvarint()
	r.snapshot.UpToDate = time.UnixMilli(int64(milliseconds))
	return err
}

func (s *Snapshot) ensureType(typeURL string) *typeState {
	t := s.types[typeURL]
	if t == nil {
		t = &typeState{entries: make(map[string]entry), outdated: make(map[string]struct{})}
		s.types[typeURL] = t
	}
	return t
}

// Types returns the type URLs, sorted.
func (s *Snapshot) Types() []string {
	var types []string
	for t := range s.types {
		types = append(types, t)
	}
	slices.Sort(types)
	return types
}

// Version returns the version of the last accepted response of a type; ok is false if there was none. The version is
// empty if resources are outdated, so that a control plane that compares versions sends them all.
func (s *Snapshot) Version(typeURL string) (version string, ok bool) {
	t := s.types[typeURL]
	switch {
	case t == nil || !t.accepted:
		return "", false
	case len(t.outdated) > 0:
		return "", true
	}
	return t.version, true
}

// Names returns the names of a type's resources, sorted.
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

// HasResource reports whether the resource exists.
func (s *Snapshot) HasResource(typeURL, name string) bool {
	t := s.types[typeURL]
	if t == nil {
		return false
	}
	_, ok := t.entries[name]
	return ok
}

// Resource returns the version and content of a resource as in the response; ok is false if it does not exist.
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

// Size returns the number and the total size of all resources.
func (s *Snapshot) Size() (resources int, bytes int64) {
	for _, t := range s.types {
		for _, e := range t.entries {
			resources++
			bytes += e.content.length
		}
	}
	return resources, bytes
}

// Close closes the file.
func (s *Snapshot) Close() error { return s.file.Close() }
