package contract

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// RetryPolicy is the pace at which what may be tried again is tried again.
func RetryPolicy() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval = 10 * time.Millisecond
	b.MaxInterval = time.Second
	return b
}

// Wait pauses until the time has passed or ctx ends.
func Wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
