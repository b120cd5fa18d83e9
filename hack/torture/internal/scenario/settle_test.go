package scenario

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/api"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/history"
)

// TestUntilAsksOnceMore: a look that began in time and ended late has seen watchers as they were
// before the time was up. It is no verdict.
func TestUntilAsksOnceMore(t *testing.T) {
	asked := 0
	err := until(t.Context(), time.Millisecond, func(ctx context.Context) error {
		asked++
		if asked == 1 {
			<-ctx.Done()
			return errors.New("it was behind when it was looked at")
		}
		return ctx.Err()
	})
	if err != nil || asked != 2 {
		t.Errorf("asked %d times: %v", asked, err)
	}
	no := errors.New("it is behind")
	err = until(t.Context(), time.Millisecond, func(context.Context) error { return no })
	if !errors.Is(err, no) {
		t.Errorf("what is behind all the time: %v", err)
	}
}

// TestLaggards: a watcher is where its newest stream is, and the log is asked once for each
// watcher, however many streams a server that was away has refused.
func TestLaggards(t *testing.T) {
	selector := history.Selector{Resource: api.Pipelines}
	stream := func(server int, from int64) *history.Stream {
		return &history.Stream{Name: "watch-list", Server: server, Selector: selector, From: from}
	}
	asked := 0
	last := func(s history.Selector) int64 {
		asked++
		return 10
	}
	refused := []*history.Stream{stream(0, 3), stream(0, 3), stream(1, 10), stream(0, 3)}
	if err := laggards(append(refused, stream(0, 10)), last); err != nil || asked != 2 {
		t.Errorf("asked %d times: %v", asked, err)
	}
	if laggards(append(refused, stream(1, 9), stream(0, 10)), last) == nil {
		t.Error("a newest stream that is behind was not found")
	}
}
