package check

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/mesh/demo/bookshop"
)

// reviewsURL is the URL at which the page service calls reviews.
const reviewsURL = "http://reviews:9080/reviews/1"

// shares are the weights in config/reviews.yaml. They apply to all users except ada, who has a separate route.
var shares = []share{{"v1", 0.60}, {"v2", 0.30}, {"v3", 0.10}}

type share struct {
	version string
	weight  float64
}

// pageThroughGateway checks that all services contributed to a page, and that a browser receives HTML.
func pageThroughGateway(ctx context.Context, t *Target) (string, error) {
	r, err := t.outsideClient().expect(ctx, http.StatusOK, t.Gateway+"/", headers{"x-user": "ada"})
	if err != nil {
		return "", err
	}
	names, err := pageInstances(r.Answer)
	if err != nil {
		return "", err
	}
	browser, err := t.outsideClient().get(ctx, t.Gateway+"/", headers{"Accept": "text/html"})
	if err != nil {
		return "", err
	}
	title := r.Answer.Book.Title
	if browser.Status != http.StatusOK || !strings.Contains(browser.Body, "<h1>"+title+"</h1>") {
		return "", fmt.Errorf("a request for HTML received %s instead of a page about %q", browser, title)
	}
	return fmt.Sprintf("status 200 after %s, with responses of %s; the HTML page has %d bytes", round(r.Took), strings.Join(names, ", "), len(browser.Body)), nil
}

// pageInstances returns the names of the instances that contributed to a page. It returns an error if one is missing.
func pageInstances(page *bookshop.Answer) ([]string, error) {
	details, reviews := page.Upstream("details"), page.Upstream("reviews")
	if details == nil || reviews == nil {
		return nil, fmt.Errorf("the response is from %s, not from the page service", page.Instance)
	}
	names := []string{page.Instance}
	calls := []*bookshop.Call{details, reviews}
	if reviews.OK() {
		calls = append(calls, reviews.Answer.Upstream("ratings"))
	}
	for _, c := range calls {
		if c == nil {
			return nil, errors.New("reviews did not call ratings, although ada is routed to v2")
		}
		if !c.OK() {
			return nil, fmt.Errorf("the call of %s received status %d: %s", c.URL, c.Status, c.Error)
		}
		names = append(names, c.Answer.Instance)
	}
	if page.Book == nil || len(page.Reviews) == 0 || page.Stars == "" {
		return nil, errors.New("the page does not contain the book, its reviews or their stars")
	}
	return names, nil
}

// weights checks the versions of reviews in 1,000 responses. The count of a version may differ from its expected value
// by five standard deviations. With correct weights, the check fails in fewer than one of 100,000 runs. It practically
// always detects a weight that is wrong by 15 percentage points or more. Ignored or swapped weights are wrong by more
// than that.
func weights(ctx context.Context, t *Target) (string, error) {
	page, err := t.clientOf(ctx, "page-v1")
	if err != nil {
		return "", err
	}
	const n = 1000
	replies := page.getMany(ctx, n, 16, reviewsURL, headers{"x-user": "nobody"})
	if bad := failures(replies, http.StatusOK); len(bad) > 0 {
		return "", fmt.Errorf("%d of %d requests failed; the first failure: %s", len(bad), n, bad[0])
	}
	return compareShares(tally(replies, version), n, shares)
}

// compareShares returns the counts with their expected values. It returns an error if a count is out of tolerance.
func compareShares(counts map[string]int, n int, want []share) (string, error) {
	var seen []string
	ok := true
	total := 0
	for _, s := range want {
		expected, within := tolerance(n, s.weight)
		count := counts[s.version]
		total += count
		ok = ok && math.Abs(float64(count)-expected) <= within
		seen = append(seen, fmt.Sprintf("%s %d (%.0f ± %.0f)", s.version, count, expected, within))
	}
	evidence := strings.Join(seen, ", ")
	if !ok || total != n {
		return "", fmt.Errorf("the counts do not match the weights in the file: %s (tolerance: five standard deviations)", evidence)
	}
	return evidence, nil
}

// tolerance returns how many of n requests are expected to match if each matches with the probability part. within is
// five standard deviations of this number.
func tolerance(n int, part float64) (expected, within float64) {
	return float64(n) * part, 5 * math.Sqrt(float64(n)*part*(1-part))
}

// routeByHeader checks that ada always receives v2, and that other users do not.
func routeByHeader(ctx context.Context, t *Target) (string, error) {
	page, err := t.clientOf(ctx, "page-v1")
	if err != nil {
		return "", err
	}
	const n = 50
	ada := tally(page.getMany(ctx, n, 8, reviewsURL, headers{"x-user": "ada"}), version)
	bob := tally(page.getMany(ctx, n, 8, reviewsURL, headers{"x-user": "bob"}), version)
	evidence := fmt.Sprintf("x-user: ada → %s; x-user: bob → %s", formatCounts(ada), formatCounts(bob))
	if ada["v2"] != n || bob["v1"] == 0 || bob["v1"]+bob["v2"]+bob["v3"] != n {
		return "", fmt.Errorf("the user ada must always receive v2, and the user bob must also receive v1: %s", evidence)
	}
	return evidence, nil
}

// formatCounts formats the counts of versions, ordered by version.
func formatCounts(counts map[string]int) string {
	var parts []string
	for _, v := range sortedKeys(counts) {
		parts = append(parts, fmt.Sprintf("%s %d×", v, counts[v]))
	}
	return strings.Join(parts, ", ")
}
