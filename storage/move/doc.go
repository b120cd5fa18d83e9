// Package move moves what an etcd, a kine or a store holds into a new store, while the source
// serves. It is for the command "rowkeeper move".
//
// # What a move does
//
// A move goes through three phases. Its record, in the target, says in which one it is and how far
// it has come. So a move that was interrupted goes on, whatever has ended it.
//
//  1. Copy. A pass reads everything that the source holds, as of one moment, and everything that
//     the target holds. It writes what differs, and removes what the source has no more.
//  2. Follow. The changes of the source are read in their order, from the moment of the pass on,
//     and are written as they come. If the source has compacted what was to be read next, the move
//     is in the first phase again. This phase lasts until somebody says that the move shall end,
//     who has stopped the writers of the source before.
//  3. End. The source is fenced, if it can be: nobody writes it any more. A last pass compares
//     everything. The target is read back, and its keys are counted and hashed. Then the target is
//     opened to its servers.
//
// # Why nothing is lost
//
// The last pass reads the source when nobody writes it. It compares all that is there, byte for
// byte, with what the target holds, and writes what differs. So what the target holds in the end
// depends on this pass alone. The passes and the changes before it decide only how much it has to
// write, and so how long the writers have to wait.
//
// The source stands still during the last pass since it is fenced:
//
//   - kine's table is renamed, in a transaction that waits until nobody uses it. A table of the old
//     name is put in its place, of which kine can use nothing. Otherwise a kine that is started
//     again would make an empty one, and its cluster would begin anew.
//   - A store is closed (see storage/internal/contract, fill.go), under its commit lock.
//   - An etcd cannot be fenced. Its revision rises with each write. It must not rise for a while
//     before the pass, and the one after the pass must be the one before it. Otherwise the move
//     fails, and can be ended again later. The operator must not start the writers again, and for
//     this no program can vouch.
//
// No client goes back. The head of the target lies beyond every revision that the source has shown,
// and everything up to there is compacted. So a watch or a list that resumes with a revision of the
// source is told that this is too old, and lists again. What the client reads then is what the
// source held at last, or newer. Objects keep their revisions, so a client that remembers one can
// update the object, and is refused if it has changed. History is not moved.
//
// Nobody reads a target that is not complete. Its servers answer that the store is one end of a
// move, from the first write to the last one. The last one is a transaction, which opens the store.
//
// Keys keep their names. The encryption of Kubernetes binds a value to its key.
//
// # What each crash leaves
//
//	during a copy         a target that is closed, with a part of the keys. The next run reads both
//	                      sides again, and writes what lacks.
//	while following       a target that is closed, as of the recorded revision. A batch of changes
//	                      and the record that says so are written in one transaction.
//	before the fence      the same.
//	after the fence       the record has said since before the fence that the move ends. So the next
//	                      run knows who has closed the source, and ends.
//	in the last pass      the same. To compare twice does no harm.
//	opening the target    it is open or closed. If it is open, the record is gone: the next run says
//	                      that the target was written before.
//
// If two processes move at once, the later one goes on; see fill.go of the contract.
//
// # How each source is followed
//
// kine's table is a log. A row's number is its revision, and a transaction that has a number and is
// not committed leaves a gap for a while. Whoever reads beyond a gap would miss what comes there
// later. So the follower stops at a gap until the row is there. A kine that runs fills the gaps
// that failed transactions leave, within a second or two. It does not fill those that it found when
// it started. So after a minute the follower does go on. If a row did come there later, the last
// pass would find it. Compaction has passed the follower if kine's compacted revision is greater
// than its position: then deletions may be gone that it has not read.
//
// kine does not record when a key with a lease has expired, and counts anew whenever it is started.
// So does a move: in the last pass, each such key gets its whole time to live, as an expiry of its
// own.
//
// The log of a store is read in the same way, and has no gaps. Expiries are not in it: the last
// pass writes those that lack. The leases of a store and of an etcd are written at the end, with
// the time that they have left.
package move
