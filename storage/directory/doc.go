// Package directory spreads stores over many databases, and moves a store from one to another while
// its clients go on. It is for programs that serve many stores, and for the commands "rowkeeper
// stores" and "rowkeeper etcd" with --directory.
//
// # The directory
//
// The directory says in which database each store is. It is kept in the default store of a control
// database, which may be of any kind: a key for each name, which no client of etcd's API can write.
// The control database may hold stores as well.
//
// A row names a database; it has no URL. Each process knows the URLs of the names by a file of its
// own ([Databases]). So whoever can read the directory learns no password, and whoever can write it
// leads nobody to a server that the readers do not know.
//
// A row ([Row]) has a state, a generation, which rises by one with each creation and each move of
// the name, the identifier of a move, and a floor: every history of the name that begins from now
// on begins beyond that revision. A row is never removed. A dropped store leaves its generation and
// its floor.
//
// The row of the store in its database ([contract.Home]) has the generation and the move, too. The
// commit lock of the store protects it. So three rows tell of a move: the directory's, the
// source's and the target's.
//
// # The states of a name
//
//	creating  The store may be there or not. Nobody uses it.
//	open      The store is in the database Database.
//	moving    It is there, and is copied to the database To by Move.
//	opening   It is in the database Database by now. Move has closed From, and opens Database.
//	undoing   It is in the database Database. Move is given up, and To is emptied.
//	dropping  The store is being dropped from the database Database.
//	dropped   There is no such store.
//
//	creating → open → moving → opening → open
//	                  moving → undoing → open
//	           open → dropping → dropped → creating
//
// What can be known to fail is found before the first arrow: a store that is there already, or that
// other stores need, or that is not what the directory says. A store that its database has lost can
// be dropped.
//
// Each arrow is one write of the row, which expects the revision that the process has read. So of
// two processes at most one takes an arrow from a state, and both arrows out of moving are taken
// never.
//
// # The steps of a move
//
// Let g be the generation. The source is the store in Database, the target that in To.
//
//  1. Directory: open → moving, with a new Move.
//  2. Source: the generation must be g.
//  3. Target: it is created, or it is what an earlier move or a drop has left. What is left of that
//     is erased. Then it is marked as closed, with g+1 and Move, and filled (package storage/move):
//     copied at a revision, and then the log is followed until nearly nothing is missing.
//  4. Source: it is closed, by a negative epoch, with g and Move, in one transaction under its
//     commit lock. Nobody reads it or writes it from then on.
//  5. Target: what the log has since is written. All is compared, read back and hashed.
//  6. Directory: moving → opening. Database and To change places, the generation becomes g+1, and
//     the floor the head of the source.
//  7. Target: it is opened, by a positive epoch, a jump above its own head, the source's head and
//     the floor. The same transaction gives it the leases, the quota, the identity
//     and the declarations of indexes, which are built anew.
//  8. Source: what it holds is erased, and its mark, its generation and Move stay.
//  9. Directory: opening → open.
//
// A move is undone in these steps:
//
//  1. Directory: moving → undoing.
//  2. Target: if it was taken, it becomes a closed store that has no content, in which Move can
//     never begin again. If it is open, nothing is undone: the move has ended.
//  3. Source: if Move has closed it, it is opened, by a positive epoch, a jump above its head. That
//     is a fence. In any case, Move can never close it again.
//  4. Directory: undoing → open.
//
// # The invariants
//
// D1 At most one database answers for a name. A store is open if its epoch is positive. At any
// time, of all databases at most one has the name open with a home.
//
//   - A target is opened by step 7 alone, after step 6. Step 6 is taken after step 4 and from moving
//     only, so after it nobody takes the step to undoing, and nobody opens the source.
//   - The source is opened by step 3 of undoing alone. That comes after step 2, under the target's
//     lock: the target is not open, and its fill has lost its turn, so step 7 of a process that
//     slept through all of that finds another head, and does nothing ([contract.ErrTaken]). Neither
//     can it take a new turn, since the target's row says that Move was undone.
//   - A process that slept before step 4 finds in the source's row that Move was undone, or another
//     generation, or a newer move, and closes nothing.
//   - The directory numbers the moves, creations and drops of a name, and each writes its number
//     into the rows of the stores that it changes. None does anything to a store that a newer one
//     has changed. So a process that wakes late neither fills nor empties a store that was opened
//     and closed meanwhile, although its generation is the one that the process goes by.
//   - What a process finds may be visible and not durable yet: in MariaDB, in MySQL without a binary
//     log, and on a PostgreSQL that waits for a standby. A power failure of that database could take
//     it away after a step in another database. So whoever goes on from what another process has
//     done writes there first, in the row of the directory or of the store: that is durable only if
//     all before it is.
//   - A store is created by [Directory.Create] only when no other row of the name is open: the
//     row is dropped, or is not there. `rowkeeper stores create` does not replace what a move has
//     left.
//   - [Directory.Rebuild] adopts an open store without a home only if no database has the name open
//     with one. It goes on beyond the floor, by a fence if it has to.
//
// D2 Nothing that was acknowledged is lost. Step 4 is a commit of the source, after all that it has
// acknowledged. Step 5 reads the source after it, in one snapshot, and compares every key. Step 8
// erases the source after the target was opened, and only if the source's row has g and Move. A
// source that came back as the target of a later move has another generation.
//
// D3 No revision goes back, none is used twice. The marker of the target's new history is above
// every revision that the source has shown, and compacted is at the marker. So whoever resumes from
// a revision of the source finds it compacted, and lists. Each object keeps its revision, which is
// below the marker. The same holds if the name comes back to a database where it was: there, too,
// the marker goes beyond the head of the tombstone. The floor holds it where the old database is
// lost altogether.
//
// D4 A front end with an old directory does no harm. It finds the source closed, whenever its
// connection was made, since the epoch is in each snapshot that it reads and in each commit's
// check. So it neither answers nor writes. When it finds a store closed, it reads the directory,
// and goes where that leads. It uses what it has read until then, also while the directory cannot
// be reached. If it cannot reach the database, it reads the directory as well, and lets go of a
// store that has left: its watches end, and begin anew in the other database.
//
// D5 An unknown outcome is resolved at the source, or it stays unknown. A group that was sent to
// the source before step 4 is found there by its token, while the source holds its rows. A group
// that is not found is never called "not done", because its rows may have been erased. It can
// never be committed, because its epoch has ended.
//
// # What each kill leaves
//
//	after 1   moving, and nothing else. The next run goes on, or the move is undone.
//	after 3   a target that is closed. The next run takes its turn, and copies what lacks.
//	after 4   both ends are closed, and nobody serves the name. The next run goes on, or the move is
//	          undone. Whoever waits is told that it is unavailable.
//	after 6   the same, but that it can only be finished. The copy is complete: the record of the
//	          fill has said so since before step 6, and step 7 needs nothing from the source but
//	          what it has besides keys, which stays until step 8.
//	after 7   the target serves. The next run erases the source, and writes the row.
//	after 8   the same.
//
// An undoing that was killed is ended by the next one, also if the directory was lost and rebuilt:
// what it has emptied says of which move. A kill within a step is one before it or
// after it, since each step is one transaction, but for the copy and the erasing, which may be
// repeated.
//
// # What is lost
//
// The directory can be rebuilt from the databases ([Directory.Rebuild]): of all rows of a name, the
// one with the highest generation wins. If it is closed, it is the target of a move, and its row
// names the source: the name is in the state moving then. That is right also if step 6 had been
// taken: the target is not open, so nobody has used it; and if another process opens it later, the
// next run and the undoing find that it is open.
//
// A front end reads the directory before it opens a store, and compares the generation of the row
// with that of the store. So a directory, or a database, that was set back is noticed where the two
// do not agree. It is not noticed if a front end that has run since before the move keeps to the
// source, and the source's volume is set back to before step 4 in place, with the same fingerprint.
// docs/operate/failover.md says when a fence by hand is needed; after such a restore, close the
// store by `rowkeeper directory rebuild`, before servers start.
//
// # What stays behind
//
// History stays: it is compacted at the target. A store that keeps resources in another store of
// its database (--store-for), or keeps those of another one, is refused: the resources have to be
// moved back first. The store "default" is in every database, and is not in the directory.
package directory
