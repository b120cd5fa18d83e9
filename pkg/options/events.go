package options

import (
	"net/http"
	"sync/atomic"

	"github.com/rowkeeper/rowkeeper/storage"
)

// eventsCheck tells, in /readyz?verbose, how the server learns of other replicas' writes. It never
// fails: where they are polled for because notifications do not work, everything is right, only
// later by some milliseconds. A passing check can say no more than its name.
type eventsCheck struct {
	store   *storage.Store
	serving atomic.Bool
}

func (c *eventsCheck) Name() string {
	const name = "storage-events"
	if !c.serving.Load() {
		return name // under which it is installed
	}
	if c.store.Listening() != nil {
		return name + " (polled for, as notifications do not work; see the log)"
	}
	return name
}

func (c *eventsCheck) Check(*http.Request) error { return nil }
