package move

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// phase is how far a move has come.
type phase string

const (
	copying   phase = "copy"
	following phase = "follow"
	ending    phase = "end"
)

// position is up to where the changes of a source were written.
type position struct {
	// Epoch is that of a store, whose revisions mean nothing in another one.
	Epoch    contract.Epoch    `json:"epoch,omitempty"`
	Revision contract.Revision `json:"revision"`
}

// record is what a move keeps in its target.
type record struct {
	Version int `json:"version"`
	// Source tells which source it is, without secrets.
	Source string   `json:"source"`
	Phase  phase    `json:"phase"`
	At     position `json:"at"`
	// Move is that of a directory which it belongs to.
	Move string `json:"move,omitempty"`
}

// recordVersion is the version of records that this program writes and reads.
const recordVersion = 1

// readRecord reads a record, which has to be that of a move from a source.
func readRecord(content []byte, source string) (r record, err error) {
	err = json.Unmarshal(content, &r)
	switch {
	case err != nil:
		return r, fmt.Errorf("the record of the move is damaged (%w): undo the move by `rowkeeper "+
			"move --undo`, and begin again", err)
	case r.Version != recordVersion:
		return r, errors.New("a newer rowkeeper has begun the move: go on with that one, or undo the " +
			"move by its `rowkeeper move --undo`")
	case r.Source != source:
		return r, fmt.Errorf("the target is being filled from another source (%s, not %s): name that "+
			"one, or undo the move by `rowkeeper move --undo`", r.Source, source)
	}
	return r, nil
}

func (r record) content() []byte {
	content, err := json.Marshal(r)
	if err != nil {
		panic(err) // of strings and numbers
	}
	return content
}

// event is what has happened to a move, and step what it does next.
type (
	event int
	step  int
)

const (
	// begun: the process has taken its turn.
	begun event = iota
	// copied: a pass has ended.
	copied
	// passed: the source has compacted changes that were to be followed.
	passed
	// stopped: whoever follows was told to stop.
	stopped
	// fenced: the source stands still.
	fenced
	// verified: the last pass has ended, and the target holds what the source holds.
	verified
)

const (
	stepCopy step = iota
	stepFollow
	stepFence
	stepLast
	stepOpen
	stepStop
)

// next decides what follows from an event, where finish says whether the move shall end. The phase
// of the record that is returned has to be recorded before the step is taken.
//
// The phase "end" is recorded before the fence, never after it: a source that is found closed was
// closed by this move only if the record says so. There is no way back from it but to undo the
// move, since the source serves nobody any more.
func next(r record, e event, finish bool) (record, step) {
	switch {
	case r.Phase == ending:
		switch e {
		case fenced:
			return r, stepLast
		case verified:
			return r, stepOpen
		}
		return r, stepFence
	case e == passed, e == begun && r.Phase == copying:
		r.Phase = copying
		return r, stepCopy
	case e == stopped:
		return r, stepStop
	case finish:
		r.Phase = ending
		return r, stepFence
	}
	r.Phase = following
	return r, stepFollow
}

// order compares the IDs of two records in the order of [contract.Snapshot]: parts of transactions
// first, with falling IDs.
func order(a, b contract.RowID) int {
	switch {
	case a == b:
		return 0
	case a < 0 && (b > 0 || a > b), a > 0 && a < b:
		return -1
	}
	return 1
}
