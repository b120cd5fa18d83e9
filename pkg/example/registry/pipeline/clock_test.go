package pipeline

import "time"

const fiveMinutes = 5 * time.Minute

// fixedClock is a clock that stands still.
type fixedClock struct{}

func (fixedClock) Now() time.Time                    { return time.Unix(1_800_000_000, 0) }
func (c fixedClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }
