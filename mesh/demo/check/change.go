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
)

// reviewsFile is the file that the checks edit.
const reviewsFile = "reviews.yaml"

// allToV3 is the edit that every request shows: after it no answer comes from v1 or v2.
var allToV3 = strings.NewReplacer("weight: 60", "weight: 0", "weight: 30", "weight: 0", "weight: 10", "weight: 100")

// edit saves a changed file as an editor does, in one step, and gives the moment of saving and how to undo it.
func (t *Target) edit(name string, change *strings.Replacer) (saved time.Time, undo func() (time.Time, error), err error) {
	path := filepath.Join(t.ConfigDir, name)
	before, err := os.ReadFile(path)
	if err != nil {
		return time.Time{}, nil, err
	}
	after := change.Replace(string(before))
	if after == string(before) {
		return time.Time{}, nil, fmt.Errorf("%s does not hold what was to be changed", path)
	}
	saved, err = save(path, []byte(after))
	return saved, func() (time.Time, error) { return save(path, before) }, err
}

func save(path string, data []byte) (time.Time, error) {
	// Beside the watched directory, so that only the rename is seen there.
	aside := filepath.Join(filepath.Dir(filepath.Dir(path)), filepath.Base(path)+".new")
	if err := os.WriteFile(aside, data, 0o600); err != nil {
		return time.Time{}, err
	}
	if err := os.Rename(aside, path); err != nil {
		return time.Time{}, err
	}
	return time.Now(), nil
}

// settled asks for reviews until `run` answers in a row are good, and gives the moment of the first of them.
func settled(ctx context.Context, c *client, run int, good func(reply) bool) (since time.Time, err error) {
	for row := 0; row < run; {
		r, err := c.want(ctx, http.StatusOK, reviewsURL, nil)
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

// rowOfV3 is a run of answers that weights of 60, 30 and 10 do not give by chance.
const rowOfV3 = 100

// editedFile moves all traffic to v3 and back, by nothing but saving the file.
func editedFile(ctx context.Context, t *Target) (string, error) {
	page, err := t.as(ctx, "page-v1")
	if err != nil {
		return "", err
	}
	before := t.envoys(ctx)
	saved, undo, err := t.edit(reviewsFile, allToV3)
	if err != nil {
		return "", err
	}
	in, err := settled(ctx, page, rowOfV3, fromV3)
	if err != nil {
		_, undoErr := undo()
		return "", errors.Join(fmt.Errorf("%s was saved with all weight on v3, and not every answer came from v3: %w", reviewsFile, err), undoErr)
	}
	restored, err := undo()
	if err != nil {
		return "", err
	}
	back, err := settled(ctx, page, 1, notFromV3)
	if err != nil {
		return "", fmt.Errorf("%s was saved as it had been, and all answers still come from v3: %w", reviewsFile, err)
	}
	if after := t.envoys(ctx); after != before {
		return "", fmt.Errorf("Envoys were restarted: process ids were %s, and are %s", before, after)
	}
	return fmt.Sprintf("from saving to effect %s (60/30/10 → 0/0/100), and back %s; no request failed, no Envoy restarted",
		round(in.Sub(saved)), round(back.Sub(restored))), nil
}

// envoys lists the process ids of all Envoys, to compare.
func (t *Target) envoys(ctx context.Context) string {
	var ids []string
	for _, i := range t.Mesh.Status(ctx).Instances {
		ids = append(ids, fmt.Sprint(i.EnvoyPID))
	}
	return strings.Join(ids, " ")
}

// badDocument saves a VirtualService that says nonsense, and sees that it is refused, and what was before stays.
func badDocument(ctx context.Context, t *Target) (string, error) {
	page, err := t.as(ctx, "page-v1")
	if err != nil {
		return "", err
	}
	saved, undo, err := t.edit(reviewsFile, strings.NewReplacer("weight: 60", "weight: sixty"))
	if err != nil {
		return "", err
	}
	problem, err := t.problem(ctx, func(p *config.Problem) bool { return p != nil && p.Severity == config.Error })
	told := time.Since(saved)
	if err != nil {
		_, undoErr := undo()
		return "", errors.Join(fmt.Errorf("`weight: sixty` was saved, and no problem was reported: %w", err), undoErr)
	}
	const n = 20
	stayed := tally(page.many(ctx, n, 4, reviewsURL, headers{"x-user": "ada"}), version)
	if _, err := undo(); err != nil {
		return "", err
	}
	if stayed["v2"] != n {
		return "", fmt.Errorf("the last good document did not stay in force: ada got %s", countsOf(stayed))
	}
	if _, err := t.problem(ctx, func(p *config.Problem) bool { return p == nil }); err != nil {
		return "", fmt.Errorf("the file is whole again, and the problem is still reported: %w", err)
	}
	return fmt.Sprintf("told after %s: %s:%d: %s %q: %s; the last good one stayed in force (%d of %d)", round(told),
		filepath.Base(problem.At.File), problem.At.Line, problem.Field, problem.Value, problem.Message, stayed["v2"], n), nil
}

// problem polls the mesh until what it reports of reviews.yaml (nil: nothing) is as wanted.
func (t *Target) problem(ctx context.Context, wanted func(*config.Problem) bool) (*config.Problem, error) {
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
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// pause waits between two looks at something.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
