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

// tableFile stores the last name table on disk, so that an agent that starts without a control plane knows mesh names.
// The file consists of a line with the checksum of the rest, a line with the table's owner and time, and the table as
// received.
type tableFile struct {
	path, owner string
	log         *slog.Logger
	failed      func()
	pending     chan storedTable // the newest table that is not yet written
}

type storedTable struct {
	Owner    string    `json:"owner"`
	Received time.Time `json:"received"`
	wire     []byte
}

const (
	fileMagic = "pilotfish-names 1 "
	// writeInterval is the minimum time between two writes: a busy mesh sends many tables per second.
	writeInterval = time.Second
	// maxHeader limits the bytes before the table in the file.
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

// run writes queued tables, with a pause after each. When the context is cancelled, it writes the last queued table.
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
		k.log.Warn("the name table cannot be stored on disk: after a restart without a control plane, names of the mesh cannot be resolved; "+
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

// load reads the file. It returns nil when there is no usable table. Errors are logged and do not prevent a start.
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
		err = fmt.Errorf("the file belongs to proxy %.200q, and this proxy is %q", t.Owner, k.owner)
	}
	var table *Table
	if err == nil {
		table, err = DecodeTable(t.wire)
	}
	if err != nil {
		k.log.Warn("the stored name table is not used", "file", k.path, "error", err)
		return nil, time.Time{}
	}
	return table, t.Received
}

var errNotKept = errors.New("the file is damaged, or not a stored name table")

func decodeStored(text []byte) (storedTable, error) {
	first, rest, ok := bytes.Cut(text, []byte("\n"))
	sum := sha256.Sum256(rest)
	if !ok || string(first) != fileMagic+hex.EncodeToString(sum[:]) {
		return storedTable{}, errNotKept
	}
	head, wire, ok := bytes.Cut(rest, []byte("\n"))
	var t storedTable
	if !ok || len(head) > maxHeader || json.Unmarshal(head, &t) != nil {
		return storedTable{}, errNotKept
	}
	t.wire = wire
	return t, nil
}
