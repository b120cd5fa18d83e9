package storage

import limits "github.com/rowkeeper/rowkeeper/storage/internal/memory"

// Memory is how many bytes of memory this process has: what GOMEMLIMIT says, or its control group,
// or the machine, whichever is least. It is math.MaxInt64 where nothing of that can be found out.
func Memory() int64 { return limits.Available() }

// KeepWithinGroup sets GOMEMLIMIT, unless it is set, to nine tenths of what the control group of
// this process may have, so that garbage is collected before the kernel ends the process. It is for
// programs, which call it at their start.
func KeepWithinGroup() { limits.KeepWithinGroup() }
