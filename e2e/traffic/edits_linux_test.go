package traffic

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// edits is the number of random edits, for example: go test ./e2e/traffic -edits 1000
var edits = flag.Int("edits", 60, "random edits under traffic")

// envoyVersion selects the version of Envoy: go test ./e2e/traffic -envoy 1.36.4
var envoyVersion = flag.String("envoy", testenv.EnvoyVersion, "the version of Envoy")

// life is the lifetime of certificates. An Envoy that gets no processor time for nearly as long cannot load the next
// certificate before the old one expires, for example while other processes use the machine during many edits. At a
// load of 40 on two processors, Envoys' main threads waited 35 times as long as they ran (/proc/PID/schedstat). 1,000
// edits need a lifetime of minutes.
var life = flag.Duration("life", 24*time.Second, "how long certificates are good")

// The roots of all certificates are replaced first, so that what is left of the old one has its time while documents change.
func TestNoRequestOfACapturedMeshFailsDuringEdits(t *testing.T) {
	w := startMesh(t, *envoyVersion)
	f := w.startTraffic()
	onlyNew := w.rotate(f)
	w.edit(f, func(int) {})
	w.edit(f, func(n int) {
		var err error
		switch n % 30 {
		case 10:
			w.waitRenewed(f)
			err = w.StopControlPlane(w.ctx)
		case 20:
			err = w.StartControlPlane(w.ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	f.activity.Store("nothing more")
	onlyNew()
	f.done()
}

// edit makes random edits at intervals of a few milliseconds, and calls each with the number of the edit.
func (w *testMesh) edit(f *traffic, each func(n int)) {
	w.t.Helper()
	random := rand.New(rand.NewPCG(5, 5))
	pace := time.NewTicker(10 * time.Millisecond)
	defer pace.Stop()
	for n := range *edits {
		if n%5 == 4 {
			share := random.IntN(101)
			w.write("istio/edge.yaml", fmt.Sprintf(edge, share, 100-share))
			f.activity.Store(fmt.Sprintf("%d percent of the gateway's requests for s0", share))
		} else {
			e := w.edits.Edit()
			w.write("istio/"+e.File(), string(e.Document))
			f.activity.Store(e.Key.String() + " " + string(e.Document))
		}
		each(n)
		f.check()
		<-pace.C
	}
}
