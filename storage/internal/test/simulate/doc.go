// Package simulate runs mvcc on a simulated database, with faults, from seeds. It holds tests only.
//
//	go test .                                       400 runs, a part of make test, and 100 of stores
//	                                                that several databases have
//	go test -run TestSimulation -sim.seed 7 -sim.runs 1 -v .            a run again
//	go test -run TestSpread -sim.seed 7 -sim.runs 1 -v .                one of those again
//	make mutants MUTANTS='-only "^I3 "'                                 deliberate faults
//	make simulate SIMULATE='-sim.budget 1h -sim.seed 0'                 as many as an hour takes
//
// A run is a plan (plan_test.go), which is made from its seed: what clients do, which faults meet
// whom, and how much happens in between. If a run fails, what the violation does not need is left
// out of the plan, and a Go test is printed that repeats the rest.
//
// # The world
//
// Up to three processes ([mvcc.Engine]) use one database (server_test.go), which is memdb with what
// a real one has besides: each call stops before the server takes it, when it has the commit lock,
// before it commits, before the commit is durable, and before the answer arrives. The driver of the
// run (world_test.go) lets one stopped call or one client go on at a time, by the plan's seeds, and
// waits until all is quiet again. It lets time pass when it likes: all is in a bubble of
// testing/synctest. There are three kinds of database:
//
//   - sqlite: one machine. A crash of it ends all processes. Other processes' writes are polled
//     for.
//   - postgres: notifications, which can be lost, late and doubled.
//   - mysql: a commit is visible, and the lock is free, before it is durable.
//
// The faults are: connections that are refused, or cut before the request, before the commit or
// before the answer; zombies, which nobody waits for, and which commit later; waits for the lock
// that end; full disks; calls that hang; answers that come late; standbys that answer in the
// primary's place; processes that are killed, closed, paused and started again; power failures
// under strict and relaxed durability; older copies in the database's place, of the same name or
// another one, fenced elsewhere or not; standbys that are promoted without the newest commits;
// clocks that jump.
//
// # The judge
//
// It sees every version of the tables, and knows what every client was told (judge_test.go).
//
//   - log: revisions are dense, each row names the one that it replaced, and the live rows are what
//     the log says. Every row that can be read is there. A transaction has all its rows at one
//     revision.
//   - durable: what was acknowledged was written while the request was under way, once, at its
//     revision, as it was asked for. A power failure does not take it away if the settings are
//     strict.
//   - refused, twice: what was refused, or failed with the promise that nothing was written, is
//     not in the log and does not come into it later. Nothing is there twice. No group is in the
//     log together with the record that it is not done, no such record is made where the group may
//     have been done and swept, or be in another history, and no group is done that compaction has
//     overtaken, as its record may be forgotten. One thing is nobody's fault: a group is
//     lost, is declared not done, and is in a copy of before, which replaces the database
//     (TestLostGroupComesBack).
//   - expectation: what a write replaces is what its client had read, not only its revision.
//   - conflict: a write that is refused because of its key's revision met that revision.
//   - condition: a write that compares other keys was done where the comparisons came out as it
//     demands and nothing was written that was to be untouched, and one that was refused for that
//     met a state in which it was not so.
//   - linearizable: an answer is what the database held at some moment between the request and the
//     answer. All pages of a list show one such moment.
//   - backwards, history: a process never shows a lower head than before, nor another one at the
//     same revision. It writes nothing in a history in which what it has shown is lost.
//   - fence: a fence is far beyond what was there before it, and compacts up to its marker. A
//     revision that was shown and is lost is below compacted in the end. Its revision is not
//     written again where everybody could notice the loss.
//   - watch: what a watch has seen is a piece of one history, with all its rows, in order, without
//     a fence in it. It does not end without a reason.
//   - index: an index that is ready has of each key what the key's value says, or that this is not
//     known, and so has one that is built, of the keys that the walk has passed. The log has the
//     same of the rows that were replaced since the index became ready.
//   - compaction, expiry: in the end, what was replaced and what has expired is gone, and so are
//     the records that nobody needs. Nothing expires early.
//   - liveness: when all faults are over, all requests end, all processes start, write and are
//     ready, and all watches come to the head.
//   - error: no error says that the database is damaged.
//
// # Stores that several databases have
//
// TestSpread (spread_test.go) has another world, of the same calls and faults: three databases of
// any kinds, and eight names, of which each is in one of them. A directory (storage/directory) says
// in which. It is in the first database. Five processes use it, through a driver of the simulation:
//
//   - two create, move, undo, drop and drain, go on with what others have begun, and rebuild the
//     directory while nothing is in hand. They are killed, and paused at any call. So they wake
//     when others have gone on or have undone what they do.
//   - three are front ends, whose clients write, read and watch. Some have a directory of before:
//     a copy of the first database as it was, or none, since they cannot reach it.
//
// A power failure meets one database, with all its stores, also at the moment when a commit is
// visible and not durable yet.
//
// The judge (spread_judge_test.go) sees every version of every store. Its rules:
//
//   - two: at most one database has a name open.
//   - lost: where a name is opened, it holds what it held at last, byte for byte, or nothing if it
//     was dropped before and is created.
//   - backwards, twice: a history begins above all that the name has shown, no revision is there
//     twice, and no process shows one that is lower than before.
//   - linearizable: an answer is what the name held at some moment between the request and the
//     answer, wherever it was open then. So an old place answers nothing after it was closed.
//   - durable, refused, conflict, log, watch: as above. A watch does not go on over a move.
//   - directory: where the directory says that a name is open, it is open, with that generation.
//   - disagree: no process finds rows that do not agree.
//   - liveness: when all faults are over, what is in hand with a name can be ended or undone, and
//     each front end writes and reads it.
//
// Not simulated are: databases that are set back, a directory that is lost, keys and leases that
// expire, clocks that differ, and stores with a quota, indexes or transactions. The tests of
// package directory have some of that.
//
// # What is not repeatable
//
// The plan and the driver's choices are repeated exactly, and so are times. Tokens come from a seed
// (testing/cryptotest). The rest is the Go runtime's choice: which case of a select is taken if
// several can be, the order of a map, the jitter of pauses between retries, which comes from
// math/rand/v2, and when the runtime takes the processor from a goroutine. All tests run on one
// processor, so goroutines that one step has woken run in the same order most of the time.
// TestRepeatable says how many runs are the same to the last step: about half. So a plan that has
// failed is tried twice before a part of it is taken for needed.
//
// mvcc's own bounds for what it remembers of the history (positions.go) are not reached: they are
// thousands of positions.
package simulate
