package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	faultcommonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/fault/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/pilotfish-mesh/pilotfish/agent/config"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// newSlowSetup returns a proxy with a plain HTTP listener that answers with the delay that a request specifies.
func newSlowSetup(t *testing.T, address string, env ...string) *agentSetup {
	t.Helper()
	s := newSetup(t, address)
	chain := s.cp.listener.FilterChains[0]
	chain.TransportSocket = nil
	hcm := &hcmv3.HttpConnectionManager{}
	if err := chain.Filters[0].GetTypedConfig().UnmarshalTo(hcm); err != nil {
		t.Fatal(err)
	}
	fault := &faultv3.HTTPFault{Delay: &faultcommonv3.FaultDelay{
		FaultDelaySecifier: &faultcommonv3.FaultDelay_HeaderDelay_{HeaderDelay: &faultcommonv3.FaultDelay_HeaderDelay{}},
		Percentage:         &typev3.FractionalPercent{Numerator: 100},
	}}
	hcm.HttpFilters = append([]*hcmv3.HttpFilter{{Name: "fault", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: mustAny(fault)}}}, hcm.HttpFilters...)
	chain.Filters[0].ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: mustAny(hcm)}
	s.env = append(s.env, env...)
	s.cp.start(t)
	return s
}

func (s *agentSetup) drainFor(d string) string {
	return fmt.Sprintf(`PROXY_CONFIG={discoveryAddress: "%s", concurrency: 1, terminationDrainDuration: %s}`, s.cp.address, d)
}

// reply is the response to a request through the proxy.
type reply struct {
	code  int
	close bool // the response contained "Connection: close"
	err   error
	took  time.Duration
}

// get sends a request on a new connection. The proxy responds after the delay late.
func (s *agentSetup) get(late time.Duration) reply {
	began := time.Now()
	r, err := http.NewRequest("GET", "http://"+s.address+":8443/", nil)
	if err != nil {
		return reply{err: err}
	}
	r.Header.Set("x-envoy-fault-delay-request", fmt.Sprint(late.Milliseconds()))
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	answer, err := (&http.Client{Transport: transport, Timeout: testTimeout}).Do(r)
	if err != nil {
		return reply{err: err, took: time.Since(began)}
	}
	_ = answer.Body.Close()
	return reply{code: answer.StatusCode, close: answer.Close, took: time.Since(began)}
}

// getSlowly sends a request and returns when the proxy has received it.
func (r *agentProcess) getSlowly(late time.Duration) <-chan reply {
	r.t.Helper()
	replies := make(chan reply, 1)
	go func() { replies <- r.get(late) }()
	r.eventually("the request is active", func() error {
		_, body, err := r.http("GET", "15000/stats?filter=http.test.downstream_rq_active")
		if err == nil && !strings.Contains(body, ": 1") {
			err = errors.New(body)
		}
		return err
	})
	return replies
}

func (r *agentProcess) envoyStatus() (envoyStatus, error) {
	var s envoyStatus
	_, body, err := r.http("GET", "15020/debug/envoyz")
	if err == nil {
		err = json.Unmarshal([]byte(body), &s)
	}
	return s, err
}

func (r *agentProcess) waitState(want envoyState) envoyStatus {
	r.t.Helper()
	var s envoyStatus
	r.eventually("the state "+string(want), func() (err error) {
		if s, err = r.envoyStatus(); err == nil && s.State != want {
			err = fmt.Errorf("%+v", s)
		}
		return err
	})
	return s
}

func (r *agentProcess) checkExit(code int, wants ...string) {
	r.t.Helper()
	if got := r.waitExit(); got != code {
		r.t.Errorf("exit code %d, want %d", got, code)
	}
	for _, what := range wants {
		if !strings.Contains(r.out.String(), what) {
			r.t.Errorf("the output does not contain %q", what)
		}
	}
}

