package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// A walk reads a table in pieces, in the order of its primary key. What its statements compare:
//
//   - Each live row names a row of the log, which is there, has the same key, and is no deletion.
//     Both are read in one snapshot. A commit writes both, and a sweep never removes a row that is
//     live, so in no snapshot is there one without the other.
//   - No row is beyond the head, which is the log's newest row.
//   - Revisions are dense beyond compacted: of a piece that ends at a revision, as many rows are
//     beyond compacted as there are revisions. A fence leaps, and sets compacted to where it lands.
//     So the rule holds whatever happens between two pieces.
//   - No revision is there twice. The primary key sees to that, if it is there and whole.
//   - A row replaces an earlier one.
//   - A user's row has its row of the log. A commit writes both, and the batch of a sweep that
//     removes one removes the other.
//   - Of each declared index, a key has a row in rowkeeper_index for each entry in its live row, and
//     no other one. Whoever writes the entries of a live row writes those rows as well. An index
//     that is being dropped loses its rows first.
//   - Beyond compacted, a transaction has as many parts as the token of its last row says, and a part
//     has its last row. At compacted and below, the sweep may have removed any of them.
//
// A walk keeps its place by the last key or revision of a piece, which need not be there any more.

// pieceRows is how many rows a piece has, if the options do not say it.
const pieceRows = 10000

// walk is how a table is walked.
type walk struct {
	question Question
	// from are the arguments of the first piece, but for the number of rows.
	from []any
	// next are those of the piece after one.
	next func(last Row) []any
	// judge judges the piece of some arguments.
	judge func(args []any, piece Row) []Finding
}

var walks = []walk{
	{LivePiece, []any{[]byte{}}, func(r Row) []any { return []any{[]byte(r["last"])} }, judgeLive},
	{LogPiece, []any{int64(0)}, func(r Row) []any { return []any{r.Int("last")} }, judgeLog},
	{PartPiece, []any{int64(0)}, func(r Row) []any { return []any{r.Int("last")} }, judgeParts},
	{UserPiece, []any{int64(0)}, func(r Row) []any { return []any{r.Int("last")} }, judgeUsers},
}

func judgeLive(_ []any, piece Row) (found []Finding) {
	for _, wrong := range []struct{ column, name, says string }{
		{"lost", "live-without-log", "keys without a row in the log, and so without a value"},
		{"other", "live-other-row", "keys that name another key's row of the log, or a deletion"},
		{"differs", "live-differs", "keys that differ from their rows of the log in the creation " +
			"revision, the version or the lease"},
		{"beyond", "live-beyond-head", "keys with a revision beyond the head"},
	} {
		if n := piece.Int(wrong.column); n > 0 {
			found = append(found, damaged(wrong.name, counted(wrong.says, n, piece)))
		}
	}
	return found
}

// counted says how many there are in a piece, and where.
func counted(says string, n int64, piece Row) string {
	text := fmt.Sprintf("%s: %d", says, n)
	if example := piece.Int("example"); example != 0 {
		text += fmt.Sprintf("; the first one is at revision %d", example)
	}
	return text
}

func judgeLog(after []any, piece Row) (found []Finding) {
	for _, wrong := range []struct{ column, name, says string }{
		{"twice", "revision-twice", "revisions that are in the log twice"},
		{"backwards", "log-backwards", "rows of the log that replace one that is not earlier"},
		{"incomplete", "parts-missing", "transactions that lack parts"},
	} {
		if n := piece.Int(wrong.column); n > 0 {
			found = append(found, damaged(wrong.name, counted(wrong.says, n, piece)))
		}
	}
	begin, last := max(after[0].(int64), piece.Int("compacted")), piece.Int("last")
	if missing := last - begin - piece.Int("kept") + piece.Int("twice"); last > begin && missing > 0 {
		found = append(found, damaged("revision-missing", fmt.Sprintf("revisions from %d to %d that "+
			"are not in the log: %d", begin+1, last, missing)))
	}
	return found
}

func judgeParts(_ []any, piece Row) (found []Finding) {
	for _, wrong := range []struct{ column, name, says string }{
		{"orphans", "part-alone", "parts of transactions without the last row"},
		{"beyond", "part-beyond-head", "parts of transactions beyond the head"},
	} {
		if n := piece.Int(wrong.column); n > 0 {
			found = append(found, damaged(wrong.name, counted(wrong.says, n, piece)))
		}
	}
	return found
}

func judgeUsers(_ []any, piece Row) []Finding {
	if n := piece.Int("alone"); n > 0 {
		return []Finding{damaged("user-alone", counted("users without the row of the log that they "+
			"have written", n, piece))}
	}
	return nil
}

