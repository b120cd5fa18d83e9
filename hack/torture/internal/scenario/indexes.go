package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"

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

// changeIndex changes an index by a command, once the servers have said where the objects are.
func (e *Env) changeIndex(ctx context.Context, command string, index [2]string) error {
	return until(ctx, recoverWithin, func(ctx context.Context) error {
		return e.rowkeeper(ctx, "indexes", command, "ci.rowkeeper.dev/"+index[0], index[1],
			"--database="+e.DB.Direct(), "--store="+e.store(), "--storage-prefix="+e.prefix())
	})
}

func (e *Env) declareIndexes(ctx context.Context) error {
	if !e.indexed() {
		return nil
	}
	for _, index := range indexes {
		if err := e.changeIndex(ctx, "add", index); err != nil {
			return err
		}
	}
	return nil
}

// indexRebuilt has an index built anew while the load goes on. Servers that do not know of it yet
// write without it, and are refused.
func indexRebuilt(ctx context.Context, e *Env) error {
	return e.changeIndex(ctx, "rebuild", indexes[e.Rand.IntN(len(indexes))])
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
