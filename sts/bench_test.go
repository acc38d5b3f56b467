package sts

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// BenchmarkCachedToken requests a cached token over HTTP, on a reused connection.
func BenchmarkCachedToken(b *testing.B) {
	clock := newClock()
	s, err := New(Config{Address: "127.0.0.1:0", Exchanger: returning(clock, time.Hour), Check: workloadCheck, Now: clock.Now})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	postAgain(b, "http://"+s.Addr().String()+TokenPath)
}

// BenchmarkAnyAnswer requests a fixed response of the same size from a plain server, for comparison.
func BenchmarkAnyAnswer(b *testing.B) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		writeJSON(w, http.StatusOK, answer{AccessToken: "access-1", IssuedTokenType: AccessTokenType, TokenType: "Bearer", ExpiresIn: 3600})
	}))
	defer server.Close()
	postAgain(b, server.URL)
}

func postAgain(b *testing.B, address string) {
	body := form(b)
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	b.ReportAllocs()
	for b.Loop() {
		response, err := client.Post(address, formType, strings.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
		if response.StatusCode != http.StatusOK {
			b.Fatal(response.Status)
		}
	}
}

// BenchmarkCachedTokenInProcess requests a cached token by a function call.
func BenchmarkCachedTokenInProcess(b *testing.B) {
	clock := newClock()
	s, err := New(Config{Address: "127.0.0.1:0", Exchanger: returning(clock, time.Hour), Check: workloadCheck, Now: clock.Now})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	request := Request{Subject: Secret(workloadToken(b)), SubjectType: JWTType}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Token(context.Background(), request); err != nil {
			b.Fatal(err)
		}
	}
}