func TestActiveRequestOutlastsDrain(t *testing.T) {
	t.Parallel()
	for n, version := range testenv.EnvoyVersions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			s := newSlowSetup(t, fmt.Sprintf("127.102.1.%d", n+1))
			s.env = append(s.env, "ENVOY_PATH="+testenv.EnvoyOf(t, version), s.drainFor("0.5s"))
			r := s.start(t)
			r.waitReady()
			late := r.getSlowly(6 * time.Second)
			r.signal(syscall.SIGTERM)
			if state := r.waitState(stateDraining); !state.Draining || state.PID != r.envoy() || state.Version != version {
				t.Errorf("status: %+v", state)
			}
			if again := r.get(0); again.err != nil || again.code != 200 || !again.close {
				t.Errorf("a new request while it drains: %+v, want a response with Connection: close", again)
			}
			r.eventually("the metrics report the drain's progress", func() error {
				_, body, err := r.http("GET", "15020/metrics")
				for _, want := range []string{"istio_agent_draining 1", "istio_agent_drain_requests 1", `istio_agent_envoy_processes{state="draining"} 1`} {
					if err == nil && !strings.Contains(body, want) {
						err = fmt.Errorf("no %s", want)
					}
				}
				return err
			})
			if got := <-late; got.err != nil || got.code != 200 {
				t.Errorf("the active request: %+v", got)
			}
			r.checkExit(0, `reason="no request `) // its connection may be counted once more, after its time
			r.checkNothingLeft()
		})
	}
}

func TestUnusedProxyStopsAtOnce(t *testing.T) {
	t.Parallel()
	for n, version := range testenv.EnvoyVersions() {
		t.Run(version, func(t *testing.T) {
			s := newSlowSetup(t, fmt.Sprintf("127.102.2.%d", n+1))
			s.env = append(s.env, "ENVOY_PATH="+testenv.EnvoyOf(t, version), s.drainFor("600s"), "DRAIN_QUIET_PERIOD=500s")
			r := s.start(t)
			r.waitReady()
			began := time.Now()
			r.signal(syscall.SIGTERM)
			r.checkExit(0, "no request and no connection is left")
			t.Logf("the stop took %v", time.Since(began).Round(time.Millisecond))
		})
	}
}

func TestIdleConnectionIsClosedAfterLinger(t *testing.T) {
	t.Parallel()
	s := newSlowSetup(t, "127.102.3.1")
	s.env = append(s.env, s.drainFor("0.7s"))
	r := s.start(t)
	r.waitReady()
	c, err := net.Dial("tcp", s.address+":8443")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r.eventually("the connection is open", func() error {
		_, body, err := r.http("GET", "15000/stats?filter=http.test.downstream_cx_active")
		if err == nil && !strings.Contains(body, ": 1") {
			err = errors.New(body)
		}
		return err
	})
	began := time.Now()
	r.signal(syscall.SIGTERM)
	r.checkExit(0, "no request is left, and the time limit for its 1 idle connections has passed")
	if took := time.Since(began); took < 700*time.Millisecond {
		t.Errorf("the connection had %v, want 700ms", took)
	}
}

func TestDeadlineCutsRequestsAndLogsIt(t *testing.T) {
	t.Parallel()
	s := newSlowSetup(t, "127.102.4.1", "TERMINATION_GRACE_PERIOD=6")
	s.env = append(s.env, s.drainFor("0.5s"))
	r := s.start(t)
	r.waitReady()
	late := r.getSlowly(10 * time.Second)
	r.signal(syscall.SIGTERM)
	r.checkExit(0, "the shutdown deadline has passed; 1 request and 1 connection are cut")
	if got := <-late; got.err == nil && got.code == 200 {
		t.Errorf("a request that outlives the deadline: %+v", got)
	}
}

func TestProgressOfALongDrainIsLogged(t *testing.T) {
	t.Parallel()
	s := newSlowSetup(t, "127.102.4.2", "TERMINATION_GRACE_PERIOD=10m")
	r := s.start(t)
	r.waitReady()
	late := r.getSlowly(testTimeout)
	r.signal(syscall.SIGTERM)
	r.eventually("the log reports the drain", func() error {
		if !strings.Contains(r.out.String(), "\tstill draining\trequests=1 connections=1 timeLeft=9m") {
			return errors.New("not yet")
		}
		return nil
	})
	r.signal(syscall.SIGTERM)
	r.checkExit(0, "second stop signal; 1 request and 1 connection are cut")
	<-late
}

