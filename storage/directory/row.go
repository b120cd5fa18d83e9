package directory

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
)

// State is what is being done with a name; see the package documentation.
type State string

// The states of a name.
const (
	Creating State = "creating"
	Open     State = "open"
	Moving   State = "moving"
	Opening  State = "opening"
	Undoing  State = "undoing"
	Dropping State = "dropping"
	Dropped  State = "dropped"
)

// Row says where a store is.
type Row struct {
	// Name is the store's, and the key of the row.
	Name  string `json:"-"`
	State State  `json:"state"`
	// Database is the name of the database in which the store is, or will be when it was created
	// or opened.
	Database string `json:"database"`
	// Generation counts the databases in which the name was, and its creations, from 1 on.
	Generation int64 `json:"generation"`
	// Move identifies the move, the creation or the drop that is under way, or was the last one.
	Move string `json:"move,omitempty"`
	// Attempt counts the moves, creations and drops of the name.
	Attempt int64 `json:"attempt,omitempty"`
	// To is the name of the database to which the store is moved, in the states moving and undoing.
	// From is the one from which it was moved, in the state opening.
	To   string `json:"to,omitempty"`
	From string `json:"from,omitempty"`
	// Floor is the revision beyond which a later history of the name begins at least.
	Floor int64 `json:"floor,omitempty"`

	// revision is that of the key, 0 if there is none. Whoever goes on with what another process
	// has begun writes the row again first: what it has read may be visible and not durable yet,
	// and a power failure of the control database must not take it away when it has been acted on.
	revision contract.Revision
}

// prefix is what the keys of rows begin with. No client of etcd's API writes such keys.
const prefix contract.Key = contract.Reserved + "directory/"

func keyOf(name string) contract.Key { return prefix + contract.Key(name) }

// InHand tells whether something is done with the store that ends soon.
func (r *Row) InHand() bool { return r.State != Open && r.State != Dropped && r.State != "" }

func parseRow(key contract.Key, value []byte, at contract.Revision) (r Row, err error) {
	err = json.Unmarshal(value, &r)
	r.Name, r.revision = strings.TrimPrefix(string(key), string(prefix)), at
	if err == nil {
		err = r.check()
	}
	if err != nil {
		return r, contract.Errorf(contract.Invalid, "the directory's row of the store %q cannot be read "+
			"(%w): run `rowkeeper directory rebuild`", r.Name, err)
	}
	return r, nil
}

// check returns what is wrong with a row.
func (r *Row) check() error {
	if err := database.CheckStoreName(r.Name); err != nil {
		return err
	}
	other := ""
	switch r.State {
	case Creating, Open, Dropping, Dropped:
	case Moving, Undoing:
		other = r.To
	case Opening:
		other = r.From
	default:
		return fmt.Errorf("there is no state %q", r.State)
	}
	switch {
	case r.Generation < 1 || r.Floor < 0:
		return fmt.Errorf("the generation is %d and the floor %d", r.Generation, r.Floor)
	case r.Database == "", r.State != Open && r.Move == "":
		return errors.New("it lacks a database or a move")
	case r.State == Moving || r.State == Undoing || r.State == Opening:
		if other == "" || other == r.Database {
			return fmt.Errorf("the other database of a move is %q", other)
		}
	}
	return nil
}

// The transitions. Each returns the row after it, which is written only if the row that it was made
// of is still the newest one.

func (r Row) creating(database, id string) Row {
	return Row{Name: r.Name, State: Creating, Database: database, Generation: r.Generation + 1,
		Move: id, Attempt: r.Attempt + 1, Floor: r.Floor, revision: r.revision}
}

func (r Row) open(head contract.Revision) Row {
	r.State, r.To, r.From, r.Floor = Open, "", "", max(r.Floor, int64(head))
	return r
}

func (r Row) moving(to, id string) Row {
	r.State, r.To, r.Move, r.Attempt = Moving, to, id, r.Attempt+1
	return r
}

func (r Row) opening(head contract.Revision) Row {
	r.State, r.From, r.Database, r.To = Opening, r.Database, r.To, ""
	r.Generation, r.Floor = r.Generation+1, max(r.Floor, int64(head))
	return r
}

func (r Row) undoing() Row {
	r.State = Undoing
	return r
}

func (r Row) dropping(id string) Row {
	r.State, r.Move, r.Attempt = Dropping, id, r.Attempt+1
	return r
}

func (r Row) dropped(head contract.Revision) Row {
	r.State, r.Floor = Dropped, max(r.Floor, int64(head))
	return r
}

// here is the home of a store that is created or dropped.
func (r *Row) here() contract.Home {
	return contract.Home{Generation: r.Generation, Move: r.Move, Attempt: r.Attempt}
}

// The homes of the two ends of a move, of a row in the state moving or undoing. In the state
// opening they are the same.

func (r *Row) source() contract.Home {
	if r.State == Opening {
		return contract.Home{Generation: r.Generation - 1, Move: r.Move, Attempt: r.Attempt, To: r.Database}
	}
	return contract.Home{Generation: r.Generation, Move: r.Move, Attempt: r.Attempt, To: r.To}
}

func (r *Row) target() contract.Home {
	if r.State == Opening {
		return contract.Home{Generation: r.Generation, Move: r.Move, Attempt: r.Attempt, From: r.From}
	}
	return contract.Home{Generation: r.Generation + 1, Move: r.Move, Attempt: r.Attempt, From: r.Database}
}

// ends are the names of the databases between which the store is moved.
func (r *Row) ends() (from, to string) {
	if r.State == Opening {
		return r.From, r.Database
	}
	return r.Database, r.To
}
