package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// kubelet drives one pod as a kubelet does: probes on their periods, hooks before signals, the application's end before
// that of a sidecar of the native kind, and SIGKILL when the grace period is over.
type kubelet struct {
	t          testing.TB
	pod        *pod
	grace      time.Duration
	notifiedAt time.Time // when the sidecar was notified of its end

	mu      sync.Mutex
	answers []answer
}

// answer is what a probe got.
type answer struct {
	path string
	at   time.Time
	code int // 0 without a response
	body string
}

// container is how the application ends: what it does on SIGTERM.
type container struct {
	terminate func()
}

// probe sends a probe every period until the context ends, as the kubelet does.
func (k *kubelet) probe(ctx context.Context, port int, path string, period time.Duration) {
	for ctx.Err() == nil {
		sentAt := time.Now()
		code, body, _ := k.pod.probe(port, path, 3*time.Second) // no answer is code 0
		k.mu.Lock()
		k.answers = append(k.answers, answer{path: path, at: sentAt, code: code, body: body})
		k.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(period):
		}
	}
}

// startup is a startup probe: one success lets the next container start.
func (k *kubelet) startup(port int, path string) {
	k.t.Helper()
	for range 600 {
		if code, _, _ := k.pod.probe(port, path, 3*time.Second); code == http.StatusOK {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	k.t.Fatalf("the startup probe of %s never succeeded:\n%s", k.pod.name, k.pod.output.String())
}

// hook runs a command in the sidecar's container, as postStart and preStop do.
func (k *kubelet) hook(args ...string) {
	k.t.Helper()
	if out, err := k.pod.command(k.t, args...).CombinedOutput(); err != nil {
		k.t.Errorf("hook %q: %v: %s", args, err, out)
	}
}

// deletePod ends the pod. It kills what is left at the end of the grace period, and reports whether that was necessary.
func (k *kubelet) deletePod(app container, native bool) (killed bool) {
	k.t.Helper()
	deadline := time.After(k.grace)
	appEnded := make(chan struct{})
	go func() { app.terminate(); close(appEnded) }()
	if native {
		k.hook("request", "--debug-port=15020", "POST", "drain")
		k.notifiedAt = time.Now()
		select {
		case <-appEnded:
		case <-deadline:
			k.t.Errorf("the application outlived the grace period")
		}
	}
	k.pod.signal(k.t, syscall.SIGTERM)
	if !native {
		testenv.Eventually(k.t, "the sidecar ends", func() error {
			if !strings.Contains(k.pod.output.String(), "\tshutting down") {
				return errors.New("the sidecar has not logged its shutdown")
			}
			return nil
		})
		k.notifiedAt = time.Now()
	}
	select {
	case <-k.pod.ended:
	case <-deadline:
		killed = true
		_ = k.pod.agent.Process.Kill()
	}
	<-appEnded
	<-k.pod.ended
	return killed
}

// answersSince returns the answers to the probes of a path that were sent at or after a time.
func (k *kubelet) answersSince(path string, from time.Time) (all []answer) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, a := range k.answers {
		if a.path == path && !a.at.Before(from) {
			all = append(all, a)
		}
	}
	return all
}

// startRequest sends a request to the pod through its sidecar, which the application answers after the delay.
func startRequest(t testing.TB, p *pod, takes time.Duration) (result chan error) {
	t.Helper()
	result = make(chan error, 1)
	c := &sidecarHTTP{target: fmt.Sprintf("http://%s:8080/?wait=%s", p.proxy, takes), client: &http.Client{Transport: &http.Transport{}}}
	began := make(chan struct{})
	go func() {
		defer c.close()
		close(began)
		ctx, cancel := context.WithTimeout(context.Background(), takes+20*time.Second)
		defer cancel()
		result <- c.call(ctx)
	}()
	<-began
	return result
}

// waitInFlight waits until the application has so many requests under way.
func waitInFlight(t testing.TB, a *application, n int64) {
	t.Helper()
	testenv.Eventually(t, "requests reach the application", func() error {
		if got := a.inFlight.Load(); got < n {
			return fmt.Errorf("%d of %d are there", got, n)
		}
		return nil
	})
}

// onEveryEnvoy runs the test with each Envoy version in parallel: the tests mostly wait.
func onEveryEnvoy(t *testing.T, test func(t *testing.T, envoy string)) {
	for _, v := range testenv.EnvoyVersions() {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			test(t, testenv.EnvoyOf(t, v))
		})
	}
}

func TestNativeSidecarServesUntilItsApplicationEnds(t *testing.T) {
	onEveryEnvoy(t, func(t *testing.T, envoy string) {
		p := newPod(t, startPlane(t), "shop").set(map[string]string{"ENVOY_PATH": envoy, "ISTIO_KUBE_APP_PROBERS": appProbes})
		k := &kubelet{t: t, pod: p, grace: 30 * time.Second}
		p.start(t)
		k.startup(15021, "/healthz/ready")
		app := startApplication(t, p)
		stopProbes := k.startProbes()

		long := startRequest(t, p, 3*time.Second)
		waitInFlight(t, app, 1)
		deleted := time.Now()
		killed := k.deletePod(container{terminate: func() {
			time.Sleep(spread)
			late := startRequest(t, p, 10*time.Millisecond) // from a client that does not know of the end yet
			if err := <-late; err != nil {
				t.Errorf("a request while the application ends: %v", err)
			}
			if err := <-long; err != nil {
				t.Errorf("the request that was under way: %v", err)
			}
			app.stop()
		}}, true)
		stopProbes()
		if killed || p.code != 0 {
			t.Errorf("killed by the kubelet: %v, exit code %d", killed, p.code)
		}
		k.expectNotReady()
		k.expectApplicationWell(deleted)
	})
}

