package sqlite

import "github.com/rowkeeper/rowkeeper/storage/internal/mvcc"

// Driver serves the URL schemes "sqlite" and "memory".
var Driver mvcc.Driver = driver{}

type driver struct{}

func (driver) Name() string { return "sqlite" }

func (driver) Schemes() []string { return []string{"sqlite", "memory"} }
