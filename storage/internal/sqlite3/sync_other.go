//go:build !linux

package sqlite3

import "modernc.org/libc"

// syncData leaves it to SQLite.
func syncData(*libc.TLS, uintptr) (rc int32, done bool) { return 0, false }
