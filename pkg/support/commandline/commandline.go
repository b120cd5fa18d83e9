// Package commandline is for the commands that work on a database directly, those of every server
// program and those of cmd/rowkeeper: how they are called wrongly, which database they mean, and
// what they tell.
package commandline

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/rowkeeper/rowkeeper/storage"
)

// UsageError is an error in the way that a program was called.
type UsageError struct{ Err error }

func (e UsageError) Error() string { return e.Err.Error() }
func (e UsageError) Unwrap() error { return e.Err }

// OneFile is for commands that take the name of a file.
func OneFile(_ *cobra.Command, args []string) error {
	switch {
	case len(args) == 0 || args[0] == "":
		return UsageError{Err: errors.New("a file has to be named, or - for a standard stream")}
	case len(args) > 1:
		return UsageError{Err: fmt.Errorf("unexpected argument %q", args[1])}
	}
	return nil
}

// Existing returns how to open a database of which only what it holds is wanted, not its
// maintenance.
func Existing(o interface {
	ValidateDatabase() []error
	Database() (storage.Config, error)
}) (storage.Config, error) {
	if err := utilerrors.NewAggregate(o.ValidateDatabase()); err != nil {
		return storage.Config{}, UsageError{Err: err}
	}
	config, err := o.Database()
	if err != nil {
		return config, err
	}
	if strings.HasPrefix(config.URL, "memory:") {
		return config, UsageError{Err: errors.New("memory: names no database of another " +
			"process")}
	}
	config.Migrate = false
	config.Compaction.Window = -1
	return config, nil
}

// Describe says what is in a backup.
func Describe(b storage.Backup) string {
	return fmt.Sprintf("%s at revision %d of %s", Objects(b.Objects), b.Revision,
		b.Time.UTC().Format(time.RFC3339))
}

// Objects counts objects in words.
func Objects(n int64) string {
	if n == 1 {
		return "1 object"
	}
	return fmt.Sprintf("%d objects", n)
}
