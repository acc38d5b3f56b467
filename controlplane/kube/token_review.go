package kube

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/client-go/rest"

	"github.com/pilotfish-mesh/pilotfish/controlplane/ca"
)

const (
	// reviewLifetime is how long the result of a TokenReview is used.
	reviewLifetime = 5 * time.Second
	// reviewRate is the maximum number of TokenReviews per second. A token waits at most maxReviewWait for its turn.
	reviewRate    = 50
	maxReviewWait = time.Second
	reviewTimeout = 8 * time.Second
	// maxReviews is the maximum number of cached results.
	maxReviews = 4096

	accountPrefix = "system:serviceaccount:"
	podNameExtra  = "authentication.kubernetes.io/pod-name"
)

// tokenReviews verifies tokens by TokenReviews of the API server. It caches results and limits the requests. It is safe
// for concurrent use.
type tokenReviews struct {
	post      func(ctx context.Context, review *authenticationv1.TokenReview) error
	audiences []string
	now       func() time.Time
	limit     *rate.Limiter
	pending   singleflight.Group

	mu      sync.Mutex
	results map[[sha256.Size]byte]reviewResult
}

type reviewResult struct {
	token ca.VerifiedToken
	err   error
	until time.Time
}

func newTokenReviews(client rest.Interface, audiences []string) *tokenReviews {
	return &tokenReviews{
		audiences: audiences, now: time.Now, limit: rate.NewLimiter(reviewRate, reviewRate), results: map[[sha256.Size]byte]reviewResult{},
		post: func(ctx context.Context, review *authenticationv1.TokenReview) error {
			return client.Post().Resource("tokenreviews").Body(review).Do(ctx).Into(review)
		},
	}
}

// verify returns the service account that token proves. Concurrent calls with the same token share one request.
func (r *tokenReviews) verify(ctx context.Context, token string) (ca.VerifiedToken, error) {
	key := sha256.Sum256([]byte(token))
	if cached, ok := r.cached(key); ok {
		return cached.token, cached.err
	}
	done := r.pending.DoChan(string(key[:]), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.Background(), reviewTimeout)
		defer cancel()
		verified, err := r.review(ctx, token)
		if !errors.Is(err, ca.ErrUnavailable) {
			r.store(key, reviewResult{token: verified, err: err, until: r.now().Add(reviewLifetime)})
		}
		return verified, err
	})
	select {
	case result := <-done:
		return result.Val.(ca.VerifiedToken), result.Err
	case <-ctx.Done():
		return ca.VerifiedToken{}, fmt.Errorf("%w: %w", ca.ErrUnavailable, ctx.Err())
	}
}

func (r *tokenReviews) cached(key [sha256.Size]byte) (reviewResult, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	result, ok := r.results[key]
	return result, ok && r.now().Before(result.until)
}

func (r *tokenReviews) store(key [sha256.Size]byte, result reviewResult) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.results) >= maxReviews {
		for old, cached := range r.results {
			if !r.now().Before(cached.until) {
				delete(r.results, old)
			}
		}
	}
	if len(r.results) < maxReviews {
		r.results[key] = result
	}
}

// review sends a TokenReview.
func (r *tokenReviews) review(ctx context.Context, token string) (ca.VerifiedToken, error) {
	waiting, cancel := context.WithTimeout(ctx, maxReviewWait)
	defer cancel()
	if err := r.limit.Wait(waiting); err != nil {
		return ca.VerifiedToken{}, fmt.Errorf("%w: too many tokens need a TokenReview of the API server", ca.ErrUnavailable)
	}
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: r.audiences}}
	if err := r.post(ctx, review); err != nil {
		return ca.VerifiedToken{}, fmt.Errorf("%w: the TokenReview of the API server failed: %w", ca.ErrUnavailable, err)
	}
	return readReview(review.Status, r.audiences)
}

// readReview returns the service account in the status of a TokenReview.
func readReview(status authenticationv1.TokenReviewStatus, audiences []string) (ca.VerifiedToken, error) {
	if !status.Authenticated {
		if status.Error == "" {
			status.Error = "it is not authenticated"
		}
		return ca.VerifiedToken{}, fmt.Errorf("the API server refuses the token: %.300s", status.Error)
	}
	// An authenticator of the API server that does not know audiences returns none.
	if !slices.ContainsFunc(status.Audiences, func(audience string) bool { return slices.Contains(audiences, audience) }) {
		return ca.VerifiedToken{}, fmt.Errorf("the API server accepts the token for the audiences %s, not for %q", quoteList(status.Audiences), audiences)
	}
	names, ok := strings.CutPrefix(status.User.Username, accountPrefix)
	namespace, account, both := strings.Cut(names, ":")
	if !ok || !both || !slices.Contains(status.User.Groups, "system:serviceaccounts") {
		return ca.VerifiedToken{}, fmt.Errorf("the token proves the user %.300q, not a service account", status.User.Username)
	}
	proof := "token, by TokenReview"
	if pod := status.User.Extra[podNameExtra]; len(pod) > 0 {
		proof = "token of pod " + namespace + "/" + pod[0] + ", by TokenReview"
	}
	return ca.VerifiedToken{Namespace: namespace, ServiceAccount: account, Proof: proof}, nil
}
