package history

import (
	"testing"
	"time"
)

func TestMoment(t *testing.T) {
	local := time.Date(2026, 11, 29, 12, 30, 0, 0, time.Local).Format(time.RFC3339Nano)
	for text, want := range map[string]string{
		"now": "0s", "1234": "1234", "10 minutes ago": "10m0s", "1 minute ago": "1m0s", "10m": "10m0s",
		"1h30m": "1h30m0s", "1h30m ago": "1h30m0s", "2 days": "48h0m0s", "1w": "168h0m0s",
		"3 Hours ago": "3h0m0s", " 5s ": "5s", "2026-11-29T12:30:00Z": "2026-11-29T12:30:00Z",
		"2026-11-29 12:30": local, "2026-11-29 12:30:00": local,
	} {
		if got, err := moment(text); err != nil || got != want {
			t.Errorf("%q is %q, %v, want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0", "-1", "-10m", "yesterday", "10 fortnights ago",
		"99999999999 weeks ago", "2026-13-01"} {
		if got, err := moment(text); err == nil {
			t.Errorf("%q is %q", text, got)
		}
	}
}
