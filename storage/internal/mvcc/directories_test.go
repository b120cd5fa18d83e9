package mvcc_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/memdb"
)

// recorder tells of each transaction that reads directories, and lets the first ones fail.
type recorder struct {
	contract.Backend
	fail chan error
	done chan []contract.Directory
}

func (r *recorder) Locked(ctx context.Context, o contract.LockOptions, f func(contract.Tx) error) error {
	var found []contract.Directory
	asked := false
	err := r.Backend.Locked(ctx, o, func(tx contract.Tx) error {
		select {
		case err := <-r.fail:
			return err
		default:
		}
		tx = &directoriesTx{tx, &asked}
		err := f(tx)
		if err == nil && asked {
			found, err = tx.Directories()
		}
		return err
	})
	if asked {
		r.done <- found
	}
	return err
}

type directoriesTx struct {
	contract.Tx
	asked *bool
}

func (t *directoriesTx) Directories() ([]contract.Directory, error) {
	*t.asked = true
	return t.Tx.Directories()
}

// TestServes: directories are recorded in the background, also after the database was away, and
// what is recorded already is not written again. Closing ends it.
func TestServes(t *testing.T) {
	r := &recorder{Backend: memdb.New("db", time.Now).Open(contract.DriverOptions{}), fail: make(chan error, 1),
		done: make(chan []contract.Directory, 8)}
	s, err := mvcc.Open(t.Context(), r, mvcc.Config{})
	if err != nil {
		t.Fatal(err)
	}
	pods := contract.Directory{Path: "/registry/pods/", Resource: "pods", Scope: contract.Namespaced}
	r.fail <- contract.Errorf(contract.Unavailable, "away")
	s.Serves(pods)
	if found := <-r.done; !slices.Equal(found, []contract.Directory{pods}) {
		t.Errorf("the directories are %+v", found)
	}
	nodes := contract.Directory{Path: "/registry/nodes/", Resource: "nodes"}
	s.Serves(nodes)
	if found := <-r.done; !slices.Equal(found, []contract.Directory{pods, nodes}) {
		t.Errorf("the directories are %+v", found)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s.Serves(contract.Directory{Path: "/registry/late/", Resource: "late"})
	if err := s.RecordDirectories(t.Context(), nil); !errors.Is(err, contract.ErrClosed) {
		t.Errorf("a store that is closed records directories: %v", err)
	}
}