func TestProxyServesDuringPreDelay(t *testing.T) {
	t.Parallel()
	s := newSlowSetup(t, "127.102.5.1", "PRE_DRAIN_DELAY=5s")
	r := s.start(t)
	r.waitReady()
	r.signal(syscall.SIGTERM)
	r.eventually("the proxy is no longer ready", func() error {
		ready, _, err := r.readiness()
		if err == nil && ready {
			err = errors.New("still ready")
		}
		return err
	})
	before := r.get(0)
	state, err := r.envoyStatus()
	if err != nil || before.err != nil || before.close && state.State == stateRunning {
		t.Errorf("in state %s (%v) a request gets %+v, want a response without Connection: close", state.State, err, before)
	}
	r.checkExit(0, "no request and no connection is left")
}

func TestSIGUSR2DrainsAndStays(t *testing.T) {
	t.Parallel()
	s := newSlowSetup(t, "127.102.6.1")
	s.env = append(s.env, s.drainFor("0.5s"))
	r := s.start(t)
	r.waitReady()
	r.signal(syscall.SIGUSR2)
	r.waitState(stateDraining)
	r.signal(syscall.SIGUSR2)
	if ready, reasons, err := r.readiness(); err != nil || ready {
		t.Errorf("ready although it drains: %v, %v", reasons, err)
	}
	late := r.getSlowly(2 * time.Second)
	r.signal(syscall.SIGTERM)
	if got := <-late; got.code != 200 || !got.close {
		t.Errorf("a request that was sent before the stop: %+v", got)
	}
	r.checkExit(0)
	r.checkNothingLeft()
}

func TestStopAfterPOSTDrainIsImmediate(t *testing.T) {
	t.Parallel()
	for n, version := range testenv.EnvoyVersions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			s := newSlowSetup(t, fmt.Sprintf("127.102.7.%d", n+1))
			s.env = append(s.env, "ENVOY_PATH="+testenv.EnvoyOf(t, version), s.drainFor("600s"), "MINIMUM_DRAIN_DURATION=600s")
			r := s.start(t)
			r.waitReady()
			r.post("15020/drain")
			r.waitState(stateDraining)
			if ready, reasons, err := r.readiness(); err != nil || ready {
				t.Errorf("ready although it drains: %v, %v", reasons, err)
			}
			if got := r.get(0); got.code != 200 || !got.close {
				t.Errorf("a request while it drains: %+v", got)
			}
			late := r.getSlowly(10 * time.Second)
			r.signal(syscall.SIGTERM)
			r.checkExit(0, "a drain was requested before")
			if got := <-late; got.err == nil && got.code == 200 {
				t.Errorf("the request was waited for: %+v", got)
			}
		})
	}
}

// TestDrainingProxyServesUntilStopped drains for longer than Envoy's drain time, after which Envoy closes its listeners
// by default. An application may need its sidecar for that long.
func TestDrainingProxyServesUntilStopped(t *testing.T) {
	t.Parallel()
	for n, version := range testenv.EnvoyVersions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			s := newSlowSetup(t, fmt.Sprintf("127.143.3.%d", n+1))
			s.env = append(s.env, "ENVOY_PATH="+testenv.EnvoyOf(t, version),
				fmt.Sprintf(`PROXY_CONFIG={discoveryAddress: "%s", concurrency: 1, drainDuration: 1s}`, s.cp.address))
			r := s.start(t)
			r.waitReady()
			r.post("15020/drain")
			r.waitState(stateDraining)
			for began := time.Now(); time.Since(began) < 3*time.Second; time.Sleep(100 * time.Millisecond) {
				if got := r.get(0); got.code != 200 {
					t.Fatalf("%v into the drain: %+v", time.Since(began), got)
				}
			}
			r.signal(syscall.SIGTERM)
			r.checkExit(0)
		})
	}
}

