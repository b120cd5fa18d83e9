//go:build !unix

package storage

import "time"

// processorTime is not known here.
func processorTime() time.Duration { return 0 }
