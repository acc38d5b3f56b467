package lastgood

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/pilotfish-mesh/pilotfish/xdsproxy/wire"
)

// smallMessage is the size in bytes below which an accepted message is copied. The buffers of a small message are larger
// than its content.
const smallMessage = 64 << 10

// heldMessage is a message with resources that are not saved yet.
type heldMessage struct {
	*wire.Message
	size  int64
	users int // resources that are not superseded
}

// source is where the content of a changed resource is: in a message, at a position in its list of resources.
type source struct {
	version string
	message *heldMessage
	index   int
}

// typeChange contains the accepted changes of a type that are not saved yet.
type typeChange struct {
	// version is that of the last accepted response. hasVersion: one was accepted since the last save.
	version    string
	hasVersion bool
	// isStale: resources are missing or may be older than the version.
	isStale bool
	held    int64 // size of the messages
	// isFull: resources are all of the type. Otherwise they are merged with the file.
	isFull    bool
	resources map[string]source
	removed   map[string]struct{}
	// isHeld, if set, reports whether Envoy has a resource. Others are removed from the file.
	isHeld func(name string) bool
}

func newTypeChange() *typeChange {
	return &typeChange{resources: make(map[string]source), removed: make(map[string]struct{})}
}

// accept records an accepted response, except for the rejected resources. It takes ownership of the message.
func (c *typeChange) accept(r wire.Response, message *wire.Message, isFull bool, rejected []string) {
	c.version, c.hasVersion = r.Version, true
	if isFull {
		c.free()
		clear(c.removed)
		c.isFull = true
	}
	m := &heldMessage{Message: message, size: int64(message.Data.Len()), users: 1}
	c.held += m.size
	for i, one := range r.Resources {
		if one.Name == "" || slices.Contains(rejected, one.Name) {
			continue
		}
		c.drop(one.Name)
		delete(c.removed, one.Name)
		c.resources[one.Name] = source{one.Version, m, i}
		m.users++
	}
	for _, name := range r.Removed {
		c.remove(name)
	}
	c.release(m)
}

func (c *typeChange) remove(name string) {
	c.drop(name)
	c.removed[name] = struct{}{}
}

func (c *typeChange) drop(name string) {
	if old, ok := c.resources[name]; ok {
		delete(c.resources, name)
		c.release(old.message)
	}
}

func (c *typeChange) release(m *heldMessage) {
	if m.users--; m.users == 0 {
		m.Free()
		c.held -= m.size
	}
}

// free releases all messages.
func (c *typeChange) free() {
	for name := range c.resources {
		c.drop(name)
	}
}

// typeWriter writes the new file of one type.
type typeWriter struct {
	*encoder
	typeURL string
	change  *typeChange
	scratch []byte // content of the resource that is written
	// oldVersion is the version in the current file.
	oldVersion string
	// withheld are the resources that are not stored, with the reason.
	withheld map[string]string
}

// write writes the merged content of the current file and the changes. old may be nil.
func (w *typeWriter) write(old *os.File, protocol string) error {
	if old != nil {
		if err := w.copyUnchanged(old); err != nil {
			return err
		}
	}
	written := make(map[*heldMessage]bool)
	for _, s := range w.change.resources {
		if written[s.message] {
			continue
		}
		written[s.message] = true
		if err := w.writeMessage(s.message); err != nil {
			return err
		}
	}
	return w.finish(w.version(protocol))
}

// version returns the version of the type. In SotW it is empty if resources are missing or outdated.
func (w *typeWriter) version(protocol string) string {
	switch {
	case protocol == sotw && (w.change.isStale || len(w.withheld) > 0):
		return ""
	case w.change.hasVersion && len(w.change.version) <= maxField:
		return w.change.version
	case w.change.hasVersion:
		return "" // an empty version requests all resources
	}
	return w.oldVersion
}

// copyUnchanged copies the resources of the current file that have not changed.
func (w *typeWriter) copyUnchanged(old *os.File) error {
	d, _, err := newDecoder(old)
	if err != nil {
		return err
	}
	for {
		r, version, err := d.next()
		if err == errEnd {
			w.oldVersion = version
			return nil
		}
		if err == nil {
			write := func([]byte) {}
			if w.isUnchanged(r.name) {
				w.beginResource(r.name, r.version, r.length)
				write = w.encoder.write
			}
			err = d.copyContent(r.length, write)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", old.Name(), asCorrupt(err))
		}
	}
}

func (w *typeWriter) isUnchanged(name string) bool {
	_, isSet := w.change.resources[name]
	_, isRemoved := w.change.removed[name]
	return !isSet && !isRemoved && (w.change.isHeld == nil || w.change.isHeld(name))
}

// writeMessage writes the resources of a message that are not superseded.
func (w *typeWriter) writeMessage(m *heldMessage) error {
	names := make(map[int]string, m.users)
	for name, s := range w.change.resources {
		if s.message == m {
			names[s.index] = name
		}
	}
	index := 0
	return wire.EachResource(m.Data, func(c *wire.Cursor, length int) (err error) {
		name, ok := names[index]
		index++
		if !ok {
			return c.Skip(length)
		}
		if w.scratch, err = c.ReadInto(w.scratch[:0], length); err != nil {
			return err
		}
		w.writeResource(name, w.change.resources[name].version, w.scratch)
		return w.err
	})
}

func (w *typeWriter) writeResource(name, version string, content []byte) {
	why := findSecret(w.typeURL, content)
	if why == "" && (len(name) > maxField || len(version) > maxField) {
		why = fmt.Sprintf("its name or version is longer than %d bytes", maxField)
	}
	if why != "" {
		w.withheld[name] = why
		return
	}
	w.beginResource(name, version, int64(len(content)))
	w.encoder.write(content)
}

// save writes the file of a type. It returns the resources that are not stored, with the reason. It removes a damaged
// file, so that the next recording replaces it.
func (d *directory) save(c *Config, h header, change *typeChange) (withheld map[string]string, err error) {
	path, err := d.file(h.TypeURL)
	if err != nil {
		return nil, err
	}
	var old *os.File
	if !change.isFull {
		if old, err = openOwn(path, h); err != nil {
			return nil, err
		}
	}
	switch {
	case old != nil:
		defer func() { _ = old.Close() }()
	case !change.hasVersion: // Envoy has not accepted the type
		return nil, nil
	}
	limit := c.MaxBytes - d.size(path)
	withheld = make(map[string]string)
	err = d.replace(path, c.Now(), func(out *bufio.Writer) error {
		w := &typeWriter{encoder: newEncoder(out, h, limit), typeURL: h.TypeURL, change: change, withheld: withheld}
		return w.write(old, h.Protocol)
	})
	if errors.Is(err, ErrCorrupt) {
		_ = os.Remove(path)
	}
	return withheld, err
}

// openOwn opens a file, or returns nil if it does not exist or does not belong to the proxy and type.
func openOwn(path string, want header) (*os.File, error) {
	f, err := openRegular(path)
	if isMissing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	_, got, err := newDecoder(f)
	if err == nil && got == want {
		_, err = f.Seek(0, 0)
		return f, err
	}
	_ = f.Close()
	if err != nil && !errors.Is(err, ErrCorrupt) {
		return nil, err
	}
	return nil, nil
}
