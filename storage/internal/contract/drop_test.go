package contract

import (
	"testing"
	"time"
)

// TestErasePause: a drop leaves the database three quarters of the time, and does not wait for
// hours because its process has slept.
func TestErasePause(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		0: 0, 20 * time.Millisecond: 60 * time.Millisecond, time.Hour: 10 * time.Second,
	} {
		if is := erasePause(took); is != want {
			t.Errorf("after %s it waits for %s, and not for %s", took, is, want)
		}
	}
}
