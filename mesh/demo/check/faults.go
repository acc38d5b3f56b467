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

// Values of the faults and timeouts in config/ratings.yaml and config/reviews.yaml. They apply to requests with the header
// x-trouble.
const (
	flakyRate      = 0.25
	slowDelay      = 2 * time.Second
	reviewsTimeout = 400 * time.Millisecond
)

// injectedFault checks that calls from reviews to ratings are aborted for requests with the header x-trouble, and only
// for those.
func injectedFault(ctx context.Context, t *Target) (string, error) {
	const n = 20
	count := func(trouble string) (map[int]int, error) {
		statuses := map[int]int{}
		for _, r := range t.outsideClient().getMany(ctx, n, 4, t.Gateway+"/", headers{"x-user": "ada", "x-trouble": trouble}) {
			ratings := ratingsCall(r.Answer)
			if ratings == nil {
				return nil, fmt.Errorf("the page contains no call from reviews to ratings: %s", r)
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
	evidence := fmt.Sprintf("calls from reviews to ratings: with the header x-trouble: abort, %d of %d received 503; without the header, %d of %d received 200",
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

// retryHidesFault checks that a retry hides failed calls. The sidecar of reviews aborts some of the calls to ratings. The
// sidecar of the page retries its calls to reviews, if the request selects the route with retries. A counter of reviews
// shows that calls were aborted.
func retryHidesFault(ctx context.Context, t *Target) (string, error) {
	const n = 100
	send := func(trouble string) (failed, aborted int, err error) {
		before, err := t.counter(ctx, "reviews-v2", "upstream ratings 503")
		if err != nil {
			return 0, 0, err
		}
		replies := t.outsideClient().getMany(ctx, n, 4, t.Gateway+"/", headers{"x-trouble": trouble, "x-strict": "yes"})
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
	evidence := fmt.Sprintf("without a retry %d of %d pages failed; with a retry %d of %d, although %d calls to ratings were aborted",
		bare, n, failed, n, aborted)
	expected, within := tolerance(n, flakyRate)
	if float64(bare) < expected-within || float64(bare) > expected+within || failed != 0 || aborted == 0 {
		return "", fmt.Errorf("%s (expected: %.0f ± %.0f failures without a retry, none with it, and at least one aborted call)", evidence, expected, within)
	}
	return evidence, nil
}

// counter returns the counter called name of the workload's application. The query bypasses the sidecars.
func (t *Target) counter(ctx context.Context, workload, name string) (int64, error) {
	i, err := t.instance(ctx, workload)
	if err != nil {
		return 0, err
	}
	r, err := t.directClient(workload).expect(ctx, http.StatusOK, "http://"+net.JoinHostPort(i.AppAddress, "9080")+"/counters", nil)
	if err != nil {
		return 0, err
	}
	return r.Answer.Counters[name], nil
}

// timeoutCuts checks that the timeout configured for the service reviews ends a slow call from page to reviews. It
// also checks that a delayed call to ratings, which has no timeout, lasts for the whole delay.
func timeoutCuts(ctx context.Context, t *Target) (string, error) {
	reviews, err := t.clientOf(ctx, "reviews-v2")
	if err != nil {
		return "", err
	}
	type result struct {
		reply
		error
	}
	uncut := make(chan result, 1)
	go func() {
		r, err := reviews.expect(ctx, http.StatusOK, "http://ratings:9080/ratings/1", headers{"x-trouble": "slow"})
		uncut <- result{r, err}
	}()
	r, err := t.outsideClient().expect(ctx, http.StatusOK, t.Gateway+"/", headers{"x-trouble": "slow"})
	slow := <-uncut
	if err != nil {
		return "", err
	}
	if slow.error != nil {
		return "", slow.error
	}
	call := r.Answer.Upstream("reviews")
	if call == nil {
		return "", fmt.Errorf("the page did not call reviews: %s", r)
	}
	took := time.Duration(call.Millis * float64(time.Millisecond))
	evidence := fmt.Sprintf("call to reviews: status %d after %s (timeout %s), and the page was complete; call to ratings, without a timeout: %s",
		call.Status, round(took), round(reviewsTimeout), round(slow.Took))
	// According to this process's clock, Envoy's timers may expire a few milliseconds early.
	if call.Status != http.StatusGatewayTimeout || took < reviewsTimeout*9/10 || took > slowDelay*9/10 || slow.Took < slowDelay*9/10 {
		return "", fmt.Errorf("%s", evidence)
	}
	return evidence, nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
