package xdsproxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	httpwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy/wire"
)

const secretType = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"

func packAny(t testing.TB, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func newInlineString(text string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: []byte(text)}}
}

// marker is part of all secrets of newSecretResources, and must not be displayed.
const marker = "very-hidden"

// newSecretResources returns resources with secrets in all fields that may contain one.
func newSecretResources(t testing.TB) []*anypb.Any {
	key := "-----BEGIN PRIVATE KEY-----\n" + marker + "\n-----END PRIVATE KEY-----\n"
	tls := &tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
		TlsCertificates: []*tlsv3.TlsCertificate{{CertificateChain: newInlineString("chain"), PrivateKey: newInlineString(marker)}},
	}}
	metadata, err := structpb.NewStruct(map[string]any{"db_password": marker, "team": "books", "note": key, "url": "https://me:" + marker + "@example.com"})
	if err != nil {
		t.Fatal(err)
	}
	return []*anypb.Any{
		packAny(t, &tlsv3.Secret{Name: "kubernetes://pair", Type: &tlsv3.Secret_TlsCertificate{
			TlsCertificate: &tlsv3.TlsCertificate{CertificateChain: newInlineString("chain"), PrivateKey: newInlineString(marker), Password: newInlineString(marker)}}}),
		packAny(t, &tlsv3.Secret{Name: "kubernetes://generic", Type: &tlsv3.Secret_GenericSecret{
			GenericSecret: &tlsv3.GenericSecret{Secret: newInlineString(marker)}}}),
		packAny(t, &tlsv3.Secret{Name: "tickets", Type: &tlsv3.Secret_SessionTicketKeys{
			SessionTicketKeys: &tlsv3.TlsSessionTicketKeys{Keys: []*corev3.DataSource{newInlineString(marker)}}}}),
		packAny(t, &clusterv3.Cluster{
			Name:            "books",
			TransportSocket: &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: packAny(t, tls)}},
			Metadata:        &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"mine": metadata}},
			TypedExtensionProtocolOptions: map[string]*anypb.Any{
				"unknown": {TypeUrl: "type.googleapis.com/unknown.Type", Value: []byte("plain")},
				"keyed":   {TypeUrl: "type.googleapis.com/unknown.Type", Value: []byte(key)},
				"broken":  {TypeUrl: secretType, Value: []byte{0xff, 0xff}},
			},
		}),
		{TypeUrl: "type.googleapis.com/unknown.Type", Value: []byte("whole")},
		{TypeUrl: "type.googleapis.com/unknown.Type", Value: []byte(key)},
		{TypeUrl: "type.googleapis.com/envoy.extensions.filters.http.api_key_auth.v3.ApiKeyAuth", Value: []byte(marker)},
		packAny(t, &corev3.TypedExtensionConfig{Name: "wasm", TypedConfig: packAny(t, newPlugin(t))}),
	}
}

// newPlugin returns a Wasm filter with secrets in the fields that Istio's control plane sets.
func newPlugin(t testing.TB) *httpwasmv3.Wasm {
	return &httpwasmv3.Wasm{Config: &wasmv3.PluginConfig{
		Configuration: packAny(t, wrapperspb.String(`{"basic_auth_rules": [{"credentials": ["`+marker+`"]}]}`)),
		Vm: &wasmv3.PluginConfig_VmConfig{VmConfig: &wasmv3.VmConfig{
			Code: &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Remote{Remote: &corev3.RemoteDataSource{
				HttpUri: &corev3.HttpUri{Uri: "https://example.com/m.wasm?X-Amz-Signature=" + marker},
			}}},
			EnvironmentVariables: &wasmv3.EnvironmentVariables{KeyValues: map[string]string{"ISTIO_META_WASM_IMAGE_PULL_SECRET": marker}},
		}},
	}}
}

// tapContents returns the lines of a tap for one response.
func tapContents(t testing.TB, o TapOptions, v wire.Variant, typeURL string, resources []*anypb.Any) (lines []TapLine, text string) {
	t.Helper()
	var m proto.Message = &discoveryv3.DiscoveryResponse{TypeUrl: typeURL, VersionInfo: "v", Nonce: "n", Resources: resources}
	if v == wire.Delta {
		d := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL, Nonce: "n"}
		for i, r := range resources {
			d.Resources = append(d.Resources, &discoveryv3.Resource{Name: fmt.Sprint("r", i), Version: "1", Resource: r})
		}
		m = d
	}
	f, err := marshalFrame(m)
	if err != nil {
		t.Fatal(err)
	}
	err = o.emitMessage(tapMessage{from: controlPlaneSide, to: envoySide, proto: v, message: f}, 0, func(l TapLine) error {
		one, err := json.Marshal(l)
		lines, text = append(lines, l), text+string(one)+"\n"
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines, text
}

func TestTapRedactsSecrets(t *testing.T) {
	for _, v := range []wire.Variant{wire.SotW, wire.Delta} {
		resources := newSecretResources(t)
		lines, text := tapContents(t, TapOptions{Contents: true}, v, secretType, resources)
		if strings.Contains(text, marker) || strings.Contains(text, "dmVyeS1oaWRkZW4") /* in base64 */ {
			t.Errorf("%s: the tap shows a secret:\n%s", v, text)
		}
		for _, want := range []string{"kubernetes://pair", "Y2hhaW4=" /* the chain */, `"team":"books"`, "cGxhaW4=", "d2hvbGU=", `"size":5`, "it may contain a secret"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: %s is missing:\n%s", v, want, text)
			}
		}
		if len(lines) != 1+len(resources) || lines[0].Resources != len(resources) {
			t.Errorf("%s: %d lines", v, len(lines))
		}
	}
}

