package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/internal/dial"
	"github.com/pilotfish-mesh/pilotfish/internal/usage"
	"github.com/pilotfish-mesh/pilotfish/version"
)

// serveHTTP serves h on an address until the test ends, and returns the address.
func serveHTTP(t *testing.T, address string, h http.HandlerFunc) string {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: h}}
	s.Start()
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return l.Addr().String()
}

// execute runs a command in this process, and returns its output and exit code.
func execute(c *cobra.Command, args ...string) (stdout string, code int, err error) {
	var out bytes.Buffer
	root := &cobra.Command{Use: "pilotfish-agent", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(c)
	usage.Install(root)
	root.SetOut(&out)
	root.SetErr(io.Discard)
	root.SetArgs(append([]string{c.Name()}, args...))
	err = root.Execute()
	return out.String(), ExitCode(err), err
}

func TestWaitMatchesIstio(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	address := serveHTTP(t, "127.0.0.1:0", func(w http.ResponseWriter, r *http.Request) {
		switch path := r.URL.Path; {
		case path == "/healthz/ready", path == "/third" && asked.Add(1) >= 3:
		case path == "/hang":
			select {
			case <-hang:
			case <-r.Context().Done():
			}
		case path == "/204":
			w.WriteHeader(http.StatusNoContent)
		case path == "/endless":
			w.WriteHeader(http.StatusServiceUnavailable)
			for _, err := w.Write(bytes.Repeat([]byte("x"), 1<<16)); err == nil; _, err = w.Write(bytes.Repeat([]byte("x"), 1<<16)) {
			}
		default:
			http.Error(w, "envoy: no listeners yet", http.StatusServiceUnavailable)
		}
	})
	url := "--url=http://" + address
	quick := func(args ...string) []string {
		return append([]string{"--timeoutSeconds=1", "--requestTimeoutMillis=5000", "--periodMillis=10"}, args...)
	}
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"ready":             {[]string{url + "/healthz/ready"}, 0, ""},
		"ready later":       {[]string{url + "/third", "--periodMillis=1"}, 0, ""},
		"not ready in time": {quick(url + "/no"), 255, "no listeners yet"},
		"not exactly 200":   {quick(url + "/204"), 255, "204"},
		"no answer":         {quick(url + "/hang"), 255, "not ready after 1s"},
		"endless answer":    {quick(url + "/endless"), 255, "503"},
		"no listener":       {quick("--url=http://127.107.31.2:15021/"), 255, "connection refused"},
		"no period":         {quick(url+"/no", "--periodMillis=0"), 255, "no listeners yet"},
		"wrong URL":         {[]string{"--url=http://[::1"}, 2, "--url"},
		"no URL":            {[]string{"--url=notaurl"}, 2, "notaurl"},
		"no host":           {[]string{"--url=http://:15021/"}, 2, "write it as"},
		"other scheme":      {[]string{"--url=ftp://localhost/x"}, 2, "write it as"},
		"argument":          {[]string{"now"}, 2, "--help"},
		"negative time":     {quick(url+"/no", "--timeoutSeconds=-1"), 2, "timeoutSeconds"},
		"endless time":      {quick(url+"/no", "--timeoutSeconds=10000000000"), 2, "timeoutSeconds"},
		"negative request":  {quick(url+"/no", "--requestTimeoutMillis=-1"), 2, "requestTimeoutMillis"},
		"negative period":   {quick(url+"/no", "--periodMillis=-1"), 2, "periodMillis"},
		"global flags":      {[]string{url + "/healthz/ready", "--log_output_level=default:info", "--log_as_json", "--vklog=1", "--log_caller=all", "--log_stacktrace_level=none", "--log_target=stdout"}, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, code, err := execute(newWaitCommand(), c.args...)
			if code != c.code || out != "" {
				t.Errorf("code %d, want %d; output %q, error %v", code, c.code, out, err)
			}
			if c.want != "" && !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %q, want one that contains %q", err, c.want)
			}
			if err != nil && len(err.Error()) > 5000 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		})
	}
}

func TestWaitDefaultsMatchIstio(t *testing.T) {
	t.Setenv("PROXY_BIND_ADDRESS", "127.107.31.1")
	w := newWaitCommand().Flags()
	for flag, want := range map[string]string{
		"timeoutSeconds": "60", "requestTimeoutMillis": "500", "periodMillis": "500", "url": "http://127.107.31.1:15021/healthz/ready",
	} {
		if f := w.Lookup(flag); f == nil || f.DefValue != want {
			t.Errorf("--%s: %+v, want %s", flag, f, want)
		}
	}
	t.Setenv("PROXY_BIND_ADDRESS", "")
	if got, want := newWaitCommand().Flags().Lookup("url").DefValue, "http://localhost:15021/healthz/ready"; got != want {
		t.Errorf("--url is %s, want %s", got, want)
	}
}

func TestLocalhostIsEitherLoopbackAddress(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		_, port, err := net.SplitHostPort(serveHTTP(t, address, func(http.ResponseWriter, *http.Request) {}))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := execute(newWaitCommand(), "--url=http://localhost:"+port+"/healthz/ready"); err != nil {
			t.Errorf("wait at %s: %v", address, err)
		}
		if err := request(t.Context(), dial.LocalhostClient(requestTimeout), io.Discard, http.MethodGet, "http://localhost:"+port+"/", ""); err != nil {
			t.Errorf("request at %s: %v", address, err)
		}
	}
}

