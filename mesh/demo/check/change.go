package check

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
)

// reviewsFile is the name of the configuration file that the checks edit.
const reviewsFile = "reviews.yaml"

// allToV3 changes the weights in reviewsFile so that all requests are routed to v3.
var allToV3 = strings.NewReplacer("weight: 60", "weight: 0", "weight: 30", "weight: 0", "weight: 10", "weight: 100")

// editFile applies change to the configuration file called name. It replaces the file atomically, as editors do. It
// returns the time of the change, and a function that restores the previous content.
func (t *Target) editFile(name string, change *strings.Replacer) (saved time.Time, undo func() (time.Time, error), err error) {
	path := filepath.Join(t.ConfigDir, name)
	before, err := os.ReadFile(path)
	if err != nil {
		return time.Time{}, nil, err
	}
	after := change.Replace(string(before))
	if after == string(before) {
		return time.Time{}, nil, fmt.Errorf("%s does not contain the text that the check edits", path)
	}
	saved, err = replaceFile(path, []byte(after))
	return saved, func() (time.Time, error) { return replaceFile(path, before) }, err
}

func replaceFile(path string, data []byte) (time.Time, error) {
	// The temporary file is outside of the watched directory, so that the mesh observes only the rename.
	aside := filepath.Join(filepath.Dir(filepath.Dir(path)), filepath.Base(path)+".new")
	if err := os.WriteFile(aside, data, 0o600); err != nil {
		return time.Time{}, err
	}
	if err := os.Rename(aside, path); err != nil {
		return time.Time{}, err
	}
	return time.Now(), nil
}

// waitForStreak requests reviews until good returns true for n consecutive replies. It returns the time of the first
// of these replies.
func waitForStreak(ctx context.Context, c *client, n int, good func(reply) bool) (since time.Time, err error) {
	for row := 0; row < n; {
		r, err := c.expect(ctx, http.StatusOK, reviewsURL, nil)
		if err != nil {
			return since, err
		}
		switch {
		case !good(r):
			row = 0
		case row == 0:
			since = time.Now()
			row++
		default:
			row++
		}
	}
	return since, nil
}

func fromV3(r reply) bool    { return version(r) == "v3" }
func notFromV3(r reply) bool { return version(r) != "v3" }

// minStreak is the number of consecutive replies of v3 that prove that all weight is on v3. With the weights 60, 30 and
// 10, such a streak is practically impossible.
const minStreak = 100

// editedFile checks that edits of reviewsFile take effect without a restart: it moves all traffic to v3 and back.
func editedFile(ctx context.Context, t *Target) (string, error) {
	page, err := t.clientOf(ctx, "page-v1")
	if err != nil {
		return "", err
	}
	before := t.envoyPIDs(ctx)
	saved, undo, err := t.editFile(reviewsFile, allToV3)
	if err != nil {
		return "", err
	}
	in, err := waitForStreak(ctx, page, minStreak, fromV3)
	if err != nil {
		_, undoErr := undo()
		return "", errors.Join(fmt.Errorf("%s was saved with all weight on v3, but not all answers were from v3: %w", reviewsFile, err), undoErr)
	}
	restored, err := undo()
	if err != nil {
		return "", err
	}
	back, err := waitForStreak(ctx, page, 1, notFromV3)
	if err != nil {
		return "", fmt.Errorf("%s was restored, but all answers are still from v3: %w", reviewsFile, err)
	}
	if after := t.envoyPIDs(ctx); after != before {
		return "", fmt.Errorf("Envoy processes restarted: their process IDs were %s, and are now %s", before, after)
	}
	return fmt.Sprintf("in force %s after saving (60/30/10 → 0/0/100), restored in %s; no request failed, no Envoy restarted",
		round(in.Sub(saved)), round(back.Sub(restored))), nil
}

// envoyPIDs returns the process IDs of all Envoys as one string, for comparison.
func (t *Target) envoyPIDs(ctx context.Context) string {
	var ids []string
	for _, i := range t.Mesh.Status(ctx).Instances {
		ids = append(ids, fmt.Sprint(i.EnvoyPID))
	}
	return strings.Join(ids, " ")
}

// badDocument checks that the mesh refuses an invalid VirtualService, and continues to use its last valid version.
func badDocument(ctx context.Context, t *Target) (string, error) {
	page, err := t.clientOf(ctx, "page-v1")
	if err != nil {
		return "", err
	}
	saved, undo, err := t.editFile(reviewsFile, strings.NewReplacer("weight: 60", "weight: sixty"))
	if err != nil {
		return "", err
	}
	problem, err := t.waitForProblem(ctx, func(p *config.Problem) bool { return p != nil && p.Severity == config.Error })
	reported := time.Since(saved)
	if err != nil {
		_, undoErr := undo()
		return "", errors.Join(fmt.Errorf("the invalid `weight: sixty` was saved, but no problem was reported: %w", err), undoErr)
	}
	const n = 20
	stayed := tally(page.getMany(ctx, n, 4, reviewsURL, headers{"x-user": "ada"}), version)
	if _, err := undo(); err != nil {
		return "", err
	}
	if stayed["v2"] != n {
		return "", fmt.Errorf("the last valid version did not stay in force: the user ada received %s", formatCounts(stayed))
	}
	if _, err := t.waitForProblem(ctx, func(p *config.Problem) bool { return p == nil }); err != nil {
		return "", fmt.Errorf("the file is valid again, but the problem is still reported: %w", err)
	}
	return fmt.Sprintf("reported after %s: %s:%d: %s %q: %s; the last valid version stayed in force (%d of %d)", round(reported),
		filepath.Base(problem.At.File), problem.At.Line, problem.Field, problem.Value, problem.Message, stayed["v2"], n), nil
}

// waitForProblem polls until wanted returns true for the problem that the mesh reports for reviewsFile, and returns
// that problem. If the mesh reports none, it calls wanted with nil.
func (t *Target) waitForProblem(ctx context.Context, wanted func(*config.Problem) bool) (*config.Problem, error) {
	for {
		var found *config.Problem
		for _, p := range t.Mesh.Status(ctx).Control.Problems {
			if filepath.Base(p.At.File) == reviewsFile {
				found = &p
				break
			}
		}
		if wanted(found) {
			return found, nil
		}
		if !backoff.Sleep(ctx, 20*time.Millisecond) {
			return nil, ctx.Err()
		}
	}
}
