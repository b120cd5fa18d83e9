package contract

import (
	"context"
	"time"
)

// wait pauses until the time has passed or ctx ends.
func Wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
