package commands

import (
	"context"
	"errors"
	"log/slog"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/rowkeeper/rowkeeper/storage"
)

// open opens a database for a command. The command says itself what it has done, so the log has
// warnings and errors only.
func open(ctx context.Context, c storage.Config) (*storage.Store, error) {
	c.Logger = slog.New(warnings{logr.ToSlogHandler(klog.Background())})
	return storage.Open(ctx, c)
}

// with opens a database for as long as use takes.
func with(ctx context.Context, c storage.Config, use func(*storage.Store) error) error {
	s, err := open(ctx, c)
	if err != nil {
		return err
	}
	return errors.Join(use(s), s.Close())
}

// warnings drops what only informs.
type warnings struct{ slog.Handler }

func (w warnings) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && w.Handler.Enabled(ctx, level)
}

func (w warnings) WithAttrs(attrs []slog.Attr) slog.Handler {
	return warnings{w.Handler.WithAttrs(attrs)}
}

func (w warnings) WithGroup(name string) slog.Handler {
	return warnings{w.Handler.WithGroup(name)}
}
