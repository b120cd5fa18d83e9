package contract

// A database with relaxed durability confirms commits that are not on the disk yet: SQLite with
// synchronous=NORMAL, PostgreSQL with fsync=off, MySQL with innodb_flush_log_at_trx_commit=2. They
// are lost when their holder ends, be it the operating system or the server. The positions that
// processes have seen tell that, unless all processes that had seen the lost revisions ended
// together with the database: then clients would meet the same revisions again, with other content.
//
// So before its first commit a process records, durably whatever the settings are, the boot that
// holds such commits. If another one has taken its place, commits may be lost, and the process
// fences. That is noticed where a fingerprint is compared, too: when a process starts, and by each
// new connection to a server. A process that is killed leaves the boot as it is, so its restart is
// no fence.
//
// The record stays when the settings become strict: what was committed before is not on the disk by
// that. It stays when processes and the database end in order, though nothing is lost then, since
// no database tells afterwards how it ended. The fence that follows takes it away.

// Durability says what can undo commits of a database, as the driver finds it.
type Durability struct {
	// Boot names the run of whatever holds commits that are not on the disk: the operating system's
	// for SQLite, the server's for others. "" where nobody can tell.
	Boot string
	// Relaxed tells whether the settings let commits be confirmed before they are on the disk.
	Relaxed bool
	// Recorded is the boot in which commits were made while the settings were relaxed, "" if there
	// were none since the last fence.
	Recorded string
}

// Lost tells whether confirmed commits may be lost: those of the recorded boot, which is over.
func (d Durability) Lost() bool { return d.Recorded != "" && d.Recorded != d.Boot }

// AtRisk is the boot that has to be recorded before the next commit, "" if none.
func (d Durability) AtRisk() string {
	switch {
	case d.Relaxed:
		return d.Boot
	case d.Lost():
		return ""
	}
	return d.Recorded // with strict settings commits before may still be lost
}

// Settled tells whether commits may be made: none is lost, and the boot is recorded if need be.
func (d Durability) Settled() bool { return d.Recorded == d.AtRisk() }

// Continues tells whether a new connection, which finds d, may be used by a store that is at a
// place. The store settles what it found when it was opened; if something else is not settled, the
// backend answers Fenced.
func (d Durability) Continues(at Place) bool {
	return d.Settled() || d.Boot == at.Boot && d.Relaxed == at.Relaxed
}