// entryWalks walk through the declared indexes: through the rows of each, and through the live rows
// of its directory.
func (f *Facts) entryWalks() (list []walk, err error) {
	store := f.one(Store)
	declared, err := contract.UnmarshalIndexes(store.Int("generation"), store["indexes"])
	if err != nil {
		return nil, err
	}
	for i := range declared.All {
		d := &declared.All[i]
		if d.State == contract.IndexDropping {
			continue
		}
		low, high := contract.EntriesBounds(d.ID)
		ofIndex := [][]byte{[]byte(low), []byte(high)}
		end := []byte(contract.PrefixEnd(d.Directory))
		list = append(list, walk{EntryPiece, []any{ofIndex[0], []byte{}, ofIndex[1]},
			func(r Row) []any { return []any{[]byte(r["entry"]), []byte(r["key"]), ofIndex[1]} },
			func(_ []any, piece Row) []Finding {
				return judgeEntries(d, "alone", "index-row-alone", "has rows of keys that do not say so",
					piece)
			}}, walk{EntriesPiece, []any{[]byte(d.Directory), end, ofIndex[0], ofIndex[1]},
			func(r Row) []any { return []any{[]byte(r["last"]), end, ofIndex[0], ofIndex[1]} },
			func(_ []any, piece Row) []Finding {
				return judgeEntries(d, "lacking", "index-row-missing", "lacks rows of keys", piece)
			}})
	}
	return list, nil
}

func judgeEntries(d *contract.Index, column, name, says string, piece Row) []Finding {
	n := piece.Int(column)
	if n == 0 {
		return nil
	}
	resource := strings.TrimPrefix(d.Group+"/"+d.Resource, "/")
	wrong := damaged(name, counted("the index "+d.Name+" of "+resource+" "+says, n, piece))
	wrong.Means = "the tables were changed by something else than Rowkeeper, or the database has lost " +
		"rows: lists by the index lack objects, or show them where they do not belong"
	wrong.Mend = "rowkeeper indexes rebuild " + resource + " " + d.Name
	if !strings.HasPrefix(string(d.Directory), "/registry/") {
		root := strings.TrimSuffix(strings.TrimSuffix(string(d.Directory), "/"), "/"+d.Resource)
		wrong.Mend += " --storage-prefix " + strings.TrimSuffix(root, "/"+d.Group)
	}
	return []Finding{wrong}
}

// errIndexesChanged is why a walk through an index has ended early.
var errIndexesChanged = contract.Errorf(contract.Transient, "the declared indexes have changed "+
	"meanwhile: look again")

// Progress is called after each piece with what is being read, and how many rows of it were.
type Progress func(doing string, rows int64)

// consistency walks the tables. It returns what it has found, one finding of a name for each walk,
// and adds to the facts what it could not see.
func consistency(ctx context.Context, f *Facts, o Options) (found []Finding, err error) {
	limit, tell := cmp.Or(o.PieceRows, pieceRows), o.Progress
	if tell == nil {
		tell = func(string, int64) {}
	}
	ofEntries, err := f.entryWalks()
	if err != nil {
		return nil, err
	}
	for _, w := range slices.Concat(walks, ofEntries) {
		said := map[string]bool{}
		var rows int64
		for at := w.from; ; {
			answer, err := f.Ask(ctx, w.question, append(slices.Clone(at), limit)...)
			if err = f.unseen(ctx, w.question, err); err != nil {
				return found, err
			}
			if len(answer) == 0 {
				break
			}
			piece := answer[0]
			if known := f.one(Store)["generation"]; cmp.Or(piece["generation"], known) != known {
				f.Unseen[w.question] = errIndexesChanged
				break
			}
			for _, finding := range w.judge(at, piece) {
				if !said[finding.Name] {
					said[finding.Name] = true
					finding.Check = "consistency"
					found = append(found, finding)
				}
			}
			rows += piece.Int("rows")
			tell(string(w.question), rows)
			if piece.Int("rows") < limit {
				break
			}
			at = w.next(piece)
		}
	}
	agree, err := f.indexesAgree(ctx, tell)
	return append(found, agree...), err
}

// unseen notes why a question was not answered. It returns the error if no other one will be.
func (f *Facts) unseen(ctx context.Context, q Question, err error) error {
	switch {
	case err == nil || errors.Is(err, ErrNoAnswer):
		return nil
	case ctx.Err() != nil:
		return err
	}
	f.Unseen[q] = err
	return nil
}

// indexesAgree compares the indexes with their tables, where the database can do that without
// writing.
func (f *Facts) indexesAgree(ctx context.Context, tell Progress) (found []Finding, err error) {
	for i, index := range f.Indexes {
		answer, err := f.Ask(ctx, IndexCheck, index.Table, index.Name)
		if err != nil {
			return found, f.unseen(ctx, IndexCheck, err)
		}
		tell(string(IndexCheck), int64(i+1))
		for _, row := range answer {
			if row["damage"] == "" {
				continue
			}
			broken := damaged("index-damaged", "the index "+index.Name+" of "+index.Table+
				" does not agree with the table: "+row["damage"])
			broken.Check = "consistency"
			if index.Rebuild != "" {
				broken.Mend, broken.repair = "rowkeeper doctor --repair", []string{index.Rebuild}
			}
			found = append(found, broken)
		}
	}
	return found, nil
}