func TestUnusedProxyStopsWithoutDrain(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.102.8.1") // and no control plane
	s.env = append(s.env, "PRE_DRAIN_DELAY=60s", "MINIMUM_DRAIN_DURATION=60s")
	r := s.start(t)
	r.envoy()
	r.signal(syscall.SIGTERM)
	r.checkExit(0, "Envoy has not served any client yet")
	r.checkNothingLeft()
}

func TestDrainIsEnoughWhenNothingIsLeftToWaitFor(t *testing.T) {
	const s = time.Second
	plain, idle := config.Shutdown{Linger: 5 * s}, config.Shutdown{Linger: 5 * s, WhenIdle: true, Minimum: 5 * s}
	broken := trafficSample{err: errors.New("broken"), failures: maxCountFailures}
	for _, c := range []struct {
		name   string
		plan   config.Shutdown
		count  trafficSample
		ran    time.Duration
		enough bool
	}{
		{"nothing", plain, trafficSample{}, 0, true},
		{"nothing, but requests arrived recently", plain, trafficSample{quiet: s, lastArrival: 2 * s}, 2900 * time.Millisecond, false},
		{"nothing, and no request has arrived for the quiet period", plain, trafficSample{quiet: s, lastArrival: 2 * s}, 3 * s, true},
		{"nothing, and the drain time has passed", plain, trafficSample{quiet: s, lastArrival: 4900 * time.Millisecond}, 5 * s, true},
		{"nothing, and the drain time less the pre-delay has passed", config.Shutdown{Linger: 5 * s, PreDelay: 3 * s}, trafficSample{quiet: s, lastArrival: 1900 * time.Millisecond}, 2 * s, true},
		{"a request", plain, trafficSample{activeTraffic: activeTraffic{requests: 1, connections: 1}}, 20 * s, false},
		{"an answer that is not read yet", plain, trafficSample{activeTraffic: activeTraffic{bufferedHTTP: 1, connections: 1}}, 20 * s, false},
		{"TCP that is not read yet", plain, trafficSample{activeTraffic: activeTraffic{bufferedTCP: 1, connections: 1}}, 20 * s, false},
		{"TCP that its server has not read yet", plain, trafficSample{activeTraffic: activeTraffic{unreadTCP: 1, connections: 1}}, 20 * s, false},
		{"TCP that was read a moment ago", plain, trafficSample{activeTraffic: activeTraffic{connections: 1}}.withHistory(trafficSample{lastBusyTCP: 16 * s}, 20*s, s), 20 * s, false},
		{"TCP that was read a while ago", plain, trafficSample{activeTraffic: activeTraffic{connections: 1}}.withHistory(trafficSample{lastBusyTCP: 15 * s}, 20*s, s), 20 * s, true},
		{"a connection that has its time", plain, trafficSample{activeTraffic: activeTraffic{connections: 1}}, 4 * s, false},
		{"a connection that had its time", plain, trafficSample{activeTraffic: activeTraffic{connections: 1}}, 5 * s, true},
		{"nothing, before the minimum", idle, trafficSample{}, 4 * s, false},
		{"nothing, after the minimum", idle, trafficSample{}, 5 * s, true},
		{"a connection, to the last one", idle, trafficSample{activeTraffic: activeTraffic{connections: 1}}, 20 * s, false},
		{"one count that failed", plain, trafficSample{err: broken.err, failures: 1}, 20 * s, false},
		{"no count, while connections have their time", plain, broken, 4 * s, false},
		{"no count", plain, broken, 5 * s, true},
	} {
		if why, ok := checkDrained(c.plan, c.count, c.ran); ok != c.enough {
			t.Errorf("%s: %v (%s), want %v", c.name, ok, why, c.enough)
		}
	}
}

