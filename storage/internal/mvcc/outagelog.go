package mvcc

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// outageLog says in the log that something in the background does not work: once, not for each
// attempt, and once more when it works again. One goroutine uses it.
type outageLog struct {
	log *slog.Logger
	// what does not work, as "cannot ..." ends.
	what  string
	began bool
	class contract.Class
}

// failed tells of an attempt. An error of another class than the last one is worth a line: it asks
// something else of people.
func (o *outageLog) failed(err error) {
	if class := contract.ClassOf(err); !o.began || class != o.class {
		o.log.Warn("cannot "+o.what+"; trying again until it works", "err", err)
		if p := (*contract.PanicError)(nil); errors.As(err, &p) {
			o.log.Error("a panic was the reason", "panic", fmt.Sprint(p.Value), "stack", p.Stack)
		}
		o.began, o.class = true, class
	}
}

// over tells of an attempt that succeeded.
func (o *outageLog) over() {
	if o.began {
		// As loud as the first line: programs that show no more than warnings show both.
		o.log.Warn("the database answers again: can " + o.what)
		o.began = false
	}
}
