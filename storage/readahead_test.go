package storage

import (
	"errors"
	"iter"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// chunksOf yields chunks of these revisions and then an error, if there is one. It notes how many
// were asked for, and whether all has ended.
func chunksOf(asked *int, ended *bool, err error,
	revisions ...contract.Revision) iter.Seq2[*mvcc.RangeResult, error] {
	return func(yield func(*mvcc.RangeResult, error) bool) {
		defer func() { *ended = true }()
		for _, revision := range revisions {
			*asked++
			if !yield(&mvcc.RangeResult{Revision: revision}, nil) {
				return
			}
		}
		if err != nil {
			yield(nil, err)
		}
	}
}

// TestReadAhead: chunks come in their order, with the error that ends them, and nothing is read
// any more when the list has ended.
func TestReadAhead(t *testing.T) {
	broken := errors.New("broken")
	for name, test := range map[string]struct {
		err  error
		take int
		want error
	}{"all": {nil, 4, nil}, "failed": {broken, 4, broken}, "enough": {broken, 2, nil}} {
		t.Run(name, func(t *testing.T) {
			asked, ended, got := 0, false, 0
			var failure error
			for chunk, err := range readAhead(chunksOf(&asked, &ended, test.err, 1, 2, 3, 4)) {
				if err != nil {
					failure = err
					break
				}
				if got++; chunk.Revision != contract.Revision(got) {
					t.Fatalf("chunk %d is of revision %d", got, chunk.Revision)
				}
				if got == test.take && test.want == nil && test.err != nil {
					break
				}
			}
			if got != test.take || !errors.Is(failure, test.want) {
				t.Errorf("%d chunks came, and %v, want %d and %v", got, failure, test.take, test.want)
			}
			if !ended || asked > test.take+1 {
				t.Errorf("%d chunks were read, and it has ended: %v", asked, ended)
			}
		})
	}
}

// TestReadAheadPanics: a panic of the reader is the list's error, and ends no process.
func TestReadAheadPanics(t *testing.T) {
	var failure error
	for _, err := range readAhead(func(func(*mvcc.RangeResult, error) bool) { panic("here") }) {
		failure = err
	}
	if p := (*contract.PanicError)(nil); !errors.As(failure, &p) {
		t.Errorf("the list ended by %v", failure)
	}
}
