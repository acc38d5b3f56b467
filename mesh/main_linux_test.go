package mesh

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"

	agentcommand "github.com/pilotfish-mesh/pilotfish/agent/command"
	"github.com/pilotfish-mesh/pilotfish/agent/redirect"
	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
	"github.com/pilotfish-mesh/pilotfish/sts"
)

// The test binary acts as the mesh's processes when its first argument is one of their roles.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		if play, ok := roles[os.Args[1]]; ok {
			play(os.Args[2:])
			os.Exit(0)
		}
		if !strings.HasPrefix(os.Args[1], "-") {
			os.Exit(2) // an unknown role must not run the tests
		}
	}
	goleak.VerifyTestMain(m)
}

var roles = map[string]func(args []string){
	"guard":      playGuard,
	"agent":      playRealAgent,
	"fake-agent": playAgent,
	"app":        playApp,
	"caller":     playCaller,
	"say":        playPrint,
	"up":         playUp,
	"exec":       playExec,
	"dial":       playDial,

	"can-capture": playCanCapture,
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func playGuard(args []string) {
	c := NewGuardCommand()
	c.SetArgs(args)
	fail(c.Execute())
}

// playRealAgent runs the agent as its own binary does, which executes pilotfish-iptables for the redirection.
func playRealAgent(args []string) {
	if len(args) > 0 && args[0] == "iptables" {
		os.Args = args
		os.Exit(redirect.Main(redirect.Process{Env: os.LookupEnv}))
	}
	root := &cobra.Command{Use: "agent", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(agentcommand.Commands()...)
	root.SetArgs(args)
	err := root.Execute()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(agentcommand.ExitCode(err))
}

// playCaller is an application that returns its client's identity, and calls other services on request.
func playCaller([]string) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /who", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, os.Getenv("PILOTFISH_NAME"), " was called by ", r.Header.Get("X-Forwarded-Client-Cert"))
	})
	mux.HandleFunc("GET /call/{host}", func(w http.ResponseWriter, r *http.Request) {
		res, err := http.Get("http://" + r.PathValue("host") + "/who") // through HTTP_PROXY, which is the address of the sidecar
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer res.Body.Close()
		w.WriteHeader(res.StatusCode)
		_, _ = io.Copy(w, res.Body)
	})
	mux.HandleFunc("GET /dial/{host}", func(w http.ResponseWriter, r *http.Request) {
		callByDNS(w, r.PathValue("host"))
	})
	mux.HandleFunc("GET /token", exchangeToken)
	mux.HandleFunc("GET /tcp/{address}", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, callTCP(r.PathValue("address")))
	})
	if port := os.Getenv("PORT_TCP"); port != "" {
		go func() { fail(greetTCP(port)) }()
	}
	if port := os.Getenv("PORT_UDP"); port != "" {
		go func() { fail(greetUDP(port)) }()
	}
	l, err := listenAt(os.Getenv("PORT"))
	fail(err)
	fail(http.Serve(l, mux))
}

// listenAt listens at the application's address; "::%only" listens on all IPv6 addresses and no IPv4 address.
func listenAt(port string) (net.Listener, error) {
	host, only := strings.CutSuffix(os.Getenv("PILOTFISH_APP_ADDRESS"), "%only")
	if only {
		return net.Listen("tcp6", net.JoinHostPort(host, port))
	}
	return net.Listen("tcp", net.JoinHostPort(host, port))
}

// greetUDP answers each packet with its own name and the client's address.
func greetUDP(port string) error {
	socket, err := net.ListenPacket("udp", ":"+port)
	if err != nil {
		return err
	}
	for {
		_, from, err := socket.ReadFrom(make([]byte, 100))
		if err != nil {
			return err
		}
		answer := fmt.Sprintf("%s was called from %s", os.Getenv("PILOTFISH_NAME"), from.(*net.UDPAddr).IP)
		if _, err := socket.WriteTo([]byte(answer), from); err != nil {
			return err
		}
	}
}

// greetTCP writes its own name and the client's address on each connection.
func greetTCP(port string) error {
	l, err := listenAt(port)
	if err != nil {
		return err
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		fmt.Fprintf(conn, "%s was called from %s", os.Getenv("PILOTFISH_NAME"), conn.RemoteAddr().(*net.TCPAddr).IP)
		_ = conn.Close()
	}
}

func callTCP(address string) string {
	conn, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	answer, err := io.ReadAll(conn)
	if err != nil {
		return err.Error()
	}
	return string(answer)
}

