package envoy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/owner"
)

// HotRestart makes Envoys able to take over from each other: one with the next epoch takes the listening sockets of the
// one that runs, and tells it to drain once it serves. The older one's admin interface is closed as soon as the newer one
// starts; the older one is ended by the newer after ParentShutdown. Should it end before, it needs a StandIn.
type HotRestart struct {
	// BaseID is common to all epochs, and no other Envoy's of the machine: NewBaseID gives one.
	BaseID uint32
	// Epoch is 0 for the first Envoy, and one more for each that follows.
	Epoch int
	// Dir holds the sockets through which the two speak, for this user only. It has to exist.
	Dir string
	// ParentShutdown is how long the older one is left after the newer one serves; whole seconds.
	ParentShutdown time.Duration
	// User is who the Envoys run as; nil is this process's user.
	User *owner.Owner
}

const (
	sharedMemory = "/dev/shm"
	// mostBaseID keeps ten times the id, which is what Envoy uses, within 31 bits: beyond, names get negative numbers.
	mostBaseID = 200_000_000
	hotSockets = "hot"
	// concurrentEpochs is how many Envoys have sockets of their own: names repeat.
	concurrentEpochs = 3
	// longestSocket is the room that a socket's name has in an address on Linux.
	longestSocket = 107
)

// NewBaseID gives an id that no Envoy of this machine uses.
func NewBaseID() (uint32, error) {
	for range 100 {
		h := HotRestart{BaseID: 1 + rand.Uint32N(mostBaseID)}
		if _, err := os.Lstat(h.segment()); errors.Is(err, fs.ErrNotExist) {
			return h.BaseID, nil
		}
	}
	return 0, fmt.Errorf("no free base id for hot restart: %s has an Envoy's memory for each that was tried", sharedMemory)
}

// Possible says whether the directory's name leaves room for the sockets, and shared memory can be had.
func (h HotRestart) Possible() error {
	if longest := h.sockets() + "_udp_parent_" + strconv.Itoa(mostBaseID*10); len(longest) > longestSocket {
		return fmt.Errorf("hot restart: the sockets in %s would have names of %d bytes, and may have %d: use a shorter configPath", h.Dir, len(longest), longestSocket)
	}
	probe, err := os.CreateTemp(sharedMemory, "pilotfish-*")
	if err != nil {
		return fmt.Errorf("hot restart needs shared memory: %w", err)
	}
	return errors.Join(probe.Close(), os.Remove(probe.Name()))
}

func (h HotRestart) args() []string {
	return []string{
		"--base-id", strconv.FormatUint(uint64(h.BaseID), 10),
		"--restart-epoch", strconv.Itoa(h.Epoch),
		"--socket-path", h.sockets(),
		"--socket-mode", "600",
		// Statistics of the older one would be fetched by a main thread that waits for the answer.
		"--skip-hot-restart-parent-stats",
		"--parent-shutdown-time-s", strconv.Itoa(int(h.ParentShutdown.Round(time.Second) / time.Second)),
	}
}

func (h HotRestart) sockets() string { return filepath.Join(h.Dir, hotSockets) }

// socketID is the end of the names of an epoch's sockets.
func (h HotRestart) socketID(epoch int) uint64 {
	return uint64(h.BaseID)*10 + uint64(epoch)%concurrentEpochs
}

// segment is the file of the memory that the epochs share.
func (h HotRestart) segment() string {
	return filepath.Join(sharedMemory, fmt.Sprintf("envoy_shared_memory_%d0", h.BaseID))
}

// Remove takes away what Envoys leave behind: their sockets and their shared memory. None may run any more.
func (h HotRestart) Remove() error {
	var errs []error
	left, _ := filepath.Glob(fmt.Sprintf("%s_*_%d[0-9]", h.sockets(), h.BaseID))
	for _, file := range append(left, h.segment()) {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("removing what hot restart left: %w", err))
		}
	}
	return errors.Join(errs...)
}

// RemoveHotRestarts takes away what Envoys with sockets in the directory left behind when nobody was there to do it.
// None may run any more.
func RemoveHotRestarts(dir string) error {
	var errs []error
	h := HotRestart{Dir: dir}
	left, _ := filepath.Glob(h.sockets() + "_parent_*")
	for _, file := range left {
		id := strings.TrimPrefix(file, h.sockets()+"_parent_")
		n, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			continue
		}
		h.BaseID = uint32(n / 10)
		errs = append(errs, h.Remove())
	}
	return errors.Join(errs...)
}

// The shared memory of hot restart version 11.104: 104 bytes, of which the first eight are the size, the next the
// version, and the last the flags. See source/server/hot_restart_impl.h.
const (
	segmentVersion = 11
	segmentSize    = 104
	segmentFlags   = 96
	// flagInitializing is set while an Envoy starts. It stays when that one dies before it serves, and refuses every
	// later restart: "previous envoy process is still initializing".
	flagInitializing = 1
)

// Mend makes another hot restart possible after one in which the newer Envoy died before it served. That one has to be
// gone. Memory of an unknown layout is left alone.
func (h HotRestart) Mend() error {
	f, err := os.OpenFile(h.segment(), os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("mending the shared memory of hot restart: %w", err)
	}
	defer func() { _ = f.Close() }()
	var memory [segmentSize]byte
	n, err := f.ReadAt(memory[:], 0)
	size, version := binary.NativeEndian.Uint64(memory[:]), binary.NativeEndian.Uint64(memory[8:])
	if err != nil || size != segmentSize || version != segmentVersion {
		return fmt.Errorf("mending %s: %d bytes of size %d and version %d: want %d and %d (%v)", f.Name(), n, size, version, segmentSize, segmentVersion, err)
	}
	flags := memory[segmentFlags:]
	binary.NativeEndian.PutUint64(flags, binary.NativeEndian.Uint64(flags)&^flagInitializing)
	if _, err := f.WriteAt(flags, segmentFlags); err != nil {
		return fmt.Errorf("mending the shared memory of hot restart: %w", err)
	}
	return nil
}

// HotRestartVersion is what a binary says its hot restart is compatible with: Envoys of one version can take over from
// each other.
func HotRestartVersion(ctx context.Context, path string) (string, error) {
	out, err := ask(ctx, path, versionTime, "--hot-restart-version")
	if err != nil {
		return "", fmt.Errorf("asking %s for its hot restart version: %w", path, err)
	}
	found := hotRestartLine().FindAllString(out.String(), -1)
	if len(found) == 0 {
		return "", fmt.Errorf("asking %s for its hot restart version: it answers %q", path, firstLine(out.String()))
	}
	return found[len(found)-1], nil
}

// hotRestartLine is Envoy's answer, which is on standard error, as its warnings are: of control groups, for instance.
var hotRestartLine = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^\d+(\.\d+)+$`) })
