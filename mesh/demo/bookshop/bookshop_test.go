package bookshop

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// shop runs all services, with an HTTP proxy in place of the sidecars. The proxy resolves the plain names of services, and
// adds the client's identity to requests as a sidecar does.
type shop struct {
	services map[string]*Server
	// status overrides the response status of a service.
	status map[string]int
}

func newShop(t *testing.T, reviewsVersion string) *shop {
	t.Helper()
	s := &shop{services: map[string]*Server{}, status: map[string]int{}}
	proxy := httptest.NewServer(s)
	t.Cleanup(proxy.Close)
	address, _ := url.Parse(proxy.URL)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	for _, name := range []string{"page", "details", "reviews", "ratings", "crawler"} {
		version := "v1"
		if name == "reviews" {
			version = reviewsVersion
		}
		server, err := New(Config{Service: name, Version: version, Listen: "127.0.0.1:0", Proxy: address})
		if err != nil {
			t.Fatal(err)
		}
		s.services[name] = server
		go func() { ended <- server.Run(ctx) }()
	}
	t.Cleanup(func() {
		stop()
		for range s.services {
			if err := <-ended; err != nil {
				t.Errorf("stopping a service: %v", err)
			}
		}
	})
	return s
}

func (s *shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimSuffix(r.Host, ":9080")
	if status := s.status[name]; status != 0 {
		http.Error(w, "fault filter abort", status)
		return
	}
	r.Header.Set("X-Forwarded-Client-Cert", "By=spiffe://td/ns/x/sa/"+name+";Hash=00;URI=spiffe://td/ns/x/sa/caller-of-"+name)
	s.services[name].handler.ServeHTTP(w, r)
}

