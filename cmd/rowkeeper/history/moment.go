package history

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/rowkeeper/rowkeeper/pkg/server"
)

// ago is a duration as people write it, such as "10 minutes ago", "2h" or "1 day".
var ago = regexp.MustCompile(`^(\d+) *([a-z]+)( ago)?$`)

var units = map[string]time.Duration{"s": time.Second, "sec": time.Second, "second": time.Second,
	"m": time.Minute, "min": time.Minute, "minute": time.Minute, "h": time.Hour, "hour": time.Hour,
	"d": 24 * time.Hour, "day": 24 * time.Hour, "w": 7 * 24 * time.Hour, "week": 7 * 24 * time.Hour}

// moment turns what a person writes into what the server reads: a revision, a time with its zone,
// or a duration back from now. A time without a zone is local.
func moment(text string) (string, error) {
	text = strings.TrimSpace(text)
	if text == "now" {
		return "0s", nil
	}
	n, none := strconv.ParseInt(text, 10, 64)
	if none == nil && n > 0 {
		return text, nil
	}
	if found := ago.FindStringSubmatch(strings.ToLower(text)); found != nil {
		n, err := strconv.ParseInt(found[1], 10, 32)
		unit, known := units[found[2]]
		if !known {
			unit, known = units[strings.TrimSuffix(found[2], "s")]
		}
		if known && err == nil && n < int64(time.Duration(1<<63-1)/unit) {
			return (time.Duration(n) * unit).String(), nil
		}
	}
	d, err := time.ParseDuration(strings.TrimSuffix(text, " ago"))
	if err == nil && d >= 0 && none != nil {
		return d.String(), nil
	}
	if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return t.Format(time.RFC3339Nano), nil
	}
	for _, layout := range []string{time.DateTime, "2006-01-02 15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return t.Format(time.RFC3339Nano), nil
		}
	}
	return "", server.UsageError{Err: fmt.Errorf("%q is no moment: give a revision, a time such as "+
		"\"2006-01-02 15:04\", or \"10 minutes ago\"", text)}
}