func TestRequestCommandMatchesIstio(t *testing.T) {
	t.Setenv("PROXY_BIND_ADDRESS", "127.107.32.1")
	answer := func(port int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			var code int
			if _, err := fmt.Sscanf(r.URL.Path, "/status/%d", &code); err == nil {
				w.WriteHeader(code)
			}
			fmt.Fprintf(w, "%d %s %s %s", port, r.Method, r.URL.RequestURI(), body)
		}
	}
	t.Setenv("PROXY_CONFIG", "{statusPort: 16020}")
	for _, port := range []int{15000, 15020, 15021, 16020} {
		serveHTTP(t, fmt.Sprintf("127.107.32.1:%d", port), answer(port))
	}
	for name, c := range map[string]struct {
		args []string
		code int
		want string // expected output, or a part of the expected error
	}{
		"admin":              {[]string{"GET", "config_dump"}, 0, "15000 GET /config_dump "},
		"with a slash":       {[]string{"GET", "/clusters?format=json"}, 0, "15000 GET /clusters?format=json "},
		"status port":        {[]string{"--debug-port=15020", "POST", "drain"}, 0, "15020 POST /drain "},
		"behind the words":   {[]string{"POST", "drain", "--debug-port", "15020"}, 0, "15020 POST /drain "},
		"readiness port":     {[]string{"GET", "healthz/ready", "--debug-port=15021"}, 0, "15021 GET /healthz/ready "},
		"body":               {[]string{"POST", "logging", "level=debug"}, 0, "15000 POST /logging level=debug"},
		"small letters":      {[]string{"get", "stats"}, 0, "15000 GET /stats "},
		"404":                {[]string{"GET", "status/404"}, 0, "15000 GET /status/404 "},
		"399":                {[]string{"GET", "status/399"}, 0, "15000 GET /status/399 "},
		"400":                {[]string{"GET", "status/400"}, 1, "400 Bad Request: 15000 GET /status/400"},
		"503":                {[]string{"GET", "status/503"}, 1, "503"},
		"port that has none": {[]string{"--debug-port=15004", "GET", "x"}, 1, "connection refused"},
		"another port":       {[]string{"--debug-port=15001", "GET", "x"}, 2, "15001 is not a port of the proxy"},
		"too few words":      {[]string{"GET"}, 2, "--help"},
		"further words":      {[]string{"GET", "x", "y", "z"}, 0, "15000 GET /x y"},
		"own status port":    {[]string{"--debug-port=16020", "POST", "drain"}, 0, "16020 POST /drain "},
		"wrong method":       {[]string{"G T", "x"}, 2, "invalid method"},
	} {
		t.Run(name, func(t *testing.T) {
			out, code, err := execute(newRequestCommand(), c.args...)
			if code != c.code {
				t.Errorf("code %d, want %d: %v", code, c.code, err)
			}
			if err == nil && out != c.want {
				t.Errorf("output %q, want %q", out, c.want)
			}
			if err != nil && (out != "" || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("output %q, error %v, want one that contains %q", out, err, c.want)
			}
		})
	}
}

// Istio's tools parse the response, so that only the secrets in it may change.
func TestRequestCommandRedactsNodeMetadata(t *testing.T) {
	t.Setenv("PROXY_BIND_ADDRESS", "127.107.32.2")
	const page = "{\n \"node\": {\n  \"metadata\": {\n   \"DB_PASSWORD\": \"%s\"\n  }\n },\n \"token_bucket\": {\"fill_interval\": \"1s\"}\n}\n"
	serveHTTP(t, "127.107.32.2:15000", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, page, "confidential")
	})
	for _, path := range []string{"config_dump", "server_info"} {
		if out, code, err := execute(newRequestCommand(), "GET", path); code != 0 || out != fmt.Sprintf(page, "[redacted]") {
			t.Errorf("%s: code %d, %v:\n%s", path, code, err, out)
		}
	}
}

func TestVersionFormats(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"":        version.String() + "\n",
		"-s":      version.Version + "\n",
		"--short": version.Version + "\n",
		"-o json": "\"version\": \"" + version.Version + "\"\n  }\n}\n",
		"-o yaml": "\n    version: " + version.Version + "\n",
	} {
		if out, code, err := execute(newVersionCommand(), strings.Fields(args)...); code != 0 || err != nil || !strings.HasSuffix(out, want) {
			t.Errorf("version %s: code %d, %v, %q", args, code, err, out)
		}
	}
	var info struct {
		ClientVersion map[string]string `json:"clientVersion"`
	}
	out, _, err := execute(newVersionCommand(), "-o", "json")
	if err := errors.Join(err, json.Unmarshal([]byte(out), &info)); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"version", "revision", "golang_version", "status", "tag"} { // of Istio's agent
		if info.ClientVersion[key] == "" {
			t.Errorf("-o json has no %s: %s", key, out)
		}
	}
	if out, code, err := execute(newVersionCommand(), "-o", "xml"); code != 2 || out != "" || !strings.Contains(err.Error(), "json or yaml") {
		t.Errorf("version in an unknown format: code %d, %v, %q", code, err, out)
	}
}
