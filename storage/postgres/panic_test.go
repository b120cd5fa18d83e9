package postgres

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// TestPanicOfTheListener: all stores share what listens. If it panics, they are polled.
func TestPanicOfTheListener(t *testing.T) {
	var out bytes.Buffer
	d := &database{cfg: &config{log: slog.New(slog.NewTextHandler(&out, nil))}} // connects to nothing
	d.sender.d, d.listener.d = d, d
	d.listener.ears = map[int32]map[*ear]struct{}{}
	heard := make(chan error, 1)
	leave := d.listener.join(7, &ear{notify: func(contract.Revision) {}, status: func(err error) {
		select {
		case heard <- err:
		default:
		}
	}})
	err := <-heard
	leave()
	if p := (*contract.PanicError)(nil); !errors.As(err, &p) {
		t.Errorf("the stores hear of %v", err)
	}
	if log := out.String(); !strings.Contains(log, "nil pointer") || !strings.Contains(log, "listen.go") {
		t.Errorf("the log has %s", log)
	}
	if err := d.recovered("to try", func() error { return context.Canceled }); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
