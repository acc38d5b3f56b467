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

// reviewsURL is how the page calls reviews.
const reviewsURL = "http://reviews:9080/reviews/1"

// shares are the weights of config/reviews.yaml, for users that have no route of their own.
var shares = []share{{"v1", 0.60}, {"v2", 0.30}, {"v3", 0.10}}

type share struct {
	version string
	part    float64
}

// pageThroughGateway sees that all services had their part in one page, and that a browser gets one to look at.
func pageThroughGateway(ctx context.Context, t *Target) (string, error) {
	r, err := t.outside().want(ctx, http.StatusOK, t.Gateway+"/", headers{"x-user": "ada"})
	if err != nil {
		return "", err
	}
	names, err := parts(r.Answer)
	if err != nil {
		return "", err
	}
	browser, err := t.outside().get(ctx, t.Gateway+"/", headers{"Accept": "text/html"})
	if err != nil {
		return "", err
	}
	title := r.Answer.Book.Title
	if browser.Status != http.StatusOK || !strings.Contains(browser.Body, "<h1>"+title+"</h1>") {
		return "", fmt.Errorf("a browser got %s, and not a page about %q", browser, title)
	}
	return fmt.Sprintf("200 in %s, made by %s; as HTML, %d bytes", round(r.Took), strings.Join(names, ", "), len(browser.Body)), nil
}

// parts names the instances that made a page, or says which did not do its part.
func parts(page *bookshop.Answer) ([]string, error) {
	details, reviews := page.Upstream("details"), page.Upstream("reviews")
	if details == nil || reviews == nil {
		return nil, fmt.Errorf("%s is not the page", page.Instance)
	}
	names := []string{page.Instance}
	calls := []*bookshop.Call{details, reviews}
	if reviews.OK() {
		calls = append(calls, reviews.Answer.Upstream("ratings"))
	}
	for _, c := range calls {
		if c == nil {
			return nil, errors.New("reviews did not ask ratings, though the user is ada, who gets v2")
		}
		if !c.OK() {
			return nil, fmt.Errorf("%s was answered with %d: %s", c.URL, c.Status, c.Error)
		}
		names = append(names, c.Answer.Instance)
	}
	if page.Book == nil || len(page.Reviews) == 0 || page.Stars == "" {
		return nil, errors.New("the page lacks the book, its reviews or their stars")
	}
	return names, nil
}

// weights counts who answers 1,000 requests. A share may be off by five standard deviations: right weights are so by
// chance in fewer than one of 100,000 runs, and a share that is wrong by 15 points or more is found in practically every
// run (weights that are ignored or mixed up are wrong by more).
func weights(ctx context.Context, t *Target) (string, error) {
	page, err := t.as(ctx, "page-v1")
	if err != nil {
		return "", err
	}
	const n = 1000
	replies := page.many(ctx, n, 16, reviewsURL, headers{"x-user": "nobody"})
	if bad := failures(replies, http.StatusOK); len(bad) > 0 {
		return "", fmt.Errorf("%d of %d requests failed, the first with %s", len(bad), n, bad[0])
	}
	return judgeShares(tally(replies, version), n, shares)
}

// judgeShares compares counts with the shares that they should have.
func judgeShares(counts map[string]int, n int, want []share) (string, error) {
	var seen []string
	ok := true
	total := 0
	for _, s := range want {
		expected, within := bound(n, s.part)
		count := counts[s.version]
		total += count
		ok = ok && math.Abs(float64(count)-expected) <= within
		seen = append(seen, fmt.Sprintf("%s %d (%.0f ± %.0f)", s.version, count, expected, within))
	}
	evidence := strings.Join(seen, ", ")
	if !ok || total != n {
		return "", fmt.Errorf("not the weights of the file: %s; bounds are five standard deviations", evidence)
	}
	return evidence, nil
}

// bound is the expected count of a share, and five standard deviations of it.
func bound(n int, part float64) (expected, within float64) {
	return float64(n) * part, 5 * math.Sqrt(float64(n)*part*(1-part))
}

// routeByHeader sees that ada always gets v2, and that others do not.
func routeByHeader(ctx context.Context, t *Target) (string, error) {
	page, err := t.as(ctx, "page-v1")
	if err != nil {
		return "", err
	}
	const n = 50
	ada := tally(page.many(ctx, n, 8, reviewsURL, headers{"x-user": "ada"}), version)
	bob := tally(page.many(ctx, n, 8, reviewsURL, headers{"x-user": "bob"}), version)
	evidence := fmt.Sprintf("x-user: ada → %s; x-user: bob → %s", countsOf(ada), countsOf(bob))
	if ada["v2"] != n || bob["v1"] == 0 || bob["v1"]+bob["v2"]+bob["v3"] != n {
		return "", fmt.Errorf("ada should always get v2, and bob v1 most of the time: %s", evidence)
	}
	return evidence, nil
}

// countsOf prints a tally of versions in order.
func countsOf(counts map[string]int) string {
	var parts []string
	for _, v := range sortedKeys(counts) {
		parts = append(parts, fmt.Sprintf("%s %d×", v, counts[v]))
	}
	return strings.Join(parts, ", ")
}