func (s *shop) get(t *testing.T, service, path string, header ...string) (int, string) {
	t.Helper()
	request, err := http.NewRequest(http.MethodGet, "http://"+s.services[service].Addr().String()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

func (s *shop) sendRequest(t *testing.T, service, path string, header ...string) (int, *Answer) {
	t.Helper()
	status, body := s.get(t, service, path, header...)
	var a Answer
	if err := json.Unmarshal([]byte(body), &a); err != nil {
		t.Fatalf("%s%s responded with %d %q: %v", service, path, status, body, err)
	}
	return status, &a
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPageReportsObservationsOfEveryService(t *testing.T) {
	s := newShop(t, "v3")
	status, page := s.sendRequest(t, "page", "/", "X-User", "ada")
	if status != http.StatusOK || page.Book == nil || page.Stars != "red" || len(page.Reviews) != 2 || page.Reviews[0].Stars == 0 {
		t.Fatalf("got %d %+v", status, page)
	}
	reviews := page.Upstream("reviews")
	ratings := reviews.Answer.Upstream("ratings")
	if reviews.Answer.Caller != "spiffe://td/ns/x/sa/caller-of-reviews" || ratings.Answer.Caller != "spiffe://td/ns/x/sa/caller-of-ratings" {
		t.Errorf("callers are %q and %q", reviews.Answer.Caller, ratings.Answer.Caller)
	}
	if ratings.Answer.User != "ada" {
		t.Errorf("the user's header did not reach ratings: %q", ratings.Answer.User)
	}
}

func TestReviewsV1DoesNotCallRatings(t *testing.T) {
	s := newShop(t, "v1")
	_, page := s.sendRequest(t, "page", "/")
	if page.Stars != "" || page.Upstream("reviews").Answer.Upstream("ratings") != nil {
		t.Errorf("got stars: %+v", page)
	}
}

func TestBrowserGetsHTML(t *testing.T) {
	s := newShop(t, "v2")
	status, body := s.get(t, "page", "/", "Accept", "text/html,application/xhtml+xml,*/*;q=0.8", "X-User", "<b>ada</b>")
	for _, part := range []string{"<h1>" + book.Title, "★★★", `class="stars black"`, "caller-of-ratings", "signed in as &lt;b&gt;ada"} {
		if status != http.StatusOK || !strings.Contains(body, part) {
			t.Errorf("no %q in %d %s", part, status, body)
		}
	}
	if _, body := s.get(t, "page", "/?format=json", "Accept", "text/html"); !strings.HasPrefix(body, "{") {
		t.Errorf("?format=json returned %s", body)
	}
}

func TestFailedUpstreamIsShownAndNotFatal(t *testing.T) {
	s := newShop(t, "v2")
	s.status["ratings"] = http.StatusServiceUnavailable
	status, page := s.sendRequest(t, "page", "/")
	call := page.Upstream("reviews").Answer.Upstream("ratings")
	if status != http.StatusOK || call.Status != 503 || call.Error != "fault filter abort" || len(page.Reviews) != 2 {
		t.Errorf("got %d, ratings %+v, %d reviews", status, call, len(page.Reviews))
	}
	for name := range s.services {
		s.status[name] = http.StatusGatewayTimeout
	}
	status, body := s.get(t, "page", "/?format=html")
	if status != http.StatusOK || !strings.Contains(body, "No details: 504") || !strings.Contains(body, "No reviews: 504") {
		t.Errorf("got %d %s", status, body)
	}
}

func TestStrictRequestFailsWithUpstream(t *testing.T) {
	s := newShop(t, "v2")
	s.status["ratings"] = http.StatusServiceUnavailable
	if status, _ := s.sendRequest(t, "reviews", "/reviews/1", "X-Strict", "yes"); status != http.StatusBadGateway {
		t.Errorf("reviews responded with %d", status)
	}
	status, page := s.sendRequest(t, "page", "/", "X-Strict", "yes")
	if status != http.StatusBadGateway || page.Upstream("reviews").Answer.Upstream("ratings").Status != 503 {
		t.Errorf("the page responded with %d: %+v", status, page)
	}
	if _, counters := s.sendRequest(t, "reviews", "/counters"); counters.Counters["upstream ratings 503"] != 2 || counters.Counters["/reviews/{id} 502"] != 2 {
		t.Errorf("counters are %v", counters.Counters)
	}
}

func TestCrawlerReportsAllowedServices(t *testing.T) {
	s := newShop(t, "v1")
	s.status["reviews"] = http.StatusForbidden
	_, visit := s.sendRequest(t, "crawler", "/visit")
	if visit.Upstream("details").Status != 200 || visit.Upstream("reviews").Status != 403 {
		t.Errorf("got %+v", visit.Upstreams)
	}
}

func TestFaultAndDelayPaths(t *testing.T) {
	s := newShop(t, "v1")
	for _, c := range []struct {
		path   string
		status int
	}{
		{"/healthz", 200}, {"/flaky?every=2", 503}, {"/flaky?every=2", 200}, {"/flaky?every=2", 503}, {"/flaky?every=0", 400},
		{"/slow?ms=1", 200}, {"/slow?ms=-1", 400}, {"/slow", 400}, {"/nowhere", 404},
	} {
		if status, body := s.get(t, "ratings", c.path); status != c.status {
			t.Errorf("%s responded with %d %s, want %d", c.path, status, body, c.status)
		}
	}
	if _, echo := s.sendRequest(t, "ratings", "/echo", "X-Anything", "yes"); echo.Method != "GET" || echo.Headers["X-Anything"][0] != "yes" {
		t.Errorf("echo returned %+v", echo)
	}
}

func TestCallerIsReadFromOwnSidecarsHeaderElement(t *testing.T) {
	for header, want := range map[string]string{
		"": "",
		"By=spiffe://td/ns/a/sa/b;Hash=ab;URI=spiffe://td/ns/c/sa/d":          "spiffe://td/ns/c/sa/d",
		`Hash=ab;Subject="CN=x";URI="spiffe://td/ns/c/sa/d"`:                  "spiffe://td/ns/c/sa/d",
		"URI=spiffe://td/ns/forged/sa/king,Hash=ab;URI=spiffe://td/ns/c/sa/d": "spiffe://td/ns/c/sa/d",
		"Hash=ab": "",
	} {
		if got := Caller(http.Header{"X-Forwarded-Client-Cert": {header}}); got != want {
			t.Errorf("Caller(%q) = %q, want %q", header, got, want)
		}
	}
}

func TestUnknownServiceAndPortInUseAreErrors(t *testing.T) {
	if _, err := New(Config{Service: "till", Listen: "127.0.0.1:0"}); err == nil || !strings.Contains(err.Error(), "crawler, details, page") {
		t.Errorf("got %v", err)
	}
	s := newShop(t, "v1")
	if _, err := New(Config{Service: "page", Listen: s.services["page"].Addr().String()}); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("got %v", err)
	}
}
