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

// HotRestart configures Envoy's hot restart. An Envoy of the next epoch (the child) receives the listening sockets of
// the running Envoy (the parent). The parent closes its admin interface as soon as the child starts. Once the child
// serves traffic, it makes the parent drain, and terminates it after ParentShutdown. If the parent exits earlier, the
// caller must call AbsorbParentMessages.
type HotRestart struct {
	// BaseID is the same in all epochs, and unique on the machine. NewBaseID returns an unused one.
	BaseID uint32
	// Epoch is 0 for the first Envoy and increases by one with each restart.
	Epoch int
	// Dir is an existing directory for the sockets between parent and child. The sockets have mode 0600.
	Dir string
	// ParentShutdown is how long the parent continues to run after the child starts to serve traffic, in whole seconds.
	ParentShutdown time.Duration
	// User is the user as which Envoy runs; nil: this process's user.
	User *owner.Owner
}

const (
	sharedMemory = "/dev/shm"
	// maxBaseID ensures that BaseID*10, which Envoy uses in names, is below 2^31. Envoy formats larger values as
	// negative numbers.
	maxBaseID      = 200_000_000
	socketBaseName = "hot"
	// concurrentEpochs is the number of different socket names. Envoy reuses the name of an epoch after this many
	// epochs.
	concurrentEpochs = 3
	// maxSocketPath is the maximum length of a socket path on Linux.
	maxSocketPath = 107
)

// NewBaseID returns a base ID that no Envoy on this machine uses.
func NewBaseID() (uint32, error) {
	for range 100 {
		h := HotRestart{BaseID: 1 + rand.Uint32N(maxBaseID)}
		if _, err := os.Lstat(h.sharedMemoryFile()); errors.Is(err, fs.ErrNotExist) {
			return h.BaseID, nil
		}
	}
	return 0, fmt.Errorf("no free base ID for hot restart: %s contains the shared memory of an Envoy for each ID that was tried", sharedMemory)
}

// CheckSupport returns an error if Dir is too long for the sockets' paths, or if shared memory is not available.
func (h HotRestart) CheckSupport() error {
	if path := h.socketPrefix() + "_udp_parent_" + strconv.Itoa(maxBaseID*10); len(path) > maxSocketPath {
		return fmt.Errorf("hot restart: the sockets in %s would have paths of %d bytes; the maximum is %d: use a shorter configPath", h.Dir, len(path), maxSocketPath)
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
		"--socket-path", h.socketPrefix(),
		"--socket-mode", "600",
		// Without this flag, the child's main thread waits for the parent's responses with statistics.
		"--skip-hot-restart-parent-stats",
		"--parent-shutdown-time-s", strconv.Itoa(int(h.ParentShutdown.Round(time.Second) / time.Second)),
	}
}

func (h HotRestart) socketPrefix() string { return filepath.Join(h.Dir, socketBaseName) }

// socketID returns the number at the end of an epoch's socket names.
func (h HotRestart) socketID(epoch int) uint64 {
	return uint64(h.BaseID)*10 + uint64(epoch)%concurrentEpochs
}

// sharedMemoryFile returns the path of the shared memory that all epochs use.
func (h HotRestart) sharedMemoryFile() string {
	return filepath.Join(sharedMemory, fmt.Sprintf("envoy_shared_memory_%d0", h.BaseID))
}

// RemoveFiles removes the sockets and the shared memory of all epochs. The caller must ensure that none of these Envoys
// runs.
func (h HotRestart) RemoveFiles() error {
	var errs []error
	left, _ := filepath.Glob(fmt.Sprintf("%s_*_%d[0-9]", h.socketPrefix(), h.BaseID))
	for _, file := range append(left, h.sharedMemoryFile()) {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("removing the files of a hot restart: %w", err))
		}
	}
	return errors.Join(errs...)
}

// RemoveHotRestartFiles removes the sockets and the shared memory of all Envoys with sockets in dir, for example after
// a crash of the agent. Call it only while none of these Envoys runs.
func RemoveHotRestartFiles(dir string) error {
	var errs []error
	h := HotRestart{Dir: dir}
	left, _ := filepath.Glob(h.socketPrefix() + "_parent_*")
	for _, file := range left {
		id := strings.TrimPrefix(file, h.socketPrefix()+"_parent_")
		n, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			continue
		}
		h.BaseID = uint32(n / 10)
		errs = append(errs, h.RemoveFiles())
	}
	return errors.Join(errs...)
}

// Layout of the shared memory of hot restart version 11.104: 104 bytes. The first eight bytes are the size, the next
// eight the version, and the last eight the flags. See source/server/hot_restart_impl.h.
const (
	segmentVersion = 11
	segmentSize    = 104
	segmentFlags   = 96
	// flagInitializing is set while an Envoy starts. If that Envoy exits before it serves traffic, the flag remains
	// set, and every later hot restart fails: "previous envoy process is still initializing".
	flagInitializing = 1
)

// ClearInitializingFlag allows another hot restart after a child has exited before it served traffic. Call it only
// after the child's exit. If the layout of the shared memory is unknown, it returns an error and changes nothing.
func (h HotRestart) ClearInitializingFlag() error {
	f, err := os.OpenFile(h.sharedMemoryFile(), os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("repairing the shared memory of hot restart: %w", err)
	}
	defer func() { _ = f.Close() }()
	var memory [segmentSize]byte
	n, err := f.ReadAt(memory[:], 0)
	size, version := binary.NativeEndian.Uint64(memory[:]), binary.NativeEndian.Uint64(memory[8:])
	if err != nil || size != segmentSize || version != segmentVersion {
		return fmt.Errorf("repairing %s: unknown layout: read %d bytes with size %d and version %d, want size %d and version %d (%v)", f.Name(), n, size, version, segmentSize, segmentVersion, err)
	}
	flags := memory[segmentFlags:]
	binary.NativeEndian.PutUint64(flags, binary.NativeEndian.Uint64(flags)&^flagInitializing)
	if _, err := f.WriteAt(flags, segmentFlags); err != nil {
		return fmt.Errorf("repairing the shared memory of hot restart: %w", err)
	}
	return nil
}

// HotRestartVersion returns the hot restart version that a binary reports. Only Envoys of the same version can replace
// each other.
func HotRestartVersion(ctx context.Context, path string) (string, error) {
	out, err := runBinary(ctx, path, versionTimeout, "--hot-restart-version")
	if err != nil {
		return "", fmt.Errorf("querying the hot restart version of %s: %w", path, err)
	}
	found := hotRestartVersionPattern().FindAllString(out.String(), -1)
	if len(found) == 0 {
		return "", fmt.Errorf("querying the hot restart version of %s: unexpected output %q", path, firstLine(out.String()))
	}
	return found[len(found)-1], nil
}

// hotRestartVersionPattern matches the version, which Envoy prints to standard error together with warnings, for
// example of cgroups.
var hotRestartVersionPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^\d+(\.\d+)+$`) })
