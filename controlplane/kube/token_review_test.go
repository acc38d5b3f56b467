package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/ca"
)

func acceptedReview(account string) authenticationv1.TokenReviewStatus {
	return authenticationv1.TokenReviewStatus{
		Authenticated: true, Audiences: []string{"istio-ca"},
		User: authenticationv1.UserInfo{Username: "system:serviceaccount:shop:" + account, Groups: []string{"system:serviceaccounts", "system:authenticated"}},
	}
}

func newFakeReviews(clock *fakeClock, post func(string) (authenticationv1.TokenReviewStatus, error)) *tokenReviews {
	r := newTokenReviews(nil, []string{ca.TokenAudience})
	r.now = clock.time
	r.post = func(_ context.Context, review *authenticationv1.TokenReview) (err error) {
		review.Status, err = post(review.Spec.Token)
		return err
	}
	return r
}

func TestReviewResultsAreCachedFor5Seconds(t *testing.T) {
	clock, calls := newFakeClock(), map[string]int{}
	r := newFakeReviews(clock, func(token string) (authenticationv1.TokenReviewStatus, error) {
		calls[token]++
		switch token {
		case "good":
			return acceptedReview("reviews"), nil
		case "later":
			return authenticationv1.TokenReviewStatus{}, errors.New("connection refused")
		}
		return authenticationv1.TokenReviewStatus{Error: "token has been invalidated"}, nil
	})
	verify := func() {
		t.Helper()
		if got, err := r.verify(t.Context(), "good"); err != nil || got.Namespace != "shop" || got.ServiceAccount != "reviews" {
			t.Errorf("good: %+v, %v", got, err)
		}
		if _, err := r.verify(t.Context(), "bad"); err == nil || !strings.Contains(err.Error(), "has been invalidated") || errors.Is(err, ca.ErrUnavailable) {
			t.Errorf("bad: %v", err)
		}
		if _, err := r.verify(t.Context(), "later"); !errors.Is(err, ca.ErrUnavailable) {
			t.Errorf("later: %v", err)
		}
	}
	for range 3 {
		verify()
	}
	if calls["good"] != 1 || calls["bad"] != 1 || calls["later"] != 3 {
		t.Errorf("the requests are %v; want one for each result, and no cached failure", calls)
	}
	clock.advance(reviewLifetime)
	verify()
	if calls["good"] != 2 || calls["bad"] != 2 {
		t.Errorf("after 5 seconds the requests are %v", calls)
	}
}

func TestConcurrentReviewsOfATokenShareOneRequest(t *testing.T) {
	var calls atomic.Int32
	release := make(chan struct{})
	r := newFakeReviews(newFakeClock(), func(string) (authenticationv1.TokenReviewStatus, error) {
		calls.Add(1)
		<-release
		return acceptedReview("reviews"), nil
	})
	var running sync.WaitGroup
	for range 20 {
		running.Go(func() {
			if _, err := r.verify(t.Context(), "token"); err != nil {
				t.Error(err)
			}
		})
	}
	// A client that gives up does not end the request of the others.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.verify(ctx, "token"); !errors.Is(err, ca.ErrUnavailable) {
		t.Errorf("a canceled call: %v", err)
	}
	close(release)
	running.Wait()
	if n := calls.Load(); n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
}

func TestReviewsAreLimitedPerSecond(t *testing.T) {
	var calls atomic.Int32
	r := newFakeReviews(newFakeClock(), func(string) (authenticationv1.TokenReviewStatus, error) {
		calls.Add(1)
		return authenticationv1.TokenReviewStatus{}, nil
	})
	started := time.Now()
	var refused atomic.Int32
	var running sync.WaitGroup
	for i := range 1000 {
		running.Go(func() {
			if _, err := r.verify(t.Context(), fmt.Sprint(i)); errors.Is(err, ca.ErrUnavailable) {
				refused.Add(1)
			}
		})
	}
	running.Wait()
	limit := int32(reviewRate * (1 + time.Since(started).Seconds() + 1))
	if n := calls.Load(); n > limit || n < reviewRate || n+refused.Load() != 1000 {
		t.Errorf("%d requests and %d refusals; want at most %d requests", n, refused.Load(), limit)
	}
}

func TestReviewCacheIsBounded(t *testing.T) {
	clock := newFakeClock()
	r := newFakeReviews(clock, nil)
	for i := range maxReviews + 10 {
		r.store([32]byte{byte(i), byte(i >> 8)}, reviewResult{until: clock.time().Add(time.Second)})
	}
	if len(r.results) != maxReviews {
		t.Errorf("%d cached results, want %d", len(r.results), maxReviews)
	}
	clock.advance(time.Minute)
	r.store([32]byte{1, 2, 3}, reviewResult{until: clock.time().Add(time.Second)})
	if len(r.results) != 1 {
		t.Errorf("%d cached results after the others expired, want 1", len(r.results))
	}
}

func TestReviewsOfOtherUsersAndAudiencesAreRefused(t *testing.T) {
	for reason, change := range map[string]func(*authenticationv1.TokenReviewStatus){
		"not authenticated":    func(s *authenticationv1.TokenReviewStatus) { s.Authenticated = false },
		"for the audiences []": func(s *authenticationv1.TokenReviewStatus) { s.Audiences = nil },
		`audiences ["vault"]`:  func(s *authenticationv1.TokenReviewStatus) { s.Audiences = []string{"vault"} },
		"user \"admin\"":       func(s *authenticationv1.TokenReviewStatus) { s.User.Username = "admin" },
		"not a service":        func(s *authenticationv1.TokenReviewStatus) { s.User.Groups = []string{"system:masters"} },
	} {
		status := acceptedReview("reviews")
		change(&status)
		if got, err := readReview(status, []string{"istio-ca"}); err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: %+v, %v", reason, got, err)
		}
	}
}
