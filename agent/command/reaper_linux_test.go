package command

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

func TestZombieChildrenAreFound(t *testing.T) {
	proc := t.TempDir()
	for pid, stat := range map[int]string{
		10: "10 (dead) Z 1 10 10 0",
		11: "11 (alive) S 1 11 11 0",
		12: "12 (another's) Z 7 12 12 0",
		13: "13 (odd) Z 7 13 13) S 1 13 13 0", // the name is "odd) Z 7 13 13"
		14: "14 (a b) c) Z 1 14 14 0",
		15: "",
	} {
		dir := filepath.Join(proc, strconv.Itoa(pid))
		if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "stat"), []byte(stat), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if got := fmt.Sprint(zombieChildren(proc, 1)); got != "[10 14]" {
		t.Errorf("zombie children %s, want [10 14]", got)
	}
}
