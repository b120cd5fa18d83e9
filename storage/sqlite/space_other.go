//go:build !linux

package sqlite

import "errors"

// space is not known on this system.
func space(string) (free, total int64, err error) { return 0, 0, errors.ErrUnsupported }
