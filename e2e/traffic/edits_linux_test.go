package traffic

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// edits is how many random edits are made; more of them: go test ./e2e/traffic -edits 1000
var edits = flag.Int("edits", 60, "random edits under traffic")

// envoyVersion may be another: go test ./e2e/traffic -envoy 1.36.4
var envoyVersion = flag.String("envoy", testenv.EnvoyVersion, "the version of Envoy")

// life is how long certificates are good. An Envoy that gets no processor for nearly as long cannot take the next one in time,
// as where other work has all of the machine for many edits: at a load of 40 on two processors, Envoys' main threads waited 35 times
// as long as they ran (/proc/PID/schedstat), and 1,000 edits want a life of minutes.
var life = flag.Duration("life", 24*time.Second, "how long certificates are good")

// The roots of all certificates are replaced first, so that what is left of the old one has its time while documents change.
func TestNoRequestOfACapturedMeshFailsWhateverIsChanged(t *testing.T) {
	w := start(t, *envoyVersion)
	f := w.flow()
	onlyNew := w.rotate(f)
	w.edit(f, func(int) {})
	w.edit(f, func(n int) {
		var err error
		switch n % 30 {
		case 10:
			w.renewed(f)
			err = w.StopControlPlane(w.ctx)
		case 20:
			err = w.StartControlPlane(w.ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	f.doing.Store("nothing more")
	onlyNew()
	f.done()
}

// edit makes random edits, a few milliseconds apart; each is told its number.
func (w *world) edit(f *traffic, each func(n int)) {
	w.t.Helper()
	random := rand.New(rand.NewPCG(5, 5))
	pace := time.NewTicker(10 * time.Millisecond)
	defer pace.Stop()
	for n := range *edits {
		if n%5 == 4 {
			share := random.IntN(101)
			w.write("istio/edge.yaml", fmt.Sprintf(edge, share, 100-share))
			f.doing.Store(fmt.Sprintf("%d percent of the gateway's requests for s0", share))
		} else {
			e := w.edits.Edit()
			w.write("istio/"+e.File(), string(e.Document))
			f.doing.Store(e.Key.String() + " " + string(e.Document))
		}
		each(n)
		f.check()
		<-pace.C
	}
}