// callByDNS calls without a proxy, at the address that the sidecar's agent returns for the name.
func callByDNS(w http.ResponseWriter, host string) {
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, os.Getenv("PILOTFISH_DNS_ADDRESS"))
	}}
	dialer := net.Dialer{Resolver: &resolver}
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}}
	res, err := client.Get("http://" + host + "/who")
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer res.Body.Close()
	w.WriteHeader(res.StatusCode)
	_, _ = io.Copy(w, res.Body)
}

// exchangeToken exchanges a token for the audience in the request. It uses the variables in the application's
// environment, as applications do.
func exchangeToken(w http.ResponseWriter, r *http.Request) {
	own, err := os.ReadFile(os.Getenv("PILOTFISH_TOKEN_FILE"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	direct := http.Client{Transport: &http.Transport{}} // the sidecar's token exchange is not reached through HTTP_PROXY
	res, err := direct.PostForm(os.Getenv("PILOTFISH_TOKEN_URL"), url.Values{
		"grant_type": {sts.GrantType}, "subject_token": {string(own)}, "subject_token_type": {sts.JWTType},
		"audience": {r.FormValue("audience")},
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer res.Body.Close()
	w.WriteHeader(res.StatusCode)
	_, _ = io.Copy(w, res.Body)
}

// playAgent is an agent without an Envoy. Its status port responds like the real one.
func playAgent(args []string) {
	if len(args) > 0 && args[0] == "iptables" {
		return
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz/ready", func(w http.ResponseWriter, _ *http.Request) {
		if _, err := os.Stat("unready"); err == nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, `{"ready":false,"reasons":[{"part":"envoy","ready":false,"reason":"no listeners yet"},{"part":"xds","ready":true}]}`)
			return
		}
		fmt.Fprint(w, `{"ready":true}`)
	})
	mux.HandleFunc("POST /quitquitquit", func(http.ResponseWriter, *http.Request) { os.Exit(0) })
	_ = os.Remove(controlSocketPath) // a killed agent may have left the socket
	control, err := net.Listen("unix", controlSocketPath)
	fail(err)
	go func() { fail(http.Serve(control, mux)) }()
	fail(http.ListenAndServe(net.JoinHostPort(os.Getenv("PROXY_BIND_ADDRESS"), "15020"), mux))
}

// playApp is an application that listens. Its arguments select additional actions.
func playApp(args []string) {
	for _, arg := range args {
		switch name, value, _ := strings.Cut(arg, "="); name {
		case "ignore-term":
			signal.Ignore(syscall.SIGTERM)
		case "child": // a process that outlives its parent
			child := exec.Command("sleep", value)
			fail(child.Start())
		case "runaway": // the same in its own session, so that killing the process group does not reach it
			child := exec.Command("sleep", value)
			child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			fail(child.Start())
		case "exit-while": // exits while the file exists
			if _, err := os.Stat(value); err == nil {
				fmt.Println("not yet")
				os.Exit(4)
			}
		}
	}
	fmt.Println("listening, my name is", os.Getenv("PILOTFISH_NAME"))
	fail(http.ListenAndServe(net.JoinHostPort(os.Getenv("PILOTFISH_APP_ADDRESS"), os.Getenv("PORT")), http.NotFoundHandler()))
}

// playPrint prints its other arguments as lines, and exits with the status in the first one.
func playPrint(args []string) {
	code, _ := strconv.Atoi(args[0])
	for _, line := range args[1:] {
		fmt.Println(line)
	}
	os.Exit(code)
}

// testTopology returns a topology file with this spec, in its own directory.
func testTopology(t *testing.T, spec string) *topology.Topology {
	t.Helper()
	return writeTopology(t, t.TempDir(), spec)
}

func writeTopology(t *testing.T, dir, spec string) *topology.Topology {
	t.Helper()
	file := filepath.Join(dir, "mesh.yaml")
	name := "t" + strconv.FormatInt(time.Now().UnixNano()%1_000_000_000, 36)
	head := "apiVersion: pilotfish.dev/v1alpha1\nkind: Mesh\nmetadata: {name: " + name + "}\nspec:\n"
	if err := os.WriteFile(file, []byte(head+spec), 0o600); err != nil {
		t.Fatal(err)
	}
	top, err := topology.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	return top
}

// shortDir returns a directory whose path is short enough for sockets.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "pf")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "run")
}