func TestTapSelectsByTypeAndName(t *testing.T) {
	resources := []*anypb.Any{packAny(t, &clusterv3.Cluster{Name: "books"}), packAny(t, &clusterv3.Cluster{Name: "ratings"})}
	for _, c := range []struct {
		options TapOptions
		lines   int
	}{
		{TapOptions{}, 1},
		{TapOptions{Contents: true}, 3},
		{TapOptions{Types: []string{"cds"}}, 1},
		{TapOptions{Types: []string{"lds", "cluster"}}, 1},
		{TapOptions{Types: []string{"envoy.config.cluster.v3.Cluster"}}, 1},
		{TapOptions{Types: []string{clusterType}}, 1},
		{TapOptions{Types: []string{"eds"}}, 0},
		{TapOptions{Name: "book"}, 2},
		{TapOptions{Name: "missing"}, 0},
	} {
		if lines, text := tapContents(t, c.options, wire.SotW, clusterType, resources); len(lines) != c.lines {
			t.Errorf("%+v: %d lines, want %d:\n%s", c.options, len(lines), c.lines, text)
		}
	}
}

// startTap opens a tap until the test ends. The returned function returns its lines.
func startTap(t *testing.T, relay *Relay, o TapOptions) func() []TapLine {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	var lines []TapLine
	done := make(chan error, 1)
	tap, err := relay.OpenTap(o)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		done <- tap.Follow(ctx, func(l TapLine) error {
			mu.Lock()
			defer mu.Unlock()
			lines = append(lines, l)
			return nil
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the tap ended: %v", err)
		}
	})
	return func() []TapLine {
		mu.Lock()
		defer mu.Unlock()
		return append([]TapLine(nil), lines...)
	}
}

func TestTapShowsBothDirectionsOfAStream(t *testing.T) {
	address, _ := newAnsweringControlPlane([]byte("\n\x05books")).listen(t, "127.0.0.1:0", nil)
	relay := start(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}})
	lines := startTap(t, relay, TapOptions{Types: []string{"cds"}, Contents: true})
	stream := sotwStream(t, relay)
	send(t, stream, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL})
	r := receive(t, stream)
	send(t, stream, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL, VersionInfo: r.VersionInfo, ResponseNonce: r.Nonce})
	testenv.Eventually(t, "the tap shows the whole exchange", func() error {
		var seen []string
		for _, l := range lines() {
			seen = append(seen, strings.TrimSpace(l.Kind+" from "+l.From+" "+l.Name))
		}
		if want := []string{"request from envoy", "response from control plane", "resource from  books", "ack from envoy"}; !containsInOrder(seen, want) {
			return fmt.Errorf("%q", seen)
		}
		return nil
	})
}

func TestSlowTapDoesNotBlockRelay(t *testing.T) {
	big := []byte("\n\x05books" + strings.Repeat("x", 4<<20))
	address, _ := newAnsweringControlPlane(big).listen(t, "127.0.0.1:0", nil)
	relay := start(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}})
	ctx, cancel := context.WithCancel(t.Context())
	stuck, goOn, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	var once sync.Once
	lost := 0
	tap, err := relay.OpenTap(TapOptions{})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		done <- tap.Follow(ctx, func(l TapLine) error {
			once.Do(func() { close(stuck); <-goOn })
			lost += l.Lost
			return nil
		})
	}()
	stream := sotwStream(t, relay)
	send(t, stream, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL})
	<-stuck
	receive(t, stream)
	for range 20 { // five times the queue limit
		send(t, stream, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL})
		receive(t, stream)
	}
	if queued := tap.bytes.Load(); queued > maxQueuedBytes+5<<20 {
		t.Errorf("%d bytes are queued for the tap", queued)
	}
	close(goOn)
	testenv.Eventually(t, "the tap has shown all queued messages", func() error {
		if n := len(tap.queue); n > 0 {
			return fmt.Errorf("%d messages are queued", n)
		}
		return nil
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if lost == 0 {
		t.Error("no line reports the dropped messages")
	}
	if relay.taps.active.Load() {
		t.Error("the tap is still open")
	}
}

func TestTapsAreLimited(t *testing.T) {
	relay, err := New(Config{Socket: "XDS", Upstreams: []string{"127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	for range maxTaps {
		if _, err := relay.OpenTap(TapOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := relay.OpenTap(TapOptions{}); !errors.Is(err, ErrTooManyTaps) {
		t.Errorf("opening a tap beyond the limit: %v", err)
	}
}

func FuzzTap(f *testing.F) {
	response, err := proto.Marshal(&discoveryv3.DiscoveryResponse{TypeUrl: secretType, Resources: newSecretResources(f)})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(response, false, false)
	request, err := proto.Marshal(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResourceNamesSubscribe: []string{"a"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(request, true, true)
	f.Fuzz(func(t *testing.T, data []byte, asRequest, asDelta bool) {
		m := tapMessage{request: asRequest, message: wire.NewMessage(data)}
		if asDelta {
			m.proto = wire.Delta
		}
		for _, o := range []TapOptions{{Contents: true}, {Name: "a"}} {
			_ = o.emitMessage(m, 0, func(l TapLine) error {
				if _, err := json.Marshal(l); err != nil {
					t.Errorf("%+v: %v", l, err)
				}
				return nil
			})
		}
	})
}
