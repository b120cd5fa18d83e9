package commands

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rowkeeper/rowkeeper/pkg/support/commandline"
	"github.com/rowkeeper/rowkeeper/storage"
)

// In a directory, a backup is named by what it is of: STORE-TIME-REVISION.backup.
const (
	nameEnd  = ".backup"
	nameTime = "20060102T150405Z"
)

// kept is a backup in a directory, by its name.
type kept struct {
	name     string
	time     time.Time
	revision int64
}

func nameOf(store string, b storage.Backup) string {
	return fmt.Sprintf("%s-%s-%d%s", store, b.Time.UTC().Format(nameTime), b.Revision, nameEnd)
}

// named reads a name. It returns false for what nameOf does not make for this store.
func named(store, name string) (k kept, ok bool) {
	rest, ours := strings.CutPrefix(name, store+"-")
	rest, ended := strings.CutSuffix(rest, nameEnd)
	at, number, _ := strings.Cut(rest, "-")
	t, timeErr := time.Parse(nameTime, at)
	revision, numberErr := strconv.ParseInt(number, 10, 64)
	k = kept{name: name, time: t, revision: revision}
	return k, ours && ended && timeErr == nil && numberErr == nil &&
		nameOf(store, storage.Backup{Time: t, Revision: revision}) == name
}

// older orders backups by their time, which is the database's, and by their revision.
func older(a, b kept) int {
	return cmp.Or(a.time.Compare(b.time), cmp.Compare(a.revision, b.revision))
}

// surplus returns which of the backups are beyond the newest ones that are to be kept; keep is
// greater than 0. The one that was just made always stays: if the database's clock was set back, it
// seems to be older than others.
func surplus(all []kept, made string, keep int) (names []string) {
	others := slices.DeleteFunc(slices.Clone(all), func(k kept) bool { return k.name == made })
	slices.SortFunc(others, older)
	for _, k := range others[:max(len(others)-(keep-1), 0)] {
		names = append(names, k.name)
	}
	return names
}

// keptIn lists the backups of a store in a directory, by their names, the oldest first.
func keptIn(dir, store string) ([]kept, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot list the backups: %w", err)
	}
	var all []kept
	for _, e := range entries {
		if k, ok := named(store, e.Name()); ok && e.Type().IsRegular() {
			all = append(all, k)
		}
	}
	slices.SortFunc(all, older)
	return all, nil
}

// abandonedAfter is how long nobody has written to a file that a killed backup has left. One that
// goes on writes more often (see storage.ErrStalled).
const abandonedAfter = 24 * time.Hour

// removeSurplus removes what keep says from a directory in which a backup was just made, and what
// killed backups have left. A file that says that it is the backup of another database, or that
// cannot be read, stays and does not count: the names are those of stores, which many databases
// have.
func removeSurplus(dir, store, made string, b storage.Backup, keep int) (removed int, err error) {
	all, err := keptIn(dir, store)
	if err != nil {
		return 0, err
	}
	all = slices.DeleteFunc(all, func(k kept) bool {
		other, err := describe(filepath.Join(dir, k.name))
		return err != nil || other.Store != b.Store
	})
	for _, name := range surplus(all, made, keep) {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return removed, fmt.Errorf("the backup was made, and an older one cannot be removed: %w", err)
		}
		removed++
	}
	return removed, removeAbandoned(dir, store)
}

// removeAbandoned removes what killed backups of a store have left in a directory.
func removeAbandoned(dir, store string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("the backup was made, and what others have left cannot be listed: %w", err)
	}
	for _, e := range entries {
		st, err := e.Info()
		if err == nil && strings.HasPrefix(e.Name(), "."+store+nameEnd+".") &&
			strings.HasSuffix(e.Name(), commandline.Partial) && time.Since(st.ModTime()) > abandonedAfter {
			os.Remove(filepath.Join(dir, e.Name())) // the next backup tries again
		}
	}
	return nil
}
