package dns

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/atomicfile"
	"github.com/pilotfish-mesh/pilotfish/internal/regularfile"
)

// tableFile stores the last name table on disk, so that a starting agent can resolve mesh names while the control plane
// is unavailable. The first line of the file contains a checksum of the rest. The second line contains the table's
// owner and time. The table follows as the control plane sent it.
type tableFile struct {
	path, owner string
	log         *slog.Logger
	failed      func()           // called when a table could not be written, for metrics
	pending     chan storedTable // the newest table that has not been written yet
}

// storedTable is the content of the file. The JSON fields are in its second line.
type storedTable struct {
	Owner    string    `json:"owner"`
	Received time.Time `json:"received"`
	wire     []byte
}

const (
	fileMagic = "pilotfish-names 1 "
	// writeInterval is the minimum interval between two writes. In a busy mesh, the control plane may send several
	// tables per second.
	writeInterval = time.Second
	// maxHeader limits the size of the two lines before the table, in bytes.
	maxHeader = 8 << 10
)

func newTableFile(config Config, failed func()) *tableFile {
	if config.TableFile == "" {
		return nil
	}
	return &tableFile{
		path: config.TableFile, owner: config.Owner, log: config.Logger, failed: failed, pending: make(chan storedTable, 1),
	}
}

// enqueue queues a table for writing and replaces one that is still queued.
func (k *tableFile) enqueue(wire []byte, received time.Time) {
	t := storedTable{Owner: k.owner, Received: received.UTC(), wire: bytes.Clone(wire)}
	for {
		select {
		case k.pending <- t:
			return
		default:
		}
		select {
		case <-k.pending:
		default:
		}
	}
}

// run writes queued tables, at most one per writeInterval. When the context is cancelled, it writes a queued table
// immediately and returns.
func (k *tableFile) run(ctx context.Context) {
	rest := time.NewTimer(0)
	defer rest.Stop()
	for {
		select {
		case <-rest.C:
		case <-ctx.Done():
		}
		select {
		case t := <-k.pending:
			k.write(t)
			rest.Reset(writeInterval)
		case <-ctx.Done():
			select {
			case t := <-k.pending:
				k.write(t)
			default:
			}
			return
		}
	}
}

func (k *tableFile) write(t storedTable) {
	if err := writeTable(k.path, t); err != nil {
		k.failed()
		k.log.Warn("cannot store the name table on disk; if the agent restarts while the control plane is unavailable, mesh names cannot be resolved; "+
			"free disk space, or make the directory writable for the agent", "file", k.path, "error", err)
	}
}

// writeTable replaces the file atomically.
func writeTable(path string, t storedTable) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	text, err := encodeStored(t)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, text)
}

func encodeStored(t storedTable) ([]byte, error) {
	head, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	rest := append(append(head, '\n'), t.wire...)
	sum := sha256.Sum256(rest)
	return append([]byte(fileMagic+hex.EncodeToString(sum[:])+"\n"), rest...), nil
}

// load reads the file. It returns nil if the file does not exist, is invalid or belongs to another proxy. It logs
// errors, which do not prevent the agent's start.
func (k *tableFile) load() (*Table, time.Time) {
	text, err := regularfile.Read(k.path, maxTableBytes+maxHeader)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, time.Time{}
	}
	var t storedTable
	if err == nil {
		t, err = decodeStored(text)
	}
	if err == nil && t.Owner != k.owner {
		err = fmt.Errorf("the file was written for proxy %.200q, but this proxy is %q", t.Owner, k.owner)
	}
	var table *Table
	if err == nil {
		table, err = DecodeTable(t.wire)
	}
	if err != nil {
		k.log.Warn("ignoring the name table on disk", "file", k.path, "error", err)
		return nil, time.Time{}
	}
	return table, t.Received
}

var errNotStored = errors.New("the file is damaged or does not contain a name table")

func decodeStored(text []byte) (storedTable, error) {
	first, rest, ok := bytes.Cut(text, []byte("\n"))
	sum := sha256.Sum256(rest)
	if !ok || string(first) != fileMagic+hex.EncodeToString(sum[:]) {
		return storedTable{}, errNotStored
	}
	head, wire, ok := bytes.Cut(rest, []byte("\n"))
	var t storedTable
	if !ok || len(head) > maxHeader || json.Unmarshal(head, &t) != nil {
		return storedTable{}, errNotStored
	}
	t.wire = wire
	return t, nil
}
