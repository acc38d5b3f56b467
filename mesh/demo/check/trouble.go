package check

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/pilotfish-mesh/pilotfish/mesh/demo/bookshop"
)

// What config/ratings.yaml and config/reviews.yaml say about requests that carry x-trouble.
const (
	flakyPart     = 0.25
	slowDelay     = 2 * time.Second
	reviewsBudget = 400 * time.Millisecond
)

// injectedFault sees that calls of reviews to ratings are aborted for those who ask for it, and for nobody else.
func injectedFault(ctx context.Context, t *Target) (string, error) {
	const n = 20
	count := func(trouble string) (map[int]int, error) {
		statuses := map[int]int{}
		for _, r := range t.outside().many(ctx, n, 4, t.Gateway+"/", headers{"x-user": "ada", "x-trouble": trouble}) {
			ratings := ratingsCall(r.Answer)
			if ratings == nil {
				return nil, fmt.Errorf("a page without a call of reviews to ratings: %s", r)
			}
			statuses[ratings.Status]++
		}
		return statuses, nil
	}
	aborted, err := count("abort")
	if err != nil {
		return "", err
	}
	spared, err := count("none")
	if err != nil {
		return "", err
	}
	evidence := fmt.Sprintf("x-trouble: abort → ratings answered reviews 503 %d of %d times; without it 200 %d of %d times",
		aborted[503], n, spared[200], n)
	if aborted[503] != n || spared[200] != n {
		return "", fmt.Errorf("%s", evidence)
	}
	return evidence, nil
}

func ratingsCall(page *bookshop.Answer) *bookshop.Call {
	reviews := page.Upstream("reviews")
	if reviews == nil {
		return nil
	}
	return reviews.Answer.Upstream("ratings")
}

// retryHidesFault sends the same requests without and with a retry. The fault sits in the sidecar of reviews, one hop
// beyond the page's, which retries: there the attempts are counted, by reviews itself, to show that they did fail.
func retryHidesFault(ctx context.Context, t *Target) (string, error) {
	const n = 100
	send := func(trouble string) (failed, aborted int, err error) {
		before, err := t.counter(ctx, "reviews-v2", "upstream ratings 503")
		if err != nil {
			return 0, 0, err
		}
		replies := t.outside().many(ctx, n, 4, t.Gateway+"/", headers{"x-trouble": trouble, "x-strict": "yes"})
		after, err := t.counter(ctx, "reviews-v2", "upstream ratings 503")
		return len(failures(replies, http.StatusOK)), int(after - before), err
	}
	bare, _, err := send("flaky")
	if err != nil {
		return "", err
	}
	failed, aborted, err := send("flaky-retried")
	if err != nil {
		return "", err
	}
	evidence := fmt.Sprintf("without it %d of %d pages failed; with it %d of %d, though %d calls to ratings were aborted underneath",
		bare, n, failed, n, aborted)
	expected, within := bound(n, flakyPart)
	if float64(bare) < expected-within || float64(bare) > expected+within || failed != 0 || aborted == 0 {
		return "", fmt.Errorf("%s (due: %.0f ± %.0f, none, and some)", evidence, expected, within)
	}
	return evidence, nil
}

// counter asks a workload's application itself, past its sidecar, how often something happened.
func (t *Target) counter(ctx context.Context, workload, name string) (int64, error) {
	i, err := t.instance(ctx, workload)
	if err != nil {
		return 0, err
	}
	r, err := t.beside(workload).want(ctx, http.StatusOK, "http://"+net.JoinHostPort(i.AppAddress, "9080")+"/counters", nil)
	if err != nil {
		return 0, err
	}
	return r.Answer.Counters[name], nil
}

// timeoutCuts sees that the page is not kept waiting by a call that the timeout on reviews ends, while the same call
// without the timeout takes its time.
func timeoutCuts(ctx context.Context, t *Target) (string, error) {
	reviews, err := t.as(ctx, "reviews-v2")
	if err != nil {
		return "", err
	}
	type result struct {
		reply
		error
	}
	uncut := make(chan result, 1)
	go func() {
		r, err := reviews.want(ctx, http.StatusOK, "http://ratings:9080/ratings/1", headers{"x-trouble": "slow"})
		uncut <- result{r, err}
	}()
	r, err := t.outside().want(ctx, http.StatusOK, t.Gateway+"/", headers{"x-trouble": "slow"})
	slow := <-uncut
	if err != nil {
		return "", err
	}
	if slow.error != nil {
		return "", slow.error
	}
	call := r.Answer.Upstream("reviews")
	if call == nil {
		return "", fmt.Errorf("the page did not ask reviews: %s", r)
	}
	took := time.Duration(call.Millis * float64(time.Millisecond))
	evidence := fmt.Sprintf("reviews: %d after %s (timeout %s), and the page came; ratings uncut took %s",
		call.Status, round(took), round(reviewsBudget), round(slow.Took))
	// Envoy's clock is not ours: its timers may end a few milliseconds early by ours.
	if call.Status != http.StatusGatewayTimeout || took < reviewsBudget*9/10 || took > slowDelay*9/10 || slow.Took < slowDelay*9/10 {
		return "", fmt.Errorf("%s", evidence)
	}
	return evidence, nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
