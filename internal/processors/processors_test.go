package processors

import (
	"runtime"
	"testing"
)

func TestProgramUsesOneProcessorExceptForParallelWork(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	expect := func(want int, when string) {
		t.Helper()
		if n := runtime.GOMAXPROCS(0); n != want {
			t.Fatalf("%s: %d processors, want %d", when, n, want)
		}
	}
	before := UseAll()
	expect(4, "without a limit")
	Limit()
	expect(4, "limited during parallel work")
	before()
	expect(1, "after the parallel work")
	Limit()
	expect(1, "after a second limit, which had no effect")
	first, second := UseAll(), UseAll()
	expect(4, "two users")
	first()
	first()
	expect(4, "one user left")
	second()
	expect(1, "no user left")
	removeLimit()
	expect(4, "without the limit")
	UseAll()()
	expect(4, "after parallel work without a limit")
}

// removeLimit restores the state before Limit, for other tests of the program.
func removeLimit() {
	runtime.GOMAXPROCS(all)
	all = 0
}
