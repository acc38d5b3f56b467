//go:build linux

package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/sts"
)

const (
	exchangeRequests = 2000 // number of requests to each server in a round
	exchangeTime     = 10 * time.Second
)

// exchange measures the latency of a token exchange whose result is cached. For comparison, it measures a server that
// returns the same response without processing. One client sends the requests alternately on persistent connections.
func (b *bench) exchange(ctx context.Context) error {
	server, err := sts.New(sts.Config{Address: "127.0.0.1:0", Exchanger: fakeExchange{}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	plain, stop, err := answerAnything()
	if err != nil {
		return err
	}
	defer stop()
	form, err := exchangeForm()
	if err != nil {
		return err
	}
	var ours, any, ratios []time.Duration
	for range b.rounds {
		a, err := exchangeTokens("http://"+server.Addr().String()+sts.TokenPath, form)
		if err != nil {
			return err
		}
		o, err := exchangeTokens(plain, form)
		if err != nil {
			return err
		}
		ours, any = append(ours, a...), append(any, o...)
		ratios = append(ratios, time.Duration(1000*float64(median(a))/float64(median(o))))
	}
	fmt.Printf("exchange of a cached token, %d rounds of %d requests\n", b.rounds, exchangeRequests)
	for _, side := range []struct {
		name string
		took []time.Duration
	}{{"token exchange", ours}, {"server that only sends a fixed response", any}} {
		middle := median(side.took)
		fmt.Printf("  %-32s median %6.1f µs, p99 %7.1f µs\n", side.name, micros(middle), micros(side.took[len(side.took)*99/100]))
	}
	fmt.Printf("  x%.2f (median of the rounds' ratios)\n", float64(median(ratios))/1000)
	return nil
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// fakeExchange is an Exchanger that returns a fixed token. The benchmark calls it only once, because the result is cached.
type fakeExchange struct{}

func (fakeExchange) Name() string { return "https://exchange.example/token" }

func (fakeExchange) Exchange(context.Context, sts.Request) (sts.Token, error) {
	return sts.Token{Access: "access-1", IssuedType: sts.AccessTokenType, Type: "Bearer", Expires: time.Now().Add(time.Hour)}, nil
}

func answerAnything() (address string, stop func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{ReadHeaderTimeout: exchangeTime, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"access_token":"access-1","issued_token_type":"`+sts.AccessTokenType+`","token_type":"Bearer","expires_in":3600}`)
	})}
	go func() { _ = server.Serve(listener) }()
	return "http://" + listener.Addr().String(), func() { _ = server.Close() }, nil
}

// exchangeForm returns a request with a workload's token. The token's signature is invalid, because fakeExchange does not
// verify it.
func exchangeForm() (string, error) {
	now := time.Now()
	claims, err := json.Marshal(map[string]any{"iss": "https://issuer.example", "sub": "system:serviceaccount:default:default", "aud": []string{"mesh"},
		"iat": now.Unix(), "exp": now.Add(time.Hour).Unix()})
	if err != nil {
		return "", err
	}
	encode := base64.RawURLEncoding.EncodeToString
	token := encode([]byte(`{"alg":"RS256","kid":"1"}`)) + "." + encode(claims) + "." + encode(slices.Repeat([]byte{'s'}, 256))
	return url.Values{"grant_type": {sts.GrantType}, "subject_token": {token}, "subject_token_type": {sts.JWTType}}.Encode(), nil
}

func exchangeTokens(address, form string) (took []time.Duration, err error) {
	client := &http.Client{Transport: &http.Transport{}, Timeout: exchangeTime}
	defer client.CloseIdleConnections()
	for range exchangeRequests {
		began := time.Now()
		response, err := client.Post(address, "application/x-www-form-urlencoded", strings.NewReader(form))
		if err != nil {
			return nil, err
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err == nil && response.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s %s", address, response.Status, body)
		}
		if err != nil {
			return nil, err
		}
		took = append(took, time.Since(began))
	}
	return took, nil
}