func TestClassicSidecarFinishesRequestsInFlight(t *testing.T) {
	onEveryEnvoy(t, func(t *testing.T, envoy string) {
		p := newPod(t, startPlane(t), "shop").set(map[string]string{"ENVOY_PATH": envoy, "ISTIO_KUBE_APP_PROBERS": appProbes})
		k := &kubelet{t: t, pod: p, grace: 30 * time.Second}
		p.start(t)
		k.hook("wait") // postStart, which holds the application's container
		app := startApplication(t, p)
		stopProbes := k.startProbes()

		// Longer than terminationDrainDuration, which is 5 s unless set.
		long := startRequest(t, p, 8*time.Second)
		waitInFlight(t, app, 1)
		deleted := time.Now()
		killed := k.deletePod(container{terminate: func() {
			if err := <-long; err != nil {
				t.Errorf("the request of 8 s: %v", err)
			}
			app.stop()
		}}, false)
		stopProbes()
		if killed || p.code != 0 {
			t.Errorf("killed by the kubelet: %v, exit code %d", killed, p.code)
		}
		k.expectNotReady()
		k.expectApplicationWell(deleted)
	})
}

// The application's own probes, as the injector of a mesh moves them to the agent.
const (
	appReady  = "/app-health/app/readyz"
	appAlive  = "/app-health/app/livez"
	appProbes = `{"` + appReady + `":{"httpGet":{"path":"/ready","port":8080,"scheme":"HTTP"},"timeoutSeconds":1},` +
		`"` + appAlive + `":{"tcpSocket":{"port":8083},"timeoutSeconds":1}}`
)

// startProbes probes the readiness of proxy and application and scrapes metrics, until stop is called.
func (k *kubelet) startProbes() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() { k.probe(ctx, 15021, "/healthz/ready", 250*time.Millisecond) })
	for _, path := range []string{appReady, appAlive, "/stats/prometheus"} {
		all.Go(func() { k.probe(ctx, 15020, path, 500*time.Millisecond) })
	}
	return func() { cancel(); all.Wait() }
}

// expectApplicationWell checks that every probe of the application that was made before some time was answered well.
func (k *kubelet) expectApplicationWell(until time.Time) {
	k.t.Helper()
	for _, path := range []string{appReady, appAlive} {
		well := 0
		for _, a := range k.answersSince(path, time.Time{}) {
			switch {
			case a.at.After(until):
			case a.code == http.StatusOK:
				well++
			default:
				k.t.Errorf("%s was answered with %d: %s", path, a.code, a.body)
			}
		}
		if well == 0 {
			k.t.Errorf("%s was never answered", path)
		}
	}
}

// expectNotReady checks that readiness was refused with a reason from when the sidecar knew of its end, and that the status
// port answered all the time until the pod had ended.
func (k *kubelet) expectNotReady() {
	k.t.Helper()
	refused := 0
	for _, a := range k.answersSince("/healthz/ready", k.notifiedAt) {
		switch {
		case a.code == http.StatusOK:
			k.t.Errorf("ready %v after it knew of its end", a.at.Sub(k.notifiedAt))
		case a.code == http.StatusServiceUnavailable && strings.Contains(a.body, "drain"):
			refused++
		}
	}
	if refused == 0 {
		k.t.Errorf("no readiness probe was refused because of draining: %v", k.answersSince("/healthz/ready", k.notifiedAt))
	}
	scraped := 0
	for _, a := range k.answersSince("/stats/prometheus", k.notifiedAt) {
		if a.code == http.StatusOK {
			scraped++
		}
	}
	if scraped == 0 {
		k.t.Error("no metrics were served while the pod ended")
	}
}

func TestSidecarEndsWithinTheGracePeriod(t *testing.T) {
	p := newPod(t, startPlane(t), "shop").set(map[string]string{"TERMINATION_GRACE_PERIOD": "4s"})
	k := &kubelet{t: t, pod: p, grace: 4 * time.Second}
	p.start(t).waitReady(t)
	app := startApplication(t, p)
	endless := startRequest(t, p, time.Minute)
	waitInFlight(t, app, 1)
	if k.deletePod(container{terminate: func() {}}, false) {
		t.Error("it had to be killed: a request of a minute held it up past the grace period that it was told")
	}
	if p.code != 0 {
		t.Errorf("exit code %d", p.code)
	}
	app.stop()
	if err := <-endless; err == nil {
		t.Error("a request of a minute was answered within seconds")
	}
}

func TestSidecarOfJobEndsAtTheJobsRequest(t *testing.T) {
	p := newPod(t, startPlane(t), "job")
	p.start(t).waitReady(t)
	k := &kubelet{t: t, pod: p}
	k.hook("request", "--debug-port=15020", "POST", "quitquitquit")
	if code := p.wait(t, 20*time.Second); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