func TestQuietPeriodDependsOnTheRateBeforeTheDrain(t *testing.T) {
	const s = time.Second
	start := time.Unix(1000, 0)
	history := arrivalHistory{older: arrivalSample{start, arrivals{100, 1000}}, newer: arrivalSample{start.Add(5 * s), arrivals{100, 1000}}}
	for _, c := range []struct {
		name  string
		quiet time.Duration
		now   arrivals
		want  time.Duration
	}{
		{"nothing has arrived", s, arrivals{100, 1000}, 0},
		{"one request per second", s, arrivals{100, 1010}, 5 * s},
		{"one new connection per second, with a request on each", s, arrivals{110, 1010}, 5 * s},
		{"many connections", s, arrivals{1100, 1000}, s},
		{"many requests", s, arrivals{100, 3000}, s},
		{"the statistics of a listener were removed", s, arrivals{10, 1010}, 0},
		{"no quiet period", 0, arrivals{1100, 3000}, 0},
	} {
		if got := history.quietPeriod(config.Shutdown{Quiet: c.quiet}, arrivalSample{start.Add(10 * s), c.now}); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestArrivalDuringDrainRestartsQuietPeriod(t *testing.T) {
	const s = time.Second
	first := trafficSample{arrivals: arrivals{1, 1}}.withHistory(trafficSample{arrivals: arrivals{1, 1}, quiet: 2 * s}, s, s)
	if first.quiet != 2*s || first.lastArrival != 0 {
		t.Errorf("without an arrival: %+v", first)
	}
	second := trafficSample{arrivals: arrivals{2, 1}}.withHistory(first, 3*s, s)
	if second.quiet != 2*s || second.lastArrival != 3*s {
		t.Errorf("after an arrival: %+v", second)
	}
	unused := trafficSample{arrivals: arrivals{2, 1}}.withHistory(trafficSample{arrivals: arrivals{1, 1}}, 3*s, s)
	if unused.quiet != s || unused.lastArrival != 3*s {
		t.Errorf("after an arrival at a proxy that was not in use: %+v", unused)
	}
}

func TestOwnListenersDoNotDelayShutdown(t *testing.T) {
	testenv.InDir(t, nil)
	stats := map[string]uint64{
		"listener.admin.downstream_cx_active":                            1,
		"listener.0.0.0.0_15021.downstream_cx_active":                    1,
		"listener.[__]_15021.downstream_cx_active":                       1,
		"listener.127.0.0.1_15090.downstream_cx_active":                  1,
		"listener.envoy_internal_connect_originate.downstream_cx_active": 1,
		"listener.0.0.0.0_8080.worker_0.downstream_cx_active":            1,
		"http.admin.downstream_rq_active":                                1,
		"http.agent.downstream_rq_active":                                1,
		"http.stats.downstream_rq_active":                                1,
		"listener.0.0.0.0_8080.downstream_cx_active":                     20,
		"listener.[__]_15006.downstream_cx_active":                       3,
		"http.inbound_0.0.0.0_8080;.downstream_rq_active":                2,
		"http.inbound_0.0.0.0_8080;.downstream_cx_tx_bytes_buffered":     7,
		"tcp.inbound|9000||.downstream_cx_tx_bytes_buffered":             5,

		"listener.0.0.0.0_15021.downstream_cx_total":         100,
		"listener.0.0.0.0_8080.worker_0.downstream_cx_total": 100,
		"http.agent.downstream_rq_total":                     100,
		"http.stats.downstream_rq_total":                     100,
		"listener.0.0.0.0_8080.downstream_cx_total":          40,
		"http.inbound_0.0.0.0_8080;.downstream_rq_total":     50,
	}
	own := ownStatsPattern(resolve(t, env()))
	got, err := sumTraffic(stats, own)
	if want := (activeTraffic{connections: 23, requests: 2, bufferedHTTP: 7, bufferedTCP: 5}); err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	arrived, err := sumArrivals(stats, own)
	if want := (arrivals{40, 50}); err != nil || arrived != want {
		t.Errorf("%+v, %v; want %+v", arrived, err, want)
	}
	without := map[string]uint64{"http.x.downstream_rq_active": 0, "http.x.downstream_rq_total": 0}
	if _, err := sumTraffic(without, own); err == nil {
		t.Error("statistics without listeners count as an idle proxy")
	}
	if _, err := sumArrivals(without, own); err == nil {
		t.Error("statistics without listeners count as a proxy that nothing has arrived at")
	}
}
