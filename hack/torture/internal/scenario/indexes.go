package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/api"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/rows"
)

// indexes are those of the selectors of the load. What its lists by them return is judged as all
// lists are.
var indexes = [][2]string{
	{api.Pipelines, "label:" + rows.ColourLabel},
	{api.Pipelines, "field:spec.image"},
	{api.Chunks, "label:" + rows.ColourLabel},
}

// indexed tells whether the servers are API servers that store in the database themselves.
func (e *Env) indexed() bool { return !e.Etcd && !e.EtcdClients }

// changeIndexes changes indexes by a command, once the servers have said where the objects are. It
// waits until the servers have built them.
func (e *Env) changeIndexes(ctx context.Context, command string, indexes ...[2]string) error {
	common := []string{"--database=" + e.DB.Direct(), "--store=" + e.store()}
	for _, index := range indexes {
		if err := until(ctx, recoverWithin, func(ctx context.Context) error {
			err := e.rowkeeper(ctx, slices.Concat([]string{"indexes", command,
				"ci.rowkeeper.dev/" + index[0], index[1], "--storage-prefix=" + e.prefix()}, common)...)
			if err != nil && strings.Contains(err.Error(), index[1]+" already") {
				return nil // an attempt that was not answered has declared it
			}
			return err
		}); err != nil {
			return err
		}
	}
	return until(ctx, recoverWithin, func(ctx context.Context) error {
		out, err := exec.CommandContext(ctx, e.Config.Rowkeeper, slices.Concat([]string{"indexes",
			"list"}, common)...).CombinedOutput()
		if err == nil && strings.Contains(string(out), "building") {
			err = errBuilding
		}
		return err
	})
}

var errBuilding = errors.New("no server has built the indexes")

func (e *Env) declareIndexes(ctx context.Context) error {
	if !e.indexed() {
		return nil
	}
	return e.changeIndexes(ctx, "add", indexes...)
}

// indexRebuilt has an index built anew while the load goes on. Servers that do not know of it yet
// write without it, and are refused.
func indexRebuilt(ctx context.Context, e *Env) error {
	return e.changeIndexes(ctx, "rebuild", indexes[e.Rand.IntN(len(indexes))])
}

// agree has the program look at the tables: whether the indexes agree with the keys, too.
func (e *Env) agree(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, e.Config.Rowkeeper, "doctor", "--output=json",
		"--database="+e.DB.Direct(), "--store="+e.store()).Output()
	// It exits with another code if it finds anything: some settings are those of tests.
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return err
	}
	var report struct {
		Checked  []string
		Findings []struct{ Check, Name, Says string }
		Unseen   []struct{ What, Why string }
	}
	if parseErr := json.Unmarshal(out, &report); parseErr != nil {
		return fmt.Errorf("rowkeeper doctor: %w, %w: %s", err, parseErr, out)
	}
	if len(report.Checked) == 0 {
		return fmt.Errorf("rowkeeper doctor has checked nothing: %s", out)
	}
	for _, f := range report.Findings {
		if f.Check == "consistency" {
			e.Fail("tables", "%s: %s", f.Name, f.Says)
		}
	}
	for _, u := range report.Unseen {
		if u.What == "rows of declared indexes" || u.What == "entries of live rows" {
			e.Fail("tables", "the %s were not looked at: %s", u.What, u.Why)
		}
	}
	return nil
}
