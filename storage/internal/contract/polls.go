package contract

import "time"

// Polled is what a poll tells of a store.
type Polled struct {
	State State
	Quota Quota
	// Generation is that of the declarations of indexes.
	Generation int64
	// Due is the time until the next key expires by itself, or the next lease lapses. It is not
	// positive if that is over, and Never if there is none. It is valid if it was asked for.
	Due time.Duration
	// Err is what a read of this store would return instead. Nothing else is valid then.
	Err error
}

// Never is the time until what does not happen.
const Never = time.Duration(1<<63 - 1)

// DueIn is the time until a moment, in microseconds since 1970, that a database of the state tells.
func (st State) DueIn(micro int64) time.Duration {
	return time.Duration(micro-st.Now.UnixMicro()) * time.Microsecond
}

// ErrStaleConnection is the error of a poll for which each new connection is too old for one of the
// stores already.
var ErrStaleConnection = Errorf(Transient, "a store that is polled with others has changed to "+
	"another server meanwhile")
