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

	"github.com/pilotfish-mesh/pilotfish/internal/plainfile"
)

// keeper holds the last name table on disk, so that names are known at the next start although no control plane answers.
// There is one file: a line with the checksum of the rest, a line that says whose table it is and of when, and the table
// as it came.
type keeper struct {
	path, owner string
	log         *slog.Logger
	failed      func()
	pending     chan keptTable // holds the newest that is not written yet
}

type keptTable struct {
	Owner    string    `json:"owner"`
	Received time.Time `json:"received"`
	wire     []byte
}

const (
	keptMagic = "pilotfish-names 1 "
	// keepPause is how long a table is left alone once it is written: a busy mesh sends many a second.
	keepPause = time.Second
	// mostKeptHead bounds what is before the table in the file.
	mostKeptHead = 8 << 10
)

func newKeeper(config Config, failed func()) *keeper {
	if config.KeepFile == "" {
		return nil
	}
	return &keeper{
		path: config.KeepFile, owner: config.Owner, log: config.Logger, failed: failed, pending: make(chan keptTable, 1),
	}
}

// offer has a table written soon, in place of one that waits to be.
func (k *keeper) offer(wire []byte, received time.Time) {
	t := keptTable{Owner: k.owner, Received: received.UTC(), wire: bytes.Clone(wire)}
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

// run writes what is offered, with a pause after each, and the last of it also when the context has ended.
func (k *keeper) run(ctx context.Context) {
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
			rest.Reset(keepPause)
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

func (k *keeper) write(t keptTable) {
	if err := writeKept(k.path, t); err != nil {
		k.failed()
		k.log.Warn("the names of the mesh are not kept on disk: without a control plane they are not known after a restart; "+
			"make room, or let the agent write there", "file", k.path, "error", err)
	}
}

// writeKept leaves the old file as it is unless the new one is whole.
func writeKept(path string, t keptTable) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	temporary := path + ".new"
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(temporary)
		}
	}()
	text, err := encodeKept(t)
	if err == nil {
		_, err = file.Write(text)
	}
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

func encodeKept(t keptTable) ([]byte, error) {
	head, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	rest := append(append(head, '\n'), t.wire...)
	sum := sha256.Sum256(rest)
	return append([]byte(keptMagic+hex.EncodeToString(sum[:])+"\n"), rest...), nil
}

// load reads the file; nil is that there is none to use. What is wrong with one is told, and does not keep anybody from
// starting.
func (k *keeper) load() (*Table, time.Time) {
	text, err := plainfile.Read(k.path, mostTableBytes+mostKeptHead)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, time.Time{}
	}
	var t keptTable
	if err == nil {
		t, err = decodeKept(text)
	}
	if err == nil && t.Owner != k.owner {
		err = fmt.Errorf("they are those of %.200q, and this is %q", t.Owner, k.owner)
	}
	var table *Table
	if err == nil {
		table, err = DecodeTable(t.wire)
	}
	if err != nil {
		k.log.Warn("the names of the mesh that were kept on disk are not used", "file", k.path, "error", err)
		return nil, time.Time{}
	}
	return table, t.Received
}

var errNotKept = errors.New("the file is damaged, or not one of names")

func decodeKept(text []byte) (keptTable, error) {
	first, rest, ok := bytes.Cut(text, []byte("\n"))
	sum := sha256.Sum256(rest)
	if !ok || string(first) != keptMagic+hex.EncodeToString(sum[:]) {
		return keptTable{}, errNotKept
	}
	head, wire, ok := bytes.Cut(rest, []byte("\n"))
	var t keptTable
	if !ok || len(head) > mostKeptHead || json.Unmarshal(head, &t) != nil {
		return keptTable{}, errNotKept
	}
	t.wire = wire
	return t, nil
}
