package storage

import (
	"context"

	"github.com/rowkeeper/rowkeeper/storage/internal/database"
	"github.com/rowkeeper/rowkeeper/storage/internal/inspect"
)

// DatabaseStatus is what an operator wants to see of a database at a glance.
type DatabaseStatus = inspect.Status

// BackupFile and Certificate are what files add to a status.
type (
	BackupFile  = inspect.BackupFile
	Certificate = inspect.Certificate
)

// Status reads what uses a database, how large it is, and how far the history of the store has come
// that Config.Store names. It needs no server. It writes nothing, and takes no lock that a writer
// needs.
func Status(ctx context.Context, c Config) (*DatabaseStatus, error) {
	return database.Status(ctx, c.Database())
}

// DatabaseReport is what was found in a database that is not as it should be.
type DatabaseReport = inspect.Report

// ExamineOptions say how to examine a database.
type ExamineOptions = inspect.Options

// Severity says how bad a finding of a report is.
type Severity = inspect.Severity

// The severities: a note needs nothing, a warning will cost something one day, an error does now.
const (
	SeverityNote    = inspect.Note
	SeverityWarning = inspect.Warning
	SeverityError   = inspect.Error
)

// Examine checks all that Rowkeeper relies on in a database, and the consistency of the store that
// Config.Store names. It needs no server. It writes no row, and takes no lock that a writer needs;
// where the options ask for it, it makes indexes and statistics.
func Examine(ctx context.Context, c Config, o ExamineOptions) (*DatabaseReport, error) {
	return database.Examine(ctx, c.Database(), o)
}
